"""Recordings as people and tools really write them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from commandline import SCENARIOS
from numpy.typing import NDArray

from turngap.core.errors import InputError
from turngap.score.hearing import hear_call
from turngap.score.recording import Recording, find_recordings, read_recording
from turngap.store.sound import read_sound
from turngap.testing.agent import voice

RATE = 16_000
GAP_MS = 700.0
Stereo = NDArray[np.int16]


def call(gap_ms: float = GAP_MS, *, turns: int = 3, recorded: bool = False) -> Stereo:
    """A call in which the person has a microphone's noise, and the agent answers after a gap.

    Only recorded voices have an echo that can be told from the rest of the voice.
    """
    person, agent = (np.zeros(RATE * 5 * turns + RATE, dtype=np.int16) for _ in range(2))
    for n in range(turns):
        first = RATE // 2 + n * RATE * 5
        for side, at_ms, ms in ((person, 0.0, 1200.0), (agent, 1200.0 + gap_ms, 1500.0)):
            said = recording_of(ms) if recorded and side is agent else voice(ms, RATE)
            at = first + round(at_ms * RATE / 1000)
            side[at : at + len(said)] = said
    noise = np.random.default_rng(1).normal(0, 20, len(person)).astype(np.int16)
    return np.stack([person + noise, agent], axis=1)


def recording_of(ms: float) -> NDArray[np.int16]:
    samples = read_sound(SCENARIOS / "coffee-order" / "1.flac", "scenario").samples[:, 0]
    onset = int(np.flatnonzero(np.abs(samples) > 1000)[0])
    return samples[onset : onset + round(ms * RATE / 1000)]


def at_rate(stereo: Stereo, rate: int) -> Stereo:
    return soxr.resample(stereo, RATE, rate)


def gaps_ms(recording: Recording) -> list[float | None]:
    return [turn.gap_ms for turn in hear_call(recording, "call").turns]


WRITERS: dict[str, Callable[[Path], Path]] = {}


def written(name: str, rate: int = RATE, **how: Any) -> None:
    def write(folder: Path) -> Path:
        file = folder / name
        # As floats: libsndfile makes noise of integers in MP3.
        soundfile.write(file, at_rate(call(), rate) / 32768, rate, **how)
        return file

    WRITERS[f"{name} {rate} {how.get('subtype', '')}".strip()] = write


written("call.wav")
written("call.wav", 8000)
written("call.wav", 44_100)
written("call.wav", 48_000, subtype="PCM_24")
written("call.wav", 96_000, subtype="PCM_32")
written("call.wav", subtype="FLOAT")
written("call.wav", subtype="DOUBLE")
written("call.wav", 8000, subtype="ULAW")
written("call.wav", 8000, subtype="ALAW")
written("call.wav", subtype="PCM_U8")
written("call.flac", 24_000)
written("call.ogg", 48_000, subtype="OPUS")
written("call.opus", 48_000, format="OGG", subtype="OPUS")
written("call.ogg", 44_100, subtype="VORBIS")
written("call.mp3", 44_100)
written("call.mp3", 16_000)
written("call.aiff")
written("my call, 3pm.wav")


@pytest.mark.parametrize("name", WRITERS)
def test_each_kind_of_file_has_the_right_gaps(tmp_path: Path, name: str) -> None:
    recording = read_recording(WRITERS[name](tmp_path), person="left")

    assert recording.rate in (8000, 16_000, 24_000)
    assert gaps_ms(recording) == [pytest.approx(GAP_MS, abs=40)] * 3


def header_says(size: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        file = folder / "call.wav"
        soundfile.write(file, call(), RATE)
        raw = bytearray(file.read_bytes())
        at = raw.find(b"data") + 4
        raw[at : at + 4] = size.to_bytes(4, "little")
        file.write_bytes(raw)
        return file

    return write


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 2_000_000_000])
def test_a_length_that_a_stream_left_open_is_read(tmp_path: Path, size: int) -> None:
    assert len(gaps_ms(read_recording(header_says(size)(tmp_path), person="left"))) == 3


@pytest.mark.parametrize("kept", [-3, 260_000])
def test_a_file_that_was_cut_is_scored_as_far_as_it_goes(tmp_path: Path, kept: int) -> None:
    file = raw(written_call(tmp_path)[:kept])(tmp_path)

    gaps = gaps_ms(read_recording(file, person="left"))

    assert gaps[0] == pytest.approx(GAP_MS, abs=40)


def sound(
    samples: NDArray[np.generic], name: str = "call.wav", **how: Any
) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        soundfile.write(folder / name, samples, RATE, **how)
        return folder / name

    return write


def raw(content: bytes, name: str = "call.wav") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def written_call(folder: Path, name: str = "call.wav") -> bytes:
    return sound(call(), name)(folder).read_bytes()


MONO = call()[:, 0]
REFUSED: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "mono": (sound(MONO), "call.not_stereo", "both people are in one"),
    "mono twice": (sound(np.stack([MONO, MONO], axis=1)), "call.mono", "the same sound"),
    "mono twice, softer": (sound(np.stack([MONO, MONO // 2], axis=1)), "call.mono", "the same"),
    "three channels": (sound(np.stack([MONO] * 3, axis=1)), "call.not_stereo", "3 channels"),
    "silence": (sound(np.zeros((RATE, 2), np.int16)), "call.silent", "nothing can be heard"),
    "hiss": (
        sound(np.random.default_rng(1).integers(-3, 4, (RATE, 2)).astype(np.int16)),
        "call.silent",
        "nothing can be heard",
    ),
    "a silent person": (
        sound(np.stack([np.zeros_like(MONO), MONO], axis=1)),
        "call.silent",
        "the left side is silent",
    ),
    "silence off centre": (
        sound(np.full((RATE, 2), 900, np.int16)),
        "call.silent",
        "nothing can be heard",
    ),
    "empty": (sound(np.zeros((0, 2), np.int16)), "call.silent", "nothing can be heard"),
    "no bytes": (raw(b""), "call.not_audio", "not audio"),
    "text": (raw(b"hello, I am no recording\n" * 40), "call.not_audio", "not audio"),
    "half a header": (raw(b"RIFF\x24\x00\x00\x00WAVEfmt "), "call.not_audio", "not audio"),
    "a page": (raw(b"<title>403</title>", "call.mp3"), "call.not_audio", "not audio"),
    "integers as floats": (
        sound(call().astype(np.float32), subtype="FLOAT"),
        "call.not_audio",
        "samples up to",
    ),
    "no numbers": (
        sound(np.full((RATE, 2), np.nan, np.float32), subtype="FLOAT"),
        "call.not_audio",
        "not numbers",
    ),
    "two files in one": (
        lambda folder: raw(written_call(folder) * 2)(folder),
        "call.not_audio",
        "a second file begins",
    ),
    "half a FLAC file": (
        lambda folder: raw(written_call(folder, "call.flac")[:20_000], "call.flac")(folder),
        "call.not_audio",
        "not audio",
    ),
    "a format of phones": (raw(b"\0\0\0 ftypM4A ", "call.m4a"), "call.not_audio", "ffmpeg -i"),
    "a header of no samples": (header_says(0), "call.not_audio", "holds no samples"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_scored_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    write, kind, why = REFUSED[name]

    with pytest.raises(InputError, match=why) as refused:
        read_recording(write(tmp_path), person="left")

    assert refused.value.kind == kind
    assert refused.value.hint


def test_a_call_of_over_two_hours_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long.flac"
    soundfile.write(file, np.zeros((8000 * 7300, 2), np.int16), 8000)

    with pytest.raises(InputError, match="lasts 7300 s") as refused:
        read_recording(file)

    assert refused.value.kind == "call.too_long"


# --- sides ----------------------------------------------------------------------------------------


def read(folder: Path, samples: Stereo, **how: object) -> Recording:
    return read_recording(sound(samples)(folder), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_microphones_noise_shows_the_person(tmp_path: Path, side: str) -> None:
    stereo = call() if side == "left" else call()[:, ::-1]

    recording = read(tmp_path, stereo)

    assert recording.side == side
    assert "digital silence" in recording.why_side
    assert gaps_ms(recording) == [pytest.approx(GAP_MS, abs=40)] * 3


def greeted(*noise: float) -> Stereo:
    """A call that the agent on the right opens, with noise on both sides."""
    greeting = np.zeros((2 * RATE, 2), np.int16)
    greeting[: RATE + RATE // 2, 1] = voice(1500, RATE)
    stereo = np.concatenate([greeting, call()])
    hiss = np.random.default_rng(3).normal(0, noise, stereo.shape)
    return np.clip(stereo + hiss, -32768, 32767).astype(np.int16)


def test_a_decision_says_whether_the_order_of_the_voices_fits(tmp_path: Path) -> None:
    opened_by_the_person = read(tmp_path, call())
    opened_by_the_agent = read(tmp_path, greeted(200, 20))

    assert "but it speaks first" in opened_by_the_person.why_side
    assert opened_by_the_agent.side == "left"
    assert "noise floor" in opened_by_the_agent.why_side
    assert "the other side speaks first" in opened_by_the_agent.why_side


def test_a_floor_that_the_order_contradicts_decides_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which side is the person"):
        read(tmp_path, greeted(20, 300))  # as an office that is played behind the agent


def test_a_silent_agent_is_scored_where_the_person_is_named(tmp_path: Path) -> None:
    mute = call()
    mute[:, 1] = 0

    with pytest.raises(InputError, match="the right side is silent") as refused:
        read(tmp_path, mute)
    assert "--person left" in refused.value.hint

    recording = read(tmp_path, mute, person="left")
    assert any("agent's side is silent" in note for note in recording.notes)
    assert gaps_ms(recording) == [None] * 3


def test_two_sides_alike_must_be_named(tmp_path: Path) -> None:
    stereo = call()
    stereo[:, 1] += np.random.default_rng(2).normal(0, 20, len(stereo)).astype(np.int16)

    with pytest.raises(InputError, match="which side is the person") as refused:
        read(tmp_path, stereo)

    assert refused.value.kind == "call.side"
    assert "--person" in refused.value.hint
    assert read(tmp_path, stereo, person="right").side == "right"


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("echo_db", "late_ms"), [(-20, 120), (-12, 40), (-30, 250)])
def test_an_echo_of_the_agent_is_no_speech_of_the_person(
    tmp_path: Path, echo_db: float, late_ms: float
) -> None:
    stereo = call(recorded=True)
    echo = (stereo[:, 1] * 10 ** (echo_db / 20)).astype(np.int16)
    stereo[:, 0] += np.roll(echo, round(late_ms * RATE / 1000))

    recording = read(tmp_path, stereo, person="left")

    assert recording.echo_db == pytest.approx(echo_db, abs=2)
    assert any(f"{late_ms:.0f} ms late" in note for note in recording.notes)
    assert gaps_ms(recording) == [pytest.approx(GAP_MS, abs=60)] * 3


def test_sides_that_hold_each_others_voice_are_refused(tmp_path: Path) -> None:
    stereo = call(recorded=True)
    stereo[:, 0] += (stereo[:, 1] * 0.7).astype(np.int16)

    with pytest.raises(InputError, match="each side holds the other's voice") as refused:
        read(tmp_path, stereo, person="left")

    assert refused.value.kind == "call.crosstalk"


def test_an_echo_before_its_voice_aligns_the_sides(tmp_path: Path) -> None:
    stereo = call(recorded=True)
    stereo[:, 0] += (stereo[:, 1] * 0.1).astype(np.int16)
    stereo[:, 1] = np.roll(stereo[:, 1], round(0.2 * RATE))

    recording = read(tmp_path, stereo, person="left")

    assert recording.offset_ms == pytest.approx(-200, abs=2)
    assert gaps_ms(recording) == [pytest.approx(GAP_MS, abs=60)] * 3


def test_an_echo_of_the_person_is_no_first_word_of_the_agent(tmp_path: Path) -> None:
    stereo = call(recorded=True)[:, ::-1].copy()  # recorded voices are the person's now
    recorded, agent = stereo[:, 0].copy(), stereo[:, 1].copy()
    agent += (np.roll(recorded, 80 * RATE // 1000) * 10 ** (-18 / 20)).astype(np.int16)
    whole = read(tmp_path, np.stack([recorded, stereo[:, 1]], axis=1), person="left")

    recording = read(tmp_path, np.stack([recorded, agent], axis=1), person="left")

    assert any("agent's side holds the person's voice at -18 dB" in n for n in recording.notes)
    assert recording.echo_db is None
    assert gaps_ms(recording) == [
        gap if gap is None else pytest.approx(gap, abs=40) for gap in gaps_ms(whole)
    ]


def test_a_side_off_centre_is_moved(tmp_path: Path) -> None:
    recording = read(tmp_path, call() + np.array([1000, 0], np.int16), person="left")

    assert any("centred at 1000" in note for note in recording.notes)
    assert abs(int(np.median(recording.person))) <= 1
    assert gaps_ms(recording) == [pytest.approx(GAP_MS, abs=40)] * 3


def test_holes_of_the_persons_side_are_noted(tmp_path: Path) -> None:
    stereo = call()
    for first_ms in (4500, 9500):
        stereo[first_ms * RATE // 1000 :][: 300 * RATE // 1000, 0] = 0

    recording = read(tmp_path, stereo, person="left")

    assert any("2 holes of digital silence, the longest 300 ms" in n for n in recording.notes)


def test_a_known_offset_is_taken_out(tmp_path: Path) -> None:
    recording = read(tmp_path, call(1000), person="left", offset_ms=300.0)

    assert recording.offset_ms == -300
    assert gaps_ms(recording) == [pytest.approx(700, abs=40)] * 3


def test_clipping_is_noted(tmp_path: Path) -> None:
    loud = np.clip(call().astype(np.int32) * 40, -32768, 32767).astype(np.int16)

    recording = read(tmp_path, loud, person="left")

    assert any("clipped" in note for note in recording.notes)


# --- files ----------------------------------------------------------------------------------------


def test_recordings_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b.wav", "a/c.MP3", "a/notes.txt", "a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert find_recordings([tmp_path, tmp_path / "b.wav"]) == [
        tmp_path / "a/c.MP3",
        tmp_path / "b.wav",
    ]


@pytest.mark.parametrize("name", ["gone", "empty"])
def test_a_folder_without_a_recording_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(InputError):
        find_recordings([tmp_path / name])

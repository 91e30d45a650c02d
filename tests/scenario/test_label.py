"""Speech bounds: found where they are, and written without touching anything else."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_speech import RATE, room, spoken
from turngap.core.audio import Pcm
from turngap.core.cue import Pause, SpeechBounds
from turngap.core.errors import ExitCode, InputError
from turngap.scenario.label import label_file, write_bounds
from turngap.scenario.library import load_scenario
from turngap.scenario.model import read_scenario
from turngap.scenario.speech import FoundSpeech, find_speech, speech_bounds

# Comments, order, blank lines and quoting that no YAML writer would give back.
WRITTEN = """\
# Recorded in the kitchen.
name:   talk
tags: [ smoke,kitchen ]   # two

turns:
- audio: "talk/1.wav"    # the first take
  say: 'hello'
  reply:  >-
      a long
      answer

- say: "and more"
  audio: talk/2.wav
  speech: { start_ms: 5 , end_ms: 950.5 }   # by ear
"""


def first() -> FoundSpeech:
    """Return the labels found in the first recording, talk/1.wav."""
    return known(spoken(before_ms=200, after_ms=300).pcm)


def second() -> FoundSpeech:
    return known(spoken(before_ms=300, after_ms=250).pcm)


def known(pcm: Pcm) -> FoundSpeech:
    found = find_speech(pcm, RATE)
    assert found is not None
    return found


def flow(found: FoundSpeech) -> str:
    bounds = found.bounds
    return (
        f"{{start_ms: {bounds.start_ms:g}, end_ms: {bounds.end_ms:g}, "
        f"start_error_ms: {bounds.start_error_ms:g}, end_error_ms: {bounds.end_error_ms:g}}}"
    )


def labelled() -> str:
    """WRITTEN with its labels."""
    return WRITTEN.replace(
        '- audio: "talk/1.wav"    # the first take\n',
        f'- audio: "talk/1.wav"    # the first take\n  speech: {flow(first())}\n  pauses: []\n',
    ).replace(
        "  speech: { start_ms: 5 , end_ms: 950.5 }   # by ear\n",
        f"  speech: {flow(second())}   # by ear\n  pauses: []\n".replace("{", "{ ")
        .replace(", end_ms", " , end_ms")
        .replace("}", " }"),
    )


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A scenario file as somebody wrote it, and its two recordings."""
    (tmp_path / "talk").mkdir()
    for name, room_ms in (("1.wav", (200, 300)), ("2.wav", (300, 250))):
        pcm = spoken(before_ms=room_ms[0], after_ms=room_ms[1]).pcm
        soundfile.write(tmp_path / "talk" / name, pcm, RATE)
    path = tmp_path / "talk.yaml"
    path.write_text(WRITTEN, encoding="utf-8")
    return path


def test_bounds_are_written_and_nothing_else_is_touched(talk: Path):
    label_file(talk)

    assert talk.read_text(encoding="utf-8") == labelled()


def test_what_was_found_is_returned_in_the_order_of_the_file(talk: Path):
    one, two = label_file(talk)

    assert (one.audio, one.before, one.pauses_before) == ("talk/1.wav", None, None)
    assert one.found == first()
    assert two.before == SpeechBounds(start_ms=5, end_ms=950.5)
    bounds = two.found.bounds
    assert str(two) == (
        f"talk/2.wav: speech {bounds.start_ms:g} ±{bounds.start_error_ms:.0f} to {bounds.end_ms:g} "
        f"±{bounds.end_error_ms:.0f} ms, was 5 to 950.5 ms"
    )


def test_a_second_time_changes_nothing(talk: Path):
    label_file(talk)
    before = talk.stat()

    assert [label.changed for label in label_file(talk)] == [False, False]
    assert talk.stat().st_mtime_ns == before.st_mtime_ns
    assert talk.stat().st_ino == before.st_ino


def test_only_missing_leaves_labels_that_are_there(talk: Path):
    labels = label_file(talk, only_missing=True)

    assert [label.audio for label in labels] == ["talk/1.wav"]
    assert "{ start_ms: 5 , end_ms: 950.5 }   # by ear" in talk.read_text(encoding="utf-8")


def test_the_result_can_be_played(talk: Path):
    label_file(talk)

    loaded = load_scenario(talk)

    assert loaded.scenario.turns[0].speech == first().bounds
    assert loaded.scenario.turns[0].pauses == ()


def test_a_label_outside_the_recording_is_mended(talk: Path):
    talk.write_text(WRITTEN.replace("950.5", "9000"), encoding="utf-8")

    label_file(talk)

    assert talk.read_text(encoding="utf-8") == labelled()


def test_backchannels_are_labelled_too(talk: Path):
    extra = "  backchannels:\n  - {say: mm, audio: talk/1.wav, reply_ms: 10}\n"
    talk.write_text(labelled() + extra, encoding="utf-8")

    *_, label = label_file(talk)

    assert label.audio == "talk/1.wav"
    wanted = extra.replace("1.wav,", f"1.wav, speech: {flow(first())}, pauses: [],")
    assert talk.read_text(encoding="utf-8") == labelled() + wanted


@pytest.mark.parametrize(
    "labels",
    [
        "speech:",
        "speech: null",
        "speech: ~",
        "speech:\n      start_ms: 1\n      end_ms: 2  # ?",
        "speech:\n      start_ms: 1\n      end_error_ms: 7\n      end_ms: 2",
        "pauses:",
        "pauses: null",
        "speech: {start_ms: 1, end_ms: 9}\n    pauses: [{start_ms: 3, end_ms: 4}]  # one",
        "speech: {start_ms: 1, end_ms: 9}\n    pauses:\n    - {start_ms: 3, end_ms: 4}  # one",
        "speech: {start_ms: 1, end_ms: 9}\n    pauses:\n      - start_ms: 3\n        end_ms: 4",
    ],
)
def test_every_way_to_write_no_labels_or_old_ones(talk: Path, labels: str):
    text = f"name: talk\nturns:\n  - say: a\n    {labels}\n    audio: talk/1.wav\n"
    talk.write_text(text, encoding="utf-8")

    label_file(talk)

    (turn,) = read_scenario(talk).turns
    assert (turn.speech, turn.pauses) == (first().bounds, ())
    comment = labels.partition("#")[2]
    assert comment in talk.read_text(encoding="utf-8")


def test_pauses_are_written(talk: Path):
    two = spoken(before_ms=200, after_ms=500), spoken(before_ms=100, after_ms=300)
    pcm = np.concatenate([said.pcm for said in two])
    soundfile.write(talk.parent / "talk/1.wav", pcm, RATE)

    label, _ = label_file(talk)

    (pause,) = label.found.pauses
    assert load_scenario(talk).scenario.turns[0].pauses == (pause,)
    numbers = f"{{start_ms: {pause.start_ms:g}, end_ms: {pause.end_ms:g}}}"
    assert f"\n  pauses: [{numbers}]\n" in talk.read_text(encoding="utf-8")
    assert f"; 1 pause, up to {pause.ms:.0f} ms" in str(label)


def test_a_pause_that_is_there_no_more_is_taken_out(talk: Path):
    old = labelled().replace("pauses: []", "pauses: [{start_ms: 300, end_ms: 600}]")
    talk.write_text(old, encoding="utf-8")

    one, _ = label_file(talk)

    assert one.pauses_before == (Pause(start_ms=300, end_ms=600),)
    assert talk.read_text(encoding="utf-8") == labelled()


@pytest.mark.parametrize("tail", ["", "\n", "\r\n"])
def test_a_file_that_ends_with_the_path(talk: Path, tail: str):
    newline = "\r\n" if tail == "\r\n" else "\n"
    text = newline.join(["name: talk", "turns:", "  - say: a", "    audio: talk/1.wav"]) + tail
    talk.write_bytes(text.encode())

    label_file(talk)

    written = talk.read_bytes().decode()
    lines = [f"    speech: {flow(first())}", "    pauses: []", ""]
    assert written == text.removesuffix(tail) + newline + newline.join(lines)


def test_turns_that_share_text_by_an_anchor_are_refused_and_kept(talk: Path):
    text = (
        "name: talk\nturns:\n  - {say: a, audio: talk/1.wav, speech: &s {start_ms: 1, end_ms: 2}}\n"
        "  - {say: b, audio: talk/2.wav, speech: *s}\n"
    )
    talk.write_text(text, encoding="utf-8")

    with pytest.raises(InputError, match="anchor") as excinfo:
        label_file(talk)

    assert excinfo.value.kind == "label.not_editable"
    assert talk.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("noise_dbfs", [-300, -58, -45, -30])
def test_a_recording_without_speech_is_refused_and_the_file_kept(talk: Path, noise_dbfs: float):
    soundfile.write(talk.parent / "talk/2.wav", room(1000, noise_dbfs), RATE)

    with pytest.raises(InputError, match=r"no speech was found in talk/2\.wav") as excinfo:
        label_file(talk)

    assert excinfo.value.exit_code == ExitCode.BAD_INPUT
    assert excinfo.value.kind == "label.no_speech"
    assert talk.read_text(encoding="utf-8") == WRITTEN


def test_an_empty_recording_is_refused(talk: Path):
    soundfile.write(talk.parent / "talk/2.wav", np.zeros(0, dtype=np.int16), RATE)

    with pytest.raises(InputError, match="no speech was found"):
        label_file(talk)


def test_a_stereo_recording_is_refused(talk: Path):
    pcm = spoken().pcm
    soundfile.write(talk.parent / "talk/2.wav", np.stack((pcm, pcm), axis=1), RATE)

    with pytest.raises(InputError, match="mono"):
        label_file(talk)


def test_a_crash_while_writing_leaves_the_old_file(talk: Path, monkeypatch: pytest.MonkeyPatch):
    def full_disk(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        label_file(talk)

    assert talk.read_text(encoding="utf-8") == WRITTEN
    assert sorted(p.name for p in talk.parent.iterdir()) == ["talk", "talk.yaml"]


def test_the_file_keeps_its_mode_and_stays_a_link(talk: Path):
    talk.chmod(0o640)
    real = talk.rename(talk.parent / "elsewhere.yaml")
    talk.symlink_to(real)

    label_file(talk)

    assert talk.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.read_text(encoding="utf-8") == labelled()


def test_nothing_to_write_writes_nothing(talk: Path):
    before = talk.stat().st_mtime_ns

    write_bounds(talk, {})

    assert talk.stat().st_mtime_ns == before


@given(
    start=st.integers(0, 7000),
    length=st.integers(400, 8000),
    rate=st.sampled_from([8000, 16_000, 22_050, 44_100, 48_000]),
)
def test_rounding_costs_less_than_a_tenth_of_a_millisecond(start: int, length: int, rate: int):
    """And never leads out of the recording, which ends with its speech here."""
    pcm = np.zeros(start + length, dtype=np.int16)
    pcm[start:] = 8000 * (-1) ** np.arange(length)
    if length < rate // 100 + 1:
        return

    bounds = speech_bounds(pcm, rate, -40)

    assert bounds is not None
    assert abs(bounds.start_ms - start * 1000 / rate) <= 0.0501
    assert abs(bounds.end_ms - (start + length - 1) * 1000 / rate) < 0.1
    assert bounds.end_ms <= len(pcm) * 1000 / rate

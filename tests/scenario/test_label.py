"""Speech bounds: found where they are, and written without touching anything else."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.audio import Pcm
from turngap.core.errors import ExitCode, InputError
from turngap.scenario.label import label_file, speech_bounds, speech_level_dbfs, write_bounds
from turngap.scenario.library import load_scenario, read_scenario
from turngap.scenario.model import SpeechBounds

RATE = 16_000

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
LABELLED = WRITTEN.replace(
    '- audio: "talk/1.wav"    # the first take\n',
    '- audio: "talk/1.wav"    # the first take\n  speech: {start_ms: 200, end_ms: 799.9}\n',
).replace("{ start_ms: 5 , end_ms: 950.5 }", "{ start_ms: 300 , end_ms: 599.9 }")


def burst(start_ms: float, end_ms: float, *, length_ms: float = 1000, noise_dbfs: float) -> Pcm:
    """Loud steady sound from the first instant up to the second, on a noise floor."""
    rng = np.random.default_rng(1)
    samples = rng.normal(0, 32768 * 10 ** (noise_dbfs / 20), round(length_ms * RATE / 1000))
    first, last = round(start_ms * RATE / 1000), round(end_ms * RATE / 1000)
    samples[first:last] += 8000 * (-1) ** np.arange(last - first)
    return np.rint(samples).astype(np.int16)


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A scenario file as somebody wrote it, and its two recordings."""
    (tmp_path / "talk").mkdir()
    for name, bounds in (("1.wav", (200, 800)), ("2.wav", (300, 600))):
        soundfile.write(tmp_path / "talk" / name, burst(*bounds, noise_dbfs=-58), RATE)
    path = tmp_path / "talk.yaml"
    path.write_text(WRITTEN, encoding="utf-8")
    return path


def test_bounds_are_written_and_nothing_else_is_touched(talk: Path):
    label_file(talk)

    assert talk.read_text(encoding="utf-8") == LABELLED


def test_what_changed_is_returned_in_the_order_of_the_file(talk: Path):
    first, second = label_file(talk)

    assert (first.audio, first.before) == ("talk/1.wav", None)
    assert first.after == SpeechBounds(start_ms=200, end_ms=799.9)
    assert second.before == SpeechBounds(start_ms=5, end_ms=950.5)
    assert str(first) == "talk/1.wav: speech 200 to 799.9 ms, was unlabelled"
    assert str(second) == "talk/2.wav: speech 300 to 599.9 ms, was 5 to 950.5 ms"


def test_a_second_time_changes_nothing(talk: Path):
    label_file(talk)
    before = talk.stat()

    assert label_file(talk) == []
    assert talk.stat().st_mtime_ns == before.st_mtime_ns
    assert talk.stat().st_ino == before.st_ino


def test_only_missing_leaves_labels_that_are_there(talk: Path):
    changes = label_file(talk, only_missing=True)

    assert [c.audio for c in changes] == ["talk/1.wav"]
    assert "{ start_ms: 5 , end_ms: 950.5 }   # by ear" in talk.read_text(encoding="utf-8")


def test_the_result_can_be_played(talk: Path):
    label_file(talk)

    loaded = load_scenario(talk)

    assert loaded.scenario.turns[0].speech == SpeechBounds(start_ms=200, end_ms=799.9)


def test_a_label_outside_the_recording_is_mended(talk: Path):
    talk.write_text(WRITTEN.replace("950.5", "9000"), encoding="utf-8")

    label_file(talk)

    assert talk.read_text(encoding="utf-8") == LABELLED


def test_backchannels_are_labelled_too(talk: Path):
    extra = "  backchannels:\n  - {say: mm, audio: talk/1.wav, reply_ms: 10}\n"
    talk.write_text(LABELLED + extra, encoding="utf-8")

    (change,) = label_file(talk)

    assert change.audio == "talk/1.wav"
    wanted = extra.replace("1.wav,", "1.wav, speech: {start_ms: 200, end_ms: 799.9},")
    assert talk.read_text(encoding="utf-8") == LABELLED + wanted


@pytest.mark.parametrize(
    "speech",
    ["speech:", "speech: null", "speech: ~", "speech:\n      start_ms: 1\n      end_ms: 2  # ?"],
)
def test_every_way_to_write_no_bounds_or_old_ones(talk: Path, speech: str):
    text = f"name: talk\nturns:\n  - say: a\n    {speech}\n    audio: talk/1.wav\n"
    talk.write_text(text, encoding="utf-8")

    label_file(talk)

    assert read_scenario(talk).turns[0].speech == SpeechBounds(start_ms=200, end_ms=799.9)


@pytest.mark.parametrize("tail", ["", "\n", "\r\n"])
def test_a_file_that_ends_with_the_path(talk: Path, tail: str):
    newline = "\r\n" if tail == "\r\n" else "\n"
    text = newline.join(["name: talk", "turns:", "  - say: a", "    audio: talk/1.wav"]) + tail
    talk.write_bytes(text.encode())

    label_file(talk)

    written = talk.read_bytes().decode()
    bounds = "    speech: {start_ms: 200, end_ms: 799.9}"
    assert written == text.removesuffix(tail) + newline + bounds + newline


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
    soundfile.write(talk.parent / "talk/2.wav", burst(0, 0, noise_dbfs=noise_dbfs), RATE)

    with pytest.raises(InputError, match=r"talk/2\.wav holds no audible speech") as excinfo:
        label_file(talk)

    assert excinfo.value.exit_code == ExitCode.BAD_INPUT
    assert excinfo.value.kind == "label.no_speech"
    assert talk.read_text(encoding="utf-8") == WRITTEN


def test_an_empty_recording_is_refused(talk: Path):
    soundfile.write(talk.parent / "talk/2.wav", np.zeros(0, dtype=np.int16), RATE)

    with pytest.raises(InputError, match="holds no audible speech"):
        label_file(talk)


def test_the_level_can_be_set(talk: Path):
    quiet = (burst(200, 800, noise_dbfs=-300) / 100).astype(np.int16)
    soundfile.write(talk.parent / "talk/1.wav", quiet, RATE)

    with pytest.raises(InputError, match="-40 dBFS"):
        label_file(talk)
    first, _ = label_file(talk, dbfs=-60)

    assert first.after == SpeechBounds(start_ms=200, end_ms=799.9)
    assert first.dbfs == -60


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
    assert real.read_text(encoding="utf-8") == LABELLED


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


@pytest.mark.parametrize("noise_dbfs", [-58, -45, -35, -28])
def test_the_level_follows_the_noise_of_the_room(noise_dbfs: float):
    pcm = burst(250, 750, noise_dbfs=noise_dbfs)

    bounds = speech_bounds(pcm, RATE, speech_level_dbfs(pcm, RATE))

    assert bounds is not None
    assert abs(bounds.start_ms - 250) < 10
    assert abs(bounds.end_ms - 750) < 10


def test_the_level_of_a_clean_recording_is_the_level_of_audibility():
    assert speech_level_dbfs(burst(250, 750, noise_dbfs=-58), RATE) == -40
    assert speech_level_dbfs(burst(250, 750, noise_dbfs=-300), RATE) == -40

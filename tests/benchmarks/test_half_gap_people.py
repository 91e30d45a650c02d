"""Recordings of people as a library, under each condition of the line."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from half_gap import people

from turngap.core.errors import InputError
from turngap.scenario.library import load_scenarios, scenario_paths

SPEECH_MS = (300.0, 1300.0)


@pytest.fixture
def voices(tmp_path: Path) -> Path:
    """One voice: a second of tone with a pause in it, in a quiet room."""
    folder = tmp_path / "given"
    folder.mkdir()
    sound = np.random.default_rng(1).normal(0, 1e-4, people.RATE * 2)
    at = np.arange(people.RATE) / people.RATE
    tone = 0.2 * np.sin(2 * np.pi * 440 * at) * ((at < 0.4) | (at > 0.6))
    first = round(SPEECH_MS[0] * people.RATE / 1000)
    sound[first : first + len(tone)] += tone
    soundfile.write(folder / "Anna_1.flac", sound, people.RATE)
    speech = {"start_ms": SPEECH_MS[0], "end_ms": SPEECH_MS[1]}
    told = {"name": "Anna_1", "say": "five five", "speech": speech}
    (folder / "voices.json").write_text(json.dumps([told]), encoding="utf-8")
    return folder


@pytest.mark.parametrize("condition", people.CONDITIONS)
def test_a_recording_becomes_a_conversation_of_one_turn(
    voices: Path, tmp_path: Path, condition: str
) -> None:
    people.make_library(voices, condition, tmp_path / "library")
    (loaded,) = load_scenarios(scenario_paths(tmp_path / "library"))
    (turn,) = loaded.scenario.turns
    assert (loaded.scenario.name, turn.say) == ("anna-1", "five five")
    assert loaded.scenario.voices == "recorded"
    assert turn.speech is not None
    clip = loaded.clips[turn.audio]
    sound = clip.at_rate(people.RATE) / 32768
    # The bounds lie where the tone does.
    assert turn.speech.end_ms - turn.speech.start_ms == 1000
    middle = round((turn.speech.start_ms + 200) * people.RATE / 1000)
    tone = sound[middle - 1600 : middle + 1600]
    expected = {"plus6": 6.0, "minus10": -10.0, "minus20": -20.0}.get(condition, 0.0)
    assert 20 * np.log10(tone.std() / (0.2 / np.sqrt(2))) == pytest.approx(expected, abs=0.5)


def test_noise_lies_20_db_below_the_voice_without_its_pauses(voices: Path, tmp_path: Path) -> None:
    people.make_library(voices, "noise20", tmp_path / "library")
    (loaded,) = load_scenarios(scenario_paths(tmp_path / "library"))
    (turn,) = loaded.scenario.turns
    sound = loaded.clips[turn.audio].at_rate(people.RATE) / 32768
    before = sound[: round(people.NOISE_BEFORE_MS * people.RATE / 1000)]
    assert 20 * np.log10(before.std() / (0.2 / np.sqrt(2))) == pytest.approx(-20, abs=0.3)


def test_a_telephone_line_passes_nothing_above_4_khz() -> None:
    at = np.arange(people.RATE) / people.RATE
    hiss = 0.2 * np.sin(2 * np.pi * 6000 * at)
    heard, _ = people.telephone(hiss, people.SpeechBounds(start_ms=0, end_ms=1000))
    assert heard.std() < 0.01 * hiss.std()


@pytest.mark.parametrize("told", ["", "[{}]", '[{"name": "x", "say": "y"}]', "[3]", "{}"])
def test_a_list_that_cannot_be_read_is_an_error_that_says_what_is_expected(
    voices: Path, tmp_path: Path, told: str
) -> None:
    (voices / "voices.json").write_text(told, encoding="utf-8")
    with pytest.raises(InputError, match=r"voices\.json") as failed:
        people.make_library(voices, "original", tmp_path / "library")
    assert "start_ms" in failed.value.hint


def test_a_recording_that_is_not_there_is_an_error(voices: Path, tmp_path: Path) -> None:
    (voices / "Anna_1.flac").unlink()
    with pytest.raises(InputError, match=r"Anna_1\.flac"):
        people.make_library(voices, "original", tmp_path / "library")


def test_speech_beyond_the_recording_is_an_error(voices: Path, tmp_path: Path) -> None:
    told = [{"name": "Anna_1", "say": "five", "speech": {"start_ms": 300, "end_ms": 2500}}]
    (voices / "voices.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(InputError, match="outside"):
        people.make_library(voices, "noise20", tmp_path / "library")

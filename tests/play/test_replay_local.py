"""Whisper, the small model and piper in one agent's process, offline, from the command line."""

from pathlib import Path
from typing import Any

import pytest
import quiet
from commandline import ROOT, SCENARIOS, only_run, turngap, turns_on_disk

from turngap.scenario.model import read_scenario
from turngap_services.text import spoken_words

pytestmark = pytest.mark.realtime

# Commands that the small model was made for.
PLAYED = ("smart-home",)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, speaking_voice: Path
) -> tuple[Path, list[dict[str, Any]]]:
    """The run's folder and its turns."""
    out = tmp_path_factory.mktemp("runs")
    done = turngap(
        *("replay", *PLAYED, "--llm", "small", "--set", "tts=piper", "--set", "stt=whisper"),
        *("--set", f"stt.model={ROOT / 'models' / 'whisper'}"),
        *("--set", f"tts.voice={speaking_voice}"),
        # Starvation is not what is tested here.
        *("--calibration", "0", "--starved-ms", "1000", "--out", out, "--json"),
    )
    quiet.exited(done.code, done.err, *quiet.PLAYED)
    turns = done.document()["turns"]
    assert [turn["error"] for turn in turns] == [None] * len(turns)
    with quiet.measured():
        assert {turn["outcome"] for turn in turns} <= {"answered", "late"}
    return only_run(out), turns


def stages_are_told(turns: list[dict[str, Any]], *names: str) -> None:
    """The caller waits half a second for them."""
    for turn in turns:
        assert set(names) <= {stage["name"] for stage in turn["stages"]}


def test_the_whisper_of_turngaps_own_reads_what_is_really_said(
    run: tuple[Path, list[dict[str, Any]]],
) -> None:
    for name in PLAYED:
        said = [turn.say for turn in read_scenario(SCENARIOS / f"{name}.yaml").turns]
        heard = [turn["transcript"] for turn in run[1] if turn["scenario"] == name]
        assert len(heard) == len(said)
        with quiet.measured():
            assert [spoken_words(text) for text in heard] == [spoken_words(text) for text in said]


def test_the_small_model_answers_recorded_people(run: tuple[Path, list[dict[str, Any]]]) -> None:
    turns = run[1]
    replies = [turn["reply"] for turn in turns if turn["scenario"] == "smart-home"]
    with quiet.measured():
        assert "the kitchen lights are off." in replies[0]
        assert "twelve minutes" in replies[1]
        stages_are_told(turns, "llm_request", "llm_first_token")


def test_piper_speaks_the_answers(run: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, turns = run
    with quiet.measured():
        stages_are_told(turns, "tts_first_audio", "tts_first_audible")
    for turn in turns_on_disk(folder):
        # The voice begins each sentence with a pause of 90 ms and the edge of a sound.
        assert turn["counts"]["lead_cut_ms"] > 80

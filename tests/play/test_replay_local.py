"""Whisper, the small model and piper in one agent's process, offline, from the command line."""

from pathlib import Path

import pytest
import quiet
from commandline import ROOT, only_run, turngap, turns_on_disk
from shortened import first_turns

from turngap.scenario.model import read_scenario
from turngap_services.text import spoken_words

pytestmark = pytest.mark.realtime


def test_whisper_hears_the_small_model_answers_and_piper_speaks(
    tmp_path: Path, speaking_voice: Path
) -> None:
    library = first_turns(tmp_path / "library", {"smart-home": 2})
    done = turngap(
        *("replay", library, "--llm", "small", "--set", "tts=piper", "--set", "stt=whisper"),
        *("--set", f"stt.model={ROOT / 'models' / 'whisper'}"),
        *("--set", f"tts.voice={speaking_voice}"),
        # Starvation is not what is tested here.
        *("--calibration", "0", "--starved-ms", "1000", "--out", tmp_path / "runs", "--json"),
    )
    quiet.exited(done.code, done.err, *quiet.PLAYED)
    turns = done.document()["turns"]
    assert [turn["error"] for turn in turns] == [None] * len(turns)
    with quiet.measured():
        assert {turn["outcome"] for turn in turns} <= {"answered", "late"}
    said = [turn.say for turn in read_scenario(library / "smart-home.yaml").turns]
    with quiet.measured():
        heard = [spoken_words(turn["transcript"]) for turn in turns]
        assert heard == [spoken_words(text) for text in said]
        assert "the kitchen lights are off." in turns[0]["reply"]
        assert "twelve minutes" in turns[1]["reply"]
        # The caller waits half a second for them.
        told = {"llm_request", "llm_first_token", "tts_first_audio", "tts_first_audible"}
        assert all(told <= {stage["name"] for stage in turn["stages"]} for turn in turns)
    for turn in turns_on_disk(only_run(tmp_path / "runs")):
        # The voice begins each sentence with a pause of 90 ms and the edge of a sound.
        assert turn["counts"]["lead_cut_ms"] > 80

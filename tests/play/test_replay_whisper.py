"""Whisper in the embedded agent, from the command line: the canned model, and one that reads."""

from pathlib import Path

import pytest
from canned_whisper import WORDS, canned_model
from commandline import ROOT, SCENARIOS, turngap

from turngap.scenario.library import read_scenario
from turngap_services.text import spoken_words

pytestmark = pytest.mark.realtime


def test_every_turn_is_heard_by_whisper_and_answered_ahead_of_its_end(tmp_path: Path) -> None:
    done = turngap(
        *("replay", "quick-questions", "--stt", "whisper", "--set", f"stt.model={canned_model()}"),
        *("--calibration", "0", "--starved-ms", "1000", "--out", tmp_path, "--json"),
    )
    assert done.code in (0, 1), done.err  # 1: late, which is not what is tested here
    turns = done.document()["turns"]
    assert len(turns) == 3
    for turn in turns:
        assert turn["outcome"] in ("answered", "late"), turn
        assert turn["error"] is None
        heard = turn["transcript"].split()
        assert len(heard) > 3
        assert heard == WORDS[: len(heard)]
    # What was read in the pause was answered before the turn was over, and was right.
    assert any(turn["counts"].get("speculations", 0) for turn in turns)


def test_the_model_of_turngaps_own_reads_what_is_really_said(tmp_path: Path) -> None:
    model = f"stt.model={ROOT / 'models' / 'whisper'}"
    done = turngap(
        *("replay", "phone-number", "--stt", "whisper", "--set", model),
        *("--calibration", "0", "--starved-ms", "1000", "--out", tmp_path, "--json"),
    )
    assert done.code in (0, 1), done.err  # 1: late, which is not what is tested here
    said = [turn.say for turn in read_scenario(SCENARIOS / "phone-number.yaml").turns]
    heard = [turn["transcript"] for turn in done.document()["turns"]]
    assert [spoken_words(text) for text in heard] == [spoken_words(text) for text in said]

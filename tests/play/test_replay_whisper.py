"""Whisper in the embedded agent, from the command line, with the canned model."""

from pathlib import Path

import pytest
import quiet
from canned_whisper import WORDS, canned_model
from commandline import turngap

pytestmark = pytest.mark.realtime


def test_every_turn_is_heard_by_whisper_and_answered_ahead_of_its_end(tmp_path: Path) -> None:
    done = turngap(
        *(
            "replay",
            "quick-questions",
            "--set",
            "stt=whisper",
            "--set",
            f"stt.model={canned_model()}",
        ),
        *(
            "--set",
            "tts.speed_wpm=400",
            "--calibration",
            "0",
            "--starved-ms",
            "1000",
            "--out",
            tmp_path,
            "--json",
        ),
    )
    quiet.exited(done.code, done.err, *quiet.PLAYED)
    turns = done.document()["turns"]
    assert len(turns) == 3
    for turn in turns:
        assert turn["error"] is None
        heard = turn["transcript"].split()
        assert heard == WORDS[: len(heard)]
        with quiet.measured():
            assert turn["outcome"] in ("answered", "late"), turn
            assert len(heard) > 3
    # What was read in the pause was answered before the turn was over, and was right.
    with quiet.measured():
        assert any(turn["counts"].get("speculations", 0) for turn in turns)

"""The main job, for real: recordings through sockets to the embedded agent and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quiet
import soundfile
from commandline import only_run, turngap, turngap_here, turns_on_disk

from turngap.core.audio import audible_onset
from turngap.core.stages import USUAL_MARKS

pytestmark = pytest.mark.realtime

# Quick speech: how long a reply lasts is not what is tested here.
REPLAY = ("replay", "--set", "seed=3", "--set", "tts.speed_wpm=400", "--json")


def test_recordings_are_heard_answered_measured_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = ("phone-number", "quick-questions")  # the shortest two
    done = turngap(*REPLAY, *calls, "--calibration", "2", "--out", tmp_path)
    quiet.exited(done.code, done.err, *quiet.PLAYED)
    run, document = only_run(tmp_path), done.document()
    every_turn_has_one_outcome_and_stages_that_sum_to_its_gap(document)
    what_was_said_was_heard_and_answered(document)
    the_recording_shows_the_onset_where_the_figures_say(run)
    the_run_keeps_what_is_needed_to_believe_it(run, document)
    again = turngap_here(capsys, "report", run, "--json").document()
    assert again["summary"] == document["summary"]
    assert again["turns"] == document["turns"]


def every_turn_has_one_outcome_and_stages_that_sum_to_its_gap(document: dict[str, Any]) -> None:
    assert document["summary"]["turns"] == len(document["turns"]) == 5
    assert sum(document["summary"]["outcomes"].values()) == len(document["turns"])
    for turn in document["turns"]:
        with quiet.measured():
            assert turn["outcome"] in ("answered", "late"), turn
        assert sum(stage["ns"] for stage in turn["stages"]) == turn["gap_ns"]
        # The caller waits half a second for the agent's marks.
        with quiet.measured():
            assert [s["name"] for s in turn["stages"]] == list(USUAL_MARKS[1:])


def what_was_said_was_heard_and_answered(document: dict[str, Any]) -> None:
    replies = " ".join(turn["reply"] for turn in document["turns"]).lower()
    heard = " ".join(turn["transcript"] for turn in document["turns"]).lower()
    with quiet.measured():
        assert "ten past nine" in replies
        assert "weather" in heard
        assert "rain tomorrow" in heard


def the_recording_shows_the_onset_where_the_figures_say(run: Path) -> None:
    for turn in turns_on_disk(run):
        with quiet.measured():
            assert turn["outcome"] in ("answered", "late"), turn
        audio = turn["audio"]
        pcm, rate = soundfile.read(run / audio["file"], dtype="int16")
        assert (pcm.dtype, pcm.shape[1]) == (np.int16, 2)
        after_user = round(audio["user_end_ms"] * rate / 1000)
        onset = audible_onset(pcm[after_user:, 1].astype(np.int16), rate)
        assert onset is not None
        gap_ms = onset * 1000 / rate
        # Resampling to the file's rate smears an edge by less than a window.
        assert gap_ms == pytest.approx(turn["gap_ms"], abs=5)


def the_run_keeps_what_is_needed_to_believe_it(run: Path, document: dict[str, Any]) -> None:
    assert (run / "report.html").is_file()
    assert document["calibration"]["error_ms"]["n"] == 2
    with quiet.measured():  # each ping waits for a second
        assert document["clock_offset"] is not None
    assert document["clock_offset"]["bound_ns"] > 0
    # Both ends read one clock here, so the offset found must be 0 within its own bound.
    assert abs(document["clock_offset"]["offset_ns"]) <= document["clock_offset"]["bound_ns"]

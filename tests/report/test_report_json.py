import json

import pytest
from made_records import every_outcome, make_run, make_turn

from turngap.core.clusters import NO_INTERVAL
from turngap.core.summary import summarise
from turngap.report.run import run_json


def document(run):
    """Return what a reader of standard output gets."""
    return json.loads(json.dumps(run_json(run), allow_nan=False))


def test_stages_sum_to_the_gap_exactly():
    for turn in document(make_run(every_outcome()))["turns"]:
        if turn["gap_ns"] is not None:
            assert sum(stage["ns"] for stage in turn["stages"]) == turn["gap_ns"]


def test_missing_values_are_null_with_a_reason():
    doc = document(make_run(every_outcome()))
    for turn in doc["turns"]:
        assert (turn["gap_ms"] is None) == bool(turn["why_no_gap"])
    gap = doc["summary"]["gap_ms"]
    assert gap["p95"] is None
    assert gap["why_none"]["p95"] == "n=6, needs 20"
    assert doc["summary"]["why_no_ci95"]["p95"] == "n=6, needs 20"
    assert doc["summary"]["why_no_ci95"]["hit_rate"] == NO_INTERVAL


def test_stage_seen_twice_in_a_turn_counts_once_with_its_sum():
    gaps = {"endpoint": 100.0, "llm_request": 150.0, "tts_request": 250.0, "agent_onset": 400.0}
    turn = make_turn(marks_ms=gaps)
    assert [s.name for s in turn.stages].count("unattributed") > 1
    (unattributed,) = [s for s in summarise([turn]).stages if s.name == "unattributed"]
    assert unattributed.n == 1
    assert unattributed.p50_ms == 300.0


def test_stages_are_in_causal_order_whatever_turn_comes_first():
    sparse = make_turn(marks_ms={"received": 390.0, "agent_onset": 398.0})
    names = [s.name for s in summarise([sparse, make_turn()]).stages]
    assert names == [*(s.name for s in make_turn().stages), "unattributed"]


def test_slowest_stage_is_the_one_that_spent_most():
    odd = make_turn(marks_ms={"agent_onset": 700.0})
    summary = summarise([*(make_turn() for _ in range(9)), odd])
    assert max(summary.stage_p50_ms.items(), key=lambda item: item[1])[0] == "unattributed"
    assert summary.slowest_stage == "endpoint"
    assert sum(s.share or 0 for s in summary.stages) == pytest.approx(1)
    assert summarise([]).slowest_stage is None

import json

import pytest
from made_records import every_outcome, make_run, make_turn

from turngap.core.summary import summarise
from turngap.report.json import run_json


def document(run):
    """What a reader of standard output gets."""
    return json.loads(json.dumps(run_json(run), allow_nan=False))


def test_keys_that_scripts_rely_on():
    doc = document(make_run([make_turn(turn=n) for n in range(1, 21)]))
    assert doc["run"] == "runs/x"
    assert doc["valid"] is True
    assert doc["summary"]["turns"] == 20
    assert doc["summary"]["outcomes"] == {"answered": 20}
    assert doc["summary"]["hit_rate"] == 1
    gap = doc["summary"]["gap_ms"]
    assert gap["n"] == 20
    assert gap["p50"] == gap["p90"] == gap["p95"] == 398.25
    turn = doc["turns"][0]
    for key in ("scenario", "turn", "outcome", "gap_ms", "stages", "transcript", "reply"):
        assert key in turn
    assert turn["stages"][0] == {"name": "endpoint", "ms": 231.0, "ns": 231_000_000}


def test_the_other_half_of_a_gap_is_there_with_its_interval():
    cut_ins = document(make_run(every_outcome()))["summary"]["cut_ins"]
    assert (cut_ins["hits"], cut_ins["n"]) == (1, len(every_outcome()))
    low, high = cut_ins["ci95"]
    assert cut_ins["value"] == 1 / cut_ins["n"]
    assert 0 < low < cut_ins["value"] < high < 1
    none = document(make_run([]))["summary"]["cut_ins"]
    assert none["value"] is None
    assert none["ci95"] == [None, None]


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
    assert gap["why_none"]["p95"] == "n=5, needs 20"


def test_failure_and_invalidity_are_told():
    doc = document(make_run([make_turn()], valid=False, why_invalid=("starved",), failure="gone"))
    assert doc["valid"] is False
    assert doc["why_invalid"] == ["starved"]
    assert doc["failure"] == "gone"


@pytest.mark.parametrize("n", [0, 1, 200])
def test_any_length_of_run_is_one_document(n):
    doc = document(make_run([make_turn(turn=i + 1) for i in range(n)]))
    assert len(doc["turns"]) == doc["summary"]["turns"] == n


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

"""A run for other programs: JUnit XML for a CI server, and Prometheus' text format."""

import math
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_records import every_outcome, make_run, make_turn
from prometheus_client.parser import text_string_to_metric_families

from turngap.core.budget import OUTCOMES
from turngap.core.errors import InputError
from turngap.report.prometheus import METRICS, prometheus_text
from turngap.report.run_junit import run_junit
from turngap.store.runs import Run

EVIL = 'x"\\\n\u202e{y}</failure>'


def cases(run: Run) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(run_junit(run)).iter("testcase"))


def kinds(case: ElementTree.Element) -> list[str]:
    return [f"{child.tag} {child.get('type', '')}".strip() for child in case]


# --- JUnit --------------------------------------------------------------------------------------


def test_each_turn_is_a_test_that_fails_with_its_outcome() -> None:
    found = cases(make_run([*every_outcome(), make_turn(turn=8, left_out="the label is wrong")]))
    assert [kinds(case) for case in found] == [
        [],
        ["failure late"],
        ["failure no_reply"],
        ["failure cut_in"],
        ["failure abandoned"],
        ["failure error"],
        ["failure error"],
        ["skipped"],
    ]
    assert [case.get("name") for case in found][:2] == [
        "coffee-order, turn 1",
        "coffee-order, turn 2",
    ]
    assert found[0].get("time") == "0.398250"  # its gap, in s
    assert found[2].get("time") is None
    assert found[3].get("time") is None  # no test takes less than no time
    (late,) = found[1]
    assert late.get("message") == "late: 1035 ms, 235 over the budget"


def test_each_test_of_a_run_has_a_name_of_its_own() -> None:
    turns = [make_turn(repeat=repeat, phase_ms=phase) for repeat in (1, 2) for phase in (0.0, 8.0)]
    names = [case.get("name") for case in cases(make_run(turns))]
    assert len(set(names)) == 4


def test_no_turn_of_an_invalid_run_has_a_verdict() -> None:
    run = make_run(every_outcome(), valid=False, why_invalid=("the caller was late",))
    for case in cases(run):
        assert kinds(case) == ["skipped"]
        assert "the caller was late" in str(case[0].get("message"))


def test_the_suite_counts_its_tests_and_says_what_was_measured() -> None:
    root = ElementTree.fromstring(run_junit(make_run(every_outcome())))
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "time")} == {
        "tests": "7",
        "failures": "6",
        "skipped": "0",
        "time": "127.750",
    }
    told = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert (told["agent"], told["commit"], told["run"]) == ("embedded", "7ae7a1d", "x")


def test_the_commit_is_that_of_what_was_measured_in_every_export() -> None:
    run = make_run([make_turn()], agent={"stack": "mine", "commit": "0ddba11-dirty"})
    (row,) = run.rows()
    ((info, _),) = figures(run)["turngap_run_info"].items()
    root = ElementTree.fromstring(run_junit(run))
    (told,) = (p.get("value") for p in root.iter("property") if p.get("name") == "commit")
    assert row["commit"] == told == "0ddba11-dirty"
    assert "0ddba11-dirty" in info


# --- Prometheus ---------------------------------------------------------------------------------


def figures(run: Run) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of each metric, by the values of their labels but for the agent's."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(prometheus_text(run).decode()):
        for sample in family.samples:
            assert sample.labels["agent"] in ("embedded", "mine", 'x"\\ {y}</failure>')
            of = tuple(v for k, v in sample.labels.items() if k != "agent")
            found.setdefault(sample.name, {})[of] = sample.value
    return found


def test_the_figures_are_those_of_the_run() -> None:
    run = make_run([*every_outcome(), *(make_turn(turn=8 + i, repeat=2) for i in range(20))])
    found = figures(run)
    assert found["turngap_run_hit_ratio"] == {(): run.hit_rate.value}
    assert found["turngap_run_hit_ratio_low"] == {(): run.hit_rate.low}
    assert found["turngap_run_cut_in_ratio"] == {(): 1 / 27}
    assert {o: found["turngap_run_turns"][(o,)] for o in OUTCOMES} == {
        o: run.summary.outcomes.get(o, 0) for o in OUTCOMES
    }
    p50 = run.gap_ms.p50.value
    assert p50 is not None
    assert found["turngap_run_turn_gap_percentile_seconds"][("p50",)] == p50 / 1000
    assert set(found["turngap_run_turn_gap_percentile_seconds"]) <= {("p50",), ("p90",), ("p95",)}
    assert found["turngap_run_started_timestamp_seconds"] == {(): 1795188483.25}
    ((told, always),) = found["turngap_run_info"].items()
    assert (sorted(told), always) == (sorted(("x", "7ae7a1d", "730e11888299", "0.1.0")), 1.0)
    assert found["turngap_run_valid"] == {(): 1.0}


def test_a_label_that_is_not_known_is_left_out() -> None:
    text = prometheus_text(make_run(every_outcome(), commit="")).decode()
    (info,) = [line for line in text.splitlines() if line.startswith("turngap_run_info{")]
    assert "commit" not in info
    assert 'machine="' in info
    assert '=""' not in text


def test_a_reply_that_did_not_come_is_in_the_last_bucket_alone() -> None:
    found = figures(make_run(every_outcome()))
    buckets = found["turngap_run_turn_gap_seconds_bucket"]
    # Two replies; no reply once, and two lost lines, of which one had a gap of 398 ms before it.
    assert buckets[("0.4",)] == 1
    assert buckets[("1.25",)] == 2
    assert buckets[("6.0",)] == 2
    assert buckets[("+Inf",)] == found["turngap_run_turn_gap_seconds_count"][()] == 5
    total = found["turngap_run_turn_gap_seconds_sum"][()]
    assert math.isclose(total, 0.39825 + 0.39825 * 2.6)


def test_what_is_not_known_is_left_out_and_never_0() -> None:
    found = figures(make_run(every_outcome()[2:3], finished_utc=None, started_utc="yesterday"))
    for name in (
        "turngap_run_turn_gap_percentile_seconds",
        "turngap_run_right_ratio",
        "turngap_run_stage_seconds",
        "turngap_run_started_timestamp_seconds",
        "turngap_run_finished_timestamp_seconds",
    ):
        assert name not in found


def test_an_invalid_run_has_no_figure_of_the_agent() -> None:
    turns = [make_turn(turn=1 + i, starved=True) for i in range(20)]
    found = figures(make_run(turns, valid=False, why_invalid=("the caller was late",)))
    assert found["turngap_run_valid"] == {(): 0.0}
    assert found["turngap_run_starved_turns"] == {(): 20.0}
    assert set(found) == {
        "turngap_run_info",
        "turngap_run_valid",
        "turngap_run_started_timestamp_seconds",
        "turngap_run_finished_timestamp_seconds",
        "turngap_run_budget_seconds",
        "turngap_run_starved_turns",
    }


def test_an_instant_without_a_zone_is_utc_wherever_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        found = figures(make_run(every_outcome(), started_utc="2026-11-20T15:28:03.250"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found["turngap_run_started_timestamp_seconds"] == {(): 1795188483.25}


def test_what_a_stored_run_says_cannot_break_the_format() -> None:
    run = make_run(every_outcome(), Path(EVIL), agent={"url": EVIL}, commit=EVIL)
    assert figures(run)["turngap_run_valid"]


def test_each_metric_is_named_as_prometheus_has_it() -> None:
    for metric in METRICS:
        assert metric.name.startswith("turngap_run_")
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert "ms" not in metric.name.split("_")


def test_without_prometheus_client_it_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InputError) as failed:
        prometheus_text(make_run(every_outcome()))
    assert failed.value.hint == "pip install 'turngap[prometheus]'"

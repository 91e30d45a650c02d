"""Reports of load tests: one sentence that is sure, and every hard case."""

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_loads import (
    hard_cases,
    load_turns,
    make_load,
    make_step,
    store_load,
)

from turngap.core.stats import Percentile
from turngap.load import report
from turngap.load.export import STEPS_CSV, TURNS_CSV, load_json, write_reports
from turngap.load.figures import best_steps, knee
from turngap.load.report import charts, load_report
from turngap.report import page, terminal
from turngap.store.loads import LoadRecord

CASES = hard_cases()
EVIL = "\x1b[2J</script>\u202e\n::error::no"


def printed(record: LoadRecord, width: int = 120) -> str:
    return terminal.block(load_report(record), width).plain


# --- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("case", list(CASES))
def test_a_terminal_holds_every_column(case: str, width: int) -> None:
    text = printed(CASES[case], width)
    assert max(map(len, text.splitlines())) <= width
    if CASES[case].steps:
        for name in ("turns", "hit rate", "p50", "p95", "yield", "holes", "refused", "caller"):
            assert name in text


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("ws://127.0.0.1:1/ws", True),
        ("ws://localhost/ws", True),
        ("wss://voice.example/ws", False),
        ("wss://[", False),
    ],
)
def test_the_network_is_measured_where_there_is_one(url: str, here: bool) -> None:
    said = " ".join(report.not_measured(make_load(agent={"url": url})))
    assert ("the network" in said) is here
    # Ray's nodes are other machines.
    assert "the network" not in " ".join(report.not_measured(make_load(executor="ray")))


def test_a_certificate_below_a_void_step_stands_and_says_what_is_not_known() -> None:
    void = make_step(9, void="the caller was late")
    record = make_load([void, make_step(8, 180, 2, confirms=True)])
    assert report.verdict(record).text == "✓ 8 SESSIONS CERTIFIED"
    assert load_json(record, Path("runs/x"))["valid"] is True


def test_a_level_that_was_not_held_in_calls_is_named() -> None:
    assert report.off_level_words(CASES["search"]) == ""
    short = make_load([make_step(6, at_once=(4.1, 6)), make_step(8, confirms=True)])
    assert report.off_level_words(short) == ""  # the certified one is what counts
    short = make_load([make_step(8, confirms=True, at_once=(7.1, 8))])
    assert "only 7.1 calls" in report.off_level_words(short)
    long = make_load([make_step(8, confirms=True, at_once=(8.9, 12))])
    assert "overlapped" in report.off_level_words(long)
    for held in (7.3, 8.7):
        near = make_load([make_step(8, confirms=True, at_once=(held, 10))])
        assert report.off_level_words(near) == ""


def test_a_void_step_that_was_to_explore_is_no_headline() -> None:
    void = make_step(9, void="the caller was late")
    steps = [void, make_step(8, 180, 20, confirms=True)]
    nothing = make_load(steps, capacity=CASES["not-sure"].capacity)
    assert report.verdict(nothing).text == "✗ NOTHING CERTIFIED"
    confirming = make_step(8, void="the caller was late", confirms=True)
    assert report.verdict(make_load([confirming, make_step(4)], capacity=None)).text == "≠ VOID"
    killed = make_load([void], capacity=None, finished_utc=None)
    assert report.verdict(killed).text == "? BROKEN OFF"


# --- the curve --------------------------------------------------------------------------------


def test_each_level_is_drawn_once_by_its_longest_step_and_void_ones_are_not() -> None:
    drawn = best_steps(CASES["search"].steps)
    assert [step.sessions for step in drawn] == [1, 8, 9, 10, 12, 16, 32]
    assert [step.turns for step in drawn[1:4]] == [180, 150, 150]
    assert [step.sessions for step in best_steps(CASES["void"].steps)] == [1, 32]
    assert best_steps(CASES["rate"].steps) == []


def test_the_knee_is_the_last_level_before_the_gap_grows() -> None:
    found = knee(CASES["ramp"].steps)
    assert found is not None
    assert (found[0].sessions, found[1].sessions) == (24, 32)
    assert knee([make_step(n) for n in (1, 2, 4)]) is None
    # Where too many were missed for a p95 the gap has grown, however quick the others were.
    missed = make_step(4, 60, 0, refused_turns=30)
    assert missed.gap_ms["p95"].value is None
    found = knee([make_step(1), make_step(2), missed])
    assert found is not None
    assert found[0].sessions == 2
    # With too few turns for a p95 nothing is known of that level.
    few = make_step(4, 9, 0, gap_ms=dict.fromkeys(("p50", "p95"), Percentile(None, why_none="n=9")))
    assert knee([make_step(1), make_step(2), few]) is None


def test_drawings_mark_the_certified_level_and_the_knee() -> None:
    hit_rate, gap, *_ = charts(CASES["search"])
    assert [rule.label for rule in gap.tops] == ["certified, and knee: 8"]
    assert "9 sessions 94.7 %" in hit_rate.spoken
    assert [rule.label for rule in charts(CASES["ramp"])[0].tops] == ["knee: 24"]
    assert "1 void step is not drawn" in charts(CASES["void"])[0].note
    # From 1 to 32 it may be anywhere.
    assert charts(CASES["void"])[0].tops == []


@pytest.mark.parametrize("case", ["one-step", "rate", "nothing", "nothing-played", "all-void"])
def test_fewer_than_two_levels_are_no_curve(case: str) -> None:
    assert charts(CASES[case]) == ()


def test_gaps_that_are_no_use_lie_at_the_upper_edge() -> None:
    for p95, edge in ((1900.0, 0), (9000.0, 1), (None, 1)):
        why_none = None if p95 else "missed"
        slow = {"p50": Percentile(900.0), "p95": Percentile(p95, why_none=why_none)}
        gap = charts(make_load([make_step(1), make_step(2), make_step(4, gap_ms=slow)]))[1]
        assert sum(dot.y == 0 for dot in gap.dots) == edge
        assert ("1 at the upper edge" in gap.note) is bool(edge)


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", list(CASES))
def test_json_has_the_keys_that_stay(case: str) -> None:
    document = load_json(CASES[case], Path("runs/x"))
    assert {"sessions", "hit_rate", "low", "confidence", "why"} <= set(document["capacity"])
    for step in document["steps"]:
        assert {
            *("sessions", "offered_per_s", "turns", "hit_rate", "low", "high", "gap_ms"),
            *("refused", "caller_late_ms", "void", "holds", "outcomes"),
        } <= set(step)
        assert {"p50", "p95"} <= set(step["gap_ms"])
        assert step["hit_rate"] is None or 0 <= step["hit_rate"] <= 1
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_json_says_what_is_certified_and_what_may_be_used() -> None:
    found = load_json(CASES["search"], Path("runs/x"))
    assert (found["capacity"]["sessions"], found["valid"]) == (8, True)
    assert found["knee"] == {"sessions": 8, "grown_at": 9}
    held = load_json(CASES["one-step"], Path("runs/x"))["capacity"]
    assert (held["sessions"], held["why"]) == (None, "no capacity was searched for")
    for case in ("void", "interrupted", "lost", "nothing-played"):
        assert load_json(CASES[case], Path("runs/x"))["valid"] is False


def test_csv_has_a_row_for_each_step_and_each_planned_turn(tmp_path: Path) -> None:
    folder = store_load(tmp_path / "load", CASES["refused"])
    assert write_reports(CASES["refused"], folder) == folder / "report.html"
    with (folder / STEPS_CSV).open(encoding="utf-8") as file:
        (step,) = csv.DictReader(file)
    assert (step["sessions"], step["turns"], step["turns_refused"]) == ("12", "120", "30")
    assert (step["calls_refused"], step["holds"], step["void"]) == ("10", "false", "")
    with (folder / TURNS_CSV).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(list(load_turns()))
    by_outcome = {row["outcome"]: row for row in rows}
    assert by_outcome["refused"]["why"] == "HTTP 503: busy"
    assert by_outcome["refused"]["latency_ms"] == ""
    assert by_outcome["late"]["on_time"] == "false"
    waited = rows[3]
    assert float(waited["latency_ms"]) == float(waited["gap_ms"]) + 150.0
    assert [row["counted"] for row in rows].count("false") == 1


def test_a_folder_without_turns_still_has_its_steps(tmp_path: Path) -> None:
    folder = store_load(tmp_path / "load")
    (folder / "turns.jsonl").unlink()
    write_reports(CASES["search"], folder)
    assert (folder / TURNS_CSV).read_text(encoding="utf-8").count("\n") == 1
    assert (folder / STEPS_CSV).read_text(encoding="utf-8").count("\n") == 10


def test_nothing_that_an_agent_says_is_obeyed() -> None:
    step = make_step(8, void=EVIL, outcomes={EVIL: 3})
    record = make_load([step], ended=EVIL, failure=EVIL, agent={"url": EVIL}, arrivals=EVIL)
    for line in printed(record).split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("::error")
    ElementTree.fromstring(terminal.svg(EVIL, [terminal.block(load_report(record), 100)], 100))
    assert "</script>\u202e" not in page.render(load_report(record))

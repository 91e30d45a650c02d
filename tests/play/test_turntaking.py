"""Turn-taking figures, and a setting swept over several values."""

import pytest
from commandline import turngap_here
from made_records import make_run, make_turn, scaled
from rich.console import Console

from turngap.core.results import BackchannelRecord
from turngap.core.summary import turn_taking
from turngap.report.sweep import sweep_block

Capsys = pytest.CaptureFixture[str]


def backchannel(stopped: bool) -> BackchannelRecord:
    return BackchannelRecord(say="mm-hm", start_ms=2000.0, reply_stopped=stopped)


def test_cut_ins_are_counted_over_all_turns():
    turns = [make_turn(turn=n) for n in range(1, 4)]
    turns.append(make_turn(turn=4, marks_ms={"received": -600.0, "agent_onset": -500.0}))
    turns.append(make_turn(turn=5, marks_ms=None, ended="timeout"))
    figures = turn_taking(turns)
    assert (figures.cut_ins.hits, figures.cut_ins.n) == (1, 5)
    assert figures.cut_ins.low is not None
    assert figures.cut_ins.low < 0.2 < (figures.cut_ins.high or 0)


def test_who_cuts_in_whenever_it_hears_a_turn_has_cut_in_on_one():
    cut_in = {"received": -600.0, "agent_onset": -500.0}
    once = [make_turn(turn=n, marks_ms=cut_in) if n == 4 else make_turn(turn=n) for n in range(10)]
    rounds = [turn.model_copy(update={"repeat": r}) for r in range(5) for turn in once]
    of_one, of_five = turn_taking(once).cut_ins, turn_taking(rounds).cut_ins
    assert (of_five.hits, of_five.n, of_five.recorded) == (5, 50, 10)
    assert (of_five.low, of_five.high) == pytest.approx((of_one.low, of_one.high))


def test_false_stops_are_counted_over_all_backchannels():
    turns = [
        make_turn(turn=1, backchannels=(backchannel(True), backchannel(False))),
        make_turn(turn=2, backchannels=(backchannel(True),)),
    ]
    assert (turn_taking(turns).false_stops.hits, turn_taking(turns).false_stops.n) == (2, 3)


def test_the_yield_is_a_median_over_barge_ins_alone():
    turns = [make_turn(turn=n, yield_ms=100.0 * n) for n in range(1, 6)]
    figures = turn_taking([*turns, make_turn(turn=6)])
    assert figures.barge_ins == 5
    assert figures.yield_ms.value == 300.0


def test_missing_figures_are_none_with_a_reason():
    figures = turn_taking([])
    assert figures.cut_ins.value is None
    assert figures.false_stops.value is None
    assert figures.yield_ms.value is None
    assert figures.yield_ms.why_none


def test_turns_without_a_reply_cannot_shorten_the_median_gap():
    quick = [make_turn(turn=n) for n in range(1, 6)]
    failed = [make_turn(turn=n, marks_ms=None, ended="timeout") for n in range(6, 12)]
    assert turn_taking(quick).gap_ms.value is not None
    assert turn_taking([*quick, *failed]).gap_ms.value is None


def document(rates: list[tuple[str, float, float]]) -> dict[str, object]:
    points = []
    for value, factor, cut_in_rate in rates:
        turns = [make_turn(turn=n, marks_ms=scaled(factor)) for n in range(1, 11)]
        figures = turn_taking(make_run(turns).turns)
        points.append(
            {
                "value": value,
                "turns": 10,
                "valid": True,
                "why_invalid": [],
                "gap_ms_p50": figures.gap_ms.value,
                **figures.as_json(),
                "cut_in_rate": cut_in_rate,
                "cut_in_rate_ci95": [0.0, 0.5],
            }
        )
    return {
        "setting": "turn.hold_ms",
        "points": points,
        "path": "runs/x",
        "stand_ins": ["simulated LLM"],
    }


def shown(block: object, width: int) -> str:
    console = Console(width=width, record=True, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(block)
    return capture.get()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_curve_puts_patience_to_the_right_and_cut_ins_up(width: int):
    text = shown(sweep_block(document([("0", 1, 0.4), ("300", 2, 0.1)]), width), width)
    lines = text.splitlines()
    (top,) = [n for n, line in enumerate(lines) if "┤" in line and "A" in line]
    (low,) = [n for n, line in enumerate(lines) if "┤" in line and "B" in line]
    assert top < low
    assert lines[top].index("A") < lines[low].index("B")
    assert "398 ms" in text
    assert all(len(line) <= width for line in lines)


def test_a_curve_of_one_point_is_not_drawn():
    assert "too few points" in shown(sweep_block(document([("0", 1, 0.4)]), 80), 80)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["turn.hold_ms"], "expected TABLE.KEY=V1,V2"),
        (["turn.hold_ms=100"], "expected 2 to 8"),
        (["turn.hold_ms=1,2,3,4,5,6,7,8,9"], "expected 2 to 8"),
        (["turn.nonsense=1,2"], "allowed:"),
        (["turn.hold_ms=soon,later"], "turn backend 'adaptive'"),
        (["turn.hold_ms=0,100", "--agent", "ws://127.0.0.1:9/"], "running agent"),
    ],
)
def test_a_bad_sweep_is_refused_before_anything_starts(
    arguments: list[str], says: str, capsys: Capsys
):
    done = turngap_here(capsys, "sweep", *arguments)
    assert done.code == 2, done.err
    assert says in done.err

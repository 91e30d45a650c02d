"""The caller's own lateness is never reported as a difference of two backends."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commandline import SCENARIOS, turngap_here
from fake_agents import FakeAgents, stand_in
from html_page import Page
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import make_comparison, make_turn

from turngap.compare.figures import Side, crossings, pairs_of
from turngap.compare.side_by_side import told_apart
from turngap.compare.words import answer, pair
from turngap.core.budget import STARVED_MS
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord, PacingRecord
from turngap.store.comparisons import COMPARISON_FILE, INCONCLUSIVE, PairRecord

RIGHT = AnswerRecord(verdict="right")
N = 48


def late_turn(
    number: int, gap_ms: float, late_ms: float, *, added: float = 1.0, accepted: float = STARVED_MS
) -> Turn:
    """A turn of that true gap, read by a caller that was so late; `added`: the part that it added.

    Its packets and its event loop are half of it each.
    """
    half = late_ms / 2
    made = make_turn(turn=number, answer=RIGHT)
    read = gap_ms + added * late_ms
    events = (
        {"event": "UserSpeech", "start_ns": 0},
        {"event": "AgentSilence", "at_ns": round((2_000 + read) * 1e6)},
    )
    pacing = PacingRecord(
        packets=150,
        late_ms_p50=half / 10,
        late_ms_max=half,
        loop_lag_ms_max=half,
        starved=half > accepted,
    )
    outcome = "answered" if read <= made.budget_ms else "late"
    # Conversations of two turns: their turns are exchanged together.
    update = {
        "scenario": f"of {(number - 1) // 2}",
        "gap_ms": read,
        "outcome": outcome,
        "pacing": pacing,
        "events": events,
    }
    return made.model_copy(update=update)


def side(name: str, late_ms: list[float], gap_ms: float = 400.0, **how: float) -> Side:
    """An agent of that gap: in turn `i` the caller beside it was `late_ms[i]` late."""
    noise = np.random.default_rng(5).normal(0, 8, len(late_ms))
    each = enumerate(zip(late_ms, noise, strict=True), start=1)
    turns = [late_turn(i, gap_ms + wobble, late, **how) for i, (late, wobble) in each]
    return Side(name, turns, (1.0, 1.0))


def compared(*sides: Side) -> PairRecord:
    (found,) = pairs_of(sides)
    return found


def told(found: PairRecord) -> list[str]:
    """The differences that it states."""
    figures = {"gap": found.gap_ms, "cut-ins": found.cut_ins, "right answers": found.right}
    return [name for name, figure in figures.items() if figure and told_apart(figure)]


QUIET = [1.0] * N
# What a process that burdens the caller beside one of two identical backends may do to it.
BURDENS = {
    "a little in each turn": [3.5] * N,
    "28 ms in each turn, as a larger starved-ms accepts": [28.0] * N,
    "two stalls in a dozen turns": [120.0 if i % 6 == 0 else 1.0 for i in range(N)],
    "a stall in every other turn": [60.0 if i % 2 else 1.0 for i in range(N)],
    "hopeless": [400.0] * N,
}


@pytest.mark.parametrize("late_ms", BURDENS.values(), ids=BURDENS.keys())
@pytest.mark.parametrize("accepted", [STARVED_MS, 50.0])
def test_identical_backends_differ_in_nothing_whatever_burdens_the_caller_beside_one(
    late_ms: list[float], accepted: float
) -> None:
    for burdened, free in (("one", "other"), ("other", "one")):
        beside = {burdened: late_ms, free: QUIET}
        sides = [side(name, beside[name], accepted=accepted) for name in ("one", "other")]
        found = compared(*sides)
        assert told(found) == []
        assert found.inconclusive is not None
        assert "inconclusive" in answer(make_comparison(sides))
        if found.gap_ms.value is None:
            assert f"the {burdened} takes the processor" in found.inconclusive


def test_lateness_on_one_side_names_that_side_and_no_difference_is_stored() -> None:
    found = compared(side("student", QUIET), side("teacher", BURDENS["hopeless"]))
    assert found.inconclusive is not None
    assert "starved in 48 turns of the teacher and in 0 of the student" in found.inconclusive
    for figure in (found.gap_ms, found.cut_ins, found.right):
        assert figure is not None
        assert (figure.value, figure.why_none) == (None, INCONCLUSIVE)
    assert crossings([side("student", QUIET), side("teacher", BURDENS["hopeless"])]) == []


def test_a_difference_within_the_callers_lateness_is_none() -> None:
    """Late in each turn of both, so that nothing lies on one side, and by more than they differ."""
    both = [8.0] * N
    found = compared(side("one", both, added=0.0), side("other", both, 405.0, added=0.0))
    assert found.gap_ms.value == pytest.approx(-5.0)
    assert found.inconclusive == "the caller's own lateness may have made the difference in the gap"
    assert told(found) == []


@pytest.mark.parametrize("late_ms", [0.0, 1.0, 4.0])
def test_a_difference_beyond_the_callers_lateness_is_told_with_its_bound(late_ms: float) -> None:
    found = compared(side("one", [late_ms] * N), side("other", [late_ms] * N, 430.0))
    assert (found.inconclusive, told(found)) == (None, ["gap"])
    assert found.gap_ms.value == pytest.approx(-30.0)
    assert found.gap_ms.low == pytest.approx(-30.0 - late_ms)
    assert found.gap_ms.high == pytest.approx(-30.0 + late_ms)
    assert found.caller is not None
    assert (found.caller.candidate_ms, found.caller.reference_ms) == (late_ms, late_ms)
    said = (
        f"may have added {late_ms:.1f} ms to the gap of one and {late_ms:.1f} ms to that of other"
    )
    assert said in pair(found)


def test_a_starved_turn_that_was_cut_into_or_wrong_may_be_the_callers_doing() -> None:
    cut = {"outcome": "cut_in", "gap_ms": -200.0, "answer": AnswerRecord(verdict="wrong")}
    stalls = [i % 4 == 0 for i in range(N)]  # on both sides, so that it lies on neither
    sides = [side(name, [40.0 if stall else 1.0 for stall in stalls]) for name in ("one", "other")]
    spoiled = [
        turn.model_copy(update=cut) if stall else turn
        for turn, stall in zip(sides[0].turns, stalls, strict=True)
    ]
    starved = compared(Side("one", spoiled, None), sides[1])
    assert told(starved) == []
    assert starved.inconclusive == (
        "the caller's own lateness may have made the difference in cut-ins and right answers"
    )
    timely = [late_turn(i, 400.0, 1.0) for i in range(1, N + 1)]
    worse = [t.model_copy(update=cut) if t.turn % 4 == 0 else t for t in timely]
    surely = compared(Side("one", worse, None), Side("other", timely, None))
    assert (surely.inconclusive, told(surely)) == (None, ["cut-ins", "right answers"])


STALLS = st.lists(
    st.tuples(st.integers(0, N - 1), st.booleans(), st.floats(0.0, 300.0), st.floats(0.0, 1.0)),
    max_size=60,
)


@settings(max_examples=20)
@given(STALLS, st.floats(0.0, 20.0), st.floats(0.0, 1.0), st.sampled_from([0.0, 20.0]))
def test_whatever_lateness_did_the_interval_holds_that_of_a_caller_in_time(
    stalls: list[tuple[int, bool, float, float]], always: float, part: float, slower: float
) -> None:
    truth = compared(side("one", [0.0] * N), side("other", [0.0] * N, 400.0 + slower))
    late = {name: [(always, part)] * N for name in ("one", "other")}
    for i, which, late_ms, share in stalls:
        late["one" if which else "other"][i] = (late_ms, share)
    noise = np.random.default_rng(5).normal(0, 8, N)
    sides = [
        Side(name, [
            late_turn(i + 1, gap_ms + noise[i], *late[name][i][:1], added=late[name][i][1])
            for i in range(N)
        ], None)
        for name, gap_ms in (("one", 400.0), ("other", 400.0 + slower))
    ]  # fmt: skip
    found = compared(*sides)
    if found.gap_ms.value is None:
        assert found.gap_ms.why_none == INCONCLUSIVE
        return
    # 1e-6: gaps are stored to the nanosecond.
    assert truth.gap_ms.low is not None
    assert truth.gap_ms.high is not None
    assert found.gap_ms.low is None or found.gap_ms.low <= truth.gap_ms.low + 1e-6
    assert found.gap_ms.high is None or found.gap_ms.high >= truth.gap_ms.high - 1e-6
    assert slower or told(found) == []


# --- where it is said -------------------------------------------------------------------------


class Burdened(FakeAgents):
    """Two agents that are the same; the caller beside `second` stands still in each turn."""

    def turn(self, url: str, scenario: str, number: int, repeat: int, phase: int) -> Turn:
        made = late_turn(number, 400.0, 56.0 if url == "second" else 1.0, accepted=50.0)
        return made.model_copy(update={"scenario": scenario, "repeat": repeat})


def test_a_comparison_beside_a_burdened_caller_is_inconclusive_everywhere_and_exits_with_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(
        monkeypatch,
        Burdened(),
        lambda target: "second" if target.choice.backends["llm"] == "sim:full" else "first",
    )
    arguments: list[Any] = ["--llm", "first=sim", "--llm", "second=sim:full", "--rounds", "7"]
    arguments += [str(SCENARIOS / "quick-questions.yaml"), "--starved-ms", "50"]
    done = turngap_here(capsys, "compare", "--out", tmp_path, *arguments)
    assert done.code == 3
    (folder,) = tmp_path.iterdir()
    document = json.loads((folder / COMPARISON_FILE).read_text("utf-8"))
    assert document["pairs"][0]["gap_ms"]["value"] is None
    why = "the caller was starved in 0 turns of the second and in 0 of the first"
    for text in (
        done.out,
        (folder / "compare.md").read_text("utf-8"),
        Page((folder / "report.html").read_text("utf-8")).text,
    ):
        plain = " ".join(text.replace("\\", "").split())
        assert why in plain
        assert (
            "compare · inconclusive · a caller up to 50 ms late accepted · first (simulated), sec"
            in plain
        )
    again = turngap_here(capsys, "report", folder, "--json")
    (said,) = json.loads(again.out)["inconclusive"]
    assert why in said

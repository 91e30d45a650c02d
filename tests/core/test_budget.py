from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.budget import OUTCOMES, Outcome, TurnEnd, outcome_of

ENDS: tuple[TurnEnd, ...] = get_args(TurnEnd)


@pytest.mark.parametrize(
    ("gap_ms", "ended", "outcome"),
    [
        (0.0, "reply_done", "answered"),
        (800.0, "reply_done", "answered"),  # the budget itself is within budget
        (800.000001, "reply_done", "late"),
        (-60.0, "reply_done", "answered"),  # within the label's error
        (-60.000001, "reply_done", "cut_in"),
        (400.0, "interrupted", "answered"),  # a barge-in does not undo the answer
        (900.0, "interrupted", "late"),
        (-70.0, "interrupted", "cut_in"),
        (400.0, "timeout", "answered"),
        (None, "interrupted", "abandoned"),
        (None, "timeout", "no_reply"),
        (None, "reply_done", "no_reply"),
        (None, "line_lost", "error"),
        (400.0, "hung_up", "answered"),
        (None, "hung_up", "error"),
        (400.0, "line_lost", "error"),
        (-50.0, "line_lost", "error"),
    ],
)
def test_outcome(gap_ms: float | None, ended: TurnEnd, outcome: Outcome) -> None:
    assert outcome_of(gap_ms, 800.0, ended) == outcome


@given(st.none() | st.floats(-1e6, 1e6), st.floats(0.001, 1e5), st.sampled_from(ENDS))
def test_every_turn_has_one_of_the_named_outcomes(
    gap_ms: float | None, budget_ms: float, ended: TurnEnd
) -> None:
    outcome = outcome_of(gap_ms, budget_ms, ended)
    assert outcome in OUTCOMES
    if outcome in ("answered", "late", "cut_in"):
        assert gap_ms is not None
    if outcome in ("abandoned", "no_reply"):
        assert gap_ms is None


@given(st.none() | st.floats(-1e6, 1e6), st.sampled_from(ENDS))
def test_a_reply_that_failed_is_an_error_however_the_turn_ended(
    gap_ms: float | None, ended: TurnEnd
) -> None:
    assert outcome_of(gap_ms, 800.0, ended, failed=True) == "error"


def test_all_outcomes_are_listed_once() -> None:
    assert sorted(OUTCOMES) == sorted(get_args(Outcome))

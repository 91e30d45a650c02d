"""Turns that no one played: a scenario, a number and a gap."""

from turngap.core.budget import DEFAULT_BUDGET_MS, outcome_of
from turngap.core.clock import ms_to_ns
from turngap.core.results import Turn
from turngap.core.stored import PacingRecord

PUNCTUAL = PacingRecord(packets=100, late_ms_p50=0.1, late_ms_max=1.0, starved=False)


def made_turn(
    scenario: str,
    turn: int,
    gap_ms: float | None,
    pacing: PacingRecord = PUNCTUAL,
    *,
    say: str = "",
) -> Turn:
    """Make a turn whose reply was heard to its end, within the default budget or late.

    Without a gap, no reply came.
    """
    ended = "timeout" if gap_ms is None else "reply_done"
    return Turn(
        scenario=scenario,
        turn=turn,
        repeat=1,
        say=say,
        outcome=outcome_of(gap_ms, DEFAULT_BUDGET_MS, ended),
        ended=ended,
        budget_ms=DEFAULT_BUDGET_MS,
        gap_ns=None if gap_ms is None else ms_to_ns(gap_ms),
        gap_ms=gap_ms,
        why_no_gap="no reply came" if gap_ms is None else None,
        stages=(),
        transcript="",
        reply="",
        lead_ms=None,
        yield_ms=None,
        marks=(),
        pacing=pacing,
        audio=None,
    )

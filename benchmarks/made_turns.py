"""Turns that nobody played: a scenario, a number and a gap."""

from turngap.core.budget import DEFAULT_BUDGET_MS, outcome_of
from turngap.core.clock import ms_to_ns
from turngap.core.results import PacingRecord, Turn

PUNCTUAL = PacingRecord(packets=100, late_ms_p50=0.1, late_ms_max=1.0, starved=False)


def made_turn(
    scenario: str, turn: int, gap_ms: float, pacing: PacingRecord = PUNCTUAL, *, say: str = ""
) -> Turn:
    """A turn whose reply was heard to its end, within the default budget or late."""
    return Turn(
        scenario=scenario,
        turn=turn,
        repeat=1,
        say=say,
        outcome=outcome_of(gap_ms, DEFAULT_BUDGET_MS, "reply_done"),
        ended="reply_done",
        budget_ms=DEFAULT_BUDGET_MS,
        gap_ns=ms_to_ns(gap_ms),
        gap_ms=gap_ms,
        why_no_gap=None,
        stages=(),
        transcript="",
        reply="",
        lead_ms=None,
        yield_ms=None,
        marks=(),
        pacing=pacing,
        audio=None,
    )

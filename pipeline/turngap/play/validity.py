"""Whether a run's figures may be used."""

from turngap.core.budget import STARVED_MS
from turngap.core.stats import n_needed
from turngap.core.summary import Summary

# Above this share of starved turns even p95 rests on turns that the caller itself delayed.
MAX_STARVED_SHARE = 0.05


def why_invalid(summary: Summary, starved_ms: float = STARVED_MS) -> tuple[str, ...]:
    """Why a run's figures are not to be used; empty when they are."""
    if not summary.turns:
        return ("no turn was finished",)
    # One turn alone is marked, and moves no median of five or more.
    several = summary.starved > 1 or summary.turns < n_needed(0.5)
    if several and summary.starved / summary.turns > MAX_STARVED_SHARE:
        return (
            f"the caller was starved in {summary.starved} of {summary.turns} turns (its packets or "
            f"its event loop over {starved_ms:g} ms late): quiet the machine and run again, or "
            "accept that error with a larger --starved-ms (in Python starved_ms, in pytest "
            "--turngap-starved-ms)",
        )
    return ()

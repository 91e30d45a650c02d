"""Lengths of time that are estimated, for people."""


def seconds_left(share: float, elapsed_s: float, planned_s: float | None) -> float | None:
    """About how long the rest takes: by the plan at first, then more and more by the pace so far.

    None while nothing is done and nothing was planned.
    """
    if share <= 0:
        return planned_s
    by_pace = elapsed_s / share
    whole = by_pace if planned_s is None else share * by_pace + (1 - share) * planned_s
    return max(0.0, 1 - share) * whole


def minutes_words(minutes: float) -> str:
    """Format a duration in minutes, with the precision of an estimate."""
    if minutes < 0.75:
        return "less than a minute"
    whole = round(minutes)
    return "about a minute" if whole == 1 else f"about {whole} minutes"

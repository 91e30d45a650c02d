"""Sentences for people who wait: the reason, the duration, and the progress."""

from collections.abc import Callable

_say: Callable[[str], None] | None = None


def say_waits_by(say: Callable[[str], None]) -> None:
    """Have this process report waits by `say` instead of in the log."""
    global _say  # noqa: PLW0603 - one process has one terminal
    _say = say


def say_wait(line: str) -> None:
    """Report in a line why people wait."""
    if _say is not None:
        _say(line)
        return
    from loguru import logger

    logger.info(line)


def seconds_left(share: float, elapsed_s: float, planned_s: float | None) -> float | None:
    """Estimate the time left: from the plan at first, then more and more from the pace so far.

    Return None while nothing is done and nothing was planned.
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


def bytes_words(number: int) -> str:
    """Format a size in decimal units, as the hub and disk makers count."""
    if number < 1_000_000:
        return f"{max(1, round(number / 1000)) if number else 0} kB"
    return f"{number / 1e6:.0f} MB" if number < 999_500_000 else f"{number / 1e9:.1f} GB"


def several(n: int, what: str) -> str:
    """Format a count of things: `1 run`, `1,200 runs`."""
    return f"{n:,} {what}{'s' * (n != 1)}"

"""Time as an argument: everything that waits or stamps takes a `Clock`."""

from datetime import UTC, datetime
from typing import Protocol

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
# The longest time that a scenario, a stack or a flag may name: an hour. A person on the phone has
# hung up by then, and a time like 1e308 ms cannot be counted in nanoseconds.
LONGEST_MS = 3_600_000.0


class Clock(Protocol):
    """One monotonic clock. `turngap.clocks` has the real one, `turngap.testing` a manual one."""

    def now_ns(self) -> int:
        """Return the present instant in integer nanoseconds; it never goes back."""
        ...

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at or after `deadline_ns`; at once if it has passed."""
        ...


def ms_to_ns(ms: float) -> int:
    """Convert milliseconds to whole nanoseconds."""
    return round(ms * NS_PER_MS)


def ns_to_ms(ns: int) -> float:
    """Convert nanoseconds to milliseconds."""
    return ns / NS_PER_MS


def samples_to_ns(samples: int, rate: int) -> int:
    """Convert `samples` at `rate` Hz to ns, rounded up, so that `ns_to_samples` inverts it."""
    return -(-samples * NS_PER_S // rate)


def ns_to_samples(ns: int, rate: int) -> int:
    """Count the whole samples at `rate` Hz that fit into `ns`."""
    return ns * rate // NS_PER_S


def instant(utc: str) -> datetime:
    """Read a stored instant; without a time zone it is UTC, as the fields' names say.

    Raises:
        ValueError: the text is not an ISO 8601 instant.
    """
    at = datetime.fromisoformat(utc)
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError as e:  # a zone east of the year 1
        raise ValueError(str(e)) from e

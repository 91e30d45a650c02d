"""Instants as documents store them: for people, not for timing."""

from datetime import UTC, datetime


def instant(utc: str) -> datetime:
    """Read a stored instant; one without a zone is UTC, as the names of the fields say.

    Raises:
        ValueError: it is no ISO 8601 instant.
    """
    at = datetime.fromisoformat(utc)
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError as e:  # a zone east of the year 1
        raise ValueError(str(e)) from e

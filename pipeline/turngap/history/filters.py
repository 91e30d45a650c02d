"""Which rows of the history are wanted."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import get_args

from turngap.core.errors import InputError, known_names
from turngap.core.instants import instant
from turngap.core.untrusted import printable
from turngap.history.entry import Entry, Kind, Status
from turngap.history.reading import began

_KEYS: dict[str, Callable[[Entry], str]] = {
    "kind": lambda entry: entry.kind,
    "status": lambda entry: entry.status,
    "label": lambda entry: entry.label,
    "agent": lambda entry: entry.agent,
    "commit": lambda entry: entry.commit or "",
    "machine": lambda entry: entry.machine,
    "verdict": lambda entry: entry.verdict,
    "played": lambda entry: entry.played,
}
_WORDS = {"kind": get_args(Kind), "status": get_args(Status)}
# These are given by their beginning, as git takes them; all others by a part.
_BY_BEGINNING = {"commit", "machine", "played"}
_AGO = re.compile(r"(\d{1,5})([dhw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an entry must be like.

    Attributes:
        where: texts by key. All keys must be met; of several texts for a key, one.
        since: it began then or later.
        valid: its figures can be used.
        last: so many of the newest that meet all else.
    """

    where: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    valid: bool = False
    last: int | None = None

    @classmethod
    def of(
        cls,
        where: Iterable[str] = (),
        *,
        since: str | None = None,
        valid: bool = False,
        last: int | None = None,
        now: datetime | None = None,
    ) -> "Wanted":
        """Make it of what was asked for: `KEY=TEXT`, and a day, an instant or `7d`.

        Raises:
            InputError: there is no such key, kind or status, or it is no instant.
        """
        pairs = tuple(map(_pair, where))
        start = None if since is None else _instant(since, now or datetime.now(UTC))
        return cls(pairs, start, valid, last)

    def among(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of the entries that are wanted, in their order."""
        kept = [entry for entry in entries if self._meets(entry)]
        return kept if self.last is None else kept[max(0, len(kept) - self.last) :]

    def _meets(self, entry: Entry) -> bool:
        if self.valid and not entry.valid:
            return False
        if self.since is not None and began(entry) < self.since:
            return False
        keys = {key for key, _ in self.where}
        return all(any(_is(entry, *pair) for pair in self.where if pair[0] == k) for k in keys)


def _is(entry: Entry, key: str, text: str) -> bool:
    value, text = _KEYS[key](entry).casefold(), text.casefold()
    if key in _WORDS:
        return value == text
    return value.startswith(text) if key in _BY_BEGINNING else text in value


def _pair(given: str) -> tuple[str, str]:
    key, equals, text = given.partition("=")
    key = key.strip()
    if not equals or key not in _KEYS:
        raise InputError(
            "history.where",
            f"--where {printable(given, 100)!r}: expected KEY=TEXT",
            hint=f"for example {key}=TEXT" if key in _KEYS else known_names(key, _KEYS),
        )
    text = text.strip()
    if key in _WORDS and text.casefold() not in _WORDS[key]:
        raise InputError(
            "history.where",
            f"--where {key}={printable(text, 100)}: there is no such {key}",
            hint=known_names(text, _WORDS[key]),
        )
    return key, text


def _instant(text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text.strip()):
        return now - timedelta(hours=int(ago[1]) * _HOURS[ago[2]])
    try:
        return instant(text.strip())
    except ValueError as e:
        raise InputError(
            "history.since",
            f"--since {printable(text, 100)!r}: expected a day, an instant in UTC, or how long ago",
            hint="for example: --since 2026-11-20, --since 2026-11-20T15:00, or --since 7d",
        ) from e

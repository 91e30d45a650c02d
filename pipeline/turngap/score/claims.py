"""Read what a platform writes next to a recording: who called whom, when, and its own latency."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of a transcript, in ms from the recording's start; `end_ms` None if not given."""

    side: Literal["person", "agent"]
    start_ms: float
    end_ms: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A platform's own facts of a call. `latency_ms` is per turn; `rest` keeps unknown keys."""

    platform: str
    call_id: str = ""
    started_utc: str = ""
    agent: str = ""
    latency_ms: tuple[float, ...] = ()
    said: tuple[Said, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict[str, Any])

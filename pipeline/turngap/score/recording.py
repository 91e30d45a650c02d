"""Read stereo call recordings, and decide which side is the person's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turngap.core.audio import Pcm

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded call: both sides as mono int16 of one length and rate, aligned.

    Attributes:
        side: the person's channel; `why_side` says what decided it.
        notes: faults of the recording, each with its figure and what it does to the figures.
        echo_db: the level of the agent's voice in the person's channel, relative to its own; None
            if it cannot be measured.
        offset_ms: by how much one side was shifted against the other.
        sha256: of the file.
    """

    path: Path
    rate: int
    person: Pcm
    agent: Pcm
    side: Side
    why_side: str
    notes: tuple[str, ...] = ()
    echo_db: float | None = None
    offset_ms: float = 0.0
    sha256: str = ""

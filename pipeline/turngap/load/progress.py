"""What a load test tells while it runs, for whoever shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Phase = Literal["calibration", "start", "warm-up", "measured", "cool-down"]


@dataclass(frozen=True, slots=True)
class Now:
    """How far a load test has come.

    Attributes:
        step: counted from 1; 0 before the first.
        phase: `start` is that of the agent and of the callers; turns count in `measured` alone.
        sessions: the level that is held; None where calls arrive at a rate, and before a step.
        confirms: whether the step's turns count towards the certificate of a search.
        running: calls that are open now.
        planned: turns of this step that count.
        turns: those that are over, missed ones included.
        hits: those of them that were on time.
        done_s: seconds that the test has run.
        left_s: seconds that it probably still takes; None: not known.
        certified: the most sessions that are certified so far; None: none are.
    """

    step: int
    phase: Phase
    sessions: int | None
    confirms: bool
    running: int
    planned: int
    turns: int
    hits: int
    done_s: float
    left_s: float | None
    certified: int | None = None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Whom a load test tells how it goes on.

    `on_now` is called about once a second, `on_folder` once, with the folder that it is stored in.
    """

    on_now: Callable[[Now], None] = lambda _: None
    on_folder: Callable[[Path], None] = lambda _: None

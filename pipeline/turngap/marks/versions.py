"""What differs between the versions of pipecat that a bot may have, from 1.8 on."""

from collections.abc import Callable
from typing import Any

from pipecat.frames.frames import Frame, FunctionCallResultFrame, LLMContextFrame, SystemFrame
from pipecat.observers.base_observer import FramePushed

try:
    from pipecat.frames.frames import (
        EagerEndOfTurnCancelFrame,  # pyright: ignore[reportAssignmentType]
    )
except ImportError:  # 1.8 makes no guesses, so it withdraws none

    class EagerEndOfTurnCancelFrame(SystemFrame):
        """Stands for a frame that this version never pushes."""


__all__ = [
    "EagerEndOfTurnCancelFrame",
    "FirstPushes",
    "is_guess",
    "on_user_bot_latency",
    "tool_error",
]

# A frame passes all processors of a pipeline within far fewer frames than this.
_REMEMBERED = 10_000


class FirstPushes:
    """Tells the first push of each frame from its later ones, which pipecat does from 1.14 on."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def is_first(self, data: FramePushed) -> bool:
        told: bool | None = getattr(data, "first_push", None)
        return self._is_new(data.frame) if told is None else told

    def _is_new(self, frame: Frame) -> bool:
        if frame.id in self._seen:
            return False
        self._seen[frame.id] = None
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True


def is_guess(frame: LLMContextFrame) -> bool:
    """Return whether it asks for an answer before the turn is over; none did before 1.9."""
    return bool(getattr(frame, "speculation", False))


def tool_error(frame: FunctionCallResultFrame) -> str | None:
    """Return why a tool failed; before 1.9 no frame says so."""
    return getattr(frame, "error", None)


def on_user_bot_latency(worker: Any, told: Callable[[float], None]) -> None:
    """Tell pipecat's own measurement of each reply, in ms, where the bot is traced.

    It is the figure that its traces hold as `turn.user_bot_latency_seconds`. Nothing is measured
    for it: without `enable_tracing`, or in a version that keeps it elsewhere, nothing is told.
    """
    observer = getattr(worker, "_user_bot_latency_observer", None)
    if observer is None:
        return

    async def on_latency_measured(_: Any, seconds: float) -> None:
        told(seconds * 1000)

    observer.add_event_handler("on_latency_measured", on_latency_measured)

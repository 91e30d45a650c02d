"""What the client is told while an answer may yet be void: nothing of it."""

from typing import Any

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.processors.frame_processor import FrameDirection
from pipecat.processors.frameworks.rtvi import RTVIObserver, RTVIObserverParams, RTVIProcessor

from turngap.agent.speculation import SpeculationDropped

# Of an answer, what pipecat's observer tells the client as it is made and not as it is heard.
_ANSWER = (
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMFullResponseEndFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)


class DiscreetObserver(RTVIObserver):
    """Tells the client of a speculative answer once it is confirmed, and never of a void one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: list[FramePushed] | None = None
        self._void = False

    async def on_push_frame(self, data: FramePushed) -> None:
        """Keep, pass on or forget a push."""
        frame = data.frame
        if isinstance(frame, SpeculationDropped):
            return
        if data.direction == FrameDirection.DOWNSTREAM and data.first_push:
            if isinstance(frame, LLMContextFrame):
                self._void = False
                self._kept = [] if frame.speculation else None
            elif isinstance(frame, EagerEndOfTurnCancelFrame | InterruptionFrame):
                self._void = self._kept is not None
                self._kept = None
            if isinstance(frame, (*_ANSWER, LLMContextFrame)):
                if self._kept is not None:
                    self._kept.append(data)
                    return
                if self._void:
                    return  # said before the LLM knew that nobody asks
        await super().on_push_frame(data)
        if isinstance(frame, UserStoppedSpeakingFrame) and self._kept is not None:
            kept, self._kept = self._kept, None
            for told in kept:
                await super().on_push_frame(told)


class DiscreetRTVI(RTVIProcessor):
    """pipecat's RTVI with the observer above."""

    def create_rtvi_observer(
        self, *, params: RTVIObserverParams | None = None, **kwargs: Any
    ) -> RTVIObserver:
        """The observer that this processor's pipeline gets."""
        return DiscreetObserver(self, params=params, **kwargs)

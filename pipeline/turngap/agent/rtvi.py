"""Keeps an answer that may still become void from the client."""

from collections import deque
from typing import Any

from pipecat.frames.frames import (
    Frame,
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

from turngap.agent.speculation import GUESS, Guesses, SpeculationDropped, State

# Frames of an answer that pipecat's observer tells the client as they are made, before they are
# heard.
_ANSWER = (
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMFullResponseEndFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)


class DiscreetObserver(RTVIObserver):
    """Tells the client of a speculative answer once it is confirmed, and never of a void one."""

    def __init__(self, guesses: Guesses, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guesses = guesses
        self._kept: deque[FramePushed] = deque()
        self._asked: LLMContextFrame | None = None
        self._confirmed: object = None  # the number of the latest guess whose turn has ended

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        if isinstance(frame, SpeculationDropped):
            return
        down = data.direction == FrameDirection.DOWNSTREAM
        if down and isinstance(frame, _ANSWER):
            if isinstance(frame, LLMContextFrame) and frame.speculation:
                self._asked = frame
            await self._tell()
            state = self._state(frame)
            if state == "pending" and data.first_push:
                self._kept.append(data)
            if state != "heard":
                return
        await super().on_push_frame(data)
        if down and isinstance(frame, UserStoppedSpeakingFrame) and self._asked is not None:
            self._confirmed = self._asked.metadata.get(GUESS)
            await self._tell()

    async def _tell(self) -> None:
        """Pass on kept pushes that the client may know by now, and forget void ones."""
        while self._kept and (state := self._state(self._kept[0].frame)) != "pending":
            data = self._kept.popleft()
            if state == "heard":
                await super().on_push_frame(data)

    def _state(self, frame: Frame) -> State:
        """Return what the client may know; pushes are handled late, but in their order."""
        guess = frame.metadata.get(GUESS)
        if guess is None:
            asked = isinstance(frame, LLMContextFrame) and frame.speculation
            return "pending" if asked else "heard"
        state = self._guesses.state(frame)
        return "pending" if state == "heard" and guess != self._confirmed else state


class DiscreetRTVI(RTVIProcessor):
    """pipecat's RTVI processor with a `DiscreetObserver`."""

    def __init__(self, guesses: Guesses) -> None:
        super().__init__()
        self._guesses = guesses

    def create_rtvi_observer(
        self, *, params: RTVIObserverParams | None = None, **kwargs: Any
    ) -> RTVIObserver:
        return DiscreetObserver(self._guesses, self, params=params, **kwargs)

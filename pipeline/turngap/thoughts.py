"""A guard that keeps an LLM's thoughts from being spoken, timed as its first token, or judged."""

import asyncio
from typing import Any

from pipecat.frames.frames import (
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService

from turngap.core.thoughts import Cut, ThoughtCut, without_thoughts

# Set on a service whose chat template begins the reply within a thought.
BEGINS_IN_THOUGHT = "begins_in_thought"


def guard_thoughts(llm: FrameProcessor) -> None:
    """Cut thoughts out of what a service says, and push them as `LLMThoughtTextFrame`s.

    Each thought is framed by a start and an end, or pipecat's aggregator would collect the thoughts
    of a whole session.
    All of pipecat's services say text by `_push_llm_text`, which also ends their time to the first
    token of the answer. Any other processor stays as it is.
    """
    if isinstance(llm, LLMService):
        _Guard(llm)


class _Guard:
    """Guarded versions of an LLM service's methods."""

    def __init__(self, llm: LLMService[Any]) -> None:
        self._llm = llm
        self._cut = ThoughtCut()
        self._cut_out: Frame | None = None  # the latest thought that was cut out here
        self._thinks = False  # a thought was begun downstream
        self._say, self._push, self._infer = llm._push_llm_text, llm.push_frame, llm.run_inference
        llm._push_llm_text, llm.push_frame = self._push_llm_text, self.push_frame
        llm.run_inference = self.run_inference

    async def _push_llm_text(self, text: str) -> None:
        await self._tell(self._cut.feed(text))

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        match frame:
            case LLMFullResponseStartFrame():
                self._cut = ThoughtCut(begun=getattr(self._llm, BEGINS_IN_THOUGHT, False))
                self._thinks = False
            case LLMFullResponseEndFrame():
                if not _cancelled():
                    await self._finish()
                await self._end_thought()
            case LLMThoughtStartFrame() | LLMThoughtEndFrame():
                self._thinks = isinstance(frame, LLMThoughtStartFrame)
            case LLMThoughtTextFrame():
                if frame is not self._cut_out:
                    self._cut.told_apart()
                if not self._thinks:
                    await self._llm.push_frame(LLMThoughtStartFrame())
            case LLMTextFrame():
                await self._end_thought()
            case _:
                pass
        await self._push(frame, direction)

    async def _finish(self) -> None:
        await self._tell(self._cut.finish())
        if self._cut.leaked:
            await self._llm.push_error(
                "the reply began with a thought that nothing announced, and was spoken; start "
                "the server with its reasoning parser, or choose a model that does not think"
            )

    async def _end_thought(self) -> None:
        if self._thinks:
            await self._llm.push_frame(LLMThoughtEndFrame())

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        answer = await self._infer(*args, **kwargs)
        return answer and without_thoughts(answer)

    async def _tell(self, cut: Cut) -> None:
        if cut.thought:
            self._cut_out = LLMThoughtTextFrame(text=cut.thought)
            await self._llm.push_frame(self._cut_out)
        if cut.spoken:
            await self._say(cut.spoken)


def _cancelled() -> bool:
    """Return whether the reply is being interrupted."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""Keeps what an LLM thinks from being spoken, timed as its first token, or judged."""

import asyncio
from typing import Any

from pipecat.frames.frames import (
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMThoughtTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService

from turngap.core.thoughts import Cut, ThoughtCut, without_thoughts

# Set on a service whose chat template begins the reply within a thought.
BEGINS_IN_THOUGHT = "begins_in_thought"


def guard_thoughts(llm: FrameProcessor) -> None:
    """Cut thoughts out of what a service says, and push them as `LLMThoughtTextFrame`s.

    All of pipecat's services say text by `_push_llm_text`, which also ends their time to the first
    token of the answer. Any other processor stays as it is.
    """
    if isinstance(llm, LLMService):
        _Guard(llm)


class _Guard:
    """Takes the place of an LLM service's methods."""

    def __init__(self, llm: LLMService[Any]) -> None:
        self._llm = llm
        self._cut = ThoughtCut()
        self._say, self._push, self._infer = llm._push_llm_text, llm.push_frame, llm.run_inference
        llm._push_llm_text, llm.push_frame = self._push_llm_text, self.push_frame
        llm.run_inference = self.run_inference

    async def _push_llm_text(self, text: str) -> None:
        await self._tell(self._cut.feed(text))

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        if isinstance(frame, LLMFullResponseStartFrame):
            self._cut = ThoughtCut(begun=getattr(self._llm, BEGINS_IN_THOUGHT, False))
        elif isinstance(frame, LLMFullResponseEndFrame) and not _cancelled():
            await self._tell(self._cut.finish())
            if self._cut.leaked:
                await self._llm.push_error(
                    "the reply began with a thought that nothing announced, and was spoken; start "
                    "the server with its reasoning parser, or choose a model that does not think"
                )
        await self._push(frame, direction)

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        answer = await self._infer(*args, **kwargs)
        return answer and without_thoughts(answer)

    async def _tell(self, cut: Cut) -> None:
        if cut.thought:
            await self._llm.push_frame(LLMThoughtTextFrame(text=cut.thought))
        if cut.spoken:
            await self._say(cut.spoken)


def _cancelled() -> bool:
    """Return whether the reply is being interrupted."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

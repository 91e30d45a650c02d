"""Answers what a closed-domain recogniser did not know, without asking the LLM."""

from typing import Any

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from turngap.backends import COUNTS
from turngap.core.spoken import OUT_OF_DOMAIN, OUTSIDE
from turngap.scenario.domain import Domain


class DomainAnswer(FrameProcessor):
    """Stands before the LLM and says what can be asked for, if a turn holds `OUT_OF_DOMAIN`.

    The LLM is neither asked nor told of it later, as it could make nothing of such a turn. An
    answer that was asked for before the turn was over is refused, as an LLM refuses one for which
    it would call a tool, so that it is asked for again when the turn is over.

    It has no queue, so that it adds no wait to a turn that it lets pass.
    """

    def __init__(self, domain: Domain) -> None:
        super().__init__(enable_direct_mode=True)
        self._domain = domain
        self._times = 0  # in a row

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame) or direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
        elif not _is_outside(frame.context.messages[-1]):
            if not frame.speculation:
                self._times = 0
            forget_outside(frame.context)
            await self.push_frame(frame, direction)
        elif frame.speculation:
            await self.broadcast_frame(EagerEndOfTurnCancelFrame)
        else:
            text = LLMTextFrame(self._domain.offer(self._times))
            text.metadata[COUNTS] = {OUTSIDE: 1}
            self._times += 1
            for part in (LLMFullResponseStartFrame(), text, LLMFullResponseEndFrame()):
                await self.push_frame(part)


def forget_outside(context: LLMContext) -> None:
    """Remove the turns that hold `OUT_OF_DOMAIN`, and what the agent answered to them."""
    kept: list[Any] = []
    forgets = False
    for message in context.messages:
        if isinstance(message, dict) and message.get("role") == "user":
            forgets = _is_outside(message)
        if not forgets:
            kept.append(message)
    if len(kept) < len(context.messages):
        context.set_messages(kept)


def _is_outside(message: Any) -> bool:
    is_turn = isinstance(message, dict) and message.get("role") == "user"
    return is_turn and OUT_OF_DOMAIN in str(message.get("content", ""))

"""Answers what lies outside of a closed domain without asking the LLM."""

from collections.abc import Callable
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
    """Stands before the LLM and says what can be asked for, if a turn is outside of the domain.

    Such a turn holds `OUT_OF_DOMAIN`, or, while `checks` says so, a text that is near nothing that
    the domain knows.

    The LLM is neither asked nor told of it later, as it could make nothing of such a turn. An
    answer that was asked for before the turn was over is refused, as an LLM refuses one for which
    it would call a tool, so that it is asked for again when the turn is over.

    It has no queue, so that it adds no wait to a turn that it lets pass.
    """

    def __init__(self, domain: Domain, checks: Callable[[], bool] = lambda: False) -> None:
        super().__init__(enable_direct_mode=True)
        self._checks = checks
        self._domain = domain
        self._times = 0  # in a row

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame) or direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
        elif not self._is_outside(frame.context.messages[-1]):
            if not frame.speculation:
                self._times = 0
            forget_outside(frame.context, self._is_outside)
            await self.push_frame(frame, direction)
        elif frame.speculation:
            await self.broadcast_frame(EagerEndOfTurnCancelFrame)
        else:
            text = LLMTextFrame(self._domain.offer(self._times))
            text.metadata[COUNTS] = {OUTSIDE: 1}
            self._times += 1
            for part in (LLMFullResponseStartFrame(), text, LLMFullResponseEndFrame()):
                await self.push_frame(part)

    def _is_outside(self, message: Any) -> bool:
        if not _is_turn(message):
            return False
        text = str(message.get("content", ""))
        return OUT_OF_DOMAIN in text or (self._checks() and not self._domain.knows(text))


def forget_outside(context: LLMContext, is_outside: Callable[[Any], bool]) -> None:
    """Remove the turns that are outside of the domain, and what the agent answered to them."""
    kept: list[Any] = []
    forgets = False
    for message in context.messages:
        if _is_turn(message):
            forgets = is_outside(message)
        if not forgets:
            kept.append(message)
    if len(kept) < len(context.messages):
        context.set_messages(kept)


def _is_turn(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"

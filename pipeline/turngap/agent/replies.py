"""A reply as it comes from an LLM: it begins, goes on and ends in a bounded time and length."""

from collections.abc import Awaitable, Callable

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    ErrorFrame,
    Frame,
    FunctionCallsStartedFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMThoughtTextFrame,
)

from turngap.agent.watch import LLM, Late, Patience, Watch
from turngap.core.clock import Clock
from turngap.core.untrusted import harmless

# Longer than anybody listens to a telephone: five minutes of speech. A model that never stops would
# fill the memory, and the voice's queue.
MOST_REPLY_CHARS = 5_000
# As many empty tokens come to nothing either.
MOST_REPLY_TOKENS = 5_000


def spoken(text: str) -> str:
    """Return an engine's text without what no voice, no JSON and no terminal can take."""
    return "\n".join(harmless(line) for line in text.split("\n"))


class ReplyWatch:
    """Follows the reply to each request: call `begin`, `saw` and `end`.

    Args:
        give_up: called with the reason when the LLM has stalled or does not stop.
        patience: how long an LLM may be silent.
        late: called with why the answer is late, as a `Watch` does.
        empty: called with the reason when a reply has no text and nothing else says why.
    """

    def __init__(
        self,
        clock: Clock,
        give_up: Callable[[str], Awaitable[None]],
        *,
        patience: Patience = LLM,
        late: Late = lambda why: None,
        empty: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._watch = Watch("token", patience, clock, late, give_up)
        self._give_up = give_up
        self._empty = empty
        self._chars = self._thoughts = 0
        self._begun = False  # the reply to the latest request
        self._explained = False  # an error, a call or a refusal says why there is no text

    def begin(self) -> None:
        """Note that the LLM was asked: by the person, or with the results of tools."""
        self._chars, self._thoughts, self._begun, self._explained = 0, 0, False, False
        self._watch.begin()

    def end(self) -> None:
        """Expect nothing more: the LLM was told to stop."""
        self._watch.end()

    async def saw(self, frame: Frame) -> None:
        """Take a frame that the LLM has pushed."""
        match frame:
            case LLMFullResponseStartFrame():
                self._begun = True
            case LLMTextFrame() if self._watch.waits:
                self._watch.news()
                self._chars += len(frame.text)
                if self._chars > MOST_REPLY_CHARS or self._watch.count > MOST_REPLY_TOKENS:
                    self._watch.end()
                    said = f"{self._chars} characters in {self._watch.count} tokens"
                    await self._give_up(f"the reply has no end: {said}")
            case LLMThoughtTextFrame() if self._watch.waits:
                self._thoughts += 1
                self._watch.aside = f"{self._thoughts} pieces of thought"
            case ErrorFrame() | FunctionCallsStartedFrame() | EagerEndOfTurnCancelFrame():
                self._explained = True
            # A quick tool's results may be there before the request that called it has ended.
            case LLMFullResponseEndFrame() if self._watch.waits and self._begun:
                self._watch.finish()
                if not self._chars and not self._explained:
                    aside = self._watch.aside
                    self._empty(f"the reply is {f'nothing but {aside}' if aside else 'empty'}")
            case _:
                pass

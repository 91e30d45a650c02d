"""One request to a part of a combined model, and what has come of it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext

from turngap_services.llm.combine.tools import offered

if TYPE_CHECKING:
    from turngap_services.llm.combine.part import Part


class PartFailedError(Exception):
    """A part said that it cannot answer, or not the whole of it."""


class Ask:
    """One request to a part, and what has come of it.

    Attributes:
        pieces: how many pieces of text came; with most services a piece is a token.
        prompt_chars: length of what it was asked with.
        used: the tokens that the part says it used; None: it has not said.
        first_ms: from the request to the first token, of text or of a call; None: there is none.
        news_ns: when something came of it last; the request, where nothing did.
        calls: the tools that it wants to be called; a reply's calls come whole, at its end.
        failed: why the part cannot answer; None: it can.
        given_up: whether it was ended for being silent too long.
        begun: set once its first token is there, or none will be.
        ready: set once it can be told whether it answers.
        ended: set once no more will come.
        said: its text so far.
    """

    def __init__(self, part: "Part", prompt_chars: int, asked_ns: int) -> None:
        self.part = part
        self.prompt_chars = prompt_chars
        self.pieces = 0
        self.used: LLMTokenUsage | None = None
        self.first_ms: float | None = None
        self.news_ns = self._asked_ns = asked_ns
        self.calls: tuple[FunctionCallFromLLM, ...] = ()
        self.failed: str | None = None
        self.given_up = False
        self.over = False
        self.begun = asyncio.Event()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.said = ""
        self._said: asyncio.Queue[str | None] = asyncio.Queue()

    @property
    def answers(self) -> bool:
        """Whether there is something to say, or to be called."""
        return self.pieces > 0 or bool(self.calls)

    async def text(self) -> AsyncGenerator[str]:
        """Its pieces as they come.

        Raises:
            PartFailedError: it ended by an error, or without a word or a call.
        """
        while (piece := await self._said.get()) is not None:
            yield piece
        if self.failed is not None:
            raise PartFailedError(self.failed)

    def begin(self, at_ns: int) -> None:
        """A token came; the first may be that of a call, which is told when it is whole."""
        if self.over:
            return
        if self.first_ms is None:
            self.first_ms = (at_ns - self._asked_ns) / 1e6
        self.news_ns = at_ns
        self.begun.set()

    def say(self, piece: str, at_ns: int) -> None:
        """A piece came."""
        if self.over:
            return
        self.begin(at_ns)
        self.pieces += 1
        self.said += piece
        self._said.put_nowait(piece)
        self.ready.set()

    def call(self, calls: Sequence[FunctionCallFromLLM], at_ns: int) -> None:
        """It wants these tools to be called."""
        if self.over:
            return
        self.begin(at_ns)
        self.calls += tuple(calls)
        self.ready.set()

    def end(self, error: str | None = None) -> None:
        """No more will come."""
        if self.over:
            return
        self.over = True
        self.failed = error or (None if self.answers else f"{self.part.name} said nothing")
        self._said.put_nowait(None)
        self.begun.set()
        self.ready.set()
        self.ended.set()


def prompt_chars(context: LLMContext) -> int:
    """The length of what a model is asked with: messages, calls with their results, and tools."""
    messages = (m for m in context.get_messages() if isinstance(m, dict))
    tools = sum(len(json.dumps(tool.to_default_dict())) for tool in offered(context))
    return tools + sum(_chars(message) for message in messages)


def _chars(message: Any) -> int:
    calls = message.get("tool_calls")
    return len(str(message.get("content") or "")) + (len(json.dumps(calls)) if calls else 0)

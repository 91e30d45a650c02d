"""Requests to the parts of a combined model: what came of each, and what they cost together."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext

from turngap_services.llm.combine.conversation import written
from turngap_services.llm.plain import offered

if TYPE_CHECKING:
    from turngap_services.llm.combine.part import Part

# Many services never say what a cancelled request cost. Four characters a token is the rule of
# thumb for English.
CHARS_A_TOKEN = 4

_FIGURES = ("requests", "given_up", "prompt_tokens", "completion_tokens", "usd", "unpriced_tokens")


class PartFailedError(Exception):
    """A part cannot answer, or not to the end."""


class Ask:
    """One request to a part, and what has come of it.

    Attributes:
        prompt_chars: length of the prompt.
        pieces: number of pieces of text so far; with most services a piece is a token.
        used: tokens that the service says it used, if it has said.
        first_ms: time to the first token, of text or of a call, if there is one.
        thoughts: number of pieces of what it thought, which are no part of the answer.
        thought_ms: what they took.
        news_ns: when something last came of it, or the request was made.
        calls: tool calls, which come whole at the reply's end.
        failed: why the part cannot answer, if so.
        given_up: whether it was ended for being silent too long.
        begun: set once the first token is there, or none will come.
        ready: set once it is known whether the part answers.
        ended: set once no more will come.
        said: the text so far.
    """

    def __init__(self, part: "Part", prompt_chars: int, asked_ns: int) -> None:
        self.part = part
        self.prompt_chars = prompt_chars
        self.pieces = 0
        self.thoughts = 0
        self.thought_ms = 0.0
        self._piece_ns: int | None = None  # the latest, of the answer or of a thought
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
        return self.pieces > 0 or bool(self.calls)

    async def text(self) -> AsyncGenerator[str]:
        """Yield its pieces as they come.

        Raises:
            PartFailedError: it ended by an error, or without a word or a call.
        """
        while (piece := await self._said.get()) is not None:
            yield piece
        if self.failed is not None:
            raise PartFailedError(self.failed)

    def begin(self, at_ns: int) -> None:
        """Note a token; the first may be that of a call, which comes when it is whole."""
        if self.over:
            return
        if self.first_ms is None:
            self.first_ms = (at_ns - self._asked_ns) / 1e6
        self.news_ns = at_ns
        self.begun.set()

    def say(self, piece: str, at_ns: int) -> None:
        if self.over:
            return
        self.begin(at_ns)
        self._piece_ns = at_ns
        self.pieces += 1
        self.said += piece
        self._said.put_nowait(piece)
        self.ready.set()

    def think(self, at_ns: int) -> None:
        """Note a piece of what it thinks: the first token is still waited for."""
        if not self.over:
            self.thoughts += 1
            self.thought_ms += (at_ns - (self._piece_ns or at_ns)) / 1e6
            self._piece_ns = at_ns

    def call(self, calls: Sequence[FunctionCallFromLLM], at_ns: int) -> None:
        if self.over:
            return
        self.begin(at_ns)
        self.calls += tuple(calls)
        self.ready.set()

    def end(self, error: str | None = None) -> None:
        if self.over:
            return
        self.over = True
        thought = f" but {self.thoughts} pieces of thought" if self.thoughts else ""
        self.failed = error or (None if self.answers else f"{self.part.name} said nothing{thought}")
        self._said.put_nowait(None)
        self.begun.set()
        self.ready.set()
        self.ended.set()

    def tokens(self) -> tuple[int, int]:
        """Return prompt and completion tokens: the service's figures, or an estimate."""
        if self.used is not None:
            return self.used.prompt_tokens, self.used.completion_tokens
        called = sum(-(-len(written(call)) // CHARS_A_TOKEN) for call in self.calls)
        return -(-self.prompt_chars // CHARS_A_TOKEN), self.pieces + self.thoughts + called


def prompt_chars(context: LLMContext) -> int:
    """Return the length of a prompt: messages, calls with their results, and tools."""
    messages = (m for m in context.get_messages() if isinstance(m, dict))
    tools = sum(len(json.dumps(tool.to_default_dict())) for tool in offered(context))
    return tools + sum(_chars(message) for message in messages)


def _chars(message: Any) -> int:
    calls = message.get("tool_calls")
    return len(str(message.get("content") or "")) + (len(json.dumps(calls)) if calls else 0)


class Meter:
    """Adds up what all requests of one turn have used so far, the losers' included."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks
        self._told: dict[str, float] = {}

    def take(self) -> dict[str, float]:
        """Return what was added since the last call, by name; negative if an estimate was too high.

        Parts with a price are counted in USD, tokens of the others as unpriced.
        """
        totals: dict[str, float] = dict.fromkeys(_FIGURES, 0.0)
        for ask in self._asks:
            prompt, completion = ask.tokens()
            totals["requests"] += 1
            totals["given_up"] += ask.given_up
            totals["prompt_tokens"] += prompt
            totals["completion_tokens"] += completion
            if (price := ask.part.price) is None:
                totals["unpriced_tokens"] += prompt + completion
            else:
                totals["usd"] += (prompt * price.input_usd + completion * price.output_usd) / 1e6
        news = {f"combined_{name}": n - self._told.get(name, 0.0) for name, n in totals.items()}
        self._told = totals
        return {name: n for name, n in news.items() if n}

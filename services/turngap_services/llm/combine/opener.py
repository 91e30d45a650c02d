"""`opener`: the fast model says the first clause at once, the full one goes on from it."""

import re
from collections.abc import AsyncGenerator
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import Clock
from turngap.core.spoken import LETTER_MS, letters
from turngap_services.llm.combine.ask import Ask, PartFailedError
from turngap_services.llm.combine.service import PairLLMService
from turngap_services.llm.combine.settings import OpenerSettings
from turngap_services.llm.combine.tools import is_for_tool

# How long after the first audio the answer's own began: what was said before it, or waited for it.
OPENER_MS = "opener_ms"
# 1 where the full model took back what the fast one had said.
CORRECTED = "opener_corrected"
# 1 where nothing was opened with, for a tool has to be asked and the fast model knows of none.
FOR_TOOL = "opener_for_tool"

# Not behind a digit: "9:" and "7." go on.
_CLAUSE_END = re.compile(r"(?<!\d)[,.;:?!…]$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# A shorter one is spoken before the voice can be given more.
LEAST_WORDS = 2

INSTRUCTION = (
    'You have already begun your answer and said: "{opening}" Go on from exactly there: do not say '
    "it again, and do not greet. If it was wrong, begin with: {correction}"
)


class OpenerLLMService(PairLLMService):
    """Says a clause of one model's, then what the other makes of it."""

    def __init__(self, *, settings: OpenerSettings, clock: Clock) -> None:
        super().__init__(name="opener", settings=settings, clock=clock)
        self._opener = settings
        # What was said before an answer that is still to come, and when that was out (ns).
        self._opened: tuple[str, int] | None = None

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        self._opened = None
        if not self._fast.tools and is_for_tool(context):
            # What it opened with would be made up, and the result would take it back.
            self._counts[FOR_TOOL] = 1.0
            async for piece in self._answer(await self._one_of(self._parts[::-1], context)):
                yield piece
            return
        anew = None if self._opener.told else await self._ask(self._full, context)
        fast = await self._ask(self._fast, context)
        words = fast.text()
        opening, begun = await self._opening(words)
        if opening:
            yield opening + " "
        if fast.failed is not None:
            self._fell_back(fast)
        self._opened = (opening, self._clock.now_ns()) if opening else None
        full = anew or await self._ask(self._full, self._begun(context))
        await full.ready.wait()
        if not full.answers:
            # The opening is the fast model's own: it can go on, with what it had begun to say.
            if fast.failed is not None:
                raise PartFailedError(f"{fast.failed}; {full.failed}")
            self._fell_back(full)
            self._kept = fast
            if begun:
                yield begun
            async for piece in words:
                yield piece
            return
        await self._fast.cancel()
        async for piece in self._answer(full):
            yield piece

    async def _answer_tools(self, context: LLMContext) -> AsyncGenerator[str]:
        ask = await self._one_of(self._answerers(), self._reminded(context))
        async for piece in self._answer(ask):
            yield piece

    async def _answer(self, ask: Ask) -> AsyncGenerator[str]:
        """What the full model says, behind the opening; a call alone is no answer yet."""
        self._kept = ask
        if self._opened is None or not ask.pieces:
            async for piece in ask.text():
                yield piece
            return
        opening, said_ns = self._opened
        self._opened = None
        waited_ms = (self._clock.now_ns() - said_ns) / 1e6
        self._counts[OPENER_MS] = max(waited_ms, LETTER_MS * letters(opening))
        async for piece in self._going_on(opening, ask):
            yield piece

    async def _opening(self, words: AsyncGenerator[str]) -> tuple[str, str]:
        """The first clause, or the first few words of a long one; empty where there is none.

        And what came behind them by then.
        """
        text, most = "", self._opener.most_words
        try:
            async for piece in words:
                text += piece
                said = text.split(maxsplit=most)
                # The word that a piece begins is whole when the next one does.
                if len(said) > most:
                    return " ".join(said[:most]), said[most]
                if len(said) >= LEAST_WORDS and _CLAUSE_END.search(text.rstrip()):
                    break
        except PartFailedError:
            pass
        return text.strip(), ""

    def _begun(self, context: LLMContext) -> LLMContext:
        """What the full model is asked with: with the opening, as said."""
        if self._opened is None:
            return context
        said: Any = {"role": "assistant", "content": self._opened[0]}
        return self._reminded(with_messages(context, said))

    def _reminded(self, context: LLMContext) -> LLMContext:
        """With the instruction to go on from the opening, where one is told of it."""
        if self._opened is None or not self._opener.told:
            return context
        opening, correction = self._opened[0], self._opener.correction
        note: Any = INSTRUCTION.format(opening=opening, correction=correction)
        return with_messages(context, {"role": "system", "content": note})

    async def _going_on(self, opening: str, full: Ask) -> AsyncGenerator[str]:
        """What the full model says, without what was said already.

        It may say the opening again: then that is left out. A model that was told of the opening is
        trusted to go on from it or to take it back. One that was not has answered anew: where it
        says something else, the opening is taken back first.
        """
        pieces = full.text()
        held, known, heard, ended = "", _words(opening), list[str](), True
        async for piece in pieces:
            held += piece
            # The last word may go on with the next piece.
            heard = _words(held[: held.rfind(" ") + 1])
            if heard[: len(known)] != known[: len(heard)] or len(heard) > len(known):
                ended = False
                break
        heard = _words(held) if ended else heard
        if heard[: len(known)] == known:
            held = _behind(held, len(known))
        elif not self._opener.told:
            self._counts[CORRECTED] = 1.0
            yield f"{self._opener.correction} "
        if held:
            yield held
        async for piece in pieces:
            yield piece


def with_messages(context: LLMContext, *more: Any) -> LLMContext:
    """The conversation with these behind it."""
    return LLMContext([*context.messages, *more], context.tools, context.tool_choice)


def _words(text: str) -> list[str]:
    """Its words without marks and case."""
    return [m.group().lower() for m in _WORD.finditer(text)]


def _behind(text: str, count: int) -> str:
    """What stands in `text` behind its first `count` words and their marks."""
    ends = [m.end() for m in _WORD.finditer(text)]
    rest = text[ends[count - 1] :] if count else text
    return rest.lstrip(" \n,.;:?!…")

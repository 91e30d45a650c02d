"""`opener`: the fast model says the first clause at once, the full one goes on from it."""

import re
from collections.abc import AsyncGenerator
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.spoken import LETTER_MS, letters
from turngap_services.llm.combine import OpenerSettings
from turngap_services.llm.combine.conversation import is_for_tool
from turngap_services.llm.combine.part import Ask, PartFailedError
from turngap_services.llm.combine.service import PairLLMService

# How long after the first audio the answer itself began, in ms: the opening and the wait behind it.
OPENER_MS = "opener_ms"
# 1 if the full model took back what the fast one had said.
CORRECTED = "opener_corrected"
# 1 if there was no opening, as a tool has to be called and the fast model calls none.
FOR_TOOL = "opener_for_tool"

# Not after a digit, as "9:" and "7." go on.
_CLAUSE_END = re.compile(r"(?<!\d)[,.;:?!…]$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# A shorter opening is spoken before there is more for the voice.
LEAST_WORDS = 2

INSTRUCTION = (
    'You have already begun your answer and said: "{opening}" Go on from exactly there: do not say '
    "it again, and do not greet. If it was wrong, begin with: {correction}"
)


class OpenerLLMService(PairLLMService[OpenerSettings]):
    """Says a clause of the fast model, then what the full one makes of it."""

    backend = "opener"
    # The opening of an answer that is still to come, and when it was said (ns).
    _opened: tuple[str, int] | None = None

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        self._opened = None
        if not self._fast.tools and is_for_tool(context):
            # The opening would be made up, and the tool's result would take it back.
            self._counts[FOR_TOOL] = 1.0
            async for piece in self._behind_opening(await self._one_of(self._parts[::-1], context)):
                yield piece
            return
        anew = None if self._combined.told else await self._ask(self._full, context)
        fast = await self._ask(self._fast, context)
        words = fast.text()
        opening, begun = await self._opening(words)
        if opening:
            yield opening + " "
        if fast.failed is not None:
            self._fell_back(fast)
        self._opened = (opening, self._clock.now_ns()) if opening else None
        if opening:
            said = {"role": "assistant", "content": opening}
            context = self._reminded(with_messages(context, said))
        full = anew or await self._ask(self._full, context)
        await full.ready.wait()
        if not full.answers:
            # The fast model can go on from its own opening, with what it had begun to say.
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
        async for piece in self._behind_opening(full):
            yield piece

    async def _answer_tools(self, context: LLMContext) -> AsyncGenerator[str]:
        ask = await self._one_of(self._answerers(), self._reminded(context))
        async for piece in self._behind_opening(ask):
            yield piece

    async def _behind_opening(self, ask: Ask) -> AsyncGenerator[str]:
        """Yield what the full model says after the opening; a call alone is not an answer yet."""
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
        """Return the first clause, or the first words of a long one, and what came after it so far.

        Both are empty if the model says nothing.
        """
        text, most = "", self._combined.most_words
        try:
            async for piece in words:
                text += piece
                said = text.split(maxsplit=most)
                # A word is whole when the next one begins.
                if len(said) > most:
                    return " ".join(said[:most]), said[most]
                if len(said) >= LEAST_WORDS and _CLAUSE_END.search(text.rstrip()):
                    break
        except PartFailedError:
            pass
        return text.strip(), ""

    def _reminded(self, context: LLMContext) -> LLMContext:
        """Return the conversation with the instruction to go on from the opening, if any."""
        if self._opened is None or not self._combined.told:
            return context
        opening, correction = self._opened[0], self._combined.correction
        note: Any = INSTRUCTION.format(opening=opening, correction=correction)
        return with_messages(context, {"role": "system", "content": note})

    async def _going_on(self, opening: str, full: Ask) -> AsyncGenerator[str]:
        """Yield what the full model says, without what was said already.

        If it says the opening again, that is left out. A model that was told the opening is trusted
        to go on from it or to take it back. A model that was not told has answered anew: if it says
        something else, the opening is taken back first.
        """
        pieces = full.text()
        held, known, heard, ended = "", _words(opening), list[str](), True
        async for piece in pieces:
            held += piece
            # The next piece may continue the last word.
            heard = _words(held[: held.rfind(" ") + 1])
            if heard[: len(known)] != known[: len(heard)] or len(heard) > len(known):
                ended = False
                break
        heard = _words(held) if ended else heard
        if heard[: len(known)] == known:
            held = _behind(held, len(known))
        elif not self._combined.told:
            self._counts[CORRECTED] = 1.0
            yield f"{self._combined.correction} "
        if held:
            yield held
        async for piece in pieces:
            yield piece


def with_messages(context: LLMContext, *more: Any) -> LLMContext:
    """Return the conversation with these messages at its end."""
    return LLMContext([*context.messages, *more], context.tools, context.tool_choice)


def _words(text: str) -> list[str]:
    """Return the words without punctuation, in lower case."""
    return [m.group().lower() for m in _WORD.finditer(text)]


def _behind(text: str, count: int) -> str:
    """Return `text` without its first `count` words and their punctuation."""
    ends = [m.end() for m in _WORD.finditer(text)]
    rest = text[ends[count - 1] :] if count else text
    return rest.lstrip(" \n,.;:?!…")

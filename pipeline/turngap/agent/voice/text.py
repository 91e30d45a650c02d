"""Pieces of a reply from its tokens: what the TTS gets first must not wait for a sentence's end."""

import itertools
import re
from collections.abc import AsyncIterator

from pipecat.utils.text.base_text_aggregator import Aggregation, BaseTextAggregator

from turngap.core.clauses import (
    ENDING,
    MIN_WORDS,
    cuts,
    is_abbreviation,
    may_be_in_a_number,
    without_leftover,
)

FIRST_MAX_WORDS = 6

_FIRST_WORDS = re.compile(rf"\s*(?:\S+\s+){{{FIRST_MAX_WORDS},}}")


class _Aggregator(BaseTextAggregator):
    """Keeps the text that was not handed over yet; an interruption drops it."""

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    @property
    def text(self) -> Aggregation:
        return Aggregation(self._text.strip(), self.kind)

    async def flush(self) -> Aggregation | None:
        rest = self.text
        await self.reset()
        return rest if any(c.isalnum() for c in rest.text) else None

    async def handle_interruption(self) -> None:
        await self.reset()

    async def reset(self) -> None:
        self._text = ""


class ClauseAggregator(_Aggregator):
    """Hands over a clause as soon as the token that ends it is there, without look-ahead.

    Pipecat's sentence mode waits for the first character of the next sentence, which cost 144 ms at
    50 words a second. A full stop, comma or colon after a digit ends nothing until the next word is
    there ("3." may become "3.5"), one after an abbreviation never does. Without punctuation the
    first piece ends after FIRST_MAX_WORDS words.
    """

    kind = "clause"

    def __init__(self) -> None:
        super().__init__()
        self._first = True

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        self._text += text
        if not self._first:
            self._text = without_leftover(self._text)
        while (end := self._clause_end()) is not None:
            clause, self._text = self._text[:end].strip(), self._text[end:]
            if any(c.isalnum() for c in clause):
                self._first = False
                yield Aggregation(clause, self.kind)

    async def reset(self) -> None:
        await super().reset()
        self._first = True

    def _clause_end(self) -> int | None:
        """Return where the first clause of the text ends, or None while it may go on."""
        for ending in ENDING.finditer(self._text):
            words = self._text[: ending.end()].split()
            goes_on = ending.end() == len(self._text) and may_be_in_a_number(words[-1])
            if len(words) >= MIN_WORDS and not goes_on and not is_abbreviation(words[-1]):
                return ending.end()
        first = _FIRST_WORDS.match(self._text) if self._first else None
        return first.end() if first else None


class WordAggregator(_Aggregator):
    """Hands over each word as soon as it is whole: a token may be part of a word."""

    kind = "word"

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        text = without_leftover(self._text + text)
        ends = [0, *(cut.end for cut in cuts(text, ended=False))]
        self._text = text[ends[-1] :]
        for start, end in itertools.pairwise(ends):
            if any(c.isalnum() for c in text[start:end]):
                yield Aggregation(text[start:end].strip(), self.kind)


class ReplyAggregator(_Aggregator):
    """Hands over nothing before the reply is complete."""

    kind = "reply"

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        self._text += text
        return
        yield  # makes this a generator, as pipecat expects

    async def flush(self) -> Aggregation | None:
        whole = self.text
        await self.reset()
        return whole if whole.text else None

"""Clauses from tokens: what the TTS gets first must not wait for a sentence's end."""

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


class ClauseAggregator(BaseTextAggregator):
    """Hands over a clause as soon as the token that ends it is there, without look-ahead.

    Pipecat's sentence mode waits for the first character of the next sentence, which cost 144 ms at
    50 words a second. A full stop, comma or colon after a digit ends nothing until the next word is
    there ("3." may become "3.5"), one after an abbreviation never does. Without punctuation the
    first piece ends after FIRST_MAX_WORDS words.
    """

    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._first = True

    @property
    def text(self) -> Aggregation:
        """What waits for its clause to end."""
        return Aggregation(self._text.strip(), "clause")

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Take a token; yield the clauses that it completes."""
        self._text += text
        if not self._first:
            self._text = without_leftover(self._text)
        while (end := self._clause_end()) is not None:
            if clause := self._take(end):
                yield clause

    async def flush(self) -> Aggregation | None:
        """The rest, at the end of the reply."""
        rest = self._take(len(self._text))
        await self.reset()
        return rest

    async def handle_interruption(self) -> None:
        """An interrupted reply's rest is dropped."""
        await self.reset()

    async def reset(self) -> None:
        """Start a new reply."""
        self._text = ""
        self._first = True

    def _clause_end(self) -> int | None:
        """Where the first clause of the text ends, or None while it may go on."""
        for ending in ENDING.finditer(self._text):
            words = self._text[: ending.end()].split()
            goes_on = ending.end() == len(self._text) and may_be_in_a_number(words[-1])
            if len(words) >= MIN_WORDS and not goes_on and not is_abbreviation(words[-1]):
                return ending.end()
        first = _FIRST_WORDS.match(self._text) if self._first else None
        return first.end() if first else None

    def _take(self, end: int) -> Aggregation | None:
        text, self._text = self._text[:end].strip(), self._text[end:]
        if not any(c.isalnum() for c in text):
            return None  # nothing to say
        self._first = False
        return Aggregation(text, "clause")


class WordAggregator(BaseTextAggregator):
    """Hands over each word as soon as it is whole: a token may be part of one."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    @property
    def text(self) -> Aggregation:
        """What waits for its word to end."""
        return Aggregation(self._text.strip(), "word")

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Take a token; yield the words that it completes."""
        text = without_leftover(self._text + text)
        ends = [0, *(cut.end for cut in cuts(text, ended=False))]
        self._text = text[ends[-1] :]
        for start, end in itertools.pairwise(ends):
            if any(c.isalnum() for c in text[start:end]):
                yield Aggregation(text[start:end].strip(), "word")

    async def flush(self) -> Aggregation | None:
        """The last word, at the end of the reply."""
        last = self.text
        await self.reset()
        return last if any(c.isalnum() for c in last.text) else None

    async def handle_interruption(self) -> None:
        """An interrupted reply's rest is dropped."""
        await self.reset()

    async def reset(self) -> None:
        """Start a new reply."""
        self._text = ""


class ReplyAggregator(BaseTextAggregator):
    """Hands over nothing before the reply is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    @property
    def text(self) -> Aggregation:
        """The reply so far."""
        return Aggregation(self._text.strip(), "reply")

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Take a token; yields nothing."""
        self._text += text
        for _ in ():
            yield self.text

    async def flush(self) -> Aggregation | None:
        """The whole reply, at its end."""
        whole = self.text
        await self.reset()
        return whole if whole.text else None

    async def handle_interruption(self) -> None:
        """An interrupted reply is dropped."""
        await self.reset()

    async def reset(self) -> None:
        """Start a new reply."""
        self._text = ""

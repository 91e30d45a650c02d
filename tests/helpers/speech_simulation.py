"""Turns in virtual time: an LLM that sends tokens, a TTS that makes speech, a caller who hears it.

Both engines have set speeds with seeded jitter; what lies between them is the real `SpeechFeed`.
"""

import heapq
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from turngap.agent.feed import SpeechFeed
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.voice import Request, VoiceSpeed


@dataclass(frozen=True)
class Engines:
    """Medians of both engines' times; `jitter` is the sigma of a lognormal factor on each.

    Attributes:
        token_ms: between two tokens; 1.5 of them make a word.
        request_ms, factor: the TTS takes so long a request, and so long a ms of speech.
        chunk_ms: of speech that it gives out at once; None: the whole piece.
        char_ms: of speech a character.
    """

    token_ms: float
    request_ms: float
    factor: float
    chunk_ms: float | None
    char_ms: float = 52.0
    jitter: float = 0.15


@dataclass
class Heard:
    """The part of a reply that the caller heard."""

    onset_ms: float | None = None
    dry_ms: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


def tokens_of(reply: str) -> list[str]:
    """Cut as a byte-pair tokeniser does: the space belongs to the piece after it."""
    return re.findall(r"\s*(?:[^\W_]{1,6}|[^\w\s]|_)|\s+$", reply)


def _speech_ms(engines: Engines, chars: int, rng: random.Random) -> float:
    """Draw a length that varies as espeak-ng's do: by 110 ms (standard deviation), at any
    length."""
    return max(150.0, 100 + engines.char_ms * chars + rng.gauss(0, 110))


def warmed(engines: Engines, rng: random.Random) -> VoiceSpeed:
    """Return the speed of a TTS that has spoken a short and a long text unheard."""
    voice = VoiceSpeed()
    for chars in (8, 60):
        jitters = [rng.lognormvariate(0, engines.jitter) for _ in range(2)]
        audio_ms = _speech_ms(engines, chars, rng)
        chunk_ms = min(engines.chunk_ms or audio_ms, audio_ms)
        asked_ms = jitters[0] * engines.request_ms
        voice.add(
            Request(
                chars=chars,
                audio_ms=audio_ms,
                made_ms=asked_ms + jitters[1] * engines.factor * audio_ms,
                first_ms=asked_ms + jitters[1] * engines.factor * chunk_ms,
                chunk_ms=chunk_ms,
            )
        )
    return voice


class Turn:
    """One reply from the request (0 ms of the turn) on."""

    def __init__(
        self, feed: SpeechFeed, engines: Engines, rng: random.Random, at_ns: int, reply: str
    ) -> None:
        self._feed, self._engines, self._rng = feed, engines, rng
        self._start_ns = self._now_ns = at_ns
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._queue: list[str] = []
        self._busy = False
        self._held: list[float] = []
        self._open = False
        self._ended = False
        self._dry_ns = at_ns
        self.heard = Heard()
        at = at_ns + ms_to_ns(self._jittered(3 * engines.token_ms))
        for token in tokens_of(reply):
            self._at(at, lambda token=token: self._feed.text(self._now_ns, token))
            at += ms_to_ns(self._jittered(engines.token_ms))
        self._at(at, self._end)

    @property
    def silent_ns(self) -> int:
        """Return when all has happened and all has been heard."""
        return max(self._now_ns, self._dry_ns)

    def play(self) -> Heard:
        """Let it happen."""
        self._feed.start(self._start_ns)
        while self._events:
            self._now_ns, _, happens = heapq.heappop(self._events)
            happens()
            self._hand_over()
        assert not self._queue
        assert not self._feed.waiting
        self._feed.over()
        return self.heard

    def _jittered(self, ms: float) -> float:
        return ms * self._rng.lognormvariate(0, self._engines.jitter)

    def _at(self, at_ns: int, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), happens))

    def _end(self) -> None:
        self._ended = True
        self._feed.end()

    def _hand_over(self) -> None:
        pieces = self._feed.take(self._now_ns)
        self._queue += pieces
        self.heard.pieces += pieces
        if self._queue and not self._busy:
            self._make(self._queue.pop(0))
        due_ns = self._feed.due_ns(self._now_ns)
        if due_ns is not None:
            self._at(max(due_ns, self._now_ns + 1), lambda: None)
        self._let_through()

    def _make(self, text: str) -> None:
        self._busy = True
        self._feed.asked(self._now_ns, len(text))
        engines = self._engines
        speech_ms = _speech_ms(engines, len(text), self._rng)
        chunk_ms = engines.chunk_ms or speech_ms
        at_ns = self._now_ns + ms_to_ns(self._jittered(engines.request_ms))
        left = speech_ms
        while left > 0:
            chunk, left = min(chunk_ms, left), left - chunk_ms
            at_ns += ms_to_ns(self._jittered(engines.factor * chunk))
            self._at(at_ns, lambda chunk=chunk: self._audio(chunk))
        self._at(at_ns, self._made)

    def _made(self) -> None:
        self._feed.made()
        self._busy = False

    def _audio(self, ms: float) -> None:
        dry_ms = self._feed.audio(self._now_ns, ms)
        if self._open:
            self._dry_ns = max(self._dry_ns, self._now_ns) + ms_to_ns(ms)
        if dry_ms > 0:
            self.heard.dry_ms.append(dry_ms)
        if not self._open:
            self._held.append(ms)

    def _let_through(self) -> None:
        over = self._ended and not self._busy and not self._queue and not self._feed.waiting
        if not self._open and self._held and (over or self._feed.may_begin(self._now_ns)):
            self._open = True
            self._feed.begin(self._now_ns)
            self._dry_ns = self._now_ns + ms_to_ns(sum(self._held))
            self.heard.onset_ms = ns_to_ms(self._now_ns - self._start_ns)

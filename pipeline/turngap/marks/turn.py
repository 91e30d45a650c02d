"""A turn of the agent while it is made: its marks, figures and costs. No I/O and no pipecat."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from turngap.backends import Kind
from turngap.core.audio import Pcm, SpeechDetector, SpeechStart
from turngap.core.budget import LLM_WINDOW_MS
from turngap.core.clock import ms_to_ns, ns_to_ms, samples_to_ns
from turngap.core.counts import (
    CACHE_READ,
    CACHE_READ_NET,
    CACHE_WRITTEN,
    LEAST_MS,
    LEAST_PIECES,
    THOUGHT,
    THOUGHT_MS,
)
from turngap.core.events import ToolCall

# Key of a frame's metadata: the number of the guess (an answer that begins before the turn is over)
# that it belongs to.
GUESS = "turngap.guess"

# Counts of what an answer cost; an engine's own counts of cost begin with the prefix.
COSTS = frozenset({
    "llm_prompt_tokens", "llm_completion_tokens", CACHE_READ, CACHE_READ_NET, CACHE_WRITTEN,
})  # fmt: skip
COST_PREFIX = "combined_"


def costs(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the counts that cost money whatever becomes of the answer."""
    return {name: n for name, n in counts.items() if name in COSTS or name.startswith(COST_PREFIX)}


# Many services never say what a cancelled request cost. Four characters a token is the rule of
# thumb for English; with most services a streamed piece is a token.
CHARS_A_TOKEN = 4


@dataclass(slots=True)
class _Guess:
    prompt_tokens: int
    pieces: int = 0
    used: tuple[int, int] | None = None
    sent: bool = False  # the LLM has begun with it


class Waste:
    """The speculative requests of a conversation, and the cost of the unused ones."""

    def __init__(self) -> None:
        self._guess: _Guess | None = None
        self._dying: _Guess | None = None  # withdrawn; its service may still say what it used
        self._counts: dict[str, float] = {}

    def begun(self, prompt_chars: int) -> None:
        self._guess = _Guess(-(-prompt_chars // CHARS_A_TOKEN))
        self._add("speculations", 1)

    def piece(self) -> None:
        if self._guess is not None:
            self._guess.pieces += 1

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        if self._dying is not None:
            self._dying.used = (prompt_tokens, completion_tokens)
            self._bury()
        elif self._guess is not None:
            self._guess.used = (prompt_tokens, completion_tokens)

    def withdrawn(self) -> None:
        self._bury()
        self._dying, self._guess = self._guess, None
        if self._dying is not None:
            self._add("speculations_wasted", 1)
            if self._dying.used is not None:
                self._bury()

    def confirmed(self) -> None:
        self._guess = None

    def answered(self) -> None:
        """Note that the LLM begins an answer: no service reports on the earlier one any more."""
        if self._guess is None and self._dying is not None and not self._dying.sent:
            self._dying.sent = True
            return
        self._bury()
        if self._guess is not None:
            self._guess.sent = True

    def take(self, usd_per_million: tuple[float, float] | None) -> dict[str, float]:
        """Return the counts since the last call, with their price if it is known."""
        self._bury()
        counts, self._counts = self._counts, {}
        if usd_per_million is not None and "wasted_prompt_tokens" in counts:
            tokens = counts["wasted_prompt_tokens"], counts["wasted_completion_tokens"]
            spent = sum(n * usd for n, usd in zip(tokens, usd_per_million, strict=True))
            counts["wasted_usd"] = spent / 1e6
        return counts

    def _bury(self) -> None:
        dead, self._dying = self._dying, None
        if dead is None:
            return
        if dead.used is None and not dead.sent:
            return  # withdrawn before it reached the LLM, so it cost nothing
        prompt, completion = dead.used or (dead.prompt_tokens, dead.pieces)
        if dead.used is None:
            self._add("wasted_estimated", 1)
            # The service's own figures do not include these.
            self._add("unreported_prompt_tokens", prompt)
            self._add("unreported_completion_tokens", completion)
        self._add("wasted_prompt_tokens", prompt)
        self._add("wasted_completion_tokens", completion)

    def _add(self, name: str, n: float) -> None:
        self._counts[name] = self._counts.get(name, 0) + n


@dataclass(slots=True)
class Track:
    """A stream of chunks, each with its instant, and its first audible sample."""

    detector: SpeechDetector | None = None
    first_ns: int = 0
    rate: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    done: bool = False

    def feed(self, at_ns: int, pcm: Pcm, rate: int) -> tuple[int, int] | None:
        """Return the first audible sample's index and its chunk's instant, once known."""
        if self.done:
            return None
        if self.detector is None:
            self.detector, self.first_ns, self.rate = SpeechDetector(rate), at_ns, rate
        total = (self.chunks[-1][0] if self.chunks else 0) + len(pcm)
        self.chunks.append((total, at_ns))
        for event in self.detector.feed(pcm):
            if isinstance(event, SpeechStart):
                self.done = True
                return event.sample, next(at for n, at in self.chunks if n > event.sample)
        return None


@dataclass(slots=True)
class AgentTurn:
    """A turn of the agent, so far.

    Attributes:
        number: counts from 1; 0 while the answer is a guess.
        marks: instants, ns of the clock that stamped them.
        counts: other figures of the turn, by name.
        why: why turn-taking held for as long as it did, if it gives a reason.
        error: why the reply failed, or stopped in the middle.
        late: why the reply is late while an engine is silent, by the engine's kind; empty for one
            that continued after all.
        no_reply: why there is nothing to hear, though no engine has failed.
        calls: the turn's tool calls, by call id, in order.
        silent_ns: when the person fell silent, as far as turn-taking knows; None for typed turns.
        interrupted: whether the person spoke into the heard part of the reply.
    """

    number: int
    marks: dict[str, int]
    counts: dict[str, float] = field(default_factory=dict[str, float])
    why: str | None = None
    error: str | None = None
    late: dict[Kind, str] = field(default_factory=dict[Kind, str])
    no_reply: str | None = None
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    pieces: int = 0  # of the answer, from the LLM
    latest_ns: int = 0  # the latest of them
    uncounted: int = 0  # pieces and thoughts of which the LLM has not said how many tokens they are
    counted: tuple[float, int] = (0.0, 0)  # tokens, and the pieces and thoughts that they came in
    piece_ns: int | None = None  # the latest one, or what it thought
    tts: Track = field(default_factory=Track)
    out: Track = field(default_factory=Track)
    held_ns: int = 0  # when its audio was released, if it was held back
    audible: tuple[int, int] | None = None  # first audible sample of the TTS, and when it was made
    silent_ns: int | None = None
    interrupted: bool = False

    @property
    def failure(self) -> str | None:
        """Return why there is no whole reply; empty if a late one was continued."""
        if self.error is not None or not self.late:
            return self.error
        return next(filter(None, self.late.values()), "")

    def count(self, name: str, n: float) -> None:
        """Add to a figure."""
        self.counts[name] = self.counts.get(name, 0) + n

    def said(self, at_ns: int) -> None:
        """Note a piece of the LLM's answer; `llm_first_token` has been marked already."""
        self.piece_ns = at_ns
        # With tools, the answer is the reply to the request that carries their results.
        asked_ns = self.marks.get("tool_result", self.marks["llm_request"])
        first_ns = self.marks["llm_first_token"]
        self.count("llm_window_tokens", float(at_ns - asked_ns <= ms_to_ns(LLM_WINDOW_MS)))
        self.counts["llm_ttft_ms"] = ns_to_ms(first_ns - asked_ns)
        self.pieces += 1
        self.uncounted += 1
        self.latest_ns = at_ns

    def used(self, tokens: float) -> None:
        """Note how many tokens a request took: a piece is a token with some LLMs only."""
        if not self.uncounted:
            return  # it called a tool, or its answer was dropped
        self.counted = (self.counted[0] + tokens, self.counted[1] + self.uncounted)
        self.uncounted = 0
        each = self.counted[0] / self.counted[1]
        ms = ns_to_ms(self.latest_ns - self.marks.get("llm_first_token", self.latest_ns))
        if self.pieces >= LEAST_PIECES and ms >= LEAST_MS:
            self.counts["llm_tokens_per_s"] = (self.pieces - 1) * each * 1000 / ms
        if "llm_window_tokens" in self.counts:
            self.counts["llm_window_tokens"] *= each

    def thought(self, at_ns: int) -> None:
        """Note a piece of what the LLM thinks.

        It took the time since the piece before; the first one took none.
        """
        self.count(THOUGHT, 1)
        self.count(THOUGHT_MS, ns_to_ms(at_ns - (self.piece_ns or at_ns)))
        self.uncounted += 1
        self.piece_ns = at_ns

    def spoke(self, at_ns: int, pcm: Pcm, rate: int) -> None:
        """Take audio from the TTS."""
        if found := self.tts.feed(at_ns, pcm, rate):
            self.audible = found
            self._place_audible()

    def release(self, at_ns: int) -> None:
        """Note that the turn's audio, which was held back, may be heard from here on."""
        self.held_ns = at_ns
        self._place_audible()

    def _place_audible(self) -> None:
        if self.audible is not None:
            sample, made_ns = self.audible
            begun_ns = max(self.tts.first_ns, self.held_ns)
            played_ns = begun_ns + samples_to_ns(sample, self.tts.rate)
            self.marks["tts_first_audible"] = max(made_ns, played_ns)

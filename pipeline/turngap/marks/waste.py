"""What answers cost, and those that were asked for in vain. No I/O and no pipecat."""

from collections.abc import Mapping
from dataclasses import dataclass

from turngap.core.tokens import CACHE_READ, CACHE_READ_NET, CACHE_WRITTEN

# Key of a frame's metadata: the number of the guess (an answer that begins before the turn is over)
# that it belongs to.
GUESS = "turngap.guess"

# Counts of what an answer cost; an engine's own counts of cost begin with the prefix.
COSTS = frozenset({
    "llm_prompt_tokens", "llm_completion_tokens", CACHE_READ, CACHE_READ_NET, CACHE_WRITTEN,
})  # fmt: skip
COST_PREFIX = "combined_"


def costs(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the counts that are paid for whatever becomes of the answer."""
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
    """Follows the speculative requests of a conversation and adds up those that were in vain."""

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
        """Note that the LLM begins an answer: no service reports on the one before any more."""
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

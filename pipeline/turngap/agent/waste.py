"""What answers to turns that went on have cost: requests and tokens. No I/O."""

from dataclasses import dataclass

# Of a request that was cancelled many services never say what it cost. Four characters a token is
# the rule of thumb for English; a streamed piece is a token with most.
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
        self._dying: _Guess | None = None  # withdrawn; its service may yet say what it used
        self._counts: dict[str, float] = {}

    def begun(self, prompt_chars: int) -> None:
        """A speculative request was made."""
        self._guess = _Guess(-(-prompt_chars // CHARS_A_TOKEN))
        self._add("speculations", 1)

    def piece(self) -> None:
        """A piece of text came from the LLM."""
        if self._guess is not None:
            self._guess.pieces += 1

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        """The LLM says what its latest request used."""
        if self._dying is not None:
            self._dying.used = (prompt_tokens, completion_tokens)
            self._bury()
        elif self._guess is not None:
            self._guess.used = (prompt_tokens, completion_tokens)

    def withdrawn(self) -> None:
        """The request under way was in vain."""
        self._bury()
        self._dying, self._guess = self._guess, None
        if self._dying is not None:
            self._add("speculations_wasted", 1)
            if self._dying.used is not None:
                self._bury()

    def confirmed(self) -> None:
        """The request under way was the right one."""
        self._guess = None

    def answered(self) -> None:
        """The LLM begins with an answer: of the one before, no service will say any more."""
        if self._guess is None and self._dying is not None and not self._dying.sent:
            self._dying.sent = True
            return
        self._bury()
        if self._guess is not None:
            self._guess.sent = True

    def take(self, usd_per_million: tuple[float, float] | None) -> dict[str, float]:
        """What was counted since the last time, priced at what a million tokens cost."""
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
            return  # withdrawn before it came to the LLM, it cost nothing
        prompt, completion = dead.used or (dead.prompt_tokens, dead.pieces)
        if dead.used is None:
            self._add("wasted_estimated", 1)
            # These are in no figure of the service's own.
            self._add("unreported_prompt_tokens", prompt)
            self._add("unreported_completion_tokens", completion)
        self._add("wasted_prompt_tokens", prompt)
        self._add("wasted_completion_tokens", completion)

    def _add(self, name: str, n: float) -> None:
        self._counts[name] = self._counts.get(name, 0) + n

"""What a request to several models costs, losers included, told as it is spent."""

from collections.abc import Sequence

from turngap_services.llm.combine.ask import Ask
from turngap_services.llm.combine.tools import written

# Of a request that was cancelled many services never say what it cost. Four characters a token is
# the rule of thumb for English.
CHARS_A_TOKEN = 4

_FIGURES = ("requests", "given_up", "prompt_tokens", "completion_tokens", "usd", "unpriced_tokens")


class Meter:
    """Adds up what all requests of one turn have used so far."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks
        self._told: dict[str, float] = {}

    def totals(self) -> dict[str, float]:
        """Figures of the turn by name; USD of the parts that have a price, tokens of the others."""
        totals = dict.fromkeys(_FIGURES, 0.0)
        for ask in self._asks:
            prompt, completion = tokens_of(ask)
            totals["requests"] += 1
            totals["given_up"] += ask.given_up
            totals["prompt_tokens"] += prompt
            totals["completion_tokens"] += completion
            if (price := ask.part.price) is None:
                totals["unpriced_tokens"] += prompt + completion
            else:
                totals["usd"] += (prompt * price.input_usd + completion * price.output_usd) / 1e6
        return {f"combined_{name}": n for name, n in totals.items()}

    def take(self) -> dict[str, float]:
        """What came to it since the last time; less than 0 where an estimate was too high."""
        totals = self.totals()
        news = {name: n - self._told.get(name, 0.0) for name, n in totals.items()}
        self._told = totals
        return {name: n for name, n in news.items() if n}


def tokens_of(ask: Ask) -> tuple[int, int]:
    """Prompt and completion tokens: as the part says, or else by its text and its calls."""
    if ask.used is not None:
        return ask.used.prompt_tokens, ask.used.completion_tokens
    called = sum(-(-len(written(call)) // CHARS_A_TOKEN) for call in ask.calls)
    return -(-ask.prompt_chars // CHARS_A_TOKEN), ask.pieces + called

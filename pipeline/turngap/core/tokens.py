"""Speed of the LLM: its first token, its rate, and its tokens within the window."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from turngap.core.results import Turn
from turngap.core.stats import Percentile, percentile

# Of a turn's counts; each is of the answer that was heard.
TTFT = "llm_ttft_ms"
RATE = "llm_tokens_per_s"
WINDOW = "llm_window_tokens"
# Of fewer pieces, or in less time, a rate says how they were bundled and not how fast they came.
LEAST_PIECES, LEAST_MS = 5, 20.0
NO_RATE = (
    f"no reply came in {LEAST_PIECES} pieces over {LEAST_MS:g} ms from an LLM that says how many "
    "tokens it used"
)
# Pieces of what it thought besides, and what they took.
THOUGHT = "llm_thought_tokens"
THOUGHT_MS = "llm_thought_ms"
# Tokens of the prompt that were read from the provider's cache, or written to it. Anthropic prices
# them by the input's price (its documentation on prompt caching), others each by their own.
CACHE_READ, CACHE_READ_NET = "llm_cache_read_tokens", "llm_cache_read_cheap_tokens"
CACHE_WRITTEN = "llm_cache_written_tokens"
# 1 in the first turn that an LLM answers since the agent began.
COLD = "llm_cold"
# What the LLM's server says that a request took of each, in the order in which it does: waiting for
# its place in the batch, reading the prompt, making the reply. Means over the turn's own request
# and as many others as `OTHERS` says, where the server has told them of all at once.
SERVER = {"queue": "llm_queue_ms", "prefill": "llm_prefill_ms", "decode": "llm_decode_ms"}
OTHERS = "llm_others"


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Over the turns for which each is known: medians, and the slow end of the first token.

    An LLM's first turn since the agent began is in none of them but its own two.

    Attributes:
        n: warm turns.
        ttft_ms: from the request to the first token; None where every turn was a first one.
        per_s: tokens a second after the first, by what the LLM says that it used; None with the
            reason `NO_RATE`.
        in_window: tokens within `LLM_WINDOW_MS` of the request.
        server_ms: of each of `SERVER` that the LLM's server reported.
        cold_n: first turns.
        cold_ttft_ms: median of their times to the first token.
    """

    n: int
    ttft_ms: float | None
    ttft_p95_ms: Percentile
    per_s: float | None
    in_window: float | None
    server_ms: dict[str, float]
    cold_n: int
    cold_ttft_ms: float | None

    def as_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "ttft_ms": {"p50": self.ttft_ms, "p95": self.ttft_p95_ms.value},
            "tokens_per_s": {"p50": self.per_s}
            | ({"why_none": NO_RATE} if self.per_s is None else {}),
            "window_tokens": {"p50": self.in_window},
            "server_ms": {name: {"p50": ms} for name, ms in self.server_ms.items()},
            "cold": {"n": self.cold_n, "ttft_ms": {"p50": self.cold_ttft_ms}},
        }


def token_figures(turns: Sequence[Turn]) -> TokenFigures | None:
    """Compute the token figures of a run; None if no agent reported any."""
    cold = _told([turn for turn in turns if COLD in turn.counts], TTFT)
    warm = [turn for turn in turns if COLD not in turn.counts]
    first = _told(warm, TTFT)
    if not first and not cold:
        return None
    server = {name: _middle(_told(warm, count)) for name, count in SERVER.items()}
    return TokenFigures(
        n=len(first),
        ttft_ms=_middle(first),
        ttft_p95_ms=percentile(first, 0.95),
        per_s=_middle(_told(warm, RATE)),
        in_window=_middle(_told(warm, WINDOW)),
        server_ms={name: ms for name, ms in server.items() if ms is not None},
        cold_n=len(cold),
        cold_ttft_ms=_middle(cold),
    )


def _told(turns: Sequence[Turn], name: str) -> list[float]:
    return [turn.counts[name] for turn in turns if name in turn.counts]


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None

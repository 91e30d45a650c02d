"""How fast the LLM was: its first token, its rate, and what came of it within its window."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from turngap.core.results import TurnRecord
from turngap.core.stats import Percentile, percentile

# Of a turn's counts; each is of the answer that was heard.
TTFT = "llm_ttft_ms"
RATE = "llm_tokens_per_s"
WINDOW = "llm_window_tokens"


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Over the turns of which the agent told each: medians, and the slow end of the first token.

    Attributes:
        ttft_ms: from the request to the first token.
        per_s: tokens a second after the first, of replies of two tokens and more.
        in_window: tokens within `LLM_WINDOW_MS` of the request.
    """

    n: int
    ttft_ms: float
    ttft_p95_ms: Percentile
    per_s: float | None
    in_window: float | None

    def as_json(self) -> dict[str, Any]:
        """The `llm` of a summary."""
        return {
            "n": self.n,
            "ttft_ms": {"p50": self.ttft_ms, "p95": self.ttft_p95_ms.value},
            "tokens_per_s": {"p50": self.per_s},
            "window_tokens": {"p50": self.in_window},
        }


def token_figures(turns: Sequence[TurnRecord]) -> TokenFigures | None:
    """The figures of a run; None where no agent told any."""
    first = _told(turns, TTFT)
    if not first:
        return None
    return TokenFigures(
        n=len(first),
        ttft_ms=median(first),
        ttft_p95_ms=percentile(first, 0.95),
        per_s=median(rates) if (rates := _told(turns, RATE)) else None,
        in_window=median(within) if (within := _told(turns, WINDOW)) else None,
    )


def _told(turns: Sequence[TurnRecord], name: str) -> list[float]:
    return [turn.counts[name] for turn in turns if name in turn.counts]

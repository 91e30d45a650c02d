"""The figures of an entry: what a run's summary says of its turns, without the intervals."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from turngap.core.stats import percentile
from turngap.store.outcomes import TurnOutcome


@dataclass(frozen=True, slots=True)
class Figures:
    """What an entry says of the turns; as the fields of `Entry`."""

    n: int = 0
    gap_ms: Mapping[str, float | None] | None = None
    hits: int | None = None
    cut_ins: int | None = None

    def fields(self) -> dict[str, Any]:
        """As keyword arguments for `Entry`."""
        gap_ms = dict(self.gap_ms or {"p50": None, "p95": None})
        return {"n": self.n, "gap_ms": gap_ms, "hits": self.hits, "cut_ins": self.cut_ins}


NO_FIGURES = Figures()


def figures_of(turns: Iterable[TurnOutcome]) -> tuple[int, Figures]:
    """How many turns there are, and the figures of those that count, as a run's summary has them.

    Raises:
        InputError: as `read_outcomes`, where the turns come from it.
    """
    every = n = hits = cut_ins = 0
    gaps: list[float] = []
    for turn in turns:
        every += 1
        if turn.left_out is not None:
            continue
        n += 1
        hits += turn.outcome == "answered"
        cut_ins += turn.outcome == "cut_in"
        if turn.silent:
            gaps.append(inf)
        elif turn.replied and turn.gap_ms is not None:
            gaps.append(turn.gap_ms)
    finite = [gap for gap in gaps if gap < inf]
    gap_ms = {
        name: percentile(finite, q, censored=len(gaps) - len(finite)).value
        for name, q in (("p50", 0.5), ("p95", 0.95))
    }
    return every, Figures(n, gap_ms, hits, cut_ins)

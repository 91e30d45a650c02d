"""The figures of an entry: what a run's summary says of its turns, without the intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from turngap.core.stats import percentile
from turngap.history.entry import Entry
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


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the turns of several runs.

    Attributes:
        runs, turns: so many; of the turns, those that count.
        hits, cut_ins: of these, answered within the budget, and cut into. None where one of the
            runs does not know it; `hits` also where they had several budgets.
    """

    runs: int
    turns: int
    hits: int | None
    cut_ins: int | None


def outcomes_of(entries: Sequence[Entry]) -> Outcomes:
    """Add up what became of the turns of these runs."""
    one_budget = len({entry.budget_ms for entry in entries}) <= 1
    return Outcomes(
        runs=len(entries),
        turns=sum(entry.n for entry in entries),
        hits=_total(entry.hits for entry in entries) if one_budget else None,
        cut_ins=_total(entry.cut_ins for entry in entries),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total

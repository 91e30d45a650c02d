"""Errors of a peer's figures, and the table of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from turngap.play.calibrate import absolute_quantiles

COLUMNS = (
    *("peer", "agent", "figure", "condition", "n", "error, p50"),
    *("absolute error, p50", "p95", "max", "missed"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Injected and reported gap of one turn; None: the peer heard nothing."""

    truth_ms: float
    reported_ms: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of one peer under one condition: its turns, or why there are none.

    Attributes:
        peer: its name and version.
        agent: which one, and what is spoken to it.
        figure: the one taken, as the peer calls it.
    """

    peer: str
    agent: str
    figure: str
    condition: str
    pairs: tuple[Pair, ...] = ()
    why_none: str = ""

    def errors(self) -> list[float]:
        """Return reported minus injected, ms; positive where the peer heard the agent late."""
        return [p.reported_ms - p.truth_ms for p in self.pairs if p.reported_ms is not None]

    def cells(self) -> list[str]:
        named = [self.peer, self.agent, self.figure, self.condition]
        if not self.pairs:
            return [*named, f"not measured: {self.why_none or 'no turns'}", *[""] * 5]
        errors = self.errors()
        missed = len(self.pairs) - len(errors)
        off = absolute_quantiles(errors, missed=missed)
        shown = [
            _ms(median(errors) if errors else None, "+"),
            *map(_ms, (off.p50, off.p95, off.max)),
        ]
        return [*named, str(len(self.pairs)), *shown, str(missed)]


def _ms(value: float | None, sign: str = "") -> str:
    return "none" if value is None else f"{value:{sign}.1f}"


def paired(truths: Mapping[int, float], reports: Mapping[int, float | None]) -> tuple[Pair, ...]:
    """Pair what was injected with what was reported, by the number of the turn.

    A turn without a truth is none that the agent answered: it is left out. One without a report
    was missed.
    """
    return tuple(Pair(truth, reports.get(turn)) for turn, truth in sorted(truths.items()))


def together(rows: Sequence[Measured]) -> list[Measured]:
    """Join the rounds of each row; a reason stays only where there are no turns at all."""
    joined: dict[tuple[str, str, str, str], Measured] = {}
    for row in rows:
        key = (row.peer, row.agent, row.figure, row.condition)
        pairs = (*joined[key].pairs, *row.pairs) if key in joined else row.pairs
        why = row.why_none or (joined[key].why_none if key in joined else "")
        joined[key] = Measured(*key, pairs, why)
    return list(joined.values())


def table(rows: Sequence[Measured]) -> str:
    """All rows in Markdown, those of one peer together."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

"""One row of the history: what a stored folder says of itself, whatever made it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from turngap.core.stats import percentile
from turngap.store.outcomes import TurnOutcome

# What made the folder: the command's name, but for a conversation on the live page.
Kind = Literal["replay", "talk", "check", "compare", "load", "turns", "simulate"]
# A folder that cannot be read has its reason in `why`, and no figures.
Status = Literal["finished", "unfinished", "failed", "unreadable"]


def no_gap() -> dict[str, float | None]:
    """Return the percentiles of an entry that has none."""
    return {"p50": None, "p95": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A stored run, check, comparison, curve, simulation or load test.

    A figure is None where the kind has none, or where there were too few turns for it.

    Attributes:
        path: of its folder, as it can be given to `turngap report`.
        label: what the user called it (`--label`); empty without one.
        agent: as people know it: the stack's name, or the URL without its secrets and without a
            port that may change. Of a comparison the agent that the backends stood behind.
        commit: of the user's checkout; ends in `-dirty` where files differed.
        line: the dialect and the rate in Hz that an agent at a URL was spoken to in; empty for a
            stack.
        started_utc: ISO 8601.
        valid: whether its figures can be used; `why` has the reasons why not, the failure first.
        verdict: in a word or two: `pass`, `regressed`, `8 sessions`; empty where there is none.
        machine: the machine's fingerprint.
        played: tells what was played: the same digest means the same scenarios and recordings.
        starved_ms: how late the caller might be before a turn counted as starved.
        n: turns that count.
        gap_ms: `p50` and `p95`.
        hits, cut_ins: of the `n` turns, those answered within the budget, and those cut into.
    """

    path: str
    kind: Kind
    status: Status
    label: str = ""
    agent: str = ""
    commit: str | None = None
    line: str = ""
    started_utc: str = ""
    valid: bool = False
    why: tuple[str, ...] = ()
    verdict: str = ""
    machine: str = ""
    played: str = ""
    budget_ms: float | None = None
    metrics_version: int | None = None
    starved_ms: float | None = None
    n: int = 0
    gap_ms: dict[str, float | None] = field(default_factory=no_gap)
    hits: int | None = None
    cut_ins: int | None = None

    @property
    def hit_rate(self) -> float | None:
        """Return the share of the turns that were answered within the budget."""
        return None if self.hits is None or not self.n else self.hits / self.n


def figures_of(turns: Iterable[TurnOutcome]) -> tuple[int, dict[str, Any]]:
    """Return how many turns there are, and the figures of those that count, as fields of `Entry`.

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
    return every, {"n": n, "gap_ms": gap_ms, "hits": hits, "cut_ins": cut_ins}

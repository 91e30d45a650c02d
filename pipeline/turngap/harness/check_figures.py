"""What a check tells beside its verdict on two agents: this machine's noise, and budgets."""

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from turngap.core.checks import BudgetRecord, NoiseRecord
from turngap.core.pairs import Pair
from turngap.core.results import TurnRecord
from turngap.core.stats import proportion
from turngap.core.verdict import Limits, judge
from turngap.harness import baseline as baselines


def noise_of(turns: Sequence[TurnRecord], limits: Limits | None = None) -> NoiseRecord | None:
    """The reference against itself: its odd repeats beside its even ones, A and A of A B B A."""
    by_key = baselines.readings(turns)
    pairs = [
        Pair(key, reading, by_key[(*key[:3], key[3] + 1)])
        for key, reading in by_key.items()
        if key[3] % 2 == 1 and (*key[:3], key[3] + 1) in by_key
    ]
    shifts = [
        p.candidate.gap_ms - p.reference.gap_ms
        for p in pairs
        if p.candidate.gap_ms is not None and p.reference.gap_ms is not None
    ]
    if not shifts:
        return None
    return NoiseRecord(
        n=len(shifts),
        shift_p50_ms=median(shifts),
        spread_p95_ms=float(np.quantile(np.abs(shifts), 0.95)),
        verdict=judge(pairs, limits).verdict,
    )


def budgets_of(
    turns: Sequence[TurnRecord], budgets: Mapping[str, float], target: float
) -> tuple[BudgetRecord, ...]:
    """Each budget's verdict: `pass` and `regressed` only where the interval leaves no doubt.

    Nor may a starved caller: a turn that it may have made read long passes as it was read, and is
    over its budget only where it was so at its quickest.
    """
    return tuple(_budget(turns, name, ms, target) for name, ms in budgets.items())


def _budget(
    turns: Sequence[TurnRecord], name: str, budget_ms: float, target: float
) -> BudgetRecord:
    replied = [turn for turn in turns if turn.outcome in ("answered", "late")]
    if name != "gap" and replied and not any(_spent(turn, name) for turn in replied):
        # An agent without marks: nothing was measured, so nothing is over.
        return BudgetRecord(
            name=name,
            budget_ms=budget_ms,
            target=target,
            verdict="undecided",
            n=0,
            share=None,
            low=None,
            high=None,
        )
    within = proportion(sum(_within(turn, name, budget_ms) for turn in turns), len(turns))
    at_best = proportion(
        sum(_within(turn, name, budget_ms + _caller_error_ms(turn)) for turn in turns), len(turns)
    )
    verdict = "undecided"
    if within.low is not None and within.low >= target:
        verdict = "pass"
    elif at_best.high is not None and at_best.high < target:
        verdict = "regressed"
    return BudgetRecord(
        name=name,
        budget_ms=budget_ms,
        target=target,
        verdict=verdict,
        n=within.n,
        share=within.value,
        low=within.low,
        high=at_best.high,
    )


def _caller_error_ms(turn: TurnRecord) -> float:
    return turn.pacing.error_ms if turn.pacing.starved else 0.0


def _spent(turn: TurnRecord, name: str) -> list[float]:
    """What the turn's stages of that name took, ms; empty where it has none."""
    return [stage.ms for stage in turn.stages if stage.name == name]


def _within(turn: TurnRecord, name: str, budget_ms: float) -> bool:
    """A turn without the figure (no reply, a cut-in) is not within its budget."""
    if turn.outcome not in ("answered", "late"):
        return False
    if name == "gap":
        return turn.gap_ms is not None and turn.gap_ms <= budget_ms
    spent = _spent(turn, name)
    return bool(spent) and sum(spent) <= budget_ms

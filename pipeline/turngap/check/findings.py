"""What a check found, as it is stored: the verdict and what it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from turngap.check import baseline as baselines
from turngap.check.baseline import lines_differ
from turngap.check.plan import CheckPlan
from turngap.check.record import (
    NOTHING_COMPARED,
    BaselineRecord,
    BaselineUse,
    BudgetRecord,
    CheckRecord,
    CheckVerdict,
    GapRecord,
    NoiseRecord,
    SideRecord,
)
from turngap.check.verdict import Judgement, judge
from turngap.core.clusters import Clusters
from turngap.core.cut_ins import CutIns
from turngap.core.errors import TurngapError
from turngap.core.paired import Limits, Pair
from turngap.core.results import Turn
from turngap.core.starvation import MAX_STARVED_PAIRS
from turngap.core.stats import proportion_of
from turngap.core.summary import counted_turns
from turngap.store.folders import utc_now
from turngap.store.provenance import this_machine
from turngap.store.runs import Run


@dataclass(frozen=True, slots=True)
class Played:
    """Both sides when they have been played, and what was found.

    Attributes:
        stored: the baseline that stands in for the reference.
        obstacles: what forbids any verdict on what was played.
    """

    plan: CheckPlan
    started_utc: str
    rounds: int
    candidate: Run
    reference: Run | None
    stored: BaselineRecord | None
    judgement: Judgement | None
    budgets: tuple[BudgetRecord, ...]
    use: BaselineUse | None
    obstacles: Sequence[str]


def record_of(played: Played) -> CheckRecord:
    """Build the record for `check.json`, without the result of `--save`."""
    plan, judgement = played.plan, played.judgement
    verdict, why = verdict_of(judgement, played.budgets)
    if played.obstacles:
        verdict, why = "cannot_compare", tuple(played.obstacles)
    reference = played.reference
    return CheckRecord(
        verdict=verdict,
        why=why,
        started_utc=played.started_utc,
        finished_utc=utc_now(played.started_utc),
        machine=this_machine(),
        reference=_reference_side(reference, played.stored),
        candidate=side_of(played.candidate),
        scenarios=tuple(s.scenario.name for s in plan.scenarios),
        rounds=played.rounds,
        phases=plan.phases,
        starved_ms=plan.starved_ms,
        stand_ins=tuple(
            dict.fromkeys(
                name
                for target in (plan.candidate, plan.reference)
                if target is not None
                for name in target.stand_ins(s.scenario for s in plan.scenarios)
            )
        ),
        budgets=played.budgets,
        noise=noise_of(reference.turns, plan.limits) if reference is not None else None,
        baseline=played.use,
        command=plan.command,
        label=plan.label,
        **judged(judgement),
    )


def judged(judgement: Judgement | None) -> dict[str, Any]:
    """Return the fields of a `CheckRecord` that a judgement decides."""
    if judgement is None:
        return {"pairs": 0, "left_out": 0, "metrics": (), "stages": (), "moved_stage": None}
    return {
        "pairs": judgement.n,
        "left_out": judgement.left_out,
        "starvation": judgement.starvation,
        "metrics": judgement.metrics,
        "stages": judgement.stages,
        "moved_stage": judgement.moved_stage,
    }


def verdict_of(
    judgement: Judgement | None, budgets: Sequence[BudgetRecord]
) -> tuple[CheckVerdict, tuple[str, ...]]:
    """Decide the verdict over all metrics and budgets, and name what decided it."""
    parts = [(m.name, m.verdict) for m in judgement.metrics] if judgement else []
    parts += [(f"{b.name} within {b.budget_ms:g} ms", b.verdict) for b in budgets]
    if not parts:
        return "cannot_compare", (NOTHING_COMPARED,)
    verdicts: tuple[CheckVerdict, ...] = ("regressed", "undecided")
    for verdict in verdicts:
        names = [name for name, found in parts if found == verdict]
        if names:
            return verdict, (f"{verdict}: {', '.join(names)}",)
    return "pass", ()


def refusals(
    plan: CheckPlan, stored: BaselineRecord | None, hashes: Mapping[str, str]
) -> list[str]:
    """List why the baseline cannot be compared with any run made here and now."""
    if stored is None:
        return []
    reasons = baselines.why_not_comparable(stored, this_machine(), hashes, plan.starved_ms)
    return [f"the baseline does not compare: {reason}" for reason in reasons]


def another_line(stored: BaselineRecord | None, agent: Mapping[str, Any]) -> list[str]:
    """List why the baseline cannot be compared with an agent on such a line."""
    why = stored and lines_differ(stored.agent, agent)
    return [f"the baseline does not compare: {why}"] if why else []


def obstacles(
    candidate: Run,
    reference: Run | None,
    failure: TurngapError | None,
    judgement: Judgement | None,
    starved_ms: float,
) -> list[str]:
    """List what forbids any verdict on what was played."""
    if failure is not None:
        return [f"it ended early: {failure}"]
    for side, run in (("candidate", candidate), ("reference", reference)):
        if run is not None and not run.turns:
            return [f"the {side}'s run is invalid: no turn was finished"]
    starved = too_starved(candidate.turns, judgement)
    if starved is None:
        return []
    return [
        f"{starved}; its packets or its event loop were over {starved_ms:g} ms late: quiet the "
        "machine and run again, or accept that error with a larger starved-ms"
    ]


def too_starved(turns: Sequence[Turn], judgement: Judgement | None) -> str | None:
    """Return why the candidate cannot be judged, as its caller was late; None if it can."""
    why = None if judgement is None else judgement.starvation.why_not_judged
    starved = sum(turn.pacing.starved for turn in turns)
    if why is None and starved > MAX_STARVED_PAIRS * len(turns):
        return f"the caller was starved in {starved} of {len(turns)} turns"
    return why


def why_not_saved(record: CheckRecord, plan: CheckPlan, obstacles: Sequence[str]) -> str | None:
    """Return why the candidate may not become the baseline; None if it may.

    A candidate that was slower than its own reference would be the measure of later ones.
    """
    if obstacles:
        return "; ".join(obstacles)
    if plan.only_saves or record.verdict == "pass":
        return None
    return f"the verdict is {record.verdict}"


def side_of(run: Run) -> SideRecord:
    """Describe a run as one side of a comparison."""
    return SideRecord(
        agent=run.record.agent,
        run=run.path.name,
        valid=run.record.valid,
        turns=len(run.turns),
        cut_ins=run.cut_ins,
        starved=run.summary.starved,
        caller_error_ms=run.summary.caller_error_ms,
        gap=_gap_of(run),
    )


def _gap_of(run: Run) -> GapRecord:
    counted = counted_turns(run.turns)
    gaps = [(t.gap_ms, t.key) for t in counted if t.replied and t.gap_ms is not None]
    slowest_ms, slowest = max(gaps, default=(None, None))
    gap = run.gap_ms
    return GapRecord(p50=gap.p50, p95=gap.p95, slowest_ms=slowest_ms, slowest=slowest)


def _reference_side(run: Run | None, stored: BaselineRecord | None) -> SideRecord | None:
    if run is not None:
        return side_of(run)
    if stored is None:
        return None
    return SideRecord(
        agent=stored.agent,
        run=None,
        valid=None,
        turns=len(stored.turns),
        cut_ins=CutIns.of([(turn.outcome, turn.take) for turn in stored.turns]),
        starved=sum(turn.caller_error_ms > 0 for turn in stored.turns),
        caller_error_ms=stored.caller_error_ms,
    )


# What a check tells beside its verdict on two agents: this machine's noise, and budgets.


def noise_of(turns: Sequence[Turn], limits: Limits | None = None) -> NoiseRecord | None:
    """Compare the reference with itself: its odd repeats with its even ones, the As of A B B A."""
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
    turns: Sequence[Turn], budgets: Mapping[str, float], target: float
) -> tuple[BudgetRecord, ...]:
    """Each budget's verdict: `pass` and `regressed` only where the interval leaves no doubt.

    Nor may a starved caller: a turn that it may have made read long passes as it was read, and is
    over its budget only where it was so at its quickest.
    """
    return tuple(_budget(turns, name, ms, target) for name, ms in budgets.items())


def _budget(turns: Sequence[Turn], name: str, budget_ms: float, target: float) -> BudgetRecord:
    replied = [turn for turn in turns if turn.replied]
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
    calls = Clusters.of_plays([turn.call for turn in turns])
    within = proportion_of([_within(turn, name, budget_ms) for turn in turns], calls)
    at_best = proportion_of(
        [_within(turn, name, budget_ms + _caller_error_ms(turn)) for turn in turns], calls
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


def _caller_error_ms(turn: Turn) -> float:
    return turn.pacing.error_ms if turn.pacing.starved else 0.0


def _spent(turn: Turn, name: str) -> list[float]:
    """List the times in ms of the turn's stages of that name; empty if it has none."""
    return [stage.ms for stage in turn.stages if stage.name == name]


def _within(turn: Turn, name: str, budget_ms: float) -> bool:
    """Return whether the turn is within its budget; one without the figure is not."""
    if not turn.replied:
        return False
    if name == "gap":
        return turn.gap_ms is not None and turn.gap_ms <= budget_ms
    spent = _spent(turn, name)
    return bool(spent) and sum(spent) <= budget_ms

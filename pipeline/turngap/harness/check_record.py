"""What a check found, as it is stored: the verdict and what it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from turngap.core.checks import (
    NOTHING_COMPARED,
    BaselineRecord,
    BaselineUse,
    BudgetRecord,
    CheckRecord,
    CheckVerdict,
    MetricRecord,
    SideRecord,
    StageShiftRecord,
    StarvationRecord,
)
from turngap.core.errors import TurngapError
from turngap.core.results import TurnRecord
from turngap.core.starvation import MAX_STARVED_PAIRS
from turngap.core.summary import summarise
from turngap.core.verdict import Judgement
from turngap.harness import baseline as baselines
from turngap.harness.check_figures import noise_of
from turngap.harness.check_plan import CheckPlan
from turngap.provenance import this_machine, without_url_secrets
from turngap.runs import StoredRun, utc_now


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
    candidate: StoredRun
    reference: StoredRun | None
    stored: BaselineRecord | None
    judgement: Judgement | None
    budgets: tuple[BudgetRecord, ...]
    use: BaselineUse | None
    obstacles: Sequence[str]


def record_of(played: Played) -> CheckRecord:
    """What `check.json` holds, but for what becomes of `--save`."""
    plan, judgement = played.plan, played.judgement
    verdict, why = verdict_of(judgement, played.budgets)
    if played.obstacles:
        verdict, why = "cannot_compare", tuple(played.obstacles)
    reference = played.reference
    return CheckRecord(
        verdict=verdict,
        why=why,
        started_utc=played.started_utc,
        finished_utc=utc_now(),
        machine=this_machine(),
        reference=_reference_side(reference, played.stored),
        candidate=_side(played.candidate),
        scenarios=tuple(s.scenario.name for s in plan.scenarios),
        rounds=played.rounds,
        phases=plan.phases,
        starved_ms=plan.starved_ms,
        pairs=judgement.n if judgement else 0,
        left_out=judgement.left_out if judgement else 0,
        starvation=StarvationRecord(**asdict(judgement.starvation)) if judgement else None,
        metrics=tuple(MetricRecord(**asdict(m)) for m in judgement.metrics) if judgement else (),
        stages=tuple(StageShiftRecord(**asdict(s)) for s in judgement.stages) if judgement else (),
        moved_stage=judgement.moved_stage if judgement else None,
        budgets=played.budgets,
        noise=noise_of(reference.turns, plan.limits) if reference is not None else None,
        baseline=played.use,
    )


def verdict_of(
    judgement: Judgement | None, budgets: Sequence[BudgetRecord]
) -> tuple[CheckVerdict, tuple[str, ...]]:
    """The verdict over all metrics and budgets, and what decided it."""
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
    """Why the baseline says nothing about any run made here and now."""
    if stored is None:
        return []
    reasons = baselines.why_not_comparable(stored, this_machine(), hashes, plan.starved_ms)
    return [f"the baseline does not compare: {reason}" for reason in reasons]


def obstacles(
    candidate: StoredRun,
    reference: StoredRun | None,
    failure: TurngapError | None,
    judgement: Judgement | None,
    starved_ms: float,
) -> list[str]:
    """What forbids any verdict on what was played."""
    if failure is not None:
        return [f"it ended early: {without_url_secrets(str(failure))}"]
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


def too_starved(turns: Sequence[TurnRecord], judgement: Judgement | None) -> str | None:
    """Why the candidate cannot be judged, since its caller was late; None where it can."""
    why = None if judgement is None else judgement.starvation.why_not_judged
    starved = sum(turn.pacing.starved for turn in turns)
    if why is None and starved > MAX_STARVED_PAIRS * len(turns):
        return f"the caller was starved in {starved} of {len(turns)} turns"
    return why


def why_not_saved(record: CheckRecord, plan: CheckPlan, obstacles: Sequence[str]) -> str | None:
    """Why the candidate is not to be what later ones are compared with; None where it may be.

    Whatever was slower than its own reference would be the next one's measure.
    """
    if obstacles:
        return "; ".join(obstacles)
    if plan.only_saves or record.verdict == "pass":
        return None
    return f"the verdict is {record.verdict}"


def _side(run: StoredRun) -> SideRecord:
    return SideRecord(
        agent=run.record.agent,
        run=run.path.name,
        valid=run.record.valid,
        turns=len(run.turns),
        starved=summarise(run.turns).starved,
        caller_error_ms=summarise(run.turns).caller_error_ms,
    )


def _reference_side(run: StoredRun | None, stored: BaselineRecord | None) -> SideRecord | None:
    if run is not None:
        return _side(run)
    if stored is None:
        return None
    return SideRecord(
        agent=stored.agent,
        run=None,
        valid=None,
        turns=len(stored.turns),
        starved=sum(turn.caller_error_ms > 0 for turn in stored.turns),
        caller_error_ms=stored.caller_error_ms,
    )

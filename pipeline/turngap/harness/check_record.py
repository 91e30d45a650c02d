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
)
from turngap.core.errors import TurngapError
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
    candidate: StoredRun, reference: StoredRun | None, failure: TurngapError | None
) -> list[str]:
    """What forbids any verdict on what was played."""
    if failure is not None:
        return [f"it ended early: {without_url_secrets(str(failure))}"]
    found: list[str] = []
    for side, run in (("candidate", candidate), ("reference", reference)):
        if run is not None and not run.record.valid:
            found += [f"the {side}'s run is invalid: {why}" for why in run.record.why_invalid]
    return found


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
        caller_error_ms=stored.caller_error_ms,
    )

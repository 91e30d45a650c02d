"""What is stored of a run before its first turn."""

from typing import Any

from turngap import __version__
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.run_record import RunRecord
from turngap.play.plan import PlayPlan
from turngap.play.target import Target
from turngap.scenario.library import content_hashes
from turngap.store.folders import utc_now
from turngap.store.provenance import git_commit, this_machine


def opening_record(plan: PlayPlan, target: Target, settings: dict[str, Any]) -> RunRecord:
    """The record of a run that begins now; `settings` are stored with it."""
    return RunRecord(
        turngap_version=__version__,
        commit=git_commit(),
        name=target.choice.name,
        started_utc=utc_now(),
        machine=this_machine(),
        agent=target.describe(),
        settings=settings,
        scenario_hashes=content_hashes(plan.scenarios),
        voices={s.scenario.name: s.voice for s in plan.scenarios if s.voice is not None},
        planned_turns=plan.turns // plan.agents,
        budget_ms=plan.budget_ms or DEFAULT_BUDGET_MS,
        starved_ms=plan.starved_ms,
        stand_ins=target.stand_ins(s.scenario for s in plan.scenarios),
        held_out=target.held_out(),
        plan=plan.record(),
        label=plan.label,
    )

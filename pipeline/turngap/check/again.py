"""The command that asks for a check again, without its secrets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turngap.core.budget import CALIBRATION_TURNS, STARVED_MS
from turngap.core.secrets import header_without_secret
from turngap.play.again import Flag, agent_flags, played_again, typed
from turngap.play.target import AgentChoice

if TYPE_CHECKING:
    from turngap.check.plan import CheckPlan


def command_of(
    plan: "CheckPlan",
    choice: AgentChoice,
    beside: AgentChoice | None,
    names: Sequence[str],
    library: Path | None,
) -> str:
    """Return the command that asks for it; `${NAME}` in it stays.

    Args:
        plan: what is played, with its number of rounds.
        choice: the agent.
        beside: the reference at hand, as it was given.
        names: of scenarios, or their files.
        library: their folder.
    """
    at = [choice.endpoint.flags] if choice.is_url else typed([("--agent", choice.agent)])
    flags = agent_flags(choice) + _reference_flags(plan, beside)
    flags += [("--tag", (plan.settings or {}).get("tag"))]
    flags += _limits(plan) + _amounts(plan)
    more = ["--until-decided"] if plan.until_decided else []
    return " ".join(["turngap check", *played_again(names, library), *at, *typed(flags), *more])


def _reference_flags(plan: "CheckPlan", beside: AgentChoice | None) -> list[Flag]:
    if beside is None:
        return [("--baseline", plan.baseline)]
    return [
        ("--against", beside.agent),
        ("--start-against", beside.start),
        ("--against-dialect", beside.dialect or None),
        *(("--against-header", header_without_secret(each)) for each in beside.headers),
        *(("--against-set", assignment) for assignment in beside.sets),
    ]


def _limits(plan: "CheckPlan") -> list[Flag]:
    flags: list[Flag] = []
    if plan.reference is not None or plan.baseline is not None:
        flags += [("--limit-p50-ms", float(plan.limits.p50_ms))]
        flags += [("--limit-p95-ms", float(plan.limits.p95_ms))]
    flags += [("--budget", f"{name}={ms:g}") for name, ms in plan.budgets.items()]
    return [*flags, ("--target", float(plan.target))] if plan.budgets else flags


def _amounts(plan: "CheckPlan") -> list[Flag]:
    calibrated = plan.calibration_turns
    return [
        ("--rounds", plan.rounds),
        ("--phases", None if plan.phases == 1 else plan.phases),
        ("--max-minutes", float(plan.max_minutes) if plan.until_decided else None),
        ("--calibration", None if calibrated == CALIBRATION_TURNS else calibrated),
        ("--starved-ms", None if plan.starved_ms == STARVED_MS else float(plan.starved_ms)),
        ("--save", plan.save),
    ]

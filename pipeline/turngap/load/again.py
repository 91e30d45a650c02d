"""The command that asks for a load test again, without its secrets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turngap.core.budget import DEFAULT_BUDGET_MS, STARVED_MS
from turngap.core.stats import CONFIDENCE
from turngap.load.probe import MAX_MINUTES
from turngap.load.search import TARGET
from turngap.play.again import Flag, agent_flags, played_again, typed
from turngap.play.target import AgentChoice

LOAD = "turngap load"
# What changes the answer, with its flag and what it is where nobody says.
_FLAGS: dict[str, tuple[str, Any]] = {
    "budget_ms": ("--budget-ms", DEFAULT_BUDGET_MS),
    "target": ("--target", TARGET),
    "confidence": ("--confidence", CONFIDENCE),
    "starved_ms": ("--starved-ms", STARVED_MS),
    "max_minutes": ("--max-minutes", MAX_MINUTES),
    "warm_up_s": ("--warm-up", None),
    "callers": ("--callers", None),
    "on": ("--on", "local"),
    "ray_address": ("--ray-address", None),
}


def command_of(
    choice: AgentChoice,
    names: Sequence[str],
    tag: str | None,
    library: Path | None,
    asked: Mapping[str, Any],
) -> str:
    """Return the command that asks for it, but for how many sessions; `${NAME}` in it stays.

    Args:
        choice: the agent.
        names: of scenarios, or their files.
        tag: of the scenarios.
        library: their folder.
        asked: further attributes of the plan.
    """
    named = not choice.is_url and choice.agent != AgentChoice().agent
    flags: list[Flag] = [("--tag", tag)]
    flags += [("--agent", choice.agent if named else None), *agent_flags(choice)]
    for name, (flag, usual) in _FLAGS.items():
        value = asked.get(name, usual)
        flags.append((flag, None if value == usual else value))
    at = [choice.endpoint.flags] if choice.is_url else []
    return " ".join([LOAD, *played_again(names, library), *at, *typed(flags)])

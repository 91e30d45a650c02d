"""Plan of a check, and the requests that it refuses."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from turngap.caller.dialects.registry import dialect_of_host
from turngap.caller.starting import place_of
from turngap.check.verdict import ALPHA, conversations_needed
from turngap.core.budget import CALIBRATION_TURNS
from turngap.core.errors import InputError, known_names
from turngap.core.paired import Limits
from turngap.core.secrets import header_without_secret
from turngap.core.stages import MARKS
from turngap.play.options import Asked, flags_again, quoted, typed
from turngap.play.plan import PlayPlan, played_as
from turngap.play.process import address_of, addresses_of
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import chosen
from turngap.scenario.model import SUFFIXES
from turngap.store.documents import is_dir

# With fewer conversations no shift is beyond chance, however large: 9, or 10 at the first look of
# `until_decided`, which may use up half of the errors.
CONVERSATIONS = conversations_needed(ALPHA / 2)
# What a budget can be of.
BUDGETS = ("gap", *MARKS[1:])
# This many turns have to be played, and kept, for the lower bound of their share to reach it.
_TARGETS = "0.9 takes 36 calls without a miss, 0.95 takes 72, 0.99 takes 368"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan(PlayPlan):
    """A plan of what to compare, and for how long.

    If the reference is an agent, each round plays the scenarios twice on both sides, in the order A
    B B A.

    Attributes:
        reference: an agent to play; None to compare with `baseline`, or with budgets alone.
        rounds: by default 2, and more if turns are paired and a clear shift needs them
            (`CONVERSATIONS`), or if a baseline is saved with which later turns are paired.
        save: where to store the candidate as a baseline, if it passes or nothing else is asked.
        budgets: the budget in ms of `gap` or of a stage, by name.
        target: the share of turns that must be within each budget.
        until_decided: continue with more rounds while undecided, up to `max_minutes` or to 16 times
            the rounds.
        command: the command that repeats the check; empty if the plan was not made by `of`.
    """

    candidate: Target
    reference: Target | None = None
    baseline: Path | None = None
    save: Path | None = None
    rounds: int = 0
    limits: Limits = field(default_factory=Limits)
    budgets: Mapping[str, float] = field(default_factory=dict)
    target: float = 0.95
    until_decided: bool = False
    max_minutes: float = 10.0
    calibration_turns: int = CALIBRATION_TURNS
    command: str = ""

    def __post_init__(self) -> None:
        PlayPlan.__post_init__(self)
        if self.rounds == 0:
            a_round = len(self.scenarios) * (1 if self.reference is None else 2)
            paired = self.reference or self.baseline or self.save
            least = ceil(CONVERSATIONS / max(a_round, 1)) if paired else 2
            object.__setattr__(self, "rounds", max(2, least))

    @classmethod
    def of(
        cls,
        choice: AgentChoice,
        names: Sequence[str],
        tag: str | None,
        library: Path | None,
        *,
        against: str | None,
        against_sets: Sequence[str],
        start_against: str | None = None,
        against_dialect: str = "",
        against_headers: Sequence[str] = (),
        baseline: Path | None,
        save: Path | None,
        budgets: Mapping[str, float],
        **asked: Any,
    ) -> Self:
        """Plan to compare an agent with the one that `against` names, if any.

        `asked` has the plan's other attributes.

        Raises:
            InputError: there is no such scenario or agent, or nothing to compare with.
            AgentError: this machine lacks something that an engine needs.
        """
        if against is not None and baseline is not None:
            raise InputError("check.two_references", "give against or baseline, not both")
        if start_against is not None and against is None:
            raise InputError(
                "check.nothing_to_start",
                "a command for the reference is given, but no URL of the reference",
                hint="give its URL as well: against",
            )
        if against is None and baseline is None and save is None and not budgets:
            raise InputError(
                "check.nothing_to_check",
                "nothing to compare with",
                hint="give against, baseline, a budget or save",
            )
        if save is not None and save == baseline:
            raise InputError(
                "check.save_over_baseline",
                f"saving to {save} would replace the baseline that this run is compared with",
                hint="save to another file",
            )
        folder, loaded = chosen(choice.agent, names, tag, library)
        reference = beside = None
        if against is not None:
            beside = AgentChoice.of(
                against,
                against_sets if choice.seed is None else [f"seed={choice.seed}", *against_sets],
                start=start_against,
                dialect=against_dialect,
                headers=tuple(against_headers),
            )
            _require_two(choice, beside)
            reference = resolve(_spoken_to_like(choice, beside), folder)
        plan = cls(
            candidate=resolve(choice, folder),
            reference=reference,
            baseline=baseline,
            save=save,
            budgets=budgets,
            scenarios=loaded,
            settings={"tag": tag, "seed": choice.seed},
            **asked,
        )
        return replace(plan, command=command_of(plan, choice, beside, names, library))

    @classmethod
    def asked(cls, asked: Asked) -> Self:
        """Plan according to the options of `check`.

        Raises:
            InputError, AgentError: as `of`; or no amount of playing could decide it.
        """
        same = ("start_against", "against_dialect", "against_headers", "against_sets", "baseline")
        same += ("save", "budgets", "target", "until_decided", "max_minutes")
        plan = cls.of(
            AgentChoice.asked(asked),
            asked.scenarios,
            asked.tag,
            asked.library,
            against=asked.against or None,
            rounds=asked.rounds or 0,
            limits=Limits(asked.limit_p50_ms, asked.limit_p95_ms),
            **{name: asked[name] for name in same},
            **played_as(asked),
        )
        refuse(plan)
        return plan

    @property
    def agents(self) -> int:
        return 1 if self.reference is None else 2

    @property
    def plays(self) -> int:
        return 1 if self.reference is None else 4

    @property
    def only_saves(self) -> bool:
        """Return whether there is nothing to compare the candidate with."""
        return self.reference is None and self.baseline is None and not self.budgets


def _require_two(candidate: AgentChoice, reference: AgentChoice) -> None:
    """Refuse two agents at one address, if a command starts one: that one would be measured twice.

    A process started by a command cannot share its port. An agent that runs already may be compared
    with itself: no one does that by mistake.

    Raises:
        InputError: both agents are at one port of one machine, and a command starts one of them.
    """
    commands = [each.start for each in (candidate, reference) if each.start is not None]
    if not (commands and candidate.is_url and reference.is_url):
        return
    (host, port), (other, other_port) = map(address_of, (candidate.agent, reference.agent))
    if port != other_port or (host != other and not addresses_of(host) & addresses_of(other)):
        return
    # One command may well start one server with both agents, and distinguish them by what is said.
    if len(commands) == 1 and _told_apart(candidate, reference):
        return
    raise InputError(
        "check.one_listener",
        f"the agent at {candidate.shown} and the reference at {reference.shown} would be one and "
        "the same, so it would be compared with itself",
        hint="let the reference serve at a port of its own: --against ws://127.0.0.1:8766/ws "
        "--start-against COMMAND",
    )


def _told_apart(candidate: AgentChoice, reference: AgentChoice) -> bool:
    """Return whether a server can distinguish the two agents by path, headers or dialect."""
    return (
        _path_of(candidate.agent) != _path_of(reference.agent)
        or reference.headers not in ((), candidate.headers)
        or reference.dialect not in ("", candidate.dialect)
    )


def _path_of(url: str) -> tuple[str, str]:
    parts = urlsplit(place_of(url))
    return parts.path.rstrip("/"), parts.query


def _spoken_to_like(candidate: AgentChoice, reference: AgentChoice) -> AgentChoice:
    """Return the reference with the candidate's line settings as defaults.

    It gets the candidate's headers only at the same host, because they may hold keys.
    """
    if not (candidate.is_url and reference.is_url):
        return reference
    known = reference.dialect or dialect_of_host(reference.agent)
    alike = reference if known else replace(reference, dialect=candidate.dialect)
    if _host_of(candidate.agent) != _host_of(reference.agent):
        return alike
    return replace(alike, headers=reference.headers or candidate.headers)


def _host_of(url: str) -> tuple[str, str | None]:
    """Return scheme and host; a URL that cannot be read equals no other."""
    try:
        parts = urlsplit(place_of(url))
        return parts.scheme, parts.hostname
    except ValueError:
        return url, None


def refuse(plan: CheckPlan) -> None:
    """Refuse a plan that cannot be played, or that no amount of playing could decide.

    Raises:
        InputError: the message names the value that was given and the allowed ones.
    """
    for name, ms in plan.budgets.items():
        require_budget(name, ms)
    require_target(plan.target)
    if plan.save is not None:
        _refuse_save(plan.save)


def require_budget(name: str, ms: float) -> None:
    """Refuse a budget of an unknown stage, or one that is not a number of ms.

    Raises:
        InputError: the budget is wrong; the message says how.
    """
    if name not in BUDGETS:
        raise InputError(
            "check.budget",
            f"budget {name}={ms:g}: no stage called {name!r} has a budget",
            hint=known_names(name, BUDGETS),
        )
    if not 0 < ms < inf:
        raise InputError(
            "check.budget",
            f"budget {name}={ms:g}: expected a number of ms above 0",
            hint=f"for example {name}=800",
        )


def require_target(share: float) -> None:
    """Refuse a share of turns that no run can show.

    Raises:
        InputError: the share is not between 0 and 1, or is 1.
    """
    if share == 1:
        raise InputError(
            "check.target",
            "target=1: no number of turns shows that every turn will keep its budget",
            hint=_TARGETS,
        )
    if not 0 < share < 1:
        raise InputError(
            "check.target",
            f"target={share!r}: expected a share between 0 and 1, 0.95 for 95 %",
            hint=_TARGETS,
        )


def _refuse_save(file: Path) -> None:
    if not is_dir(file.parent):
        raise InputError(
            "baseline.unwritable",
            f"{file}: there is no folder {file.parent} to save it in",
            hint=f"mkdir -p {shlex.quote(str(file.parent))}",
        )
    if is_dir(file):
        raise InputError(
            "baseline.unwritable", f"{file} is a folder", hint=f"for example {file / 'base.json'}"
        )


def command_of(
    plan: CheckPlan,
    choice: AgentChoice,
    beside: AgentChoice | None,
    names: Sequence[str],
    library: Path | None,
) -> str:
    """Return the command that repeats the check; `${NAME}` in it stays.

    Args:
        plan: the plan, with its number of rounds.
        choice: the agent that is checked.
        beside: the reference agent, as it was given; None without one.
        names: the names of scenarios, or their files.
        library: their folder.
    """
    at = [choice.endpoint.flags] if choice.is_url else typed([("--agent", choice.agent)])
    at += typed(choice.flags)
    if library is not None:
        files = [n if Path(n).suffix in SUFFIXES else str(library / f"{n}.yaml") for n in names]
        names = files or [str(library)]
    values = {name: getattr(plan, name) for name in _AGAIN}
    values |= {"tag": (plan.settings or {}).get("tag"), "calibration": plan.calibration_turns}
    values["line"] = plan.line and plan.line.text
    if beside is not None:
        values |= {"against": beside.agent, "start_against": beside.start}
        values |= {"against_dialect": beside.dialect, "against_sets": beside.sets}
        values["against_headers"] = tuple(map(header_without_secret, beside.headers))
    if beside is not None or plan.baseline is not None:
        values |= {"limit_p50_ms": plan.limits.p50_ms, "limit_p95_ms": plan.limits.p95_ms}
    again = typed(flags_again("check", values))
    return " ".join(["turngap check", *map(quoted, names), *at, *again])


# Options that are attributes of the plan.
_AGAIN = (
    *("baseline", "rounds", "until_decided", "max_minutes", "phases", "budgets", "target"),
    *("no_reply_ms", "quiet_ms", "starved_ms", "save"),
)

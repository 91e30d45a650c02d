"""Play an agent, as it is or with several values of one setting, and store its curve."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, get_args

from turngap.backends import Kind
from turngap.core import __version__
from turngap.core.errors import InputError, TurngapError
from turngap.core.summary import counted_turns
from turngap.core.wording import several
from turngap.play.options import Asked
from turngap.play.plan import SILENT, PlayPlan, Progress, played_as
from turngap.play.rounds import play_in_turns
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import chosen
from turngap.store.comparisons import TURNS_FILE, TurnsRecord
from turngap.store.documents import git_commit, this_machine, write_document
from turngap.store.folders import new_folder, utc_now
from turngap.turns.figures import (
    GAP_MS,
    SHARE,
    measured_curve,
    point_figures,
    silence_curve,
    waiting_curve,
)

# Each value is a process of its own, about 200 MB, for as long as this lasts.
MAX_VALUES = 8

_EXAMPLE = "for example: --vary turn.certainty=0.5,0.7,0.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsPlan(PlayPlan):
    """A plan of which agent to play, over which recordings.

    Attributes:
        setting: the setting to vary, `table.key` of the stack, e.g. `turn.certainty`; or None.
        values: of the setting, as they would be written after `--set table.key=`.
    """

    choice: AgentChoice
    library: Path
    setting: str | None = None
    values: Sequence[str] = ()

    @classmethod
    def asked(cls, asked: Asked) -> Self:
        """Plan according to the options of `turns`, and check it before anything is started.

        Raises:
            InputError, AgentError: as `targets`; or there is no such scenario.
        """
        choice = AgentChoice.asked(asked)
        setting, values = (None, []) if asked.vary is None else parse_vary(asked.vary)
        library, scenarios = chosen(choice.agent, asked.scenarios, asked.tag, asked.library)
        plan = cls(
            choice=choice,
            library=library,
            setting=setting,
            values=values,
            scenarios=scenarios,
            rounds=asked.rounds,
            **played_as(asked),
        )
        plan.targets()
        if asked.virtual and choice.is_url:
            raise InputError(
                "turns.virtual",
                f"{choice.agent} is a running agent, and only a built-in one keeps virtual time",
                hint="drop --virtual, or name a stack",
            )
        return plan

    @property
    def points(self) -> Sequence[str | None]:
        """Return the value at each point of the curve; None alone where nothing is varied."""
        return [None] if self.setting is None else list(self.values)

    @property
    def agents(self) -> int:
        return len(self.points)

    def targets(self) -> list[Target]:
        """Resolve one agent for each value, and check all before anything is started.

        Raises:
            InputError: the stack refuses a value, there are too many, or the agent is a URL.
        """
        if self.setting is None:
            return [resolve(self.choice, self.library)]
        if not 2 <= len(self.values) <= MAX_VALUES:
            raise InputError(
                "turns.values",
                f"{several(len(self.values), 'value')} for {self.setting}; expected 2 to "
                f"{MAX_VALUES}",
                hint=_EXAMPLE,
            )
        if self.choice.is_url:
            raise InputError(
                "turns.url",
                f"{self.choice.agent} is a running agent: its settings cannot be varied from here",
                hint="play it as it is, without --vary, or name a stack",
            )
        sets = [(*self.choice.sets, f"{self.setting}={value}") for value in self.values]
        return [resolve(dataclasses.replace(self.choice, sets=s), self.library) for s in sets]


def parse_vary(text: str) -> tuple[str, list[str]]:
    """Parse a setting and its values from `TABLE.KEY=V1,V2,…`.

    Raises:
        InputError: it is not of that form.
    """
    name, equals, values = text.partition("=")
    if name in get_args(Kind):
        raise InputError(
            "turns.setting",
            f"{text!r}: {name} is an engine, and --vary takes a setting of one: {name}.KEY=V1,V2,…",
            hint=f"measure one engine at a time, as with --set {name}={values.split(',')[0]}",
        )
    if not equals or "." not in name:
        raise InputError("turns.setting", f"{text!r}: expected TABLE.KEY=V1,V2,…", hint=_EXAMPLE)
    return name, [value.strip() for value in values.split(",") if value.strip()]


Played = tuple[TurnsRecord, Path, TurngapError | None]


async def turns(plan: TurnsPlan, progress: Progress = SILENT) -> Played:
    """Play every scenario with each value in turn, so that a slow period affects all values alike.

    The played turns are stored in any case; an error that ended the play is returned too.
    """
    started, folder, runs = _begun(plan, progress)
    failure = await play_in_turns(runs, plan, progress)
    return _stored(plan, started, folder, runs, failure)


def turns_in_virtual_time(plan: TurnsPlan, progress: Progress = SILENT) -> Played:
    """Play a stack's agent in memory and virtual time (`turngap.play.virtual`).

    Call it in a thread where no event loop runs.
    """
    from turngap.play.virtual import play_in_virtual_time

    started, folder, runs = _begun(plan, progress)
    failure = play_in_virtual_time(runs, plan, progress)
    return _stored(plan, started, folder, runs, failure, virtual=True)


def _begun(plan: TurnsPlan, progress: Progress) -> tuple[str, Path, list[RunInProgress]]:
    targets, started = plan.targets(), utc_now()
    what = plan.choice.name if plan.setting is None else plan.setting.replace(".", "-")
    folder = new_folder(plan.out, f"turns-{what}")
    progress.on_folder(folder)
    runs = [
        RunInProgress(
            plan,
            target,
            plan.choice.name if value is None else f"{plan.setting}-{value}",
            progress.on_turn,
            out=folder,
            settings={"turns": plan.setting, "value": value},
        )
        for target, value in zip(targets, plan.points, strict=True)
    ]
    return started, folder, runs


def _stored(
    plan: TurnsPlan,
    started: str,
    folder: Path,
    runs: Sequence[RunInProgress],
    failure: TurngapError | None,
    *,
    virtual: bool = False,
) -> Played:
    stored = [run.finish(str(failure) if failure else None) for run in runs]
    points = [
        point_figures(
            run.turns,
            value=value,
            run=run.path.name,
            valid=run.record.valid,
            why_invalid=run.record.why_invalid,
        )
        for value, run in zip(plan.points, stored, strict=True)
    ]
    played = counted_turns([turn for run in stored for turn in run.turns])
    gaps = [point.gap_ms.value or 0.0 for point in points]  # the most patient one waits longest
    record = TurnsRecord(
        turngap_version=__version__,
        commit=git_commit(),
        started_utc=started,
        machine=this_machine(),
        agent=str(stored[0].record.agent.get("url") or plan.choice.name),
        setting=plan.setting,
        scenarios=tuple(s.scenario.name for s in plan.scenarios),
        rounds=plan.rounds,
        phases=plan.phases,
        virtual=virtual,
        recorded=len({turn.take[:2] for turn in played}),
        labelled=len({turn.take[:2] for turn in played if turn.pauses is not None}),
        share=SHARE,
        gap_ms=GAP_MS,
        points=tuple(points),
        measured=measured_curve([run.turns for run in stored]),
        waiting=waiting_curve(stored[gaps.index(max(gaps))].turns),
        silence=silence_curve(played),
        failure=None if failure is None else str(failure),
        stand_ins=tuple(dict.fromkeys(name for run in stored for name in run.record.stand_ins)),
        label=plan.label,
        settings={"seed": plan.choice.seed, "starved_ms": plan.starved_ms},
    )
    write_document(folder / TURNS_FILE, record)
    return record, folder, failure

"""Compare several LLM backends of one agent, played alternately over the same recordings."""

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from turngap.backends import BackendChoice, find, value_of
from turngap.compare.figures import (
    Side,
    UsdPerMillion,
    backend_figures,
    chain_of,
    crossings,
    pairs_of,
)
from turngap.core import __version__
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.errors import InputError, TurngapError
from turngap.core.run_record import SIMULATED_LLM
from turngap.play.options import Asked
from turngap.play.plan import SILENT, PlayPlan, Progress, played_as
from turngap.play.rounds import play_in_turns
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import chosen
from turngap.store.comparisons import COMPARISON_FILE, ComparisonRecord
from turngap.store.documents import git_commit, this_machine, write_document
from turngap.store.folders import INTERRUPTED, new_folder, utc_now
from turngap.store.runs import Run

# Each backend is an agent in a process of its own, about 200 MB, for as long as this lasts; and the
# page shows this many apart without colour.
MAX_BACKENDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePlan(PlayPlan):
    """A plan of what to compare, over which recordings.

    Attributes:
        choice: the agent; its LLM is replaced by each backend.
        prices: US dollars per million tokens in and out, by a contender's name; else the backend's.
        most: the maximum number of backends.
    """

    choice: AgentChoice
    library: Path
    contenders: Sequence[BackendChoice]
    prices: dict[str, UsdPerMillion] = dataclasses.field(default_factory=dict)
    most: int = MAX_BACKENDS

    @classmethod
    def asked(cls, asked: Asked, prices: dict[str, UsdPerMillion]) -> Self:
        """Plan according to the options of `compare`.

        Raises:
            InputError: there is no such scenario, or a text names no backend.
        """
        choice = AgentChoice.asked(asked)
        library, scenarios = chosen(choice.agent, asked.scenarios, asked.tag, asked.library)
        return cls(
            choice=choice,
            library=library,
            contenders=[BackendChoice.parse(text) for text in asked.llms],
            scenarios=scenarios,
            prices=prices,
            rounds=asked.rounds,
            **played_as(asked),
        )

    @property
    def agents(self) -> int:
        return len(self.contenders)

    def targets(self) -> list[Target]:
        """Resolve one agent for each backend, and check all before anything is started.

        Raises:
            InputError: too few or too many backends, two with one name, an unknown backend or
                setting, a price for an unknown name, or a setting of a running server.
            AgentError: this machine lacks something that a backend needs.
        """
        names = [c.name for c in self.contenders]
        if not 2 <= len(names) <= self.most:
            raise InputError(
                "compare.backends",
                f"{len(names)} backend{'' if len(names) == 1 else 's'}; expected 2 to {self.most}",
                hint="turngap compare --llm teacher=small --llm student=small,model=student",
            )
        if len(set(names)) < len(names):
            raise InputError(
                "compare.twice",
                f"two backends have the same name: {', '.join(names)}",
                hint="name one: --llm slow=sim,ttft_ms=400",
            )
        if strangers := set(self.prices) - set(names):
            raise InputError(
                "compare.price",
                f"--price for {', '.join(sorted(strangers))}, which is not compared",
                hint=f"compared: {', '.join(names)}",
            )
        for contender in self.contenders:
            if contender.name in self.prices and find("llm", contender.backend).combines:
                raise InputError(
                    "compare.price",
                    f"--price {contender.name}: it combines backends that have prices of their own",
                    hint="give its parts' (llm.fast_price, llm.full_price, llm.candidate_prices), "
                    f"e.g. --llm '{contender.backend},full_price=[5, 25]'",
                )
        if self.choice.is_url:
            raise InputError("compare.url", f"{self.choice.agent} is a running agent; name a stack")
        return [resolve(self._with(c), self.library) for c in self.contenders]

    def _with(self, contender: BackendChoice) -> AgentChoice:
        backends = {**self.choice.backends, "llm": contender.backend}
        sets = (*self.choice.sets, *(f"llm.{assignment}" for assignment in contender.sets))
        return dataclasses.replace(self.choice, backends=backends, sets=sets)

    def price(self, contender: BackendChoice) -> UsdPerMillion | None:
        """Return the contender's price per million tokens; None if it is not known."""
        if contender.name in self.prices:
            return self.prices[contender.name]
        price = find("llm", contender.backend).price
        return None if price is None else (price.input_usd, price.output_usd)


def parse_price(text: str) -> tuple[str, UsdPerMillion]:
    """Parse a price from `NAME=IN,OUT` or `NAME=IN,OUT,CACHED`, US dollars per million tokens.

    Raises:
        InputError: the text does not have this form.
    """
    name, _, figures = text.rpartition("=")
    values = [value_of(v) for v in figures.split(",")]
    good = len(values) in (2, 3) and all(isinstance(v, int | float) and v >= 0 for v in values)
    if not name or not good:
        raise InputError(
            "compare.price",
            f"--price {text!r}: expected NAME=IN,OUT or NAME=IN,OUT,CACHED in US dollars per "
            "million tokens",
            hint="for example --price small=0.1,0.4",
        )
    usd = [float(value) for value in values]
    return name.strip(), (usd[0], usd[1]) if len(usd) == 2 else (usd[0], usd[1], usd[2])


async def compare(
    plan: ComparePlan, progress: Progress = SILENT
) -> tuple[ComparisonRecord, Path, TurngapError | None]:
    """Play every scenario against each backend in turn; store the turns in any case."""
    targets = plan.targets()
    started = utc_now()
    folder = new_folder(plan.out, "compare")
    progress.on_folder(folder)
    runs = [
        RunInProgress(
            plan,
            target,
            contender.name,
            progress.on_turn,
            out=folder,
            settings={"compare": contender.name},
        )
        for target, contender in zip(targets, plan.contenders, strict=True)
    ]
    try:
        failure = await play_in_turns(runs, plan, progress)
    except (asyncio.CancelledError, KeyboardInterrupt):
        # Of what was played the comparison can be shown, even where a backend has no turn yet.
        stored = [run.finish(INTERRUPTED) for run in runs]
        if any(run.turns for run in stored):
            write_document(folder / COMPARISON_FILE, _record(plan, stored, started, INTERRUPTED))
        raise
    stored = [run.finish(str(failure) if failure else None) for run in runs]
    record = _record(plan, stored, started, None if failure is None else str(failure))
    write_document(folder / COMPARISON_FILE, record)
    return record, folder, failure


def _record(
    plan: ComparePlan, stored: Sequence[Run], started: str, failure: str | None
) -> ComparisonRecord:
    backends = [
        backend_figures(
            contender.name,
            run.turns,
            plan.price(contender),
            llm=contender.backend,
            simulated=SIMULATED_LLM in run.record.stand_ins,
            held_out=run.record.held_out,
            run=run.path.name,
            valid=run.record.valid,
            why_invalid="; ".join(run.record.why_invalid),
        )
        for contender, run in zip(plan.contenders, stored, strict=True)
    ]
    sides = [
        Side(contender.name, run.turns, plan.price(contender))
        for contender, run in zip(plan.contenders, stored, strict=True)
    ]
    return ComparisonRecord(
        turngap_version=__version__,
        commit=git_commit(),
        started_utc=started,
        machine=this_machine(),
        agent=plan.choice.name,
        scenarios=tuple(s.scenario.name for s in plan.scenarios),
        rounds=plan.rounds,
        budget_ms=plan.budget_ms or DEFAULT_BUDGET_MS,
        backends=tuple(backends),
        pairs=pairs_of(sides),
        chain=chain_of(backends),
        crossings=tuple(crossings(sides)),
        failure=failure,
        stand_ins=tuple(dict.fromkeys(name for run in stored for name in run.record.stand_ins)),
        label=plan.label,
        settings={"seed": plan.choice.seed, "starved_ms": plan.starved_ms, **plan.line_setting},
    )

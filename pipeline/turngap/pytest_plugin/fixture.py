"""The fixture `turngap`: plays from within a test, and concludes when the test has passed."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import pytest

from turngap.backends import Kind
from turngap.caller.pipecat import PipecatDialect
from turngap.caller.stream import RATE
from turngap.check.files import write_reports
from turngap.check.plan import CheckPlan, refuse
from turngap.check.play import Checked, check
from turngap.check.verdict import Limits
from turngap.core.errors import InconclusiveError, InputError, TurngapError
from turngap.play.plan import ReplayPlan
from turngap.play.replay import replay
from turngap.play.target import AgentChoice, Target, resolve
from turngap.pytest_plugin.compared import Comparison, baseline_file, compare, invalid, save
from turngap.pytest_plugin.failures import INCONCLUSIVE, LatencyError, in_full
from turngap.pytest_plugin.lock import one_at_a_time
from turngap.pytest_plugin.measured import MeasuredRun
from turngap.pytest_plugin.options import Options
from turngap.pytest_plugin.rows import Row
from turngap.pytest_plugin.settings import (
    AgentSettings,
    ReplaySettings,
    Wanted,
    marker_settings,
    wanted,
)
from turngap.report import words
from turngap.report.html import write_html
from turngap.scenario.library import (
    LoadedScenario,
    library_for,
    load_scenarios,
    require_inside,
    scenario_paths,
)
from turngap.store.runs import Run

Result = TypeVar("Result")
Budgets = Mapping[str, float]


class Turngap:
    """What a test gets: methods that play in real time and return when they have measured.

    Attributes:
        runs: the replays of this test so far, in order.
        checks: the checks of this test so far.
    """

    def __init__(
        self,
        nodeid: str,
        options: Options,
        *,
        marker: pytest.Mark | None,
        folder: Callable[[], Path],
    ) -> None:
        self._nodeid = nodeid
        self._options = options
        self._folder = folder
        try:
            self._marker = marker_settings(marker)
        except InputError as e:
            raise in_full(e) from None
        self.runs: list[MeasuredRun] = []
        self.checks: list[Comparison] = []
        self._refused: list[Run] = []
        self._beside: str | None = None
        self._conclusion: Exception | None = None

    def replay(self, agent: str | None = None, **settings: Unpack[ReplaySettings]) -> MeasuredRun:
        """Play scenarios against an agent, as `turngap replay` does, and keep the run.

        Args:
            agent: a stack's name, a stack file or a `ws://` URL. One that the test starts itself
                belongs in a process of its own, or it delays its own caller.
            settings: over those of the marker `turngap`.

        Raises:
            InputError: a setting is wrong.
            AgentError: the agent cannot be reached or failed.
            InconclusiveError: the caller was starved, so that no figure of the run holds.
        """
        __tracebackhide__ = True
        try:
            choice = self._wanted(agent, settings, tuple(ReplaySettings.__annotations__))
            plan = self._replay_plan(choice)
            stored, failure = _played(lambda: replay(plan))
        except TurngapError as e:
            raise in_full(e) from None
        write_html(stored)
        self._refuse_unless_usable(stored, failure)
        run = MeasuredRun(stored)
        self.runs.append(run)
        return run

    def check(
        self,
        agent: str | None = None,
        *,
        against: str | None = None,
        against_sets: Sequence[str] = (),
        baseline: str | Path | None = None,
        budgets: Budgets | None = None,
        target: float = 0.95,
        rounds: int | None = None,
        phases: int = 1,
        limit_p50_ms: float = 30.0,
        limit_p95_ms: float = 100.0,
        until_decided: bool = False,
        max_minutes: float = 10.0,
        **settings: Unpack[AgentSettings],
    ) -> Comparison:
        """Compare an agent with a reference, as `turngap check` does, and keep both runs.

        Args:
            agent: the candidate.
            against: the reference, played in turns with the candidate; or
            baseline: a file of `turngap check --save`.
            against_sets: settings of the reference.
            budgets: `gap` or a stage's name to ms.
            target: the share of turns that has to keep each budget, at its 95 % bound; below 1,
                since no number of turns shows that every turn will.
            rounds: how often to play; each round takes every turn twice on both sides. By default
                2, or as many as it takes to decide on a clear shift.
            phases: positions on the agent's 32 ms grid, over the rounds.
            limit_p50_ms: the smallest regression of the median that must not pass; likewise p95.
            limit_p95_ms: see there.
            until_decided: play on while undecided, for `max_minutes` at most.
            max_minutes: see there.
            settings: over those of the marker `turngap`, of which `repeat`, `budget_ms` and
                `phase_ms` are for `replay` alone.

        Raises:
            InputError: a setting is wrong, or the baseline cannot be read.
            AgentError: one of the agents cannot be reached or failed.
        """
        __tracebackhide__ = True
        try:
            choice = self._wanted(agent, settings, tuple(AgentSettings.__annotations__))
            plan = CheckPlan(
                candidate=_target(choice),
                reference=None if against is None else _reference(choice, against, against_sets),
                scenarios=_scenarios(choice),
                dialect=PipecatDialect(),
                baseline=None if baseline is None else Path(baseline),
                rounds=self._options.rounds or rounds or 0,
                phases=phases,
                limits=Limits(limit_p50_ms, limit_p95_ms),
                budgets=budgets or {},
                target=target,
                until_decided=until_decided,
                max_minutes=max_minutes,
                starved_ms=choice.starved_ms,
                calibration_turns=choice.calibration,
                out=self._folder(),
                settings={"tag": choice.tag},
            )
            _refuse_no_reference(plan)
            refuse(plan)
            checked = _played(lambda: check(plan))
        except TurngapError as e:
            raise in_full(e) from None
        return self._kept(checked)

    def _kept(self, checked: Checked) -> Comparison:
        __tracebackhide__ = True
        write_reports(checked.record, checked.path, checked.candidate, checked.reference)
        if checked.failure is not None:
            self._refused.append(checked.candidate)
            raise in_full(checked.failure, _where(checked.candidate))
        comparison = Comparison(checked)
        self.checks.append(comparison)
        return comparison

    def conclude(self) -> None:
        """After a test that passed: compare its runs with their baseline, then save them as one.

        Raises:
            LatencyError: as `compare`.
            InconclusiveError: likewise.
            InputError: a baseline cannot be written.
        """
        try:
            self._compare_and_save()
        except (LatencyError, TurngapError) as e:
            self._conclusion = in_full(e) if isinstance(e, TurngapError) else e
            raise self._conclusion from None

    def _compare_and_save(self) -> None:
        if name := self._options.compare:
            for run, file in self._files(name):
                compare(run, file, name)
                self._beside = name
        if name := self._options.save:
            for run, file in self._files(name):
                save(run, file)

    def rows(self, outcome: str, error: BaseException | None) -> list[Row]:
        """A row for each run, in words, once the test has ended."""
        verdict = _verdict(outcome, error if outcome == "skipped" else self._conclusion or error)
        rows = [self._row(run, self._with_remarks(verdict, run.asserted)) for run in self.runs]
        rows += [self._row(MeasuredRun(stored), verdict) for stored in self._refused]
        for comparison in self.checks:
            asserted = comparison.asserted or comparison.run.asserted
            remarks = self._with_remarks(verdict, asserted)
            shown = f"{remarks} (check: {comparison.verdict.replace('_', ' ')})"
            rows.append(self._row(comparison.run, shown, comparison.path))
        return rows

    def _with_remarks(self, verdict: str, asserted: bool) -> str:
        if verdict != "passed":
            return verdict
        remarks = [] if asserted or self._beside else ["nothing asserted"]
        remarks += [f"not slower than {self._beside}"] if self._beside else []
        remarks += [f"saved as {self._options.save}"] if self._options.save else []
        return ", ".join([verdict, *remarks])

    def _row(self, run: MeasuredRun, verdict: str, runs: str | None = None) -> Row:
        rate, gap = run.summary.hit_rate, run.summary.gap_ms
        figure, _ = words.hit_rate_words(rate)
        return Row(
            test=self._nodeid,
            hit_rate=f"{figure} (n={rate.n})",
            p50=_percentile_cell(gap["p50"].value, gap["p50"].why_none),
            p95=_percentile_cell(gap["p95"].value, gap["p95"].why_none),
            verdict=verdict,
            runs=runs or run.path,
        )

    def _files(self, name: str) -> list[tuple[MeasuredRun, Path]]:
        folder = self._options.baselines
        return [
            (run, baseline_file(folder, name, self._nodeid, number))
            for number, run in enumerate(self.runs, start=1)
        ]

    def _wanted(self, agent: str | None, given: Mapping[str, Any], keys: Sequence[str]) -> Wanted:
        return wanted(self._options, self._marker, agent, given, keys)

    def _replay_plan(self, choice: Wanted) -> ReplayPlan:
        return ReplayPlan(
            scenarios=_scenarios(choice),
            target=_target(choice),
            dialect=PipecatDialect(),
            rounds=choice.repeat,
            phase=round(choice.phase_ms * RATE / 1000),
            budget_ms=choice.budget_ms,
            out=self._folder(),
            calibration_turns=choice.calibration,
            greeting_ms=choice.greeting_ms,
            starved_ms=choice.starved_ms,
            settings={
                "test": self._nodeid,
                "tag": choice.tag,
                "repeat": choice.repeat,
                "phase_ms": choice.phase_ms,
                "seed": choice.seed,
                "marks": choice.marks,
            },
        )

    def _refuse_unless_usable(self, stored: Run, failure: TurngapError | None) -> None:
        __tracebackhide__ = True
        if failure is None and stored.record.valid:
            return
        self._refused.append(stored)
        if failure is not None:
            raise in_full(failure, _where(stored))
        raise invalid(stored)


def _played(play: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run it to its end, alone on this machine.

    Raises:
        InputError: an event loop runs in this thread already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with one_at_a_time():
            return asyncio.run(play())
    raise InputError(
        "pytest.running_loop",
        "turngap measures with an event loop of its own, and this test runs in one",
        hint="make the test a plain `def`, or `await asyncio.to_thread(turngap.replay, ...)`",
    )


def _library(choice: Wanted) -> Path:
    return library_for(choice.scenarios, choice.library)


def _scenarios(choice: Wanted) -> list[LoadedScenario]:
    paths = scenario_paths(_library(choice), choice.scenarios, choice.tag)
    if "://" not in choice.agent:
        require_inside(_library(choice), paths)
    return load_scenarios(paths)


def _target(choice: Wanted) -> Target:
    engines: dict[Kind, str | None] = {"llm": choice.llm, "stt": choice.stt, "tts": choice.tts}
    agent = AgentChoice(choice.agent, engines, choice.sets, choice.seed, choice.marks)
    return resolve(agent, _library(choice))


def _reference(choice: Wanted, against: str, sets: Sequence[str]) -> Target:
    agent = AgentChoice(against, sets=tuple(sets), seed=choice.seed)
    return resolve(agent, _library(choice))


def _refuse_no_reference(plan: CheckPlan) -> None:
    if plan.reference is not None and plan.baseline is not None:
        raise InputError("check.two_references", "give against= or baseline=, not both")
    if plan.reference is None and plan.baseline is None and not plan.budgets:
        raise InputError(
            "check.nothing_to_check",
            "nothing to compare with",
            hint="give against=AGENT, baseline=FILE or budgets={'gap': 800}",
        )


def _where(stored: Run) -> str:
    played = f"{len(stored.turns)} of {stored.record.planned_turns} turns were played"
    return f"{played}\n\nrun: {stored.path}"


def _verdict(outcome: str, error: BaseException | None) -> str:
    match error:
        case InconclusiveError():
            return "inconclusive"
        case LatencyError():
            return "too slow"
        case TurngapError():
            return "not measured"
        case pytest.skip.Exception() if str(error).startswith(INCONCLUSIVE):
            return "inconclusive, skipped"
    return outcome


def _percentile_cell(value: float | None, why_none: str | None) -> str:
    return f"{words.ms(value)} ms" if value is not None else (why_none or "–")

"""What the tests of checks and of the pytest plugin share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS
from fake_agents import ENOUGH, NEW, OLD, FakeAgents, target
from inner_runs import INI, Play
from made_records import make_run

from turngap.caller.pipecat import PipecatDialect
from turngap.core.errors import TurngapError
from turngap.core.results import TurnRecord
from turngap.harness.check_plan import CheckPlan
from turngap.harness.run import RunInProgress
from turngap.library import load_scenarios, scenario_paths
from turngap.provenance import this_machine
from turngap.pytest_plugin import fixture
from turngap.runs import StoredRun, new_folder


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> FakeAgents:
    """Stand in for every agent and its audio."""
    fake = FakeAgents()

    async def play(run: RunInProgress, *where: Any, **how: Any) -> None:
        await fake.play(run, *where, **how)

    monkeypatch.setattr(RunInProgress, "play", play)
    return fake


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    return CheckPlan(
        candidate=target(NEW),
        reference=target(OLD),
        scenarios=load_scenarios(scenario_paths(SCENARIOS, ["quick-questions"])),
        dialect=PipecatDialect(),
        rounds=ENOUGH,
        calibration_turns=0,
        out=tmp_path / "runs",
    )


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs that are made up instead of played, one after another; gives the plans asked for."""

    def play(
        *runs: Sequence[TurnRecord],
        failure: TurngapError | None = None,
        during: Callable[[], None] = lambda: None,
        **record: Any,
    ) -> list[Any]:
        plans: list[Any] = []
        left = list(runs)

        async def replay(plan: Any, _: Any) -> tuple[StoredRun, TurngapError | None]:
            plans.append(plan)
            during()
            folder = new_folder(plan.out, "made")
            changes = {"machine": this_machine()} | record
            return make_run(left.pop(0), folder, **changes), failure

        monkeypatch.setattr(fixture, "replay", replay)
        return plans

    return play


@pytest.fixture
def inner(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Somebody else's test run, with strict markers and warnings as errors."""
    pytester.makeini(INI)

    def run(code: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_latency=code)
        return pytester.runpytest_inprocess(*arguments)

    return run

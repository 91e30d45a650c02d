"""Shared by all tests: settings, their order, voices for piper, made-up agents and runs."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commandline import SCENARIOS
from fake_agents import ENOUGH, NEW, OLD, FakeAgents, somebody_is_there, speaks_pipecat, target
from hypothesis import settings
from inner_runs import INI, Play
from made_records import make_run
from quiet import WATCH, Watch, in_real_time, judge, note_begin, noted
from remembered_silero import remember
from virtual_agents import VirtualAgents

from turngap.caller.endpoint import Endpoint
from turngap.check.plan import CheckPlan
from turngap.core.errors import TurngapError
from turngap.core.results import Turn
from turngap.play import rounds as playing
from turngap.play.run import RunInProgress
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths
from turngap.store.documents import this_machine
from turngap.store.folders import new_folder
from turngap.store.runs import Run

# No deadline: how long an example takes says more of the machine than of the code. In CI the same
# examples every time, so that a red build is the change's doing; elsewhere new ones, to find more.
# FUZZ=1000 tries so many of each, where a test does not name its own number.
EXAMPLES = int(os.environ.get("FUZZ", "30"))
settings.register_profile(
    "turngap", deadline=None, derandomize=bool(os.environ.get("CI")), max_examples=EXAMPLES
)
settings.load_profile("turngap")

# No test reaches the real hub, nor depends on what was fetched from it before. Tests that fetch
# have one on loopback (tests/helpers/hub.py). The hub's client reads these when it is imported.
_HUB_HOME = tempfile.TemporaryDirectory(prefix="turngap-hub-")
os.environ.update(HF_HOME=_HUB_HOME.name, HF_ENDPOINT="http://127.0.0.1:9")
for _name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "TURNGAP_PINS"):
    os.environ.pop(_name, None)

# What the user has set for turngap, for OpenTelemetry, and for colours is not the tests'. On GitHub
# typer takes whatever reads its output for a terminal.
for _name in os.environ.keys() - {"TURNGAP_VLLM", "TURNGAP_WEIGHTS", "TURNGAP_WEIGHTS_LACK"}:
    if _name.startswith(("TURNGAP_", "OTEL_")) or _name in {
        *("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "NO_COLOR", "GITHUB_ACTIONS"),
    }:
        del os.environ[_name]

# Servers of tests are on loopback, which no proxy of the user's is asked for.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "127.0.0.1", "localhost")))

# The commands of the documentation and of a user's own bot say `python`, as in an environment that
# is activated. Debian has only `python3`.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

# What tests store need not survive a power failure: to wait for the disk takes 6 ms a turn.
os.fsync = lambda fd: None

# A shell starts its background jobs with SIGINT ignored, and their children inherit that; some
# tests interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order what plays in real time last: a plain fault shows before the slow part begins."""
    items.sort(key=in_real_time)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    note_begin(item)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    with noted(fixturedef.argname, request.node):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return judge(item, call.excinfo and call.excinfo.value, report)


@pytest.fixture(scope="session")
def speaking_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A piper voice that can be understood, of two speakers (services/training/voices)."""
    path = tmp_path_factory.mktemp("voices") / "unit-bank.onnx"
    # In a process of its own: espeak-ng is one a process, and this one has its own start.
    subprocess.run([sys.executable, "-m", "training.voices.unit_bank", path], check=True)
    return path


@pytest.fixture(scope="session")
def heavy_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A piper voice that says nothing and takes as long as a published one of medium quality."""
    from training.voices.random_vits import make

    path = tmp_path_factory.mktemp("voices") / "random-medium.onnx"
    make(path)
    return path


@pytest.fixture(scope="session")
def watch(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Watch]:
    """Make the watch that says whether other processes use the machine."""
    watch = Watch(tmp_path_factory.mktemp("watch") / "samples")
    request.config.stash[WATCH] = watch
    yield watch
    watch.end()


@pytest.fixture(scope="session", autouse=True)
def watched_in_real_time(request: pytest.FixtureRequest) -> None:
    if any(map(in_real_time, request.session.items)):
        request.getfixturevalue("watch")


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> FakeAgents:
    """Stand in for every agent and its audio."""
    fake = FakeAgents()

    async def play(run: RunInProgress, *where: Any, **how: Any) -> None:
        await fake.play(run, *where, **how)

    monkeypatch.setattr(RunInProgress, "play", play)
    monkeypatch.setattr("turngap.play.rounds.identify", speaks_pipecat)
    monkeypatch.setattr(Endpoint, "knock", somebody_is_there)
    return fake


@pytest.fixture
def virtual_agents(monkeypatch: pytest.MonkeyPatch) -> VirtualAgents:
    """Scripted agents in virtual time, for whole runs and commands that play them."""
    return VirtualAgents(monkeypatch)


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    return CheckPlan(
        candidate=target(NEW),
        reference=target(OLD),
        scenarios=load_scenarios(scenario_paths(SCENARIOS, ["quick-questions"])),
        rounds=ENOUGH,
        calibration_turns=0,
        out=tmp_path / "runs",
    )


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs that are made up instead of played, one after another; gives the plans asked for."""

    def play(
        *runs: Sequence[Turn],
        failure: TurngapError | None = None,
        during: Callable[[], None] = lambda: None,
        **record: Any,
    ) -> list[Any]:
        plans: list[Any] = []
        left = list(runs)

        async def replay(plan: Any, _: Any) -> tuple[Run, TurngapError | None]:
            plans.append(plan)
            during()
            folder = new_folder(plan.out, "made")
            changes = {"machine": this_machine()} | record
            return make_run(left.pop(0), folder, **changes), failure

        monkeypatch.setattr(playing, "replay", replay)
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


@pytest.fixture(autouse=True)
def no_pause_is_avoided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller in virtual time is not late: it takes 0.15 s to collect all garbage before it."""
    if not in_real_time(request.node):
        idle = SimpleNamespace(**dict.fromkeys(("collect", "freeze", "disable"), lambda: None))
        idle.enable = idle.unfreeze = idle.collect
        monkeypatch.setattr("turngap.clocks.gc", idle)


@pytest.fixture(autouse=True)
def silero_is_asked_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_real_time(request.node):
        remember(monkeypatch)


@pytest.fixture(autouse=True)
def no_secret_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget secrets after each test: one test's secret is none in the next."""
    monkeypatch.setattr("turngap.core.secrets._known", ())

"""`import turngap` as scripts, notebooks and running event loops use it, with agents made up."""

import asyncio
import csv
import doctest
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS, ScriptedProcess
from fake_agents import NEW, OLD, FakeAgents, stand_in

import turngap
from turngap.play.options import options_of
from turngap.play.run import RunInProgress
from turngap.store.folders import INTERRUPTED, run_folders
from turngap.store.runs import Run
from turngap.testing.agent import Reply, Script

EXAMPLE = Path(__file__).parents[2] / "examples" / "measure.py"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs go below a temporary folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def replayed(**settings: Any) -> Run:
    return turngap.replay(OLD, **quick(**settings))


def quick(**settings: Any) -> dict[str, Any]:
    return {"scenarios": "quick-questions", "library": SCENARIOS, "calibration": 0} | settings


def in_a_loop(call: Callable[[], Any]) -> Any:
    """Run a function as a notebook does: its cell is run by a loop that is running."""

    async def cell() -> Any:
        return call()

    return asyncio.run(cell())


def awaited(**settings: Any) -> Run:
    return asyncio.run(turngap.replay_async(OLD, **quick(**settings)))


def test_every_name_is_there_and_nothing_else_is_promised() -> None:
    assert set(turngap.__all__) <= set(dir(turngap))
    for name in turngap.__all__:
        value = getattr(turngap, name)
        assert name == "__version__" or value.__doc__, name
    assert turngap.LatencyError.__module__ == "turngap"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = turngap.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_it_loads_nothing_else() -> None:
    program = "import sys, turngap; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "scipy", "pipecat", "pydantic", "asyncio", "rich", "loguru"}


def test_a_folder_of_the_package_does_not_take_a_functions_place() -> None:
    program = """
import turngap.check.plan, turngap.compare.play
from turngap.check import words
from turngap import check, compare
import turngap
assert turngap.check is check and check.__name__ == "check", check
assert turngap.compare is compare and compare.__name__ == "compare", compare
assert turngap.play
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize(
    "play",
    [replayed, lambda **s: in_a_loop(lambda: replayed(**s)), awaited],
    ids=["script", "notebook", "awaited"],
)
@pytest.mark.usefixtures("agents")
def test_a_replay_gives_the_stored_run(play: Callable[..., Run]) -> None:
    seen: list[str] = []
    run = play(repeat=2, settings={"test": "x"}, on_turn=lambda turn: seen.append(turn.scenario))
    assert [turn.repeat for turn in run.turns] == [1, 1, 1, 2, 2, 2]
    assert seen == ["quick-questions"] * 6
    assert run.turns == Run.load("latest").turns
    assert run.record.settings["test"] == "x"
    assert run.record.settings["repeat"] == 2
    assert (run.path / "report.html").is_file()
    assert run.path.parent == Path("runs")


@pytest.mark.usefixtures("agents")
def test_the_async_twin_lets_the_callers_loop_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on, play = threading.Event(), RunInProgress.play

    async def slow(run: Any, *where: Any, **how: Any) -> None:
        assert await asyncio.to_thread(went_on.wait, 60)
        await play(run, *where, **how)

    monkeypatch.setattr(RunInProgress, "play", slow)

    async def main() -> Run:
        playing = asyncio.create_task(turngap.replay_async(OLD, **quick()))
        asyncio.get_running_loop().call_soon(went_on.set)
        return await playing

    assert len(asyncio.run(main()).turns) == 3


@pytest.mark.usefixtures("agents")
def test_a_replay_within_anothers_on_turn_is_refused_and_does_not_wait_for_ever() -> None:
    refused: list[str] = []

    def again(_: Any) -> None:
        try:
            turngap.replay(OLD, **quick())
        except turngap.InputError as e:
            refused.append(e.kind)

    turngap.replay(OLD, **quick(), on_turn=again)
    assert refused == ["api.nested"] * 3


@pytest.mark.usefixtures("agents")
def test_replays_of_one_process_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngap._playing.LOOK_AGAIN_MS", 1.0)
    interval = sys.getswitchinterval()

    async def main() -> list[Run]:
        return await asyncio.gather(*[turngap.replay_async(OLD, **quick()) for _ in range(3)])

    first, second, third = sorted(
        (run.record.started_utc, run.record.finished_utc or "") for run in asyncio.run(main())
    )
    assert first[1] <= second[0]
    assert second[1] <= third[0]
    assert sys.getswitchinterval() == interval


@pytest.mark.parametrize(
    "play",
    [replayed, lambda: in_a_loop(replayed), awaited],
    ids=["script", "notebook", "awaited"],
)
def test_ctrl_c_ends_it_and_what_was_played_is_stored(
    monkeypatch: pytest.MonkeyPatch, agents: FakeAgents, play: Callable[[], Run]
) -> None:
    async def stuck(run: Any, *where: Any, **how: Any) -> None:
        await agents.play(run, *where, **how)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(RunInProgress, "play", stuck)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        play()
    assert signal.getsignal(signal.SIGINT) is before
    run = Run.load(run_folders(Path("runs"))[-1])
    assert len(run.turns) == 3
    assert run.record.failure == INTERRUPTED


def test_cancelling_the_async_twin_ends_the_play(
    monkeypatch: pytest.MonkeyPatch, agents: FakeAgents
) -> None:
    playing = threading.Event()

    async def stuck(run: Any, *where: Any, **how: Any) -> None:
        await agents.play(run, *where, **how)
        playing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RunInProgress, "play", stuck)

    async def main() -> None:
        task = asyncio.create_task(turngap.replay_async(OLD, **quick()))
        await asyncio.to_thread(playing.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert Run.load(run_folders(Path("runs"))[-1]).record.failure == INTERRUPTED

    asyncio.run(main())


@pytest.mark.parametrize("play", [replayed, awaited], ids=["sync", "async"])
def test_an_error_holds_what_was_stored_before_it(
    agents: FakeAgents, play: Callable[..., Run]
) -> None:
    agents.dies_after = 1
    with pytest.raises(turngap.AgentError, match="the line was lost") as caught:
        play(repeat=2)
    error = caught.value
    assert isinstance(error.stored, Run)
    assert len(error.stored.turns) == 3
    assert error.stored.path == run_folders(Path("runs"))[0]
    assert any(str(error.stored.path) in note for note in error.__notes__)


def test_an_error_shows_its_hint_in_a_traceback_and_no_secret_of_a_url() -> None:
    with pytest.raises(turngap.InputError) as caught:
        turngap.replay("ws://me:hunter2@h/ws", **quick(sets="llm.ttft_ms=1"))
    assert caught.value.hint in caught.value.__notes__
    assert "hunter2" not in f"{caught.value} {caught.value.__notes__}"
    assert caught.value.stored is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"repeat": 0}, "repeat=0: expected a whole number from 1 to 1000000"),
        ({"repeat": True}, "repeat=True: expected a whole number from 1 to 1000000"),
        ({"starved_ms": 2000}, "starved_ms=2000: expected a number from 1 to 1000"),
        ({"phase_ms": -1}, "phase_ms=-1: expected a number from 0 to 60000"),
        ({"greeting_ms": 1e308}, r"greeting_ms=1e\+308: expected a number from 0 to 60000"),
        ({"budget_ms": 1e308}, r"budget_ms=1e\+308: expected a number from 1 to 60000"),
        ({"scenarios": ["nowhere"]}, "no scenario 'nowhere'"),
        ({"library": "nowhere"}, "scenario library nowhere is not a folder"),
    ],
)
def test_what_cannot_be_played_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(turngap.InputError, match=said):
        replayed(**settings)
    assert not Path("runs").exists()


def test_a_check_knows_its_verdict_its_folder_and_its_runs(agents: FakeAgents) -> None:
    agents.slower[NEW] = lambda _: 80.0
    seen: list[str] = []
    checked = turngap.check(
        NEW, against=OLD, rounds=5, on_turn=lambda t: seen.append(t.outcome), **quick()
    )
    assert checked.verdict == "regressed"
    assert checked.reference is not None
    assert checked.candidate.gap_ms.n == checked.reference.gap_ms.n == 30
    assert len(seen) == 60
    assert (checked.path / "check.html").is_file()
    assert repr(checked) == f"<Checked {str(checked.path)!r}: regressed>"


def test_a_check_can_be_awaited_and_saves_a_baseline(agents: FakeAgents) -> None:
    asyncio.run(turngap.check_async(OLD, save="base.json", **quick()))
    agents.dies_after = len(agents.played)
    with pytest.raises(turngap.AgentError) as caught:
        in_a_loop(lambda: turngap.check(OLD, baseline="base.json", **quick()))
    assert caught.value.stored.verdict == "cannot_compare"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "nothing to compare with"),
        ({"against": NEW, "baseline": "x"}, "give against or baseline, not both"),
        ({"budgets": {"llm": 1}}, "budget llm=1:"),
    ],
)
def test_a_check_of_nothing_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(turngap.InputError, match=said):
        turngap.check(OLD, **quick(**settings))


def test_a_comparison_has_the_figures_of_each_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAgents()
    stand_in(monkeypatch, fake, lambda target: target.choice.sets[-1])
    llms = ("one=sim,seed=1", "two=sim,seed=2")
    settings = quick(prices={"one": (0.1, 0.4)}, label="two of them")
    del settings["calibration"]
    compared = turngap.compare(*llms, **settings)
    assert [backend.name for backend in compared.record.backends] == ["one", "two"]
    assert (compared.path / "report.html").is_file()
    assert compared.record.label == "two of them"
    assert "one, two" in repr(compared)
    assert {url for url, *_ in fake.played} == {"llm.seed=1", "llm.seed=2"}
    fake.dies_after = len(fake.played)
    with pytest.raises(turngap.AgentError) as caught:
        asyncio.run(turngap.compare_async(*llms, **settings))
    assert caught.value.stored.path.is_dir()
    with pytest.raises(turngap.InputError, match="1 backend; expected 2 to"):
        turngap.compare("sim", **settings)


@pytest.mark.parametrize("run_it", [lambda cell: cell(), in_a_loop], ids=["script", "notebook"])
@pytest.mark.usefixtures("agents", "uncalibrated")
def test_the_example_measures_and_writes_a_csv_file(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run_it: Callable[[Callable[[], Any]], Any],
) -> None:
    monkeypatch.setattr(sys, "argv", ["measure.py", OLD])
    run_it(lambda: runpy.run_path(str(EXAMPLE)))
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("turn gap p50 in ms: ")
    assert "95 % interval from" in said[0]
    with Path("turns.csv").open(newline="") as f:
        assert len(list(csv.DictReader(f))) == 21
    code = [line for line in EXAMPLE.read_text().split('"""')[2].splitlines() if line]
    assert len(code) <= 10


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured before a run: that would take real time."""
    monkeypatch.setattr("turngap._api.CALIBRATION_TURNS", 0)
    for play in (turngap.replay, turngap.check):
        defaults = getattr(play, "__wrapped__").__kwdefaults__  # noqa: B009
        monkeypatch.setitem(defaults, "calibration", 0)


@pytest.mark.parametrize(
    "module", ["turngap", "turngap._api", "turngap.store.runs", "turngap.scenario.model"]
)
@pytest.mark.usefixtures("agents", "uncalibrated")
def test_the_examples_of_docstrings_are_true(module: str) -> None:
    replayed()
    done = doctest.testmod(
        import_module(module), extraglobs={"turngap": turngap}, optionflags=doctest.ELLIPSIS
    )
    assert done.attempted
    assert not done.failed


def test_a_missing_dependency_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}", name="pipecat")

    monkeypatch.setattr("turngap._playing.import_module", fails)
    with pytest.raises(turngap.AgentError, match="pipecat, which is not installed") as error:
        turngap.replay("ws://127.0.0.1:9/ws", **quick())
    assert "pip install 'turngap[" in error.value.hint


@pytest.mark.realtime
@pytest.mark.unhurried
def test_in_real_time_within_a_running_loop() -> None:
    script = Script(replies=(Reply(delay_ms=200, speech_ms=100),), hold_ms=100)
    with ScriptedProcess(script) as url:
        run = in_a_loop(lambda: turngap.replay(url, **quick(calibration=2, starved_ms=200)))
    assert run.record.calibration is not None
    assert run.record.calibration.error_ms.n == 2
    assert len(run.turns) == 3
    # The agent waits for 200 ms from the person's end, however busy this machine is.
    assert all(turn.gap_ms > 199 for turn in run.turns if turn.gap_ms is not None)


@pytest.mark.parametrize("play", [turngap.replay, turngap.check, turngap.compare, turngap.load])
def test_a_function_has_the_options_of_its_command_with_their_defaults(
    play: Callable[..., Any],
) -> None:
    ours, options = signature(play).parameters, options_of(play.__name__, typed=False)
    assert options.keys() - ours.keys() <= {"json_", "resume", "min_hit_rate", "judge", "marks"}
    for name in ours.keys() & options.keys() - {"scenarios", "llms"}:
        assert (ours[name].default or None) == (options[name].initial or None), name
    assert "<function" not in str(signature(play))


def test_a_terminal_and_a_notebook_see_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, agents: FakeAgents
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for progress in (True, False):
        shown = Terminal()
        monkeypatch.setattr("sys.stderr", shown)
        replayed(progress=progress)
        assert ("2 of 3 turns" in shown.getvalue()) is progress
        assert shown.getvalue().endswith("\r") is progress


def test_dir_has_the_public_names_alone() -> None:
    assert dir(turngap) == sorted(turngap.__all__)

"""The pytest plugin among processes: workers, the lock of the machine, whole replays."""

import fcntl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from inner_runs import INI, PLAIN, Inner, Play, made_turns
from virtual_agents import VirtualAgents

from turngap.pytest_plugin.fixture import lock_file
from turngap.testing.agent import Reply, Script

pytest_plugins = ["pytester"]


def test_rows_survive_the_way_from_a_worker(
    inner: Inner, play: Play, pytester: pytest.Pytester
) -> None:
    # What xdist does to each report between its workers and the terminal.
    pytester.makeconftest(
        """
import json
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    hook, config = item.config.hook, item.config
    data = hook.pytest_report_to_serializable(config=config, report=report)
    return hook.pytest_report_from_serializable(config=config, data=json.loads(json.dumps(data)))
"""
    )
    play(made_turns(21))
    result = inner(PLAIN)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= turngap =*", "test_latency.py::test_agent *100 % (n=21)*"])


def test_a_replay_holds_the_lock_of_this_machine(inner: Inner, play: Play) -> None:
    free: list[bool] = []
    play(made_turns(3), during=lambda: free.append(is_free(lock_file())))
    inner(PLAIN).assert_outcomes(passed=1)
    assert free == [False]
    assert is_free(lock_file())


def is_free(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


LOCKED = """
import sys, time
from pathlib import Path
from turngap.pytest_plugin.fixture import one_at_a_time
lock, log = map(Path, sys.argv[1:])
for _ in range(5):
    with one_at_a_time(lock), log.open("a") as out:
        out.write("in\\n")
        out.flush()
        time.sleep(0.02)
        out.write("out\\n")
        out.flush()
"""


def test_replays_of_several_processes_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [
        subprocess.Popen([sys.executable, "-c", LOCKED, str(tmp_path / "lock"), str(log)])
        for _ in range(3)
    ]
    assert [p.wait(60) for p in processes] == [0] * 3
    assert log.read_text().split() == ["in", "out"] * 15


def test_a_process_that_dies_gives_the_lock_back(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holding = LOCKED.replace("time.sleep(0.02)", "time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", holding, str(lock), "/dev/stdout"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    assert not is_free(lock)
    process.kill()
    process.wait(10)
    process.stdout.close()
    assert is_free(lock)


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    program = """
import sys
import pytest
before = set(sys.modules)
import turngap.pytest_plugin
loaded = set(sys.modules) - before
print(*sorted({m.split(".")[0] for m in loaded}))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["turngap"]


@pytest.fixture
def beeps(pytester: pytest.Pytester) -> None:
    """A library of one scenario: someone beeps for a fifth of a second and waits for an answer."""
    pytester.makeini(INI)
    rate = 16_000
    quiet, tone = np.zeros(rate // 10), 0.3 * np.sin(np.arange(rate // 5) * 2 * np.pi * 300 / rate)
    folder = pytester.mkdir("library")
    soundfile.write(folder / "beep.wav", np.concatenate((quiet, tone, quiet)), rate)
    (folder / "beep.yaml").write_text(
        "name: beep\n"
        "turns: [{say: beep, audio: beep.wav, speech: {start_ms: 100, end_ms: 299.5}}]\n"
    )


@pytest.fixture
def quick(virtual_agents: VirtualAgents) -> str:
    reply = Reply(delay_ms=200, speech_ms=100)
    return virtual_agents.url_of(Script(replies=(reply,), hold_ms=100))


@pytest.fixture
def patient(virtual_agents: VirtualAgents) -> str:
    """400 ms slower, all of it in deciding that the turn is over."""
    reply = Reply(delay_ms=600, speech_ms=100)
    return virtual_agents.url_of(Script(replies=(reply,), hold_ms=500))


@pytest.mark.usefixtures("beeps")
def test_a_regression_is_caught_beside_a_reference_at_hand(
    pytester: pytest.Pytester, quick: str, patient: str
) -> None:
    pytester.makepyfile(
        test_latency=f"""
def test_against(turngap):
    check = turngap.check(
        "{patient}",
        against="{quick}",
        library="library",
        calibration=0,
        rounds=1,
        budgets={{"gap": 100}},
    )
    check.candidate.assert_gap(max_ms=5000)
    check.assert_not_slower()
"""
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    # Two pairs tell nothing of a change; that nothing keeps the budget is plain all the same.
    result.stdout.fnmatch_lines(
        [
            "E*LatencyError: regressed: gap within 100 ms",
            "E*gap p95: undecided (n=2, needs 20)",
            "E*gap within 100 ms: regressed, 0 % of 2 turns (expected 95 %; *)",
            "E* beep · turn 1 *",
            "E*check: *",
            "*too slow (check: regressed)",
        ]
    )

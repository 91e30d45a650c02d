"""The pytest plugin as somebody else's test run sees it."""

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from commandline import ScriptedProcess
from made_records import MARKS_MS, make_run, make_turn

from turngap.core.errors import AgentError, TurngapError
from turngap.core.results import TurnRecord
from turngap.provenance import this_machine
from turngap.pytest_plugin import fixture
from turngap.pytest_plugin.lock import lock_file
from turngap.runs import StoredRun, new_folder
from turngap.testing.agent import Reply, Script

pytest_plugins = ["pytester"]

URL = "ws://127.0.0.1:9/ws"
PLAIN = f"""
def test_agent(turngap):
    turngap.replay("{URL}")
"""
INI = """
[pytest]
addopts = --strict-markers
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


def slower(**by_ms: float) -> dict[str, float]:
    """`MARKS_MS` with some stages longer, and all after them later."""
    late = 0.0
    marks: dict[str, float] = {}
    for name, at in MARKS_MS.items():
        late += by_ms.get(name, 0.0)
        marks[name] = at + late
    return marks


def made_turns(n: int, **by_ms: float) -> list[TurnRecord]:
    """`n` turns, three a repeat, no two alike."""
    return [
        make_turn(
            turn=i % 3 + 1,
            repeat=i // 3 + 1,
            marks_ms=slower(**{"endpoint": i % 7 - 3.0, "llm_first_token": 0.0} | by_ms),
        )
        for i in range(n)
    ]


Play = Callable[..., list[Any]]


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


Inner = Callable[..., pytest.RunResult]


def text_of(result: pytest.RunResult) -> str:
    return result.stdout.str() + result.stderr.str()


def test_a_quick_agent_passes_and_is_listed_with_its_run(inner: Inner, play: Play) -> None:
    play(made_turns(21))
    code = f"""
import pytest

@pytest.mark.turngap(budget_ms=800)
def test_fast_enough(turngap):
    run = turngap.replay("{URL}", scenarios=["quick-questions"], repeat=7)
    run.assert_hit_rate(0.95)
    run.assert_gap(p50_ms=410, p95_ms=450, max_ms=500)
    run.assert_stage("llm_first_token", p95_ms=150)
    run.assert_outcome("coffee-order", 2)
"""
    result = inner(code, "--turngap-out", "kept")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*= turngap =*",
            "test *hit rate *p50 *p95 *verdict",
            "test_latency.py::test_fast_enough *100 % (n=21) *398 ms *401 ms *passed",
            "*runs: */kept/*made",
        ]
    )


def test_a_slow_agent_fails_with_its_waterfalls_and_the_stage_that_took_the_time(
    inner: Inner, play: Play
) -> None:
    late = made_turns(21)
    for i in (4, 5, 6, 7):
        late[i] = make_turn(turn=i % 3 + 1, repeat=2, marks_ms=slower(llm_first_token=600))
    play(late, late)
    code = f"""
def test_hits(turngap):
    turngap.replay("{URL}").assert_hit_rate(0.95)

def test_stage(turngap):
    run = turngap.replay("{URL}")
    run.assert_stage("llm_first_token", p95_ms=450)
"""
    result = inner(code)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            '>       turngap.replay("ws://127.0.0.1:9/ws").assert_hit_rate(0.95)',
            "E   *LatencyError: hit rate 81 % (17 of 21 turns within 800 ms;*), expected 95 %",
            "E*most of it: llm_first_token, median 720 ms in these turns, 120 ms in the other 17",
            "E*! coffee-order · turn 2 · repeat 2 · late · 998 ms, 198 over the budget",
            "E*█ llm_first_token 720*",
            "E*… and 1 turn more",
            "E*run: */*made",
            "E   *LatencyError: llm_first_token p95 720 ms (*; n=21), expected at most 450 ms",
            "E*! coffee-order · turn 2*",
        ]
    )
    assert "measured.py" not in text_of(result), "the user's line is to blame, not the plugin's"


@pytest.mark.parametrize(
    ("assertion", "turns", "said"),
    [
        ("assert_gap(p95_ms=450)", 3, "turn gap p95 – (n=3, needs 20)*repeat=7*"),
        ("assert_hit_rate(0.95, sure=True)", 21, "*52 more turns without a miss would do"),
        ("assert_stage('llm_first_token', p95_ms=130, sure=True)", 21, "*95 % bound is over it*"),
    ],
)
def test_too_few_turns_are_inconclusive_and_no_pass(
    inner: Inner, play: Play, assertion: str, turns: int, said: str
) -> None:
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").{assertion}\n'
    play(made_turns(turns))
    failed = inner(code)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines([f"*{said}", "test_latency.py::test_it *inconclusive"])
    play(made_turns(turns))
    skipped = inner(code, "--turngap-inconclusive=skip", "-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*inconclusive, skipped", "SKIPPED*inconclusive: *"])


def test_few_turns_that_are_all_too_slow_are_too_slow(inner: Inner, play: Play) -> None:
    play(made_turns(3))
    result = inner(f'def test_it(turngap):\n    turngap.replay("{URL}").assert_gap(p95_ms=200)')
    result.stdout.fnmatch_lines(
        ["*LatencyError: turn gap p95 –*", "*3 of 3 turns over it already", "*too slow"]
    )


def test_turns_without_a_reply_are_slower_than_any(inner: Inner, play: Play) -> None:
    turns = made_turns(19) + [make_turn(marks_ms=None, ended="timeout") for _ in range(2)]
    play(turns, turns, turns)
    code = f"""
def test_p95(turngap):
    turngap.replay("{URL}").assert_gap(p95_ms=5000)
def test_max(turngap):
    turngap.replay("{URL}").assert_stage("llm_first_token", max_ms=5000)
def test_outcome(turngap):
    turngap.replay("{URL}").assert_outcome("coffee-order", 1)
"""
    result = inner(code)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*LatencyError: turn gap p95 – (2 of 21 turns have no reply)*",
            "*∅ coffee-order · turn 1 · no_reply*",
            "*LatencyError: llm_first_token max without a figure*",
            "*LatencyError: coffee-order, turn 1: no_reply in 2 of 9, expected answered",
        ]
    )


def test_a_stage_that_the_agent_does_not_report_is_not_held(inner: Inner, play: Play) -> None:
    play([make_turn(marks_ms={"agent_onset": 300.0}) for _ in range(21)])
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").assert_stage("sent", max_ms=9999)\n'
    result = inner(code)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no turn has the stage sent*unattributed*", "*inconclusive"])


def test_a_starved_caller_makes_no_pass(inner: Inner, play: Play) -> None:
    play(made_turns(21), valid=False, why_invalid=("the caller was starved in 9 of 21 turns",))
    result = inner(PLAIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*InconclusiveError: the run is invalid: the caller was starved*", "*inconclusive"]
    )


def test_an_agent_that_fails_says_what_was_played_and_where(inner: Inner, play: Play) -> None:
    failure = AgentError("agent.lost", "the line was lost", hint="its log: agent.log")
    play(made_turns(2), failure=failure, planned_turns=21)
    result = inner(PLAIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AgentError: the line was lost",
            "E*its log: agent.log",
            "E*2 of 21 turns were played",
            "*not measured",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "call", "said"),
    [
        ("budgets=800", "replay()", "no setting budgets*allowed: agent, scenarios,*"),
        ("budget_ms=0", "replay()", "budget_ms=0: expected a number from 1 on"),
        ("800", "replay()", "name each argument*"),
        ("", "replay(repeat=0)", "repeat=0: expected a number from 1 on"),
        ("", "replay(starved_ms=0)", "starved_ms=0: expected a number from 1 to 1000"),
        ("", "replay(rounds=2)", "no setting rounds*allowed:*repeat*"),
        ("", "replay(scenarios='nowhere')", "no scenario 'nowhere'*known: *quick-questions*"),
        ("", "replay(sets=['llm.ttft_ms=1'])", "is a running agent*drop*"),
        ("", "replay().assert_stage('llm', max_ms=1)", "no stage 'llm'*stages: endpoint*"),
        ("", "replay().assert_gap()", "no limit given*for example p95_ms*"),
        ("", "replay().assert_hit_rate(95)", "at_least=95: expected a share*"),
        ("", "replay().assert_outcome('coffee-order', 9)", "no turn 9*played: coffee-order 1*"),
        ("", "check()", "nothing to compare with*give against=*"),
        ("", "check(against='x', baseline='y')", "no agent named 'x'*"),
        ("", "check(budgets={'llm': 1})", "budgets: 'llm'*names: gap,*"),
    ],
)
def test_what_cannot_be_asked_for_is_said(
    inner: Inner, play: Play, marker: str, call: str, said: str
) -> None:
    play(made_turns(21))
    mark = f"import pytest\n@pytest.mark.turngap({marker})" if marker else ""
    result = inner(f"{mark}\ndef test_it(turngap):\n    turngap.{call}\n", f"--turngap-agent={URL}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = " ".join(line.removeprefix("E").strip() for line in result.outlines)
    pytester_match(lines, f"*InputError: *{said}")


def pytester_match(text: str, pattern: str) -> None:
    pytest.LineMatcher([text]).fnmatch_lines([f"{pattern}*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--turngap-rounds=0"], "--turngap-rounds: '0': expected a number from 1 on"),
        (["--turngap-rounds=many"], "'many': expected a number"),
        (["--turngap-save=../main"], "'../main' is no name of a baseline"),
        (["--turngap-inconclusive=pass"], "invalid choice: 'pass'"),
        (["-o", "turngap_inconclusive=pass"], "turngap_inconclusive is 'pass': expected fail or"),
        (["--turngap-starved-ms=0"], "--turngap-starved-ms: '0': expected a number of ms from 1"),
        (["-o", "turngap_starved_ms=x"], "turngap_starved_ms is 'x': expected a number of ms"),
        (["-o", "turngap_calibration=-1"], "turngap_calibration is '-1': expected a number"),
    ],
)
def test_a_wrong_option_ends_pytest_at_once(inner: Inner, arguments: list[str], said: str) -> None:
    result = inner(PLAIN, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in text_of(result)


def test_the_help_and_the_markers_are_there(inner: Inner) -> None:
    shown = text_of(inner("", "--help"))
    for option in (
        "save",
        "compare",
        "baselines",
        "out",
        "rounds",
        "agent",
        "inconclusive",
        "starved-ms",
    ):
        assert f"--turngap-{option}" in shown
    for ini in ("out", "baselines", "agent", "inconclusive", "calibration", "starved_ms"):
        assert f"turngap_{ini} (string)" in shown
    assert "@pytest.mark.turngap(" in text_of(inner("", "--markers"))


def test_settings_come_from_the_call_then_the_marker_then_the_options(
    inner: Inner, play: Play
) -> None:
    plans = play(made_turns(3), made_turns(3))
    code = """
import pytest
@pytest.mark.turngap(budget_ms=700, repeat=5, scenarios="quick-questions", phase_ms=8)
def test_it(turngap):
    turngap.replay(budget_ms=600)
    turngap.replay("ws://127.0.0.1:10/ws", calibration=3)
"""
    ini = ["-o", "turngap_calibration=0", "-o", f"turngap_agent={URL}"]
    inner(code, *ini).assert_outcomes(passed=1)
    first, second = plans
    assert (first.budget_ms, first.repeat, first.phase, first.calibration_turns) == (600, 5, 128, 0)
    assert [s.scenario.name for s in first.scenarios] == ["quick-questions"]
    assert first.target.choice.agent == URL
    assert (second.budget_ms, second.calibration_turns) == (700, 3)
    assert second.target.choice.agent == "ws://127.0.0.1:10/ws"
    plans = play(made_turns(3), made_turns(3))
    inner(code, *ini, "--turngap-rounds=2").assert_outcomes(passed=1)
    assert [p.repeat for p in plans] == [2, 2]


def test_how_late_the_caller_may_be_comes_from_call_marker_option_and_ini(
    inner: Inner, play: Play
) -> None:
    code = """
import pytest
@pytest.mark.turngap(starved_ms=30)
def test_marked(turngap):
    turngap.replay(starved_ms=20)
    turngap.replay()
def test_plain(turngap):
    turngap.replay()
"""
    agent, ini = f"--turngap-agent={URL}", ("-o", "turngap_starved_ms=50")
    for arguments, expected in (
        ((), [20, 30, 10]),
        (ini, [20, 30, 50]),
        ((*ini, "--turngap-starved-ms=40"), [20, 30, 40]),
    ):
        plans = play(*[made_turns(3)] * 3)
        inner(code, agent, *arguments).assert_outcomes(passed=2)
        assert [plan.starved_ms for plan in plans] == expected


def test_what_uses_the_fixture_can_be_left_out_and_nothing_asserted_is_said(
    inner: Inner, play: Play
) -> None:
    play(made_turns(3))
    code = f"{PLAIN}\ndef test_other():\n    pass\n"
    inner(code, "-m", "not turngap").assert_outcomes(passed=1, deselected=1)
    result = inner(code, "-m", "turngap")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*100 % (n=3) *n=3, needs 5 *needs 20 *passed, nothing asserted"])
    assert "= turngap =" not in text_of(inner(code, "-k", "other"))


def test_within_a_running_loop_it_says_what_to_do(inner: Inner) -> None:
    code = f"""
import asyncio
def test_it(turngap):
    async def inside():
        turngap.replay("{URL}")
    asyncio.run(inside())
"""
    result = inner(code)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*InputError:*event loop*", "*asyncio.to_thread*"])


def test_without_the_baseline_there_is_no_pass(inner: Inner, play: Play) -> None:
    play(made_turns(75))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*no baseline main of this test", "*pytest --turngap-save main makes it", "*inconclusive"]
    )


def test_saved_then_compared(inner: Inner, play: Play, pytester: pytest.Pytester) -> None:
    play(made_turns(75))
    saved = inner(PLAIN, "--turngap-save=main")
    saved.assert_outcomes(passed=1)
    saved.stdout.fnmatch_lines(["*passed, nothing asserted, saved as main"])
    (file,) = (pytester.path / ".turngap/main").iterdir()
    assert file.name.startswith("test_latency.py-test_agent-")
    play(made_turns(75))
    same = inner(PLAIN, "--turngap-compare=main")
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(["*passed, not slower than main"])


def test_a_regression_fails_with_its_stage_named(inner: Inner, play: Play) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    play(made_turns(75, tts_first_audio=90.0))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*slower than main; stage that moved: tts_first_audio +90 ms (n=75)",
            "*gap p50: regressed, +90 ms (95 % interval * to *; n=75 pairs)",
            "*✓ coffee-order · turn *",
            "*▓ tts_first_audio 90*",
            "*baseline: *.turngap/main/*",
            "*too slow",
        ]
    )


def test_too_few_pairs_are_undecided(inner: Inner, play: Play) -> None:
    play(made_turns(6))
    inner(PLAIN, "--turngap-save=main")
    play(made_turns(6))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*undecided beside main: 6 pairs*", "*gap p95: undecided*"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": {"fingerprint": "elsewhere"}}, "saved on another machine"),
        ({"scenario_hashes": {"coffee-order": "other"}}, "scenario coffee-order*changed since"),
        ({"metrics_version": 0}, "metrics version 0"),
        ({"turns": []}, "it holds no turns"),
        ({"schema_version": 99}, "schema version 99*"),
    ],
)
def test_a_baseline_of_something_else_is_never_a_pass(
    inner: Inner, play: Play, pytester: pytest.Pytester, change: dict[str, Any], said: str
) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    (file,) = (pytester.path / ".turngap/main").iterdir()
    document = json.loads(file.read_text())
    for key, value in change.items():
        document[key] = document[key] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(document))
    play(made_turns(75))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*cannot compare with main: *{said}*", "*inconclusive"])


def test_a_baseline_that_was_cut_short_is_never_a_pass(
    inner: Inner, play: Play, pytester: pytest.Pytester
) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    (file,) = (pytester.path / ".turngap/main").iterdir()
    file.write_bytes(file.read_bytes()[:-200])
    play(made_turns(75))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*cannot compare with main: *cut short*"])


def test_a_failed_test_is_not_saved(inner: Inner, play: Play, pytester: pytest.Pytester) -> None:
    play(made_turns(21))
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").assert_gap(max_ms=100)\n'
    inner(code, "--turngap-save=main").assert_outcomes(failed=1)
    assert not (pytester.path / ".turngap").exists()


def test_each_test_and_each_of_its_runs_has_a_baseline_of_its_own(
    inner: Inner, play: Play, pytester: pytest.Pytester
) -> None:
    play(*[made_turns(6) for _ in range(4)])
    code = f"""
import pytest
@pytest.mark.parametrize("which", ["a/b", "a-b"])
def test_it(turngap, which):
    turngap.replay("{URL}")
    turngap.replay("{URL}")
"""
    inner(code, "--turngap-save=main", "--turngap-baselines=kept").assert_outcomes(passed=2)
    assert len(list((pytester.path / "kept/main").iterdir())) == 4


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


def test_a_replay_holds_the_lock_of_this_machine(
    inner: Inner, play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    free: list[bool] = []

    def is_free() -> bool:
        with lock_file().open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    play(made_turns(3), during=lambda: free.append(is_free()))
    inner(PLAIN).assert_outcomes(passed=1)
    assert free == [False]
    assert is_free()


LOCKED = """
import sys, time
from pathlib import Path
from turngap.pytest_plugin.lock import one_at_a_time
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
        for _ in range(4)
    ]
    assert [p.wait(60) for p in processes] == [0] * 4
    assert log.read_text().split() == ["in", "out"] * 20


def test_a_process_that_dies_gives_the_lock_back(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holding = LOCKED.replace("time.sleep(0.02)", "time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", holding, str(lock), "/dev/stdout"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    process.kill()
    process.wait(10)
    process.stdout.close()
    again = [sys.executable, "-c", LOCKED, str(lock), os.devnull]
    assert subprocess.run(again, timeout=60, check=False).returncode == 0


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
def quick() -> Iterator[str]:
    with ScriptedProcess(Script(replies=(Reply(delay_ms=200, speech_ms=100),), hold_ms=100)) as url:
        yield url


@pytest.fixture
def patient() -> Iterator[str]:
    """150 ms slower, all of it in deciding that the turn is over."""
    with ScriptedProcess(Script(replies=(Reply(delay_ms=350, speech_ms=100),), hold_ms=250)) as url:
        yield url


# What is injected is 150 ms; a machine that starves the caller for less is not the subject here.
TOLERANT = "--turngap-starved-ms=200"


def shifts_of(text: str, *, pattern: str) -> list[float]:
    """The shifts in ms that the output tells, in order."""
    return [float(found) for found in re.findall(pattern, text)]


@pytest.mark.realtime
@pytest.mark.usefixtures("beeps")
def test_in_real_time_a_regression_is_caught_and_named(
    pytester: pytest.Pytester, quick: str, patient: str
) -> None:
    pytester.makepyfile(
        test_latency="""
import pytest

@pytest.mark.turngap(library="library", calibration=0, repeat=10)
def test_agent(turngap):
    run = turngap.replay()
    run.assert_hit_rate(0.9)
    run.assert_gap(p50_ms=500)
"""
    )
    options = (f"--turngap-agent={quick}", "--turngap-save=main", TOLERANT)
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)
    options = (f"--turngap-agent={patient}", "--turngap-compare=main", TOLERANT)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "slower than main; stage that moved: endpoint +* ms (n=10)*",
            "gap p50: regressed, +* ms *",
            "* beep · turn 1*",
        ]
    )
    moved = shifts_of(result.stdout.str(), pattern=r"(?:endpoint|gap p50: regressed,) \+(\d+) ms")
    assert len(moved) == 2
    assert all(50 < ms < 500 for ms in moved)


@pytest.mark.realtime
@pytest.mark.usefixtures("beeps")
def test_in_real_time_beside_a_reference_at_hand(
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
    result = pytester.runpytest_subprocess(TOLERANT)
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

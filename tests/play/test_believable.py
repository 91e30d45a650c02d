"""Spoilt runs look spoilt: starved callers, broken runs, secrets, failures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import quiet
import virtual_calls
from commandline import turngap_here
from made_records import make_run, make_turn

from turngap.caller.connection import open_line
from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.cli.measuring import exit_code
from turngap.clocks import MonotonicClock
from turngap.core.budget import STARVED_MS
from turngap.core.clock import ms_to_ns
from turngap.core.errors import AgentError, ExitCode, InputError
from turngap.core.run_record import OffsetRecord
from turngap.core.summary import summarise
from turngap.play.calibrate import calibrate, plan, utterance
from turngap.play.plan import PlayPlan
from turngap.play.process import running
from turngap.play.run import RunInProgress, kept, why_invalid
from turngap.play.target import AgentChoice, Target
from turngap.play.turns import pacing_record
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, scenario_paths
from turngap.store.runs import read_run
from turngap.testing.agent import Reply, Script, script_to_json

Capsys = pytest.CaptureFixture[str]
NO_OFFSET = OffsetRecord(offset_ns=None, bound_ns=None, n=0)


@pytest.mark.parametrize(
    ("late_ms", "lag_ms", "starved"),
    [
        ((0.1, 0.2, STARVED_MS - 1), 0.5, False),
        ((0.1, STARVED_MS + 1, 0.2), 0.5, True),
        ((0.1, 0.2), STARVED_MS + 1, True),
        ((), None, False),
    ],
)
def test_a_turn_is_starved_by_late_packets_or_a_late_event_loop(
    late_ms: tuple[float, ...], lag_ms: float | None, starved: bool
):
    late_ns = tuple(round(ms * 1e6) for ms in late_ms)
    record = pacing_record(late_ns, None if lag_ms is None else round(lag_ms * 1e6))
    assert record.starved is starved
    assert record.loop_lag_ms_max == lag_ms


@pytest.mark.parametrize(
    ("starved", "turns", "valid"), [(0, 40, True), (1, 6, True), (2, 40, True), (3, 40, False)]
)
def test_a_run_with_too_many_starved_turns_is_invalid(starved: int, turns: int, valid: bool):
    run = [make_turn(turn=n + 1, starved=n < starved) for n in range(turns)]
    assert (why_invalid(summarise(run)) == ()) is valid


def test_a_run_with_most_turns_ambiguous_is_invalid():
    noted = [make_turn(turn=n, notes={"ambiguous: it may be turn 1's": 1}) for n in (1, 2)]
    assert "in 2 of 3 turns" in why_invalid(summarise([*noted, make_turn(turn=3)]))[0]
    assert why_invalid(summarise([*noted, make_turn(turn=3), make_turn(turn=4)])) == ()


def test_who_accepts_a_later_caller_gets_a_run_that_says_so(tmp_path: Path):
    late = pacing_record((30_000_000,), 5_000_000, starved_ms=40.0)
    assert (late.starved, late.error_ms) == (False, 35.0)
    starved = [make_turn(turn=n, starved=True) for n in (1, 2)]
    assert "over 40 ms late" in why_invalid(summarise(starved), 40.0)[0]
    run = empty_run(tmp_path, starved_ms=40.0)
    run.finish()
    stored = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert stored["starved_ms"] == 40.0


def test_a_service_that_fails_in_every_turn_is_the_agents_failure():
    failed = [make_turn(turn=n, marks_ms=None, ended="timeout", faults=("boom",)) for n in (1, 2)]
    assert exit_code(make_run(failed), None, None) == ExitCode.AGENT_FAILED
    one_answer = make_run([*failed, make_turn(turn=3)])
    assert exit_code(one_answer, None, None) == ExitCode.PASS


def empty_run(out: Path, **plan: Any) -> RunInProgress:
    library = library_dir()
    scenarios = load_scenarios(scenario_paths(library, ["quick-questions"]))
    target = Target(AgentChoice("ws://127.0.0.1:9/"), library, None)
    return RunInProgress(PlayPlan(scenarios=scenarios, out=out, **plan), target, "test")


def test_a_run_that_breaks_is_stored_as_broken(tmp_path: Path):
    run = empty_run(tmp_path)
    with pytest.raises(OSError, match="disk"), kept(run.finish):
        raise OSError("no room on the disk")
    stored = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert "no room on the disk" in stored["failure"]
    assert stored["valid"] is False


def test_a_run_that_is_interrupted_says_so(tmp_path: Path):
    run = empty_run(tmp_path)
    with pytest.raises(asyncio.CancelledError), kept(run.finish):
        raise asyncio.CancelledError
    stored = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert stored["failure"] == "interrupted by the user"


def test_secrets_of_a_url_are_shown_and_stored_nowhere(tmp_path: Path, capsys: Capsys):
    url = "ws://user:hunter2@127.0.0.1:9/ws?api_key=SEKRET"
    done = turngap_here(
        capsys, "replay", "quick-questions", "--agent", url, "--calibration", "0",
        "--out", tmp_path, "--json",
    )  # fmt: skip
    assert done.code == 4
    files = [p.read_text(encoding="utf-8") for p in tmp_path.rglob("*.*") if p.is_file()]
    assert files
    for text in (done.out, done.err, *files):
        assert "hunter2" not in text
        assert "SEKRET" not in text


def test_the_plan_of_a_calibration_covers_every_condition():
    replies = plan(128, seed=1)
    assert len(set(replies)) == 128
    assert plan(128, seed=1) == replies != plan(128, seed=2)


@pytest.mark.realtime
async def test_known_gaps_are_measured_within_generous_bounds(tmp_path: Path):
    calibration = await calibrate(8, log=tmp_path / "log")
    errors = sorted(abs(sample.error_ms) for sample in calibration.samples)
    assert len(errors) + calibration.missed == 8
    with quiet.measured():
        assert calibration.missed == 0
        assert errors[4] < 10


def test_a_pad_of_150_ms_moves_the_gap_by_150_ms():
    script = Script(replies=(Reply(delay_ms=200), Reply(delay_ms=200, pad_ms=150)))
    gaps = [played.turn.gap_ns for played in play(script, 4)]
    assert gaps == pytest.approx([ms_to_ns(200), ms_to_ns(350)] * 2, abs=1)


@pytest.mark.realtime  # and alone: it keeps a processor busy
async def test_a_stalled_caller_knows_it(tmp_path: Path):
    argv = ["turngap.testing.agent", script_to_json(Script())]
    async with running(argv, tmp_path / "log") as url:
        clock = MonotonicClock(precise=True)
        stalls = asyncio.create_task(stall_now_and_then())
        try:
            async with open_line(url, PipecatSession(), clock) as line:
                talk = Conversation(line, [utterance()] * 3, clock, offset=NO_OFFSET)
                played = [turn async for turn in talk.play()]
        finally:
            stalls.cancel()
    assert all((turn.lag_ns or 0) > STARVED_MS * 1e6 for turn in played)


async def stall_now_and_then() -> None:
    clock = MonotonicClock()
    while True:
        await clock.sleep_until_ns(clock.now_ns() + 60_000_000)
        until_ns = clock.now_ns() + 38_000_000
        while clock.now_ns() < until_ns:
            pass


def test_a_late_greeting_is_not_the_answer_to_the_first_turn():
    script = Script(replies=(Reply(delay_ms=600),), welcome_ms=300, welcome_after_ms=1200)
    (played,) = play(script, 1, Patience(greeting_ms=3000))
    assert (played.turn.outcome, played.turn.gap_ns) == ("answered", ms_to_ns(600))


def play(script: Script, turns: int, patience: Patience | None = None) -> list[PlayedTurn]:
    return virtual_calls.play(script, [utterance()] * turns, patience).turns


async def test_the_childs_own_error_is_the_error(tmp_path: Path):
    arguments = ["turngap", "serve", "--agent", "nobody", "--port", "0", "--json"]
    with pytest.raises(InputError, match="no agent named 'nobody'"):
        async with running(arguments, tmp_path / "log"):
            raise AssertionError("it cannot have started")


async def test_a_child_that_cannot_start_says_why(tmp_path: Path):
    with pytest.raises(AgentError, match="No module named"):
        async with running(["no_such_module"], tmp_path / "log"):
            raise AssertionError("it cannot have started")


def test_a_run_cut_short_is_read_with_a_word_about_it(tmp_path: Path):
    run = empty_run(tmp_path)
    run.finish("stopped")
    with pytest.raises(InputError, match="stopped"):
        read_run(run.folder)

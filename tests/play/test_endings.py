"""Calls that the agent ends or loses, and greetings: what a whole run makes of them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from timed_agents import Says, TimedAgent
from websockets.exceptions import ConnectionClosed

from turngap.caller.connection import Line
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.line.spec import LineSpec, parse_line
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.results import Turn
from turngap.play.plan import PlayPlan
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target
from turngap.play.turns import Greetings
from turngap.scenario.library import LoadedScenario, load_scenario
from turngap.scenario.model import shipped_library
from turngap.store.runs import Run, read_run
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

ANSWER = (Says(500),)
GOODBYE = (Says(500, closes=(300, 1000)),)
LOST = (Says(500, closes=(-700, None)),)


class PairedPlan(PlayPlan):
    """A plan that plays each conversation without its line, too."""

    @property
    def is_paired(self) -> bool:
        return self.line is not None


def begun(out: Path, calls: int, **asked: Any) -> tuple[RunInProgress, LoadedScenario]:
    """Begin a run of so many calls of three turns."""
    scenario = load_scenario(shipped_library() / "quick-questions.yaml")
    plan = PairedPlan(scenarios=[scenario], rounds=calls, out=out, **asked)
    target = Target(AgentChoice("ws://memory/agent"), shipped_library(), None)
    return RunInProgress(plan, target, "agent"), scenario


def play(agents: Sequence[TimedAgent], out: Path, **asked: Any) -> tuple[Run, AgentError | None]:
    """Play a call of three turns to each agent, as one run."""
    run, scenario = begun(out, len(agents), **asked)

    async def call(agent: TimedAgent, number: int) -> None:
        clock = LoopClock()
        async with line_to(agent, PipecatSession(rtvi=False), clock) as line:
            await run.play_over(line, clock, scenario, repeat=number, watch=clock)

    failure = None
    for number, agent in enumerate(agents, start=1):
        try:
            in_virtual_time(call(agent, number))
        except AgentError as e:
            failure = e
            break
    return run.finish(None if failure is None else str(failure)), failure


def outcomes(turns: Sequence[Turn]) -> str:
    letters = {"answered": "a", "error": "E", "no_reply": "n", "cut_in": "c", "late": "l"}
    return "".join(letters[turn.outcome] for turn in turns)


def test_an_agent_that_hangs_up_after_its_last_reply_has_failed_in_nothing(tmp_path: Path) -> None:
    run, failure = play([TimedAgent([ANSWER, ANSWER, GOODBYE])] * 2, tmp_path)
    assert (failure, outcomes(run.turns), run.valid) == (None, "aaaaaa", True)
    last = run.turns[2]
    assert (last.ended, last.error) == ("hung_up", None)
    assert "the agent ended the call (1000, goodbye)" in last.notes
    assert run.summary.lost_calls == 0


def test_turns_that_an_agent_hangs_up_before_are_errors(tmp_path: Path) -> None:
    run, failure = play([TimedAgent([ANSWER, GOODBYE]), TimedAgent([ANSWER])], tmp_path)
    assert (failure, outcomes(run.turns), run.valid) == (None, "aaEaaa", True)
    why = "not played: the agent ended the call (1000, goodbye)"
    assert (run.turns[2].error, run.turns[2].why_no_gap) == (why, why)


def test_a_lost_call_is_an_error_and_the_next_is_played(tmp_path: Path) -> None:
    well, lost = TimedAgent([ANSWER]), TimedAgent([ANSWER, LOST])
    run, failure = play([well, lost, well], tmp_path)
    assert (failure, outcomes(run.turns), run.valid) == (None, "aaaaEEaaa", True)
    assert (run.summary.calls, run.summary.lost_calls) == (3, 1)
    stopped, failure = play([well, lost, well], tmp_path, stop_on_error=True)
    assert outcomes(stopped.turns) == "aaaaE"
    assert failure is not None
    assert failure.kind == "agent.line_lost"


def test_a_run_of_lost_calls_stops(tmp_path: Path) -> None:
    run, failure = play([TimedAgent([ANSWER, LOST])] * 6, tmp_path)
    assert outcomes(run.turns) == "aEE" * 4
    assert failure is not None
    assert failure.kind == "agent.calls_lost"
    assert not run.valid


def test_a_first_call_that_is_lost_whole_does_not_end_the_run(tmp_path: Path) -> None:
    well, dead = TimedAgent([ANSWER]), TimedAgent([(Says(500, 1, closes=(0, None)),)])
    run, failure = play([dead, well, well], tmp_path)
    assert (failure, outcomes(run.turns), run.valid) == (None, "EEEaaaaaa", True)
    assert (run.summary.calls, run.summary.lost_calls) == (3, 1)
    run, failure = play([dead] * 6, tmp_path)
    assert (outcomes(run.turns), run.valid) == ("EEE" * 4, False)
    assert failure is not None


def test_a_call_that_is_ended_before_its_last_reply_is_lost(tmp_path: Path) -> None:
    midway = TimedAgent([ANSWER, (Says(500, 600, closes=(-300, 1000)),)])
    run, failure = play([midway, TimedAgent([ANSWER])], tmp_path)
    assert (failure, outcomes(run.turns)) == (None, "aaEaaa")
    assert (run.summary.lost_calls, run.summary.calls) == (1, 2)


class Doors:
    """An endpoint of which each call is taken by its agent, or refused with its error."""

    host_and_port = (None, None)

    def __init__(self, *calls: TimedAgent | AgentError) -> None:
        self._calls = list(calls)
        self.lines: list[str] = []  # of each call

    def with_headers(self, _: object) -> "Doors":
        return self

    @asynccontextmanager
    async def open(
        self, _: Clock, *, line: LineSpec | None = None, call: str = ""
    ) -> AsyncIterator[Line]:
        self.lines.append("" if line is None else line.text)
        if isinstance(agent := self._calls.pop(0), AgentError):
            raise agent
        session = PipecatSession(rtvi=False)
        with suppress(ConnectionClosed):  # the agent's end of a line that is reset
            async with line_to(agent, session, LoopClock(), line=line, call=call) as opened:
                yield opened


def knock(doors: Doors, calls: int, out: Path, **asked: Any) -> tuple[Run, AgentError | None]:
    """Play so many calls as `replay` does, as far as it gets."""
    run, scenario = begun(out, calls, **asked)

    async def all_calls() -> None:
        for number in range(1, calls + 1):
            await run.play(scenario, doors, repeat=number)  # pyright: ignore[reportArgumentType]
        run.require_a_call()

    failure = None
    try:
        in_virtual_time(all_calls())
    except AgentError as e:
        failure = e
    return run.finish(None if failure is None else str(failure)), failure


@pytest.mark.usefixtures("virtual_agents")
def test_a_call_that_cannot_be_opened_is_a_lost_call(tmp_path: Path) -> None:
    well, full = TimedAgent([ANSWER]), AgentError("agent.no_websocket", "HTTP status 503")
    doors = Doors(well, well, full, well, well, full)
    run, failure = knock(doors, 6, tmp_path)
    assert (failure, outcomes(run.turns), run.valid) == (None, "aaaaaaEEEaaaaaaEEE", True)
    assert run.turns[6].error == "not played: HTTP status 503"
    assert (run.summary.calls, run.summary.lost_calls) == (6, 2)
    run, failure = knock(Doors(well, full, well), 3, tmp_path, stop_on_error=True)
    assert (failure, outcomes(run.turns)) == (full, "aaa")
    dead = AgentError("agent.unreachable", "Connection refused", hint="is it running?")
    run, failure = knock(Doors(*[well] * 10, *[dead] * 10), 20, tmp_path)
    assert outcomes(run.turns) == "aaa" * 10 + "EEE" * 4
    assert failure is not None
    assert (failure.kind, failure.hint) == ("agent.calls_lost", "is it running?")


@pytest.mark.usefixtures("virtual_agents")
def test_over_a_line_each_turn_knows_its_gap_without_it(tmp_path: Path) -> None:
    well, full = TimedAgent([ANSWER]), AgentError("agent.no_websocket", "HTTP status 503")
    doors = Doors(well, well, well, well, well, full)
    run, failure = knock(doors, 3, tmp_path, line=parse_line("delay=50"))
    assert (failure, outcomes(run.turns)) == (None, "aaaaaaaaa")
    assert doors.lines == ["delay=50", "", "", "delay=50", "delay=50", ""]
    for turn in run.turns[:6]:
        assert turn.line is not None and turn.gap_ms is not None
        assert turn.line.plain_gap_ms == pytest.approx(500, abs=1)
        assert turn.stage_ms["line_down"] == pytest.approx(50, abs=1)
        assert turn.stage_ms["line_up"] == turn.line.up_ms
        assert turn.gap_ms == pytest.approx(500 + 50 + (turn.line.up_ms or 0), abs=25)
    assert all(turn.line and turn.line.plain_gap_ms is None for turn in run.turns[6:])
    assert "not heard without the line: HTTP status 503" in run.turns[6].notes
    stored = read_run(run.path)
    assert stored.turns == run.turns
    assert stored.record.line is not None and stored.record.line.text == "delay=50"
    assert run.summary.line is not None and run.summary.line.pairs == 6


@pytest.mark.usefixtures("virtual_agents")
@pytest.mark.parametrize(("fault", "dead_peers"), [("half-open=5", 5), ("reset=5", 0)])
def test_a_line_that_breaks_ends_calls_and_not_the_run(
    fault: str, dead_peers: int, tmp_path: Path
) -> None:
    doors = Doors(*[TimedAgent([ANSWER])] * 10)
    run, failure = knock(doors, 5, tmp_path, greeting_ms=0.0, line=parse_line(f"delay=20,{fault}"))
    assert (failure, outcomes(run.turns), run.valid) == (None, "aEE" * 5, True)
    assert run.record.line is not None
    dead = run.record.line.dead_peers
    assert len(dead) == dead_peers
    assert all(each.caller_ms is not None and 0 < each.caller_ms < 10_000 for each in dead)


@pytest.mark.usefixtures("virtual_agents")
def test_an_agent_that_was_never_reached_ends_the_run_at_once(tmp_path: Path) -> None:
    refused = AgentError("agent.key", "HTTP status 403")
    run, failure = knock(Doors(refused, TimedAgent([ANSWER])), 2, tmp_path)
    assert (failure, run.turns) == (refused, ())
    dead = TimedAgent([(Says(500, 1, closes=(0, None)),)])
    run, failure = knock(Doors(dead, dead), 2, tmp_path)
    assert (outcomes(run.turns), run.valid) == ("EEEEEE", False)
    assert failure is not None
    assert failure.kind == "agent.line_lost"


@pytest.mark.parametrize("first_ms", [1300, 3400, 4500, 6000, 7500, 9000, 10_000, 10_400])
def test_a_late_greeting_spoils_no_later_call(first_ms: float, tmp_path: Path) -> None:
    calls = [TimedAgent([ANSWER], greets=Says(ms, 1600)) for ms in (first_ms, 1300, 1300)]
    run, _ = play(calls, tmp_path)
    assert outcomes(run.turns[3:]) == "aaaaaa"
    assert {round(t.gap_ms or 0) for t in run.turns[3:]} == {500}
    greetings = [t.greeting_ms for t in run.turns if t.greeting_ms is not None]
    if first_ms <= 7500:
        assert outcomes(run.turns) == "aaaaaaaaa"
        assert greetings == pytest.approx([first_ms, 1300, 1300], abs=100)
    else:  # it reads as a cut-in or as an answer
        assert [t.ambiguous for t in run.turns] == [True, *[False] * 8]
        assert run.summary.heard.ambiguous_turns == 1
        assert read_run(run.path).turns[0].ambiguous


def test_an_agent_may_greet_in_some_calls_only(tmp_path: Path) -> None:
    silent, greets = TimedAgent([ANSWER]), TimedAgent([ANSWER], greets=Says(1200, 1600))
    run, _ = play([silent, greets, silent], tmp_path)
    assert outcomes(run.turns) == "a" * 9
    assert [t.ambiguous for t in run.turns if t.turn == 1] == [True, False, True]
    third, _ = play([silent, silent, greets, greets], tmp_path)
    assert outcomes(third.turns[9:]) == "aaa"
    assert third.turns[6].ambiguous


def test_a_greeting_after_the_persons_end_in_each_call_is_no_answer(tmp_path: Path) -> None:
    """It comes at the same time of each call; an answer comes at that of the person's end."""
    run, _ = play([TimedAgent([()], greets=Says(9300, 1600))] * 2, tmp_path)
    firsts = [t for t in run.turns if t.turn == 1]
    assert [(t.gap_ms is not None, t.ambiguous) for t in firsts] == [(True, True)] * 2
    own, _ = play([TimedAgent([(Says(500),)])] * 3, tmp_path)
    assert not any(t.ambiguous for t in own.turns)
    once, _ = play([TimedAgent([(Says(700),)], greets=Says(9100, 300))], tmp_path)
    assert once.turns[0].ambiguous == ((once.turns[0].gap_ms or 0) < 300)


def test_a_turn_whose_answer_may_be_in_the_next_is_noted(tmp_path: Path) -> None:
    run, _ = play([TimedAgent([(Says(400, 1000), Says(6400)), (Says(900),)])], tmp_path)
    assert [t.ambiguous for t in run.turns[:2]] == [True, True]
    assert read_run(run.path).turns[0].ambiguous


@pytest.mark.parametrize("first", [Says(800, 600), Says(800, 2000)])
def test_the_second_part_of_a_greeting_is_no_answer(first: Says, tmp_path: Path) -> None:
    more = replace(first, at_ms=first.at_ms + first.ms + 2500)
    run, _ = play([TimedAgent([ANSWER], greets=(first, more))] * 2, tmp_path)
    if first.ms < 1500:
        assert outcomes(run.turns) == "a" * 6
        assert not any(t.ambiguous for t in run.turns)
    assert all(t.ambiguous for t in run.turns if t.outcome == "cut_in")


def test_an_agent_that_cuts_in_waits_for_no_greeting_in_each_call(tmp_path: Path) -> None:
    hasty = TimedAgent([(Says(250, 3000, from_start=True),)])
    run, _ = play([hasty] * 4, tmp_path)
    assert all(t.ambiguous for t in run.turns if t.turn == 1)
    greetings = Greetings(None)
    waits_ms: list[float] = []
    for cut_in in (True, True, True, False, True, False, False):
        waits_ms.append(greetings.wait_ms)
        greetings.take(greeted=False, cut_in=cut_in)
    assert waits_ms == [8000, 5000, 0, 0, 0, 5000, 0]

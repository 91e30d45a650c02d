"""Calls of a step in virtual time: every planned turn is told, and nothing slows the schedule."""

import errno
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from made_calls import ANSWERS, BUDGET_MS, opening, played, scenario_of, step_of

from turngap.caller.ear import Heard
from turngap.caller.endpoint import Endpoint
from turngap.caller.line import Line
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.errors import AgentError
from turngap.load.calls import Answered, MissedCallError, longest_hole_ms, play_calls
from turngap.load.record import LoadTurn
from turngap.load.schedule import SETUP_S, Call, Shape, Window
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import End, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

WINDOW = Window(warm_up_s=4.0, measured_s=12.0, cool_down_s=8.0)
TWO_TURNS = scenario_of(2)


def counted(turns: list[LoadTurn]) -> list[LoadTurn]:
    return [turn for turn in turns if turn.counted]


def test_every_turn_is_answered_and_nobody_waits() -> None:
    step = step_of(TWO_TURNS, 3, WINDOW)
    told, asked = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    turns = counted(told.turns)
    assert len(turns) == step.turns > 5
    assert {turn.outcome for turn in turns} == {"answered"}
    assert all(turn.waited_ms == 0 and turn.hit(BUDGET_MS) for turn in turns)
    assert all(abs((turn.latency_ms or 0) - 300) < 0.1 for turn in turns)
    assert all(turn.played is not None and turn.played.audio is None for turn in turns)
    assert all(turn.hole_ms == 0 for turn in turns)
    # Each person ended when the schedule expected it: replies took as long as they should.
    assert list(asked.values()) == pytest.approx([c.at_s for c in step.calls][: len(asked)])


def test_the_warm_up_and_the_cool_down_do_not_count() -> None:
    step = step_of(TWO_TURNS, 3, WINDOW)
    told, _ = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    for turn in told.turns:
        assert turn.counted == (WINDOW.warm_up_s <= turn.due_s < WINDOW.end_s)
    before = [turn for turn in told.turns if turn.due_s < WINDOW.warm_up_s]
    assert before
    assert len(counted(told.turns)) == step.turns


def test_calls_that_have_nothing_left_that_counts_are_hung_up() -> None:
    step = step_of(TWO_TURNS, 3, WINDOW)
    told, asked = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    last_s = max(mark.at_s for mark in told.marks)
    assert last_s < WINDOW.end_s + 3 < WINDOW.whole_s
    assert len(asked) < len(step.calls)
    assert Counter(mark.running for mark in told.marks)[True] == len(asked)
    assert Counter(mark.running for mark in told.marks)[False] == len(asked)


def test_a_refused_session_costs_all_of_its_turns() -> None:
    @asynccontextmanager
    async def opens(number: int, clock: Clock) -> AsyncIterator[Line]:
        if number == 5:
            raise AgentError("agent.refused", "the agent refused: full")
        async with line_to(ANSWERS, clock=clock) as line:
            yield line

    step = step_of(TWO_TURNS, 3, WINDOW)
    told, _ = played(step, TWO_TURNS, opens)
    missed = [turn for turn in told.turns if turn.missed]
    assert {(turn.call, turn.turn) for turn in missed} == {(5, 1), (5, 2)}
    assert {(turn.missed, turn.why) for turn in missed} == {("refused", "the agent refused: full")}
    assert not any(turn.hit(BUDGET_MS) for turn in missed)
    assert len(counted(told.turns)) == step.turns


@pytest.mark.parametrize(
    ("problem", "is_ours"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), True),
        (OSError(errno.ENOBUFS, "No buffer space available"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (OSError(errno.ECONNREFUSED, "Connection refused"), False),
        (OSError(errno.ECONNRESET, "Connection reset by peer"), False),
    ],
)
def test_what_the_caller_cannot_open_is_not_charged_to_the_agent(
    monkeypatch: pytest.MonkeyPatch, problem: OSError, is_ours: bool
) -> None:
    async def fails(*_: object) -> None:
        raise problem

    monkeypatch.setattr("turngap.caller.opening.connect_stamped", fails)
    step = step_of(TWO_TURNS, 3, WINDOW)

    def opens(_: int, clock: Clock) -> AbstractAsyncContextManager[Line]:
        return Endpoint("ws://agent.example:1/ws").open(clock)

    if is_ours:
        with pytest.raises(AgentError, match="this machine could not open a call") as lost:
            played(step, TWO_TURNS, opens)
        assert problem.strerror
        assert problem.strerror in lost.value.message
    else:
        told, _ = played(step, TWO_TURNS, opens)
        assert {turn.missed for turn in told.turns} == {"refused"}


def test_an_agent_that_closes_at_once_has_refused_the_call() -> None:
    async def closes(end: End, _: Clock) -> None:
        end.die()

    step = step_of(TWO_TURNS, 2, WINDOW)
    told, _ = played(step, TWO_TURNS, opening(lambda n: closes if n == 2 else ANSWERS))
    missed = [turn for turn in told.turns if turn.missed]
    assert {turn.call for turn in missed} == {2}
    assert {turn.missed for turn in missed} == {"refused"}
    assert "without a closing handshake" in (missed[0].why or "")


def test_a_call_that_breaks_off_costs_the_turns_that_were_left() -> None:
    dies = Script(replies=(Reply(action="die_midway", speech_ms=400),))
    step = step_of(TWO_TURNS, 2, WINDOW)
    told, _ = played(step, TWO_TURNS, opening(lambda n: dies if n == 3 else ANSWERS))
    of_three = {turn.turn: turn for turn in told.turns if turn.call == 3}
    assert of_three[1].outcome == "error"
    assert of_three[2].missed == "dropped"
    assert "the line was lost" in (of_three[2].why or "")
    assert not of_three[1].hit(BUDGET_MS)
    assert len(counted(told.turns)) == step.turns


def test_late_answers_are_late_and_the_next_call_is_dialled_all_the_same() -> None:
    late = Script(replies=(Reply(delay_ms=1500, speech_ms=200),))
    step = step_of(TWO_TURNS, 3, WINDOW)
    told, asked = played(step, TWO_TURNS, opening(lambda _: late))
    assert {turn.outcome for turn in counted(told.turns)} == {"late"}
    planned = [call.at_s for call in step.calls]
    assert list(asked.values()) == pytest.approx(planned[: len(asked)])


def test_an_agent_that_never_answers_slows_nothing_down() -> None:
    mute = Script(replies=(Reply(action="silence"),))
    step = step_of(TWO_TURNS, 3, WINDOW)
    told, asked = played(step, TWO_TURNS, opening(lambda _: mute))
    planned = [call.at_s for call in step.calls]
    assert list(asked.values()) == pytest.approx(planned[: len(asked)])
    assert max(asked.values()) > WINDOW.end_s - 5
    assert {turn.outcome for turn in counted(told.turns)} == {"no_reply"}
    assert len(counted(told.turns)) == step.turns
    most = running = 0
    for mark in sorted(told.marks, key=lambda m: m.at_s):
        running += 1 if mark.running else -1
        most = max(most, running)
    assert most > 3  # the calls of a line overlap, as those of real callers would


def test_a_line_that_opens_late_adds_what_the_person_waited() -> None:
    opens_after_ms = 2000.0

    @asynccontextmanager
    async def opens(_: int, clock: Clock) -> AsyncIterator[Line]:
        await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(opens_after_ms))
        async with line_to(ANSWERS, clock=clock) as line:
            yield line

    step = step_of(TWO_TURNS, 2, WINDOW)
    told, _ = played(step, TWO_TURNS, opens)
    first = [turn for turn in told.turns if turn.turn == 1]
    # The line is open 2 s after it was dialled; then a packet and the room before the first word.
    waited_ms = opens_after_ms + 20 + 640 - SETUP_S * 1000
    assert [turn.waited_ms for turn in first] == pytest.approx([waited_ms] * len(first))
    assert all(turn.latency_ms == pytest.approx(300 + waited_ms, abs=0.1) for turn in first)
    assert not any(turn.hit(BUDGET_MS) for turn in first)
    assert all(turn.waited_ms == 0 for turn in told.turns if turn.turn == 2)


def test_a_line_that_is_not_open_in_time_is_a_late_start() -> None:
    async def says_nothing(end: End, _: Clock) -> None:
        while True:
            await end.recv()

    step = step_of(TWO_TURNS, 2, WINDOW)
    told, _ = played(step, TWO_TURNS, opening(lambda n: says_nothing if n == 1 else ANSWERS))
    assert {turn.missed for turn in told.turns if turn.call == 1} == {"late_start"}
    assert len(counted(told.turns)) == step.turns


SHAPE = Shape("made", (2.0, 4.0), 5.0)


class _Stuck:
    """Plays the first turn, and then nothing any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        await self._clock.sleep_until_ns(dialled_ns + 1000 * NS_PER_S)
        raise MissedCallError("dropped", "never")
        yield


def test_a_call_that_does_not_end_is_hung_up_and_its_turns_are_not_reached() -> None:
    call = Call(1, 0.0, 0, SHAPE, (True, True))
    told: list[LoadTurn] = []

    async def main() -> int:
        clock = LoopClock()
        tell = lambda said: told.append(said) if isinstance(said, LoadTurn) else None  # noqa: E731
        await play_calls(1, [call], _Stuck(clock), clock, tell)
        return clock.now_ns()

    ended_ns = in_virtual_time(main())
    assert {turn.missed for turn in told} == {"not_reached"}
    assert ended_ns == 65 * NS_PER_S
    assert "hung up 60 s after it should have been over" in (told[0].why or "")


class _Broken:
    async def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        raise ZeroDivisionError("a fault of turngap's")
        yield


def test_a_fault_of_the_callers_own_is_not_blamed_on_the_agent() -> None:
    call = Call(1, 0.0, 0, SHAPE, (True, True))

    async def main() -> None:
        await play_calls(1, [call], _Broken(), LoopClock(), lambda _: None)

    with pytest.raises(ZeroDivisionError):
        in_virtual_time(main())


def test_without_a_turn_that_counts_nothing_is_dialled() -> None:
    call = Call(1, 0.0, 0, SHAPE, (False, False))

    async def main() -> int:
        clock = LoopClock()
        await play_calls(1, [call], _Broken(), clock, lambda _: None)
        return clock.now_ns()

    assert in_virtual_time(main()) == 0


def test_the_longest_hole_lies_between_two_pieces_of_the_reply() -> None:
    from numpy import zeros

    ms = 1_000_000
    pieces = [Heard(at * ms, zeros(160, dtype="int16"), 16_000) for at in (0, 100, 110, 155, 300)]
    assert longest_hole_ms(pieces, 100 * ms, 200 * ms) == 35
    assert longest_hole_ms(pieces, None, 200 * ms) is None
    assert longest_hole_ms(pieces[:1], 0, 200 * ms) == 0

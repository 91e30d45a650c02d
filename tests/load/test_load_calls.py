"""Calls of a step in virtual time: every planned turn is told, and nothing slows the schedule."""

import errno
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from made_calls import ANSWERS, BUDGET_MS, opening, played, scenario_of, step_of

from turngap.caller.connection import Line
from turngap.caller.conversation import Patience
from turngap.caller.ear import Heard
from turngap.caller.endpoint import Endpoint
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.errors import AgentError
from turngap.load.calls import (
    Answered,
    Lateness,
    MissedCallError,
    Played,
    longest_hole_ms,
    play_calls,
)
from turngap.load.figures import figures_of
from turngap.load.plan import shape_of
from turngap.load.schedule import LAST_REPLY_S, SETUP_S, Call, Shape, Step, Window, held, shares
from turngap.store.loads import LoadTurn
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


def played_by(step: Step, share: tuple[Call, ...]) -> Played:
    """Return what one caller of a step reports."""
    return played(step, TWO_TURNS, opening(lambda _: ANSWERS), share)[0]


def test_every_caller_calls_until_the_last_turn_that_counts() -> None:
    # A window so short that one of two lines has a turn that counts, and the other none.
    step = next(
        step
        for ms in range(0, 4000, 100)
        if (step := step_of(TWO_TURNS, 2, Window(4.0 + ms / 1000, 0.5, 10.0))).turns
        and not all(any(any(c.counted) for c in share) for share in shares(step, 2))
    )
    ends = [max(mark.at_s for mark in played_by(step, s).marks) for s in shares(step, 2)]
    last_s = max(due for c in step.calls for due, n in zip(c.due_s, c.counted, strict=True) if n)
    assert step.until_s == last_s + LAST_REPLY_S
    assert min(ends) >= step.until_s
    assert max(ends) < step.until_s + 1


def test_a_step_that_counts_nothing_ends_at_once() -> None:
    shape = Shape("made", (2.0,), 3.0)
    assert Step(1, 1, Window(0, 1, 0), (Call(1, 0.0, 0, shape, (False,)),)).until_s == 0


def test_a_call_runs_from_the_instant_at_which_its_line_is_open() -> None:
    step = step_of(TWO_TURNS, 2, Window(4.0, 6.0, 4.0))
    told, asked = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    begun = {mark.call: mark.at_s for mark in told.marks if mark.running}
    assert all(begun[call] >= at_s for call, at_s in asked.items())
    assert len(told.marks) == 2 * len(begun)


def test_lateness_takes_no_more_room_however_many_packets_there_are() -> None:
    late = Lateness()
    for _ in range(1000):
        late.packets.update(Lateness.of((1_040_000, 2_000_000)).packets)
    assert late.p99_ms == 2.0
    late.packets.update({10: 200_000})
    assert late.p99_ms == 1.0
    assert Lateness().p99_ms is None


def test_the_callers_lateness_is_that_of_turns_that_count() -> None:
    step = step_of(TWO_TURNS, 2, Window(4.0, 6.0, 4.0))
    told, _ = played(step, TWO_TURNS, opening(lambda _: ANSWERS))
    assert told.late.p99_ms is not None
    assert 0 <= told.late.p99_ms < 1


GREETED = Window(0.0, 30.0, 5.0)
GREETING_MS = 3000.0
# The pipecat half says that it is ready at once; then the agent takes a while to greet.
USUAL_MS, GROWS_MS = 500.0, 400.0


def greeting(after_ms: float) -> Script:
    answers = (Reply(delay_ms=300, speech_ms=200),)
    return Script(replies=answers, welcome_ms=1600.0, welcome_after_ms=after_ms)


def first_turns(step: Step, greeted_s: float, grows_ms: float) -> list[LoadTurn]:
    """Play a level; each call is greeted `grows_ms` later than the one before."""
    opens = opening(lambda number: greeting(USUAL_MS + (number - 1) * grows_ms))
    patience = Patience(greeting_ms=GREETING_MS)
    turns = played(step, TWO_TURNS, opens, patience=patience, greeted_s=greeted_s)[0].turns
    assert all(turn.waited_ms == 0 for turn in turns if turn.turn > 1)
    return sorted((turn for turn in turns if turn.turn == 1), key=lambda turn: turn.call)


def greeted_step(greeted_s: float) -> Step:
    calls = held([shape_of(TWO_TURNS, greeted_s)], 1, GREETED, seed=1)
    return Step(1, 1, GREETED, calls)


@pytest.fixture(scope="module")
def usual_s() -> float:
    """Return how much later the person begins for a greeting, in calls alone."""
    (found,) = {round(turn.waited_ms) for turn in first_turns(greeted_step(0.0), 0.0, 0.0)}
    return found / 1000


def test_who_is_greeted_as_always_has_not_waited(usual_s: float) -> None:
    assert usual_s > 0.5
    turns = first_turns(greeted_step(usual_s), usual_s, 0.0)
    assert all(turn.waited_ms < 25 and turn.hit(BUDGET_MS) for turn in turns)


def test_a_greeting_that_comes_later_is_in_the_latency_of_the_first_turn(usual_s: float) -> None:
    step = greeted_step(usual_s)
    turns = first_turns(step, usual_s, GROWS_MS)
    assert len(turns) > 4
    for number, turn in enumerate(turns[:4]):
        # The stream's grid, on which recordings begin, is not the agent's affair: packets are.
        assert turn.waited_ms == pytest.approx(number * GROWS_MS, abs=25)
        assert turn.latency_ms == pytest.approx(300 + turn.waited_ms, abs=0.1)
    assert [turn.hit(BUDGET_MS) for turn in turns[:4]] == [True, True, False, False]
    found = figures_of(step, turns[:4], budget_ms=BUDGET_MS, target=0.95, at_once=(1.0, 1))
    assert found.late_started == 3

"""One caller's share of a step: it dials each call at its instant, whatever became of the others.

How a call is played is a `Player`'s: over a socket to a real agent, or anything in virtual time.
"""

import asyncio
import gc
import os
import resource
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from turngap.caller.arrival import is_of_this_machine
from turngap.caller.conversation import Conversation, Patience, PlayedTurn, TurnCue
from turngap.caller.ear import Heard
from turngap.caller.endpoint import Endpoint
from turngap.caller.line import HUNG_UP, NOT_READY, OPEN_TIMEOUT_S, UNREADY, Line
from turngap.caller.opening import NOT_OPEN
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.budget import STARVED_MS
from turngap.core.clock import NS_PER_S, Clock, ns_to_ms
from turngap.core.errors import AgentError
from turngap.core.results import OffsetRecord, Turn
from turngap.core.secrets import remember_secrets
from turngap.load.record import LoadTurn, Missed
from turngap.load.schedule import SETUP_S, Call, Step
from turngap.play.cues import cues_of
from turngap.play.turn_record import turn_record
from turngap.scenario.library import LoadedScenario

# Of how late the caller was: the percentile that is told and judged.
LATE_Q = 0.99
# Packets are counted by how late they were, in steps of so many milliseconds.
PRECISION_MS = 0.1


def counted_ns(late_ns: tuple[int, ...]) -> Counter[int]:
    """Count a turn's packets by lateness, in steps of `PRECISION_MS`."""
    return Counter(round(ns / 1e6 / PRECISION_MS) for ns in late_ns)


@dataclass(frozen=True, slots=True)
class CallerLate:
    """The lateness of the packets of a turn that counts, from the person's start to the onset.

    Attributes:
        packets: how many were late by how much, in steps of `PRECISION_MS`.
    """

    packets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Lateness:
    """All packets of the turns that count: its size does not grow with how many they are."""

    _packets: Counter[int] = field(default_factory=Counter[int])

    def add(self, late: CallerLate) -> None:
        self._packets.update(late.packets)

    @property
    def p99_ms(self) -> float | None:
        """Return the 99th percentile of the packets' lateness; None if none was sent."""
        left = (1 - LATE_Q) * self._packets.total()
        for late, packets in sorted(self._packets.items(), reverse=True):
            left -= packets
            if left < 0:
                return round(late * PRECISION_MS, 1)
        return None


# A call whose counted turns are not over this long after it should have been is hung up: an agent
# that talks for ever, or that nobody can interrupt.
OVERTIME_S = 60.0


@dataclass(frozen=True, slots=True)
class CallMark:
    """A call begins to run, or has ended, so long after the caller's own beginning.

    It runs while its line is open.
    """

    call: int
    at_s: float
    running: bool


# What a share of a step tells, as it comes.
News = LoadTurn | CallMark | CallerLate
Tell = Callable[[News], None]


class MissedCallError(Exception):
    """A call ended before all of its turns were played: `missed` says how, `why` in words."""

    def __init__(self, missed: Missed, why: str) -> None:
        super().__init__(why)
        self.missed: Missed = missed
        self.why = why


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn that was played.

    Attributes:
        waited_ms: how much later than intended its person could begin, for the line was not open.
        hole_ms: the longest interruption of the reply's audio; None: there was none of it.
        late: how late its packets were sent.
    """

    turn: Turn
    waited_ms: float = 0.0
    hole_ms: float | None = None
    late: CallerLate | None = None


class Player(Protocol):
    """Plays calls."""

    def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        """Play a call that is to be dialled at `dialled_ns`, now; yield each turn when it is over.

        Whoever iterates closes it when the call is to be hung up. `on_open` is called once the line
        is open.

        Raises:
            MissedCallError: it ended before all turns were played.
        """
        ...


async def play_calls(
    step: int,
    calls: Sequence[Call],
    player: Player,
    clock: Clock,
    tell: Tell,
    *,
    until_s: float = 0.0,
    node: str = "",
) -> None:
    """Dial every call at its instant from now on, and tell every turn that is over or missed.

    It returns when all turns that count have been told, but not before `until_s`: other callers may
    still play turns that count, under the load of all. Calls that have no such turn left are then
    hung up, and calls that were due later are not made. Nothing that a call does delays another.
    """
    share = _Share(step, player, clock, tell, node=node)
    await share.run(calls, until_s)


@dataclass(frozen=True, slots=True)
class Played:
    """The results of a step.

    Attributes:
        turns: counted or not.
        marks: when which call ran.
        late: how late the callers were in turns that count.
    """

    turns: list[LoadTurn] = field(default_factory=list[LoadTurn])
    marks: list[CallMark] = field(default_factory=list[CallMark])
    late: Lateness = field(default_factory=Lateness)

    def take(self, said: News) -> None:
        if isinstance(said, LoadTurn):
            self.turns.append(said)
        elif isinstance(said, CallMark):
            self.marks.append(said)
        else:
            self.late.add(said)


# Plays a step: callers in other processes, or a player in this event loop.
PlayStep = Callable[[Step], Awaitable[Played]]


async def play_step(
    step: Step, player: Player, clock: Clock, also: Tell = lambda _: None
) -> Played:
    """Play a whole step in this event loop; `also` is told each thing as it comes."""
    played = Played()

    def tell(said: News) -> None:
        played.take(said)
        also(said)

    await play_calls(step.number, step.calls, player, clock, tell, until_s=step.until_s)
    return played


def missed_turns(
    step: int, call: Call, told: Sequence[int], missed: Missed, why: str, *, node: str = ""
) -> list[LoadTurn]:
    """Build missed turns for a call, except for those already reported (counted from 1)."""
    return [
        load_turn(step, call, number, None, missed=missed, why=why, node=node)
        for number in range(1, len(call.counted) + 1)
        if number not in told
    ]


def load_turn(
    step: int,
    call: Call,
    number: int,
    answered: Answered | None,
    *,
    missed: Missed | None = None,
    why: str | None = None,
    node: str = "",
) -> LoadTurn:
    """Turn `number` of a call, counted from 1, as it is stored."""
    return LoadTurn(
        step=step,
        call=call.number,
        line=call.line,
        scenario=call.shape.scenario,
        turn=number,
        due_s=call.due_s[number - 1],
        counted=call.counted[number - 1],
        waited_ms=0.0 if answered is None else answered.waited_ms,
        played=None if answered is None else answered.turn,
        missed=missed,
        why=why,
        hole_ms=None if answered is None else answered.hole_ms,
        node=node,
    )


class _Share:
    """The calls of one caller while they are made."""

    def __init__(self, step: int, player: Player, clock: Clock, tell: Tell, *, node: str) -> None:
        self._step = step
        self._player = player
        self._clock = clock
        self._tell = tell
        self._node = node
        self._begun_ns = clock.now_ns()
        self._over = asyncio.Event()
        self._due = 0  # turns that count and have not been told

    async def run(self, calls: Sequence[Call], until_s: float) -> None:
        """Make the calls until every turn that counts has been told, and until then at least."""
        self._due = sum(sum(call.counted) for call in calls)
        if not self._due:
            self._over.set()
            if not until_s:
                return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._dial(calls, group), name="turngap-dial")
                await self._clock.sleep_until_ns(self._begun_ns + round(until_s * NS_PER_S))
                await self._over.wait()
                raise _OverError  # hangs up the calls that are left
        except ExceptionGroup as errors:  # raised from `except*` it would stay a group
            if own := errors.split(_OverError)[1]:
                raise own.exceptions[0] from None

    async def _dial(self, calls: Sequence[Call], group: asyncio.TaskGroup) -> None:
        for call in calls:
            at_ns = self._begun_ns + round(call.at_s * NS_PER_S)
            await self._clock.sleep_until_ns(at_ns)
            group.create_task(self._call(call, at_ns), name=f"turngap-call-{call.number}")

    async def _call(self, call: Call, at_ns: int) -> None:
        """Make one call; every turn of it is told, as played or as missed."""
        told: list[int] = []
        missed: Missed = "not_reached"
        why = "the call was over before this turn"
        running = False

        def on_open() -> None:
            nonlocal running
            running = True
            self._mark(call, running=True)

        try:
            async with asyncio.timeout(call.shape.length_s + OVERTIME_S):
                async with aclosing(self._player.play(call, at_ns, on_open)) as answers:
                    async for answered in answers:
                        number = answered.turn.turn
                        told.append(number)
                        turn = load_turn(self._step, call, number, answered, node=self._node)
                        if turn.counted and answered.late is not None:
                            self._tell(answered.late)
                        self._tell_turn(turn)
        except MissedCallError as e:
            missed, why = e.missed, e.why
        except TimeoutError:
            why = f"the call was hung up {OVERTIME_S:g} s after it should have been over"
        finally:
            if running:
                self._mark(call, running=False)
        for turn in missed_turns(self._step, call, told, missed, why, node=self._node):
            self._tell_turn(turn)

    def _mark(self, call: Call, *, running: bool) -> None:
        at_s = (self._clock.now_ns() - self._begun_ns) / NS_PER_S
        self._tell(CallMark(call.number, at_s, running))

    def _tell_turn(self, turn: LoadTurn) -> None:
        self._tell(turn)
        self._due -= turn.counted
        if not self._due:
            self._over.set()


class _OverError(Exception):
    """Every turn that counts has been told."""


# Clocks are not compared: a load test shows no stages, and the pings of many calls that begin
# would load the agent with what no caller of its own does.
NOT_COMPARED = OffsetRecord(offset_ns=None, bound_ns=None, n=0)

OpenLine = Callable[[Call], AbstractAsyncContextManager[Line]]


@dataclass(frozen=True, slots=True)
class Share:
    """One caller's part of a step, as it is handed to the caller's process.

    Attributes:
        step: its number.
        scenarios: those that the calls play, with their recordings: another machine lacks them.
        patience: how long to wait for what.
        greeted_s: how much later the person means to begin for it, than `SETUP_S` says.
        until_s: how long all callers call, from the beginning.
        variables: those of the environment that `endpoint` uses, which another machine lacks. They
            are secrets: no text shows them.
        headers: further ones that a call is opened with, by its number.
    """

    step: int
    calls: tuple[Call, ...]
    endpoint: Endpoint
    scenarios: tuple[LoadedScenario, ...]
    budget_ms: float
    starved_ms: float
    patience: Patience
    greeted_s: float
    until_s: float
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])


def play_share(share: Share, tell: Tell) -> None:
    """Play a share and tell what `turngap.load.calls` tells: a `turngap.workers.pool.Work`.

    Raises:
        AgentError: this machine lacks what a call takes.
    """
    remember_secrets(share.variables)
    os.environ.update(share.variables)
    open_more_files()
    with undisturbed():
        asyncio.run(_play(share, tell))


def open_more_files() -> None:
    """Let this process open as many files as it may: each call is one, and often it may 1024."""
    with suppress(OSError, ValueError):  # some systems refuse what they say
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _play(share: Share, tell: Tell) -> None:
    from turngap.workers import here

    clock = MonotonicClock(precise=True)
    player = LinePlayer(
        share.scenarios,
        lambda call: share.endpoint.with_headers(share.headers.get(call.number, ())).open(clock),
        clock,
        budget_ms=share.budget_ms,
        starved_ms=share.starved_ms,
        patience=share.patience,
        greeted_s=share.greeted_s,
    )

    def told(said: Any) -> None:
        tell(said)
        # Nothing else collects what a turn leaves: see `undisturbed`.
        gc.collect(0)

    await play_calls(
        share.step, share.calls, player, clock, told, until_s=share.until_s, node=here()
    )


class LinePlayer:
    """Plays each call over a line of its own: a `turngap.load.calls.Player`.

    Args:
        opens: opens a line to the agent for a call.
        patience, greeted_s: as a `Share` has them.
        watch: the `Conversation`'s.
    """

    def __init__(
        self,
        scenarios: Iterable[LoadedScenario],
        opens: OpenLine,
        clock: Clock,
        *,
        budget_ms: float,
        starved_ms: float = STARVED_MS,
        patience: Patience | None = None,
        greeted_s: float = 0.0,
        watch: Clock | None = None,
    ) -> None:
        self._scenarios = {each.scenario.name: each for each in scenarios}
        self._opens = opens
        self._clock = clock
        self._budget_ms = budget_ms
        self._starved_ms = starved_ms
        self._patience = patience or Patience()
        self._greeted_ns = round(greeted_s * NS_PER_S)
        self._watch = watch
        self._cues: dict[tuple[str, int], list[TurnCue]] = {}

    async def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        """Play a call whose person begins `SETUP_S` after it is dialled, or once they can.

        Raises:
            MissedCallError: the agent did not open the line, or it was lost.
            AgentError: this machine could not open it, which is no fault of the agent.
        """
        scenario = self._scenarios[call.shape.scenario]
        async with AsyncExitStack() as stack:
            line = await self._opened(stack, call, dialled_ns)
            on_open()
            begins_ns, last = dialled_ns + round(SETUP_S * NS_PER_S), 0
            conversation = Conversation(
                line,
                self._cues_at(scenario, line.rate),
                self._clock,
                offset=NOT_COMPARED,
                patience=self._patience,
                begins_ns=begins_ns,
                watch=self._watch,
            )
            async with aclosing(conversation.play()) as turns:
                async for played in turns:
                    last = played.turn.turn
                    waited_ns = self._waited_ns(conversation, played, begins_ns)
                    yield self._answered(scenario, conversation, played, waited_ns)
        failure, planned = conversation.failure, len(scenario.scenario.turns)
        if failure is not None and not (failure.kind == HUNG_UP and last == planned):
            raise MissedCallError("dropped", failure.message)

    async def _opened(self, stack: AsyncExitStack, call: Call, dialled_ns: int) -> Line:
        try:
            return await stack.enter_async_context(self._opens(call))
        except AgentError as e:
            if is_of_this_machine(e.__cause__):
                why = f"this machine could not open a call: {e.message}"
                raise AgentError("load.caller", why) from e
            waited_s = (self._clock.now_ns() - dialled_ns) / NS_PER_S
            late = e.kind in (NOT_OPEN, NOT_READY, UNREADY) or waited_s >= OPEN_TIMEOUT_S
            raise MissedCallError("late_start" if late else "refused", e.message) from e

    def _waited_ns(self, conversation: Conversation, played: PlayedTurn, begins_ns: int) -> int:
        """Return how much later than intended the person of a call's first turn began.

        Either the line was not open, or its greeting lasted longer than in a call on its own.
        """
        if played.turn.turn > 1:
            return 0
        greeting_ns = 0
        if self._patience.greeting_ms:
            greeting_ns = conversation.ready_ns - (begins_ns + self._greeted_ns)
        return max(conversation.waited_ns, greeting_ns)

    def _cues_at(self, scenario: LoadedScenario, rate: int) -> list[TurnCue]:
        key = (scenario.scenario.name, rate)
        if key not in self._cues:
            self._cues[key] = cues_of(scenario, self._budget_ms, rate=rate)
        return self._cues[key]

    def _answered(
        self,
        scenario: LoadedScenario,
        conversation: Conversation,
        played: PlayedTurn,
        waited_ns: int,
    ) -> Answered:
        faults = tuple(conversation.faults)
        del conversation.faults[: len(faults)]
        turn = turn_record(
            scenario.scenario,
            played,
            repeat=1,
            phase_ms=0.0,
            file="",
            faults=faults,
            budget_ms=self._budget_ms,
            starved_ms=self._starved_ms,
        )
        # No audio is stored, and no events: a long test has too many of both.
        bare = turn.model_copy(update={"audio": None, "events": ()})
        return Answered(
            bare,
            ns_to_ms(waited_ns),
            longest_hole_ms(conversation.heard, played.turn.onset_ns, played.window[1]),
            CallerLate(counted_ns(played.late_ns)),
        )


def longest_hole_ms(heard: Sequence[Heard], onset_ns: int | None, until_ns: int) -> float | None:
    """Return the longest time between two pieces of a reply's audio; None without a reply."""
    if onset_ns is None:
        return None
    pieces = [piece for piece in heard if piece.end_ns > onset_ns and piece.start_ns < until_ns]
    return max((ns_to_ms(b.start_ns - a.end_ns) for a, b in pairwise(pieces)), default=0.0)

"""One caller's share of a step: it dials each call at its instant, whatever other calls do.

A `Player` plays each call: `LinePlayer` over a socket to a real agent, or another in virtual time.
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
from typing import Protocol, Self

from turngap.caller.arrival import is_of_this_machine
from turngap.caller.connection import HUNG_UP, NOT_READY, OPEN_TIMEOUT_S, UNREADY, Line
from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.ear import Heard
from turngap.caller.endpoint import Endpoint
from turngap.caller.line.spec import LineSpec
from turngap.caller.opening import NOT_OPEN
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.budget import STARVED_MS
from turngap.core.clock import NS_PER_S, Clock, ns_to_ms
from turngap.core.cue import Cue
from turngap.core.errors import AgentError
from turngap.core.results import Turn
from turngap.core.run_record import OffsetRecord
from turngap.core.secrets import remember_secrets
from turngap.load.schedule import SETUP_S, Call, Step
from turngap.play.turns import cues_of, turn_record
from turngap.scenario.library import LoadedScenario
from turngap.store.loads import LoadTurn, Missed
from turngap.workers.pool import here

# The percentile of the caller's lateness that is reported and judged.
LATE_Q = 0.99
# Packets are counted by how late they were, in steps of this many milliseconds.
PRECISION_MS = 0.1


@dataclass(frozen=True, slots=True)
class Lateness:
    """Counts of packets by how late they were sent, in steps of `PRECISION_MS`.

    Its size does not grow with the number of packets. It counts the packets of turns that count,
    from the person's start to the onset.
    """

    packets: Counter[int] = field(default_factory=Counter[int])

    @classmethod
    def of(cls, late_ns: Iterable[int]) -> Self:
        """Count the packets with these times of lateness."""
        return cls(Counter(round(ns / 1e6 / PRECISION_MS) for ns in late_ns))

    @property
    def p99_ms(self) -> float | None:
        """Return the 99th percentile; None if no packet was sent."""
        left = (1 - LATE_Q) * self.packets.total()
        for late, packets in sorted(self.packets.items(), reverse=True):
            left -= packets
            if left < 0:
                return round(late * PRECISION_MS, 1)
        return None


# A call is hung up if its counted turns are not over this long after its expected end, as with an
# agent that talks for ever or cannot be interrupted.
OVERTIME_S = 60.0


@dataclass(frozen=True, slots=True)
class CallMark:
    """The instant, counted from the caller's start, at which a call's line opened or closed."""

    call: int
    at_s: float
    running: bool


# What a share of a step reports while it is played.
News = LoadTurn | CallMark | Lateness
Tell = Callable[[News], None]


class MissedCallError(Exception):
    """A call that ended before all of its turns were played; `missed` names how it ended."""

    def __init__(self, missed: Missed, why: str) -> None:
        super().__init__(why)
        self.missed: Missed = missed
        self.why = why


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn that was played.

    Attributes:
        waited_ms: how much later than intended the person began, because the line was not open.
        hole_ms: the longest interruption of the reply's audio; None without a reply.
        late: how late its packets were sent.
    """

    turn: Turn
    waited_ms: float = 0.0
    hole_ms: float | None = None
    late: Lateness | None = None


class Player(Protocol):
    """A player of calls."""

    def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        """Play a call that is dialled now, at `dialled_ns`; yield each turn when it is over.

        Closing the iterator hangs up. `on_open` is called once the line is open.

        Raises:
            MissedCallError: the call ended before all turns were played.
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
    """Dial every call at its instant from now on, and report every turn that is over or missed.

    It returns when all turns that count have been reported, but not before `until_s`, because other
    callers may still play turns that count under the load of all. Calls with no such turn left are
    then hung up, and calls that were due later are not made. No call delays another.
    """
    await _Share(step, player, clock, tell, node=node).run(calls, until_s)


@dataclass(frozen=True, slots=True)
class Played:
    """The results of a step.

    Attributes:
        turns: all turns, counted or not.
        marks: when each call's line was opened and closed.
        late: how late the callers were in turns that count.
    """

    turns: list[LoadTurn] = field(default_factory=list[LoadTurn])
    marks: list[CallMark] = field(default_factory=list[CallMark])
    late: Lateness = field(default_factory=Lateness)

    def take(self, news: News) -> None:
        if isinstance(news, LoadTurn):
            self.turns.append(news)
        elif isinstance(news, CallMark):
            self.marks.append(news)
        else:
            self.late.packets.update(news.packets)


# Plays a step: callers in other processes, or a player in this event loop.
PlayStep = Callable[[Step], Awaitable[Played]]


async def play_step(
    step: Step, player: Player, clock: Clock, also: Tell = lambda _: None
) -> Played:
    """Play a whole step in this event loop; `also` receives the same reports as the result."""
    played = Played()

    def tell(news: News) -> None:
        played.take(news)
        also(news)

    await play_calls(step.number, step.calls, player, clock, tell, until_s=step.until_s)
    return played


def missed_turns(
    step: int, call: Call, reported: Sequence[int], missed: Missed, why: str, *, node: str = ""
) -> list[LoadTurn]:
    """Build missed turns for a call, except for the reported ones, counted from 1."""
    return [
        load_turn(step, call, number, None, missed=missed, why=why, node=node)
        for number in range(1, len(call.counted) + 1)
        if number not in reported
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
    """Build turn `number` of a call, counted from 1, as it is stored."""
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
        self._due = 0  # turns that count and have not been reported

    async def run(self, calls: Sequence[Call], until_s: float) -> None:
        """Make the calls until every turn that counts is reported, and at least until `until_s`."""
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
        """Make one call; report every turn of it, as played or as missed."""
        reported: list[int] = []
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
                        reported.append(number)
                        turn = load_turn(self._step, call, number, answered, node=self._node)
                        if turn.counted and answered.late is not None:
                            self._tell(answered.late)
                        self._report(turn)
        except MissedCallError as e:
            missed, why = e.missed, e.why
        except TimeoutError:
            why = f"the call was hung up {OVERTIME_S:g} s after it should have been over"
        finally:
            if running:
                self._mark(call, running=False)
        for turn in missed_turns(self._step, call, reported, missed, why, node=self._node):
            self._report(turn)

    def _mark(self, call: Call, *, running: bool) -> None:
        at_s = (self._clock.now_ns() - self._begun_ns) / NS_PER_S
        self._tell(CallMark(call.number, at_s, running))

    def _report(self, turn: LoadTurn) -> None:
        self._tell(turn)
        self._due -= turn.counted
        if not self._due:
            self._over.set()


class _OverError(Exception):
    """The end of a share: every turn that counts has been reported."""


# Clocks are not compared: a load test shows no stages, and the pings of many calls that begin
# would load the agent with what no caller of its own does.
NOT_COMPARED = OffsetRecord(offset_ns=None, bound_ns=None, n=0)

OpenLine = Callable[[Call], AbstractAsyncContextManager[Line]]


@dataclass(frozen=True, slots=True)
class Share:
    """One caller's part of a step, as it is sent to the caller's process.

    Attributes:
        step: its number.
        scenarios: the scenarios of its calls with their recordings, which another machine lacks.
        patience: the times that the caller waits.
        greeted_s: time beyond `SETUP_S` by which the person begins later, to hear a greeting.
        until_s: how long all callers call, from the beginning.
        line: the line of each call, with faults of its own; None for a plain one.
        variables: the environment variables that `endpoint` uses, which another machine lacks. They
            are secrets: no text shows them.
        headers: further headers that open a call, by the call's number.
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
    line: LineSpec | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])


def play_share(share: Share, tell: Tell) -> None:
    """Play a share and report `News`: a `turngap.workers.Work`.

    Raises:
        AgentError: this machine lacks something that a call needs.
    """
    remember_secrets(share.variables)
    os.environ.update(share.variables)
    # Each call is an open file, and a process often may have no more than 1024.
    with suppress(OSError, ValueError):  # some systems refuse their own limit
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with undisturbed():
        asyncio.run(_play(share, tell))


async def _play(share: Share, tell: Tell) -> None:
    clock = MonotonicClock(precise=True)

    def opens(call: Call) -> AbstractAsyncContextManager[Line]:
        endpoint = share.endpoint.with_headers(share.headers.get(call.number, ()))
        return endpoint.open(clock, line=share.line, call=f"{share.step}/{call.number}")

    player = LinePlayer(
        share.scenarios,
        opens,
        clock,
        budget_ms=share.budget_ms,
        starved_ms=share.starved_ms,
        patience=share.patience,
        greeted_s=share.greeted_s,
    )

    def tell_and_collect(news: News) -> None:
        tell(news)
        gc.collect(0)  # nothing else collects what a turn leaves: see `undisturbed`

    await play_calls(
        share.step, share.calls, player, clock, tell_and_collect, until_s=share.until_s, node=here()
    )


class LinePlayer:
    """A `Player` that plays each call over a line of its own.

    Args:
        opens: opens a line to the agent for a call.
        patience, greeted_s: as in `Share`.
        watch: as in `Conversation`.
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
        self._cues: dict[tuple[str, int], list[Cue]] = {}

    async def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        """Play a call whose person begins `SETUP_S` after it is dialled, or as soon as possible.

        Raises:
            MissedCallError: the agent did not open the line, or the line was lost.
            AgentError: this machine could not open the line, which is no fault of the agent.
        """
        scenario = self._scenarios[call.shape.scenario]
        async with AsyncExitStack() as stack:
            line = await self._opened(stack, call, dialled_ns)
            on_open()
            begins_ns, last = dialled_ns + round(SETUP_S * NS_PER_S), 0
            if (key := (call.shape.scenario, line.rate)) not in self._cues:
                self._cues[key] = cues_of(scenario, self._budget_ms, rate=line.rate)
            conversation = Conversation(
                line,
                self._cues[key],
                self._clock,
                offset=NOT_COMPARED,
                patience=self._patience,
                begins_ns=begins_ns,
                watch=self._watch,
            )
            async with aclosing(conversation.play()) as turns:
                async for played in turns:
                    last, waited_ns = played.turn.turn, 0
                    # The line was not open, or its greeting lasted longer than in a call alone.
                    if last == 1:
                        waited_ns = conversation.waited_ns
                        if self._patience.greeting_ms:
                            greeted_ns = begins_ns + self._greeted_ns
                            waited_ns = max(waited_ns, conversation.ready_ns - greeted_ns)
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
        return Answered(
            # No audio is stored, and no events: a long test has too many of both.
            turn.model_copy(update={"audio": None, "events": ()}),
            ns_to_ms(waited_ns),
            longest_hole_ms(conversation.heard, played.turn.onset_ns, played.window[1]),
            Lateness.of(played.late_ns),
        )


def longest_hole_ms(heard: Sequence[Heard], onset_ns: int | None, until_ns: int) -> float | None:
    """Return the longest time between two pieces of a reply's audio; None without a reply."""
    if onset_ns is None:
        return None
    pieces = [piece for piece in heard if piece.end_ns > onset_ns and piece.start_ns < until_ns]
    return max((ns_to_ms(b.start_ns - a.end_ns) for a, b in pairwise(pieces)), default=0.0)

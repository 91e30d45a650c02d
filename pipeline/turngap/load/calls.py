"""One caller's share of a step: it dials each call at its instant, whatever became of the others.

How a call is played is a `Player`'s: over a socket to a real agent, or anything in virtual time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from turngap.core.clock import NS_PER_S, Clock
from turngap.core.results import Turn
from turngap.load.record import LoadTurn, Missed
from turngap.load.schedule import Call, Step

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

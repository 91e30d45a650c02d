"""An agent of known capacity in virtual time, for load tests and for callers in a closed loop.

Everything but the agent is as in `turngap load`: the schedule, the dialling, the counting, the
figures and the search. A call takes no audio, so a search takes a second.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp
from typing import Literal

import numpy as np
from made_turns import made_turn

from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.core.stored import PacingRecord
from turngap.load.calls import Answered, MissedCallError, Played, play_step
from turngap.load.confirm import Evidence
from turngap.load.figures import at_once, cut_short, evidence_of, evidence_so_far, figures_of
from turngap.load.play import until_decided
from turngap.load.schedule import SETUP_S, Call, Shape, Step, held_for, turn_s
from turngap.load.search import TARGET, Pace, Probe, Search
from turngap.play.options import LOAD_MINUTES
from turngap.store.loads import StepFigures
from turngap.testing.virtual import LoopClock, in_virtual_time

HIGHEST = 32
WARM_UP_S, COOL_DOWN_S = 16.0, 20.0
# Five turns: 3 s of the person, a gap planned as what a rehearsal finds, 3 s of the agent.
SPOKEN_S, EXPECTED_GAP_S, REPLY_S = 3.0, 0.42, 3.0
TURNS = 5
_PERIOD_S = SPOKEN_S + EXPECTED_GAP_S + REPLY_S
SHAPE = Shape(
    "made",
    tuple(SETUP_S + SPOKEN_S + number * _PERIOD_S for number in range(TURNS)),
    SETUP_S + TURNS * _PERIOD_S,
)
PACE = Pace(turn_s([SHAPE]), WARM_UP_S + EXPECTED_GAP_S + REPLY_S)

# Light load on a machine like a developer's: a median of 420 ms, stragglers by themselves, and
# stalls that hit every reply that begins in them. Together 1.5 % of the turns are late.
MEDIAN_MS, SPREAD = 420.0, 0.15
STRAGGLERS = 0.008
STALLED_S, BETWEEN_STALLS_S = 0.5, 70.0
LATE_MS = (850.0, 2000.0)
SLOW_MS = 1500.0
BEYOND_MS = 15_000.0
_NOT_PACED = PacingRecord(packets=0, late_ms_p50=None, late_ms_max=None, starved=False)
# A caller that is kept waiting for longer gives up.
PATIENCE_S = 10.0

# What becomes of what exceeds the capacity: all replies are slow while there are more calls; the
# next call is refused; or its line is not open until another call has ended.
# `slows_beyond`: those calls alone are slow that begin while so many quick ones run.
Limit = Literal["slows", "slows_beyond", "refuses", "queues"]


@dataclass
class Agent:
    """Holds `capacity` calls at once; the same seed gives the same replies and stalls."""

    capacity: int
    limit: Limit
    random: np.random.Generator
    running: int = 0
    quick: int = 0
    _freed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _stall_s: float = 0.0

    async def opened(self) -> bool:
        """Take a call; return whether it is beyond what the agent holds.

        Raises:
            MissedCallError: it is refused, or no one has taken it for too long.
        """
        if self.limit == "refuses" and self.running >= self.capacity:
            raise MissedCallError("refused", f"all {self.capacity} seats are taken")
        if self.limit == "queues":
            try:
                async with asyncio.timeout(PATIENCE_S), self._freed:
                    await self._freed.wait_for(lambda: self.running < self.capacity)
                    self.running += 1
            except TimeoutError:
                raise MissedCallError("late_start", "nobody took the call") from None
        else:
            self.running += 1
        beyond = self.limit == "slows_beyond" and self.quick >= self.capacity
        self.quick += not beyond
        return beyond

    async def closed(self, beyond: bool) -> None:
        """Forget a caller that has hung up."""
        self.running -= 1
        self.quick -= not beyond
        async with self._freed:
            self._freed.notify()

    def gap_ms(self, at_s: float) -> float:
        """Return the time that the agent takes for the reply to what ended at this instant."""
        if self.limit != "slows_beyond" and self.running > self.capacity:
            return SLOW_MS * exp(SPREAD * self.random.standard_normal())
        if self.random.random() < STRAGGLERS or self._stalled(at_s):
            return self.random.uniform(*LATE_MS)
        return MEDIAN_MS * exp(SPREAD * self.random.standard_normal())

    def _stalled(self, at_s: float) -> bool:
        while at_s > self._stall_s + STALLED_S:
            self._stall_s += STALLED_S + self.random.exponential(BETWEEN_STALLS_S)
        return at_s >= self._stall_s > 0


class AgentPlayer:
    """Plays calls to an agent, each person speaking when the agent has had its say."""

    def __init__(self, agent: Agent, clock: LoopClock) -> None:
        self._agent = agent
        self._clock = clock

    async def play(
        self, call: Call, dialled_ns: int, on_open: Callable[[], None]
    ) -> AsyncGenerator[Answered]:
        """Play a call: a `turngap.load.calls.Player`.

        Raises:
            MissedCallError: the agent did not take it.
        """
        beyond = await self._agent.opened()
        on_open()
        try:
            begins_ns = dialled_ns + round(SETUP_S * NS_PER_S)
            waited_ns = max(0, self._clock.now_ns() - begins_ns)
            spoken_ns = begins_ns + waited_ns + round(SPOKEN_S * NS_PER_S)
            for number in range(1, len(call.counted) + 1):
                await self._clock.sleep_until_ns(spoken_ns)
                gap_ms = BEYOND_MS if beyond else self._agent.gap_ms(spoken_ns / NS_PER_S)
                over_ns = spoken_ns + ms_to_ns(gap_ms) + round(REPLY_S * NS_PER_S)
                await self._clock.sleep_until_ns(over_ns)
                turn = made_turn(SHAPE.scenario, number, gap_ms, _NOT_PACED)
                yield Answered(turn, waited_ns / 1e6 if number == 1 else 0.0)
                spoken_ns = over_ns + round(SPOKEN_S * NS_PER_S)
        finally:
            await self._agent.closed(beyond)


def held_open_loop(
    capacity: int,
    limit: Limit,
    probe: Probe,
    *seed: int,
    decided: Callable[[Evidence], bool] = lambda _: False,
) -> StepFigures:
    """Hold a level as `turngap load` does, until that is decided, and count as it does."""
    window, calls = held_for(
        [SHAPE],
        probe.sessions,
        probe.turns,
        seed[0] * 1000 + seed[-1],
        warm_up_s=WARM_UP_S,
        cool_down_s=COOL_DOWN_S,
    )
    step = Step(1, probe.sessions, window, calls)

    async def main() -> StepFigures:
        clock, random = LoopClock(), np.random.default_rng((probe.sessions, *seed))
        player = AgentPlayer(Agent(capacity, limit, random), clock)
        so_far = Played()
        played = await until_decided(
            play_step(step, player, clock, so_far.take),
            so_far,
            lambda: decided(evidence_so_far(step, so_far.turns, DEFAULT_BUDGET_MS)),
        )
        counted = [turn for turn in played.turns if turn.counted]
        measured = cut_short(step, counted)
        return figures_of(
            measured,
            counted,
            budget_ms=DEFAULT_BUDGET_MS,
            target=TARGET,
            at_once=at_once(played.marks, measured.window),
        )

    return in_virtual_time(main())


@dataclass(frozen=True)
class Trial:
    """A search that has ended, what it played, and how long that takes in real time."""

    search: Search
    steps: Sequence[StepFigures]
    seconds: float

    @property
    def sessions(self) -> int:
        """Return the certified level; 0: none."""
        return self.search.certificate().sessions or 0

    @property
    def turns(self) -> int:
        return sum(step.turns for step in self.steps)


def searched(capacity: int, seed: int, limit: Limit = "slows", highest: int = HIGHEST) -> Trial:
    """Search for the most sessions that an agent of this capacity holds."""
    search = Search(highest, PACE, most_s=60 * LOAD_MINUTES)
    steps, seconds = list[StepFigures](), 0.0
    while (probe := search.next()) is not None:
        decided = partial(search.decided, probe)
        steps.append(held_open_loop(capacity, limit, probe, seed, len(steps), decided=decided))
        seconds += PACE.step_s + steps[-1].seconds
        search.observe(probe, evidence_of(steps[-1]))
    return Trial(search, steps, seconds)


def held_closed_loop(
    capacity: int, limit: Limit, callers: int, seconds: float, seed: int
) -> list[float]:
    """Return what callers in a closed loop measure: the gaps of those who got through, in ms.

    Each begins its next call when its last one has ended; one that is refused tries again a second
    later and is forgotten, and a gap counts from when the person really spoke.
    """

    async def main() -> list[float]:
        clock, random = LoopClock(), np.random.default_rng((callers, seed))
        agent, gaps = Agent(capacity, limit, random), list[float]()
        player, until_ns = AgentPlayer(agent, clock), round((WARM_UP_S + seconds) * NS_PER_S)

        async def caller(begins_s: float) -> None:
            await clock.sleep_until_ns(round(begins_s * NS_PER_S))
            while clock.now_ns() < until_ns:
                call = Call(1, 0.0, 0, SHAPE, (True,) * TURNS)
                try:
                    async for answered in player.play(call, clock.now_ns(), lambda: None):
                        if WARM_UP_S * NS_PER_S <= clock.now_ns() < until_ns:
                            gaps.append(answered.turn.gap_ms or 0.0)
                except MissedCallError:
                    await clock.sleep_until_ns(clock.now_ns() + NS_PER_S)

        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(number * PACE.turn_s / callers))
        return gaps

    return in_virtual_time(main())


def on_time(gaps_ms: Sequence[float]) -> float:
    """Return the share of these gaps that are within the budget."""
    return sum(gap <= DEFAULT_BUDGET_MS for gap in gaps_ms) / len(gaps_ms) if gaps_ms else 0.0

"""Calls on a fleet: thousands of conversations in virtual time, none of them slept through."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turngap.core.errors import InputError
from turngap.fleet.workload import Calls, Ps, Workload, draw_calls
from turngap.inference.engine import Engine, Policy, Request
from turngap.inference.server import PS_PER_MS, PS_PER_S, Server, StepCosts

Routing = Literal["sticky", "least-busy"]
ROUTINGS: tuple[Routing, ...] = ("sticky", "least-busy")

# Turns in flight at the end of the measured time get so long to be answered; what is not by then
# counts as later than any that was.
DRAIN_S = 20.0
# Later than any instant here.
_NEVER_PS = 1 << 62


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas.

    Attributes:
        part_hour_usd: price of one accelerator for one hour; None if not known.
    """

    server: Server
    policy: Policy
    replicas: int = 1
    part_hour_usd: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 10_000:
            raise InputError("simulate.replicas", f"{self.replicas} replicas, expected 1 to 10000")
        if self.part_hour_usd is not None and not 0 <= self.part_hour_usd < 1e6:
            raise InputError(
                "simulate.price", f"{self.part_hour_usd!r} USD an hour, expected 0 or more"
            )

    @property
    def parts(self) -> int:
        return self.replicas * self.server.parts


@dataclass(frozen=True, slots=True)
class Fleet:
    """All servers that answer.

    Attributes:
        routing: `sticky` keeps a call on the replica that had the fewest calls when it began;
            `least-busy` sends each request to the replica with the fewest requests.
        prefix_cache: whether replicas keep a conversation's computed prompt for its next turn.
    """

    pools: Sequence[Pool]
    routing: Routing = "sticky"
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if not self.pools:
            raise InputError("simulate.fleet", "a fleet without replicas")
        if self.routing not in ROUTINGS:
            raise InputError(
                "simulate.routing",
                f"routing {self.routing!r}",
                hint=f"allowed: {', '.join(ROUTINGS)}",
            )

    @property
    def parts(self) -> int:
        return sum(pool.parts for pool in self.pools)

    @property
    def hour_usd(self) -> float | None:
        """Return the price of all parts an hour; None if a pool's price is not known."""
        total = 0.0
        for pool in self.pools:
            if pool.part_hour_usd is None:
                return None
            total += pool.parts * pool.part_hour_usd
        return total


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a fleet, and its duration.

    Attributes:
        calls: average simultaneous calls, if the LLM took as long as it takes when idle.
        seconds: virtual time that is measured, after `settle_s` that are not.
    """

    calls: float
    seconds: float
    settle_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the turns that began in the measured time.

    Attributes:
        gap_ms: turn gap of each answered turn, in the order of the answers.
        at_s: when the request of each of these turns was made, from the start of the measured time.
        llm_ms: the LLM's part of each gap.
        unanswered_s: request times of the turns without an answer `DRAIN_S` after the end.
        seconds: virtual time that was measured.
        calls: actual simultaneous calls, on average.
        busy: share of the time in which a replica worked, on average over replicas.
        batch: sequences in a decode step, on average.
        hit: share of the prompts' tokens that the prefix caches spared.
    """

    gap_ms: NDArray[np.float64]
    at_s: NDArray[np.float64]
    llm_ms: NDArray[np.float64]
    unanswered_s: NDArray[np.float64]
    seconds: float
    calls: float
    busy: float
    batch: float | None
    hit: float

    @property
    def turns(self) -> int:
        return len(self.gap_ms) + len(self.unanswered_s)


def idle_turn_ms(fleet: Fleet, workload: Workload) -> float:
    """Return the mean time, over the samples, that an idle LLM takes to an opening."""
    total = 0.0
    for pool in fleet.pools:
        costs = StepCosts(pool.server)
        for sample in workload.samples:
            prompt = workload.system_tokens + sample.user_tokens
            first = costs.step_ps(0, 0, prompt, 0, prompt * (prompt + 1) // 2, prompts=1)
            more = costs.step_ps(1, prompt) * (sample.opening_tokens - 1)
            if pool.server.speculation:
                more = round(more / pool.server.speculation.tokens_per_step)
            total += (first + more) / PS_PER_MS * pool.replicas / len(workload.samples)
    return total / sum(pool.replicas for pool in fleet.pools)


def simulate(
    fleet: Fleet,
    workload: Workload,
    load: Load,
    *,
    seed: int = 1,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Outcome:
    """Play one load and measure it. The same arguments give the same outcome, to the last bit.

    With the same seed, the calls of different loads are the same calls, arriving at another rate,
    so only the load differs. `on_progress` receives the share that is done.

    Raises:
        InputError: a server has no room for the longest conversation.
    """
    # Nothing here refers to itself; looking for what does took a tenth of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Run(fleet, workload, load, seed).play(on_progress)
    finally:
        if collects:
            gc.enable()


class _Replica(Engine):
    """An engine that takes turns as they are due, and returns the answered ones."""

    def __init__(
        self, server: Server, policy: Policy, calls: Calls, *, prefix_cache: bool, shared: int
    ) -> None:
        super().__init__(server, policy, prefix_cache=prefix_cache, shared=shared)
        self._calls = calls

    def expect_turns(self, turns: Ps, at_ps: Ps) -> None:
        """Take requests of these turns, in the order in which they come."""
        calls = self._calls
        columns = (calls.prompt, calls.output, calls.opening, calls.call)
        rows = zip(*(c[turns].tolist() for c in columns), turns.tolist(), strict=True)
        self.expect([Request(*row) for row in rows], at_ps.tolist())

    def take_opened(self) -> tuple[Ps, Ps, Ps]:
        """Return the turns opened since the last call, in order, with their arrivals and openings.

        The instants are in ps.
        """
        opened = self.opened
        self.opened = []
        return (
            _whole([r.tag for r in opened]),
            _whole([r.arrived_ps for r in opened]),
            _whole([r.opening_ps for r in opened]),
        )

    @property
    def unopened_ps(self) -> list[int]:
        """Return the arrivals of the requests that have no opening yet."""
        return [r.arrived_ps for r in self.unopened()]


def _whole(numbers: Sequence[int]) -> Ps:
    return np.array(numbers, dtype=np.int64)


class _Run:
    """One simulation, played in windows.

    Between the starts of two windows no reply can lead to another request. All requests of a window
    are therefore known when it begins: they are sorted once, and each replica is played on its own.
    """

    def __init__(self, fleet: Fleet, workload: Workload, load: Load, seed: int) -> None:
        self._load = load
        for pool in fleet.pools:
            if pool.server.kv_tokens < workload.longest_tokens:
                raise InputError(
                    "simulate.context",
                    f"the longest call comes to {workload.longest_tokens} tokens, a replica has "
                    f"room for {pool.server.kv_tokens}",
                    hint="shorter calls, more accelerators a replica, or fewer bits",
                )
        self._window_ps = workload.least_turn_ps
        self._begin_ps = round(load.settle_s * PS_PER_S)
        self._end_ps = self._begin_ps + round(load.seconds * PS_PER_S)
        self._stop_ps = self._end_ps + round(DRAIN_S * PS_PER_S)
        call_s = (workload.mean_turn_ms + idle_turn_ms(fleet, workload)) * workload.turns / 1000
        calls = _calls(workload, load.calls, load.calls / call_s, self._stop_ps, seed)
        self._calls = calls
        self._sticky = fleet.routing == "sticky"
        self._replicas = [
            _Replica(
                pool.server,
                pool.policy,
                calls,
                prefix_cache=fleet.prefix_cache,
                shared=workload.system_tokens,
            )
            for pool in fleet.pools
            for _ in range(pool.replicas)
        ]
        # Requests to come: instants and turns.
        self._due_ps = np.empty(0, dtype=np.int64)
        self._due = np.empty(0, dtype=np.int64)
        self._begun = 0
        self._on = np.zeros(len(self._calls.first), dtype=np.int64)
        self._calls_on = [0] * len(self._replicas)
        self._call_end_ps = np.full(len(self._on), _NEVER_PS, dtype=np.int64)
        # Calls whose end is known and not counted yet.
        self._ending = np.empty(0, dtype=np.int64)
        # Of each window: turns that were answered, and two of their instants.
        self._answered: list[tuple[Ps, Ps, Ps]] = []

    def play(self, on_progress: Callable[[float], None]) -> Outcome:
        at_ps = 0
        spent: list[NDArray[np.float64]] = []
        for until_ps in (self._begin_ps, self._end_ps, self._stop_ps):
            while at_ps < until_ps:
                next_ps = min(at_ps + self._window_ps, until_ps)
                self._window(next_ps)
                at_ps = next_ps
                on_progress(at_ps / self._stop_ps)
            spent.append(self._spent())
        return self._outcome(spent[1] - spent[0])

    def _window(self, until_ps: int) -> None:
        self._begin_calls(until_ps)
        now = self._due_ps < until_ps
        ats, turns = self._due_ps[now], self._due[now]
        self._due_ps, self._due = self._due_ps[~now], self._due[~now]
        order = np.argsort(ats, kind="stable")
        ats, turns = ats[order], turns[order]
        if self._sticky:
            on = self._on[self._calls.call[turns]]
            for index, replica in enumerate(self._replicas):
                mine = np.flatnonzero(on == index)
                replica.expect_turns(turns[mine], ats[mine])
        else:
            for number, at_ps in enumerate(ats.tolist()):
                for replica in self._replicas:
                    replica.advance(at_ps)
                one = slice(number, number + 1)
                min(self._replicas, key=attrgetter("load")).expect_turns(turns[one], ats[one])
        for replica in self._replicas:
            replica.advance(until_ps)
            self._answer(*replica.take_opened())

    def _begin_calls(self, until_ps: int) -> None:
        calls = self._calls
        end = int(np.searchsorted(calls.start_ps, until_ps))
        new = np.arange(self._begun, end)
        self._begun = end
        over = self._call_end_ps[self._ending] < until_ps
        if len(self._replicas) > 1:
            self._place(new, self._ending[over])
        self._ending = self._ending[~over]
        first = calls.first[new]
        self._expect(calls.start_ps[new] + calls.lead_ps[first], first)

    def _place(self, new: Ps, over: Ps) -> None:
        """Put each call on the replica with the fewest calls, after finished calls have left."""
        for replica in self._on[over].tolist():
            self._calls_on[replica] -= 1
        for call in new.tolist():
            replica = self._calls_on.index(min(self._calls_on))
            self._calls_on[replica] += 1
            self._on[call] = replica

    def _expect(self, at_ps: Ps, turns: Ps) -> None:
        self._due_ps = np.concatenate((self._due_ps, at_ps))
        self._due = np.concatenate((self._due, turns))

    def _answer(self, turns: Ps, arrived_ps: Ps, opened_ps: Ps) -> None:
        """Note the openings, and when each call continues or ends."""
        calls = self._calls
        self._answered.append((turns, arrived_ps, opened_ps))
        over_ps = opened_ps + calls.tail_ps[turns]
        of = calls.call[turns]
        last = turns == calls.last[of]
        self._call_end_ps[of[last]] = over_ps[last]
        self._ending = np.concatenate((self._ending, of[last]))
        following = turns[~last] + 1
        self._expect(over_ps[~last] + calls.lead_ps[following], following)

    def _mean_calls(self) -> float:
        start_ps = np.maximum(self._calls.start_ps[: self._begun], self._begin_ps)
        end_ps = np.minimum(self._call_end_ps[: self._begun], self._end_ps)
        there_ps = np.maximum(end_ps - start_ps, 0).sum()
        return float(there_ps / (self._end_ps - self._begin_ps))

    def _spent(self) -> NDArray[np.float64]:
        """Sum the replicas: busy time, steps, their sequences, prompt tokens done and spared."""
        each = [replica.spent for replica in self._replicas]
        return np.array(each, dtype=np.float64).sum(axis=0)

    def _outcome(self, spent: NDArray[np.float64]) -> Outcome:
        busy, steps, sequences, prefilled, spared = spent
        seconds = self._load.seconds
        turns, arrived_ps, opened_ps = (
            np.concatenate([part[i] for part in self._answered] or [np.empty(0, dtype=np.int64)])
            for i in range(3)
        )
        measured = (arrived_ps >= self._begin_ps) & (arrived_ps < self._end_ps)
        llm_ms = (opened_ps - arrived_ps)[measured] / PS_PER_MS
        fixed_ms = self._calls.fixed_ps[turns[measured]] / PS_PER_MS
        waiting = sorted(at_ps for replica in self._replicas for at_ps in replica.unopened_ps)
        left = np.array([at for at in waiting if self._begin_ps <= at < self._end_ps], dtype=float)
        return Outcome(
            gap_ms=llm_ms + fixed_ms,
            at_s=(arrived_ps[measured] - self._begin_ps) / PS_PER_S,
            llm_ms=llm_ms,
            unanswered_s=(left - self._begin_ps) / PS_PER_S,
            seconds=seconds,
            calls=self._mean_calls(),
            busy=float(busy / (PS_PER_S * seconds * len(self._replicas))),
            batch=float(sequences / steps) if steps else None,
            hit=float(spared / (spared + prefilled)) if spared + prefilled else 0.0,
        )


def _calls(workload: Workload, at_once: float, rate: float, stop_ps: int, seed: int) -> Calls:
    """Draw the calls that are under way at first and those that arrive, independent of all else.

    On average `at_once` are under way, and `rate` arrive a second.
    """
    random = np.random.default_rng([seed, 2])
    waiting = int(random.poisson(at_once))
    under_way = draw_calls(workload, seed, np.zeros(waiting, dtype=np.int64), under_way=True)
    # The same sequence of gaps at any rate, stretched; a margin of six sigma reaches the end.
    expected = rate * stop_ps / PS_PER_S
    gaps = np.random.default_rng([seed, 3]).exponential(
        PS_PER_S / rate, size=int(expected + 6 * expected**0.5 + 10)
    )
    start_ps = np.cumsum(gaps).astype(np.int64)
    coming = draw_calls(workload, seed, start_ps[start_ps < stop_ps], under_way=False)
    return under_way + coming

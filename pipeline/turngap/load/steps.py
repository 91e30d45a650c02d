"""Steps played by callers in processes of their own, and what their turns say of the callers."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http.client import HTTPException
from math import ceil
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, build_opener

import psutil

from turngap.caller.endpoint import Endpoint
from turngap.core.clock import NS_PER_S, Clock
from turngap.load.calls import OVERTIME_S, CallMark, News, Played, missed_turns
from turngap.load.plan import LoadPlan
from turngap.load.record import LoadTurn, StepFigures
from turngap.load.schedule import Call, Step, Window, shares
from turngap.load.share import Share, play_share
from turngap.workers.base import Executor, Lost, Told

# So many took 0.40 of a core, were 0.7 ms late (p99) and heard gaps to 0.27 (p50) and 0.81 ms (p99,
# n = 316) on two quiet cores; twice as many took 0.62 (`benchmarks/caller_capacity.py`). The rest
# is to spare, since a caller that is late makes the whole step void.
SESSIONS_PER_CALLER = 50
# A caller that has told nothing for so long after it should have been done is lost.
GRACE_S = 60.0
# Between two steps an agent of ours is asked how many sessions it still has, for so long at most.
LONGEST_ENDING_S = 15.0
ASK_TIMEOUT_S = 2.0
MOST_ANSWER_BYTES = 4096


def callers_for(plan: LoadPlan) -> int:
    """Count the processes that call: as many as the sessions need, but at most one a core."""
    if plan.callers is not None:
        return plan.callers
    needed = ceil(plan.most_sessions / SESSIONS_PER_CALLER)
    # Those of a cluster are on other machines, which have cores of their own.
    most = needed if plan.on == "ray" else psutil.cpu_count() or 1
    return max(1, min(needed, most))


async def sessions_over(endpoint: Endpoint, clock: Clock) -> None:
    """Wait until an agent of ours has no session left, for `LONGEST_ENDING_S` at most."""
    until_ns = clock.now_ns() + round(LONGEST_ENDING_S * NS_PER_S)
    while clock.now_ns() < until_ns and await asyncio.to_thread(_sessions, endpoint.url):
        await clock.sleep_until_ns(clock.now_ns() + NS_PER_S // 4)


def _sessions(url: str) -> int:
    """Ask the agent at a URL how many sessions it has; 0 if it does not say."""
    page = urlsplit(url)._replace(scheme="http", path="/healthz", query="")
    directly = build_opener(ProxyHandler({}))
    try:
        with directly.open(urlunsplit(page), timeout=ASK_TIMEOUT_S) as answer:
            sessions = json.loads(answer.read(MOST_ANSWER_BYTES))["sessions"]
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return 0
    return sessions if isinstance(sessions, int) else 0


@dataclass(frozen=True, slots=True)
class Callers:
    """Plays steps over an executor: a `turngap.load.calls.PlayStep`.

    Attributes:
        greeting_ms: how long the agent has to greet.
        on_said: is told each thing that a caller tells, as it comes.
        headers: returns further ones that each call of a step is opened with, by its number.
    """

    plan: LoadPlan
    endpoint: Endpoint
    executor: Executor
    greeting_ms: float = 0.0
    on_said: Callable[[News], None] = lambda _: None
    headers: Callable[[Step], Mapping[int, tuple[str, ...]]] = lambda _: {}

    async def play(self, step: Step) -> Played:
        """Play a step. The turns of a caller that is lost are missed ones, and say why.

        Raises:
            AgentError: no caller can be started.
        """
        dealt = shares(step, self._callers(step))
        headers = self.headers(step)
        untold = [_Untold(calls) for calls in dealt]
        played = Played()

        def take(said: News) -> None:
            played.take(said)
            self.on_said(said)

        def lose(piece: int, why: str) -> None:
            for turn in untold[piece].lost(step.number, why):
                take(turn)

        try:
            async with asyncio.timeout(_longest_s(step)):
                pieces = [self._share(step, calls, headers) for calls in dealt]
                async with aclosing(self.executor.run(play_share, pieces)) as told:
                    async for each in told:
                        if isinstance(each, Told):
                            untold[each.piece].tell(each.said)
                            take(each.said)
                        elif isinstance(each, Lost):
                            lose(each.piece, each.why)
        except TimeoutError:
            for piece in range(len(dealt)):
                lose(piece, "the caller's process did not end in time")
        return played

    def _callers(self, step: Step) -> int:
        if self.plan.callers is not None or step.sessions is None:
            return self.executor.workers
        return min(self.executor.workers, ceil(step.sessions / SESSIONS_PER_CALLER))

    def _share(
        self, step: Step, calls: tuple[Call, ...], headers: Mapping[int, tuple[str, ...]]
    ) -> Share:
        return Share(
            step=step.number,
            calls=calls,
            endpoint=self.endpoint,
            scenarios=tuple(self.plan.scenarios),
            budget_ms=self.plan.pass_ms,
            starved_ms=self.plan.starved_ms,
            greeting_ms=self.greeting_ms,
            greeted_s=self.plan.greeted_s,
            until_s=step.until_s,
            variables=self.endpoint.variables(),
            headers={c.number: headers[c.number] for c in calls if c.number in headers},
        )


class _Untold:
    """Which turns that count a caller has not told yet."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = {call.number: call for call in calls}
        self._told: dict[int, list[int]] = {number: [] for number in self._calls}

    def tell(self, said: News) -> None:
        if isinstance(said, LoadTurn):
            self._told[said.call].append(said.turn)

    def lost(self, step: int, why: str) -> list[LoadTurn]:
        """Return what will not be told any more, as missed turns."""
        missed: list[LoadTurn] = []
        for number, call in self._calls.items():
            turns = missed_turns(step, call, self._told[number], "worker_lost", why)
            missed += [turn for turn in turns if turn.counted]
            self._told[number] += [turn.turn for turn in turns]
        return missed


def _longest_s(step: Step) -> float:
    longest_s = max((call.shape.length_s for call in step.calls), default=0.0)
    return step.window.whole_s + longest_s + OVERTIME_S + GRACE_S


def at_once(marks: Sequence[CallMark], window: Window) -> tuple[float, int]:
    """Count the calls at the same time in the measured window: mean and maximum."""
    running = most = 0
    area, since_s = 0.0, window.warm_up_s
    for mark in [*sorted(marks, key=lambda m: m.at_s), CallMark(0, window.end_s, running=False)]:
        at_s = min(max(mark.at_s, window.warm_up_s), window.end_s)
        if at_s > since_s:
            area, most = area + running * (at_s - since_s), max(most, running)
        since_s = at_s
        running += 1 if mark.running else -1
    return area / window.measured_s, most


def pooled_at_once(steps: Sequence[StepFigures]) -> tuple[float, int] | None:
    """Pool over several steps how many calls ran at the same time; None without a step."""
    whole_s = sum(step.seconds for step in steps)
    if not whole_s:
        return None
    mean = sum(step.at_once[0] * step.seconds for step in steps) / whole_s
    return mean, max(step.at_once[1] for step in steps)


def why_void(turns: Sequence[LoadTurn], starved_ms: float, late_ms: float | None) -> str | None:
    """Return why the step is void and does not measure the agent; None if it does.

    A single late packet does not: a turn has a hundred of them, and the kernel stamps what comes
    while the event loop is late. What it does to a gap is to make it read longer, never shorter, so
    that no turn is on time for it.

    Args:
        turns: those that count.
        starved_ms: how late the caller may be.
        late_ms: p99 of how late it was.
    """
    if lost := sorted({turn.why or "" for turn in turns if turn.missed == "worker_lost"}):
        return f"a caller was lost: {lost[0]}"
    if late_ms is not None and late_ms > starved_ms:
        return (
            f"the caller was late by {late_ms:.1f} ms (p99), over {starved_ms:g} ms: it needs a "
            "quieter machine, more processes (--callers) or another machine (--on ray)"
        )
    return None

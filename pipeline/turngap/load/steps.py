"""Play the calls of a load test: some alone to see how long replies are, then step by step.

The steps have callers in processes of their own, and some of their calls are traced.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from math import ceil
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, build_opener

import psutil

from turngap.caller.connection import HUNG_UP, Line
from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import AgentError
from turngap.load.calls import (
    NOT_COMPARED,
    OVERTIME_S,
    News,
    Played,
    Share,
    missed_turns,
    play_share,
)
from turngap.load.plan import REHEARSED_S, LoadPlan, Waits, awaits_reply, rehearsed
from turngap.load.schedule import SETUP_S, Call, Step, shares
from turngap.play.plan import expected_turns_ms
from turngap.play.target import Target
from turngap.play.turns import Greetings, cues_of
from turngap.scenario.library import LoadedScenario
from turngap.store.loads import LoadTurn
from turngap.telemetry import Recorder, Telemetry
from turngap.workers.pool import Executor, Lost, Result

# --- rehearsal ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The figures of calls that were made alone.

    Attributes:
        dialect, rate: the line's dialect, and the sample rate of the person's audio in Hz.
        greeting_ms: time for the agent to greet in each call.
        greeted_s: how much later the person begins because of the greeting.
        waits: how long the agent takes for its replies.
    """

    dialect: str
    rate: int
    greeting_ms: float
    greeted_s: float
    waits: Waits = field(default_factory=Waits)


async def rehearse(
    plan: LoadPlan,
    opens: Callable[[Clock], AbstractAsyncContextManager[Line]],
    *,
    clock: Clock | None = None,
    watch: Clock | None = None,
) -> Rehearsed:
    """Play the first scenario, and more of them while there is time, one call after the other.

    Args:
        plan: the plan of the test.
        opens: opens a line to the agent.
        clock: replaces the real clock.
        watch: as in `Conversation`.

    Raises:
        AgentError: the agent cannot be reached, or hangs up in its first turn.
    """
    rehearsal = _Rehearsal(plan, opens, clock or MonotonicClock(precise=True), watch)
    scenarios = plan.scenarios[: rehearsed(plan.shapes)]
    try:
        async with asyncio.timeout(REHEARSED_S):
            for scenario in scenarios:
                await rehearsal.call(scenario)
            while not rehearsal.greetings.decided:  # the first greeting may come too late
                await rehearsal.call(scenarios[0])
    except TimeoutError:
        pass  # what was seen by then says how long its replies are
    except AgentError:
        if not rehearsal.answers:
            raise
    return rehearsal.found()


@dataclass(slots=True)
class RehearsedCall:
    """A call alone.

    Attributes:
        turns: the turns that were played.
        over_ns: when the call was over; None if it broke off.
    """

    scenario: LoadedScenario
    turns: list[PlayedTurn] = field(default_factory=list[PlayedTurn])
    over_ns: int | None = None

    def waits_s(self, usual_ns: int) -> list[float | None]:
        """Return the time from each turn's end to the next turn's start; None if unknown.

        The times are as if the agent had answered after the usual gap.
        """
        waits_s: list[float | None] = [None] * len(self.scenario.scenario.turns)
        begun_ns = [*(turn.window[0] for turn in self.turns[1:]), self.over_ns]
        for played, next_ns, awaits in zip(
            self.turns, begun_ns, awaits_reply(self.scenario), strict=False
        ):
            turn = played.turn
            if next_ns is None or (awaits and (turn.gap_ns is None or turn.ended == "timeout")):
                continue  # nothing, or not the reply that it owes
            late_ns = (turn.gap_ns or 0) - usual_ns if awaits else 0
            waits_s[turn.turn - 1] = (next_ns - turn.user_end_ns - late_ns) / NS_PER_S
        return waits_s


class _Rehearsal:
    """The calls that are rehearsed, and the figures learnt from them."""

    def __init__(
        self,
        plan: LoadPlan,
        opens: Callable[[Clock], AbstractAsyncContextManager[Line]],
        clock: Clock,
        watch: Clock | None,
    ) -> None:
        self._plan = plan
        ours = not plan.agent.choice.is_url
        self.greetings = Greetings(0.0 if ours and plan.greeting_ms is None else plan.greeting_ms)
        self._opens = opens
        self._clock = clock
        self._watch = watch
        self.dialect = ""
        self._rate = 0
        self._greeted_s: list[float] = []
        self._calls: list[RehearsedCall] = []

    @property
    def answers(self) -> bool:
        """Return whether any turn reached its end."""
        return any(t.turn.ended != "line_lost" for call in self._calls for t in call.turns)

    async def call(self, scenario: LoadedScenario) -> None:
        """Play a conversation as in a measured call.

        Raises:
            AgentError: the line cannot be opened, or is lost.
        """
        begins_ns = self._clock.now_ns() + round(SETUP_S * NS_PER_S)
        self._calls.append(call := RehearsedCall(scenario))
        async with self._opens(self._clock) as line:
            self.dialect, self._rate = line.dialect, line.rate
            conversation = Conversation(
                line,
                cues_of(scenario, rate=line.rate),
                self._clock,
                offset=NOT_COMPARED,
                patience=self._plan.patience(self.greetings.wait_ms),
                begins_ns=begins_ns,
                watch=self._watch,
            )
            async with aclosing(conversation.play()) as turns:
                async for turn in turns:
                    call.turns.append(turn)
                    if turn.turn.turn == 1:
                        self._begun(conversation, begins_ns)
        failure = conversation.failure
        whole = len(call.turns) == len(scenario.scenario.turns)
        if failure is None or (failure.kind == HUNG_UP and whole):
            call.over_ns = self._clock.now_ns()
        else:
            raise failure

    def _begun(self, conversation: Conversation, begins_ns: int) -> None:
        # A given greeting time is waited for in each call, and a slow line opens late in each.
        if conversation.greeted or self._plan.greeting_ms or self._plan.line:
            self._greeted_s.append(max(0.0, (conversation.ready_ns - begins_ns) / NS_PER_S))
        self.greetings.take(greeted=conversation.greeted, cut_in=False)

    def found(self) -> Rehearsed:
        """Summarise the rehearsal. The first greeting may be late because the agent is cold."""
        wait_ms = self.greetings.wait_ms if self._greeted_s else 0.0
        greeted_s = min(self._greeted_s) if wait_ms or self._plan.line else 0.0
        return Rehearsed(self.dialect, self._rate, wait_ms, greeted_s, waits_of(self._calls))


def waits_of(calls: Sequence[RehearsedCall]) -> Waits:
    """Estimate how long an agent takes for its replies.

    A cold agent's first replies take longer than all later ones, so the gap of each turn is
    replaced by the median of all.
    """
    gaps_ns = [
        gap_ns for call in calls for t in call.turns if (gap_ns := t.turn.gap_ns) is not None
    ]
    usual_ns = round(median(gaps_ns)) if gaps_ns else 0
    expected_s = found_s = 0.0
    for call in calls:
        expected = zip(expected_turns_ms(call.scenario), awaits_reply(call.scenario), strict=True)
        for found, ((_, wait_ms), awaits) in zip(call.waits_s(usual_ns), expected, strict=True):
            if found is not None and awaits:
                expected_s, found_s = expected_s + wait_ms / 1000, found_s + found
    waits = Waits(pace=found_s / expected_s if expected_s > 0 and found_s > 0 else 1.0)
    measured: dict[str, tuple[float, ...]] = {}
    for call in calls:
        both = zip(call.waits_s(usual_ns), waits.of(call.scenario), strict=True)
        name = call.scenario.scenario.name
        measured[name] = tuple(other if found is None else found for found, other in both)
    return replace(waits, measured_s=measured)


# --- steps ----------------------------------------------------------------------------------------

# This many took 0.40 of a core, were 0.7 ms late (p99) and heard gaps to 0.27 (p50) and 0.81 ms
# (p99, n = 316) on two quiet cores; twice as many took 0.62 (`benchmarks/caller_capacity.py`). The
# rest is to spare, since a caller that is late makes the whole step void.
SESSIONS_PER_CALLER = 50
# A caller that has reported nothing for this long after its expected end is lost.
GRACE_S = 60.0
# Between two steps an agent of ours is asked how many sessions it still has, at most for this long.
LONGEST_ENDING_S = 15.0
ASK_TIMEOUT_S = 2.0
MOST_ANSWER_BYTES = 4096
# This many calls of each step have a trace. An agent that traces makes ten spans a turn, and a load
# test of a thousand turns a second must not send ten thousand of them.
TRACED_CALLS = 20


def callers_for(plan: LoadPlan) -> int:
    """Return how many processes call: as many as the sessions need, but at most one a core."""
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
    """A player of steps over an executor.

    Attributes:
        greeting_ms: time for the agent to greet.
        on_news: receives each report of a caller, as it comes.
        headers: returns further headers that open each call of a step, by the call's number.
    """

    plan: LoadPlan
    endpoint: Endpoint
    executor: Executor
    greeting_ms: float = 0.0
    on_news: Callable[[News], None] = lambda _: None
    headers: Callable[[Step], Mapping[int, tuple[str, ...]]] = lambda _: {}

    async def play(self, step: Step) -> Played:
        """Play a step. If a caller is lost, its turns count as missed, with the reason.

        Raises:
            AgentError: no caller can be started.
        """
        dealt, headers = shares(step, self._callers(step)), self.headers(step)
        played, reported = Played(), defaultdict[int, list[int]](list)  # turns, by their call

        def take(news: News) -> None:
            if isinstance(news, LoadTurn):
                reported[news.call].append(news.turn)
            played.take(news)
            self.on_news(news)

        def lose(piece: int, why: str) -> None:
            for call in dealt[piece]:
                past = reported[call.number]
                for turn in missed_turns(step.number, call, past, "worker_lost", why):
                    if turn.counted:
                        take(turn)

        longest_s = max((call.shape.length_s for call in step.calls), default=0.0)
        try:
            async with asyncio.timeout(step.window.whole_s + longest_s + OVERTIME_S + GRACE_S):
                pieces = [self._share(step, calls, headers) for calls in dealt]
                async with aclosing(self.executor.run(play_share, pieces)) as reports:
                    async for report in reports:
                        if isinstance(report, Result):
                            take(report.value)
                        elif isinstance(report, Lost):
                            lose(report.piece, report.why)
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
            patience=self.plan.patience(self.greeting_ms),
            greeted_s=self.plan.greeted_s,
            until_s=step.until_s,
            line=self.plan.line,
            variables=self.endpoint.variables(),
            headers={c.number: headers[c.number] for c in calls if c.number in headers},
        )


class TracedSteps:
    """The telemetry of each step, made when it is over.

    Args:
        run: the name of the load test's folder.
        traces: whether the callers use this process's clock, as on one machine.
        about: attributes of every call, by turngap's names.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        run: str,
        target: Target,
        *,
        traces: bool = True,
        **about: Any,
    ) -> None:
        self._telemetry, self._run, self._traces = telemetry, run, traces
        self._about = about
        self._agent = target.choice.steady_name
        self._recorders: dict[int, Recorder] = {}

    def headers(self, step: Step, endpoint: Endpoint) -> Mapping[int, tuple[str, ...]]:
        """Return the headers of each call of a step that begins; most turn tracing off."""
        self.let_go()
        if not self._telemetry.on:
            return {}
        every = max(1, len(step.calls) // TRACED_CALLS)
        traced = step.calls[::every][:TRACED_CALLS] if self._traces else ()
        self._recorders = {
            call.number: self._telemetry.conversation(
                self._agent,
                MonotonicClock(),
                f"{self._run}/{step.number}/{call.number}",
                endpoint.host_and_port,
                begins_s=call.at_s,
                run=self._run,
                scenario=call.shape.scenario,
                repeat=1,
                phase_ms=0.0,
                call=call.number,
                step=step.number,
                sessions=step.sessions,
                dialect=endpoint.spec().name,
                **self._about,
            )
            for call in traced
        }
        recorded = {number: recorder.headers for number, recorder in self._recorders.items()}
        return {call.number: self._telemetry.untraced for call in step.calls} | recorded

    async def ended(self, turns: Sequence[LoadTurn]) -> None:
        """Trace and count the turns of the step that is over, and send them."""
        if not self._telemetry.on:
            return
        by_call = defaultdict[int, list[LoadTurn]](list)
        for turn in turns:
            by_call[turn.call].append(turn)
            if turn.counted and turn.missed is not None:
                self._telemetry.count_missed(self._agent, turn.missed)
            elif turn.counted and turn.played is not None and turn.call not in self._recorders:
                self._telemetry.count(self._agent, turn.played, waited_ms=turn.waited_ms)
        for call, recorder in self._recorders.items():
            instants: list[int] = []
            for turn in sorted(by_call[call], key=lambda turn: turn.turn):
                if turn.played is not None:
                    recorder.turn(turn.played, waited_ms=turn.waited_ms, counts=turn.counted)
                    instants += [mark.at_ns for mark in turn.played.marks]
                elif turn.missed is not None:
                    recorder.failed(f"{turn.missed}: {turn.why}", str(turn.missed))
            recorder.end(max(instants, default=None))
        self._recorders = {}
        await self._telemetry.between()

    def let_go(self, error: BaseException | None = None) -> None:
        """End the traces of a step that broke off, without their turns.

        Their agents may have traced them, under a span that would be missing.
        """
        for recorder in self._recorders.values():
            if error is not None:
                recorder.raised(error)
            recorder.end()
        self._recorders = {}

"""Play calls alone, before anything is measured, to see how long the agent's replies are."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from statistics import median

from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.line import HUNG_UP, Line
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import AgentError
from turngap.load.calls import NOT_COMPARED
from turngap.load.plan import REHEARSED_S, LoadPlan, Waits, awaits_reply, rehearsed
from turngap.load.schedule import SETUP_S
from turngap.play.plan import expected_turns_ms
from turngap.play.turns import Greetings, cues_of
from turngap.scenario.library import LoadedScenario


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
        """Return each turn's wait until the next, with the usual gap; None if not known."""
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
        # A given greeting time is waited for in each call.
        if conversation.greeted or self._plan.greeting_ms:
            self._greeted_s.append(max(0.0, (conversation.ready_ns - begins_ns) / NS_PER_S))
        self.greetings.take(greeted=conversation.greeted, cut_in=False)

    def found(self) -> Rehearsed:
        """Summarise the rehearsal. The first greeting may be late because the agent is cold."""
        wait_ms = self.greetings.wait_ms if self._greeted_s else 0.0
        greeted_s = min(self._greeted_s) if wait_ms else 0.0
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

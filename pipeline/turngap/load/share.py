"""What one caller process does of a step: it plays its share of the calls over real lines."""

import asyncio
import gc
import os
import resource
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

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
from turngap.core.results import OffsetRecord
from turngap.core.secrets import remember_secrets
from turngap.load.calls import Answered, CallerLate, MissedCallError, counted_ns, play_calls
from turngap.load.schedule import SETUP_S, Call
from turngap.play.cues import cues_of
from turngap.play.turn_record import turn_record
from turngap.scenario.library import LoadedScenario
from turngap.workers.base import Tell

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
    """Play a share and tell what `turngap.load.calls` tells: a `turngap.workers.base.Work`.

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

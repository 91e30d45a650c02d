"""A load test's telemetry: figures of all turns, traces of a few calls of each step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.load.record import LoadTurn
from turngap.load.schedule import Step
from turngap.play.target import Target
from turngap.telemetry.telemetry import (
    Telemetry,
    TracedConversation,
    conversation_about,
    error_type,
)

# This many calls of each step have a trace. An agent that traces makes ten spans a turn, and a load
# test of a thousand turns a second must not send ten thousand of them.
TRACED_CALLS = 20


class TracedSteps:
    """The telemetry of each step, made when it is over.

    Args:
        run: the name of the load test's folder.
        traces: whether the callers' clock is that of this process, as on one machine.
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
        self._agent = target.choice.shown
        self._traced: dict[int, TracedConversation] = {}

    def headers(self, step: Step, endpoint: Endpoint) -> Mapping[int, tuple[str, ...]]:
        """Return the headers of each call of a step that begins; most ask for no trace."""
        self.let_go()
        if not self._telemetry.on:
            return {}
        every = max(1, len(step.calls) // TRACED_CALLS) if self._traces else 0
        headers: dict[int, tuple[str, ...]] = {}
        for place, call in enumerate(step.calls):
            sampled = bool(every) and place % every == 0 and len(self._traced) < TRACED_CALLS
            about = conversation_about(
                self._run,
                call.shape.scenario,
                1,
                0.0,
                server=endpoint.host_and_port,
                call=call.number,
                step=step.number,
                sessions=step.sessions,
                dialect=endpoint.spec().name,
                **self._about,
            )
            about["gen_ai.conversation.id"] = f"{self._run}/{step.number}/{call.number}"
            traced = self._telemetry.conversation(
                about, self._agent, MonotonicClock(), sampled=sampled
            )
            headers[call.number] = traced.headers
            if sampled:
                self._traced[call.number] = traced
        return headers

    async def ended(self, turns: Sequence[LoadTurn]) -> None:
        """Trace and count the turns of the step that is over, and send what there is."""
        if not self._telemetry.on:
            return
        of: defaultdict[int, list[LoadTurn]] = defaultdict(list)
        for turn in turns:
            if turn.call in self._traced:
                of[turn.call].append(turn)
            elif turn.counted and turn.played is not None:
                self._telemetry.count(self._agent, turn.played, waited_ms=turn.waited_ms)
            if turn.counted and turn.missed is not None:
                self._telemetry.count_missed(self._agent, turn.missed)
        for call, traced in self._traced.items():
            _end(traced, of[call])
        self._traced = {}
        await self._telemetry.between()

    def let_go(self, error: BaseException | None = None) -> None:
        """End the traces of a step that did not come to its end, without their turns.

        Their agents may have traced them, under a span that would be missing.
        """
        for traced in self._traced.values():
            if error is not None:
                traced.failed(f"{error}" or type(error).__name__, error_type(error))
            _end(traced, ())
        self._traced = {}


def _end(traced: TracedConversation, turns: Sequence[LoadTurn]) -> None:
    played = sorted((t for t in turns if t.played is not None), key=lambda turn: turn.turn)
    missed = next((turn for turn in turns if turn.missed is not None), None)
    with traced:
        for turn in played:
            if turn.played is not None:
                traced.turn(turn.played, waited_ms=turn.waited_ms, counts=turn.counted)
        instants = [m.at_ns for t in played if t.played for m in t.played.marks]
        if played and played[0].played is not None and instants:
            begun_ns = min(instants) - ms_to_ns(played[0].played.speech_ms or 0.0)
            traced.lasted(begun_ns, max(instants))
        if missed is not None:
            traced.failed(f"{missed.missed}: {missed.why}", str(missed.missed))

"""Telemetry of what is played: its conversations are told here, and sent when they are over."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from turngap.clocks import MonotonicClock, wall_ns
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.errors import AgentError, InputError
from turngap.core.results import Turn
from turngap.telemetry.attributes import (
    FAILED,
    Attributes,
    claimed_ms,
    contents_wanted,
    conversation_attributes,
    stage_attributes,
    turn_attributes,
)
from turngap.telemetry.destination import OTLP, Destination, remember_headers, why_unsendable
from turngap.telemetry.names import (
    CLAIMED,
    GAP,
    INVOKE_AGENT,
    STAGE_SPAN,
    STAGES,
    TURN_SPAN,
    TURNS,
    YIELD,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turngap.telemetry.sender import Ids, Sender, Thread

# Between two conversations nobody waits longer than this for the collector. After the first time
# that it is slower, or refuses, all the rest is sent at the end.
BETWEEN_S = 0.5
# And at the end nobody waits longer than this.
AT_THE_END_S = 10.0


class Telemetry:
    """Where conversations are told; without a destination nothing is sent, and nothing costs.

    Make it with `telemetry_to`. It is used by one thread.
    """

    def __init__(self, where: Destination | None = None, why_not: str = "") -> None:
        self._where, self._why_not = where, why_not
        self._sender: Sender | None = None
        self._thread: Thread | None = None
        self._patient = True
        self._conversations = 0
        self._contents = False
        if where is not None and not why_not:
            from turngap.telemetry import sender

            remember_headers()
            self._contents = contents_wanted()
            self._sender = sender.Sender(where)

    @property
    def on(self) -> bool:
        return self._sender is not None

    def conversation(
        self, about: Mapping[str, Any], agent: str, clock: Clock, *, sampled: bool = True
    ) -> "ToldConversation":
        """Begin to tell of a conversation; `about` are attributes that are known by now.

        Without `sampled` it has no trace, and the agent is told to make none.
        """
        ids = None if self._sender is None else self._sender.ids(sampled=sampled)
        return ToldConversation(
            self,
            self._sender,
            ids,
            clock,
            about=about,
            agent=agent,
            contents=self._contents,
        )

    def count(self, agent: str, turn: Turn, span: "Span | None" = None) -> None:
        """Add a turn to the figures, unless no figure of a run counts it."""
        if (sender := self._sender) is None or turn.left_out is not None:
            return
        of = {"gen_ai.agent.name": agent, "turngap.outcome": turn.outcome}
        sender.count(TURNS, 1, of, span)
        if turn.yield_ms is not None:
            sender.count(YIELD, turn.yield_ms / 1000, of, span)
        if not turn.replied or turn.gap_ms is None:
            return
        sender.count(GAP, turn.gap_ms / 1000, of, span)
        claim, _ = claimed_ms(turn)
        if claim is not None:
            sender.count(CLAIMED, claim / 1000, of, span)
        for name, ms in turn.stage_ms.items():
            sender.count(STAGES, ms / 1000, of | {"turngap.stage": name}, span)

    def told(self) -> None:
        """Note that a conversation has been told."""
        self._conversations += 1

    async def between(self) -> None:
        """Send what is there, between two conversations; it takes `BETWEEN_S` at most."""
        if self._sender is None or not self._patient:
            return
        done = asyncio.wrap_future(self._begun(self._sender).done)
        try:
            self._patient = await asyncio.wait_for(done, BETWEEN_S) is None
        except TimeoutError:
            self._patient = False

    def close(self, at_most_s: float = AT_THE_END_S) -> str | None:
        """Send the rest, and return a sentence on what was sent; None: nothing was to be.

        It takes `at_most_s` at most, whatever the collector does.
        """
        if self._where is None:
            return None
        if (sender := self._sender) is None:
            return f"telemetry is not sent: {self._why_not}"
        self._sender = None
        clock = MonotonicClock()
        until_ns = clock.now_ns() + round(at_most_s * NS_PER_S)
        why: str | None = "it did not answer in time"
        while (left_s := (until_ns - clock.now_ns()) / NS_PER_S) > 0:
            before = self._thread
            if before is not None and not before.done.done():
                wait([before.done], left_s)
                continue
            last = self._begun(sender)
            wait([last.done], left_s)
            why = last.done.result() if last.done.done() else why
            break
        sender.stop()
        return self._words(sender, why)

    def _begun(self, sender: "Sender") -> "Thread":
        """The delivery that runs, or a new one."""
        from turngap.telemetry.sender import Thread

        if self._thread is None or self._thread.done.done():
            self._thread = Thread(sender)
        return self._thread

    def _words(self, sender: "Sender", why: str | None) -> str:
        where = "" if self._where is None else self._where.shown
        if why is None:
            of = f"{self._conversations} conversation" + ("" if self._conversations == 1 else "s")
            return f"telemetry of {of} sent to {where}: {sender.sent} spans"
        lost = [f"{sender.waiting} of {sender.waiting + sender.sent} spans"]
        lost += ["the histograms"] if sender.figures_waiting else []
        return f"telemetry: {' and '.join(lost)} could not be sent to {where}: {why}"


OFF = Telemetry()


def telemetry_to(url: str | None) -> Telemetry:
    """Telemetry to `--otlp URL`, or else to where the environment's variables say; or none.

    Raises:
        InputError: the URL is none of a collector.
        AgentError: the flag is given, and OpenTelemetry's exporter is not installed.
    """
    if url:
        where = Destination.of(url)
    else:
        try:
            where = Destination.of_environment()
        except InputError as e:  # nobody asked this command for it
            return Telemetry(Destination("", None, None), e.message.replace("--otlp ", ""))
        if where is None:
            return OFF
    why_not = why_unsendable(where) or ""
    if url and OTLP.remedy in why_not:
        raise AgentError("otlp.missing", f"--otlp: {why_not}", hint=OTLP.remedy)
    return Telemetry(where, why_not)


class ToldConversation:
    """A conversation while it is played, used as a context; its spans are made when it is over.

    Attributes:
        headers: those that its WebSocket is opened with, so that the agent's own spans hang under
            it: each `Name: value`.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        sender: "Sender | None",
        ids: "Ids | None",
        clock: Clock,
        *,
        about: Mapping[str, Any],
        agent: str,
        contents: bool,
    ) -> None:
        self._telemetry, self._sender, self._ids, self._clock = telemetry, sender, ids, clock
        self._about, self._agent, self._contents = dict(about), agent, contents
        self._turns: list[tuple[Turn, int | None]] = []
        self._begun_ns = clock.now_ns()
        self.headers = () if ids is None else (f"traceparent: {ids.traceparent}",)

    def note(self, **about: Any) -> None:
        """Add attributes of turngap's that came to be known, by their names without `turngap.`."""
        self._about |= {f"turngap.{name}": value for name, value in about.items()}

    def turn(self, turn: Turn, ended_ns: int | None = None) -> None:
        """Tell a turn that is over, and when it was; nothing is computed before all are."""
        if self._sender is not None:
            self._turns.append((turn, ended_ns))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if (sender := self._sender) is None or self._ids is None:
            return
        self._sender = None
        # The caller's clock has no date: both are read once, when nobody speaks.
        now_ns = self._clock.now_ns()
        date_ns = wall_ns() - now_ns
        root = None
        if self._ids.sampled:
            root = self._root(sender, date_ns)
            if kind is not None:
                sender.fail(root, f"{error}" or kind.__name__)
        for turn, ended_ns in self._turns:
            span = root and self._turn(sender, root, turn, ended_ns, date_ns)
            self._telemetry.count(self._agent, turn, span)
        if root is not None:
            root.end(max(now_ns, *(self._end_ns(t, e) for t, e in self._turns), 0) + date_ns)
        self._telemetry.told()

    def _root(self, sender: "Sender", date_ns: int) -> "Span":
        told = self._about | {"turngap.turns": len(self._turns)}
        attributes = conversation_attributes(told, self._agent)
        name, begun_ns = f"{INVOKE_AGENT} {self._agent}", self._begun_ns
        if self._turns:
            begun_ns = min(begun_ns, self._start_ns(self._turns[0][0]))
        return sender.span(name, begun_ns + date_ns, attributes, ids=self._ids)

    def _turn(
        self, sender: "Sender", root: "Span", turn: Turn, ended_ns: int | None, date_ns: int
    ) -> "Span":
        conversation = str(self._about.get("gen_ai.conversation.id", ""))
        attributes = turn_attributes(turn, conversation, contents=self._contents)
        span = sender.span(TURN_SPAN, self._start_ns(turn) + date_ns, attributes, root)
        if turn.outcome in FAILED:
            sender.fail(span, turn.error or turn.why_no_gap or turn.outcome)
        for name, start_ns, end_ns, told in _stages(turn):
            sender.span(f"{STAGE_SPAN}{name}", start_ns + date_ns, told, span).end(end_ns + date_ns)
        span.end(self._end_ns(turn, ended_ns) + date_ns)
        return span

    @staticmethod
    def _start_ns(turn: Turn) -> int:
        return _mark(turn, "user_end") - ms_to_ns(turn.speech_ms or 0.0)

    @staticmethod
    def _end_ns(turn: Turn, ended_ns: int | None) -> int:
        return max(ended_ns or 0, *(mark.at_ns for mark in turn.marks if mark.vantage == "caller"))


def _mark(turn: Turn, name: str) -> int:
    return next(mark.at_ns for mark in turn.marks if mark.name == name)


def _stages(turn: Turn) -> Sequence[tuple[str, int, int, Attributes]]:
    """Each stage with its instants on the caller's clock; none of a turn that was cut into."""
    if turn.gap_ns is None or turn.gap_ns < 0:
        return ()
    found: list[tuple[str, int, int, Attributes]] = []
    at_ns = _mark(turn, "user_end")
    for stage in turn.stages:
        found.append((stage.name, at_ns, at_ns + stage.ns, stage_attributes(stage, turn)))
        at_ns += stage.ns
    return found


def conversation_about(
    run: str,
    scenario: str,
    repeat: int,
    phase_ms: float,
    *,
    server: tuple[str | None, int | None] = (None, None),
    **more: Any,
) -> Attributes:
    """What is known of a conversation before it begins; `more` are turngap's own attributes."""
    about: Attributes = {
        "gen_ai.conversation.id": f"{run}/{scenario}/{repeat}/{phase_ms:g}",
        "server.address": server[0],
        "server.port": server[1],
        "turngap.run": run,
        "turngap.scenario": scenario,
        "turngap.repeat": repeat,
        "turngap.phase_ms": phase_ms,
    }
    return about | {f"turngap.{name}": value for name, value in more.items()}

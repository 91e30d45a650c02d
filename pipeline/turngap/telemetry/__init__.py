"""Telemetry: a trace for each conversation, and histograms, sent to an OTLP collector.

docs/telemetry.md lists the names; a test checks that all of them are sent.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from turngap.backends import Need
from turngap.clocks import wall_ns
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.counts import claimed_gap
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.core.secrets import (
    remember,
    remember_arguments,
    text_without_secrets,
    texts_without_secrets,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turngap.telemetry.exporter import Exporter

Attributes = dict[str, Any]

OTLP = Need("module", "opentelemetry.exporter.otlp.proto.http", "pip install 'turngap[otlp]'")
# Outcomes in which the agent failed the person altogether.
FAILED = ("error", "no_reply")


@dataclass(frozen=True, slots=True)
class Destination:
    """The collector that gets traces and metrics, by OTLP over HTTP.

    Attributes:
        shown: its URL as messages name it.
        signals: those of `traces` and `metrics` that are sent.
        url: the flag's value; None if the SDK reads the environment.
    """

    shown: str
    signals: tuple[str, ...]
    url: str | None = None

    def of(self, signal: str) -> str | None:
        """Return the URL of a signal; None if the environment has it."""
        if self.url is None:
            return None
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")
        return urlunsplit(parts._replace(path=f"{path}/v1/{signal}", fragment=""))


def destination_of(url: str | None = None) -> Destination | None:
    """Return the collector that `--otlp URL`, or else the environment, names; None if neither.

    Raises:
        InputError: nothing can be sent there: `otlp.url` if it is not a URL of HTTP,
            `otlp.missing` if the exporter is not installed, `otlp.off` if the environment forbids.
    """
    base = (url or "").strip() or _variable("ENDPOINT")
    own = ["" if url else _variable(f"{signal}_ENDPOINT") for signal in ("TRACES", "METRICS")]
    urls = [each for each in (base, *own) if each]
    if not urls:
        return None
    remember_arguments(urls)
    for each in urls:
        require_http(each)
    for name in ("HEADERS", "TRACES_HEADERS", "METRICS_HEADERS"):  # they hold keys
        for pair in _variable(name).split(","):
            remember(unquote(pair.partition("=")[2].strip()))
    try:
        installed = OTLP.met()
    except ModuleNotFoundError:  # not even the package that contains it
        installed = False
    if not installed:
        what = "telemetry needs OpenTelemetry's exporter, which is not installed"
        raise InputError("otlp.missing", what, hint=OTLP.remedy)
    if _env("OTEL_SDK_DISABLED").lower() == "true":
        raise InputError("otlp.off", "OTEL_SDK_DISABLED is set")
    protocols = {_variable(f"{signal}PROTOCOL") for signal in ("", "TRACES_", "METRICS_")}
    if others := protocols - {"", "http/protobuf"}:
        what = f"the environment asks for OTLP over {min(others)}, turngap speaks http/protobuf"
        raise InputError("otlp.off", what)
    signals = tuple(
        signal
        for signal, given in zip(("traces", "metrics"), own, strict=True)
        if (base or given) and _env(f"OTEL_{signal.upper()}_EXPORTER").lower() != "none"
    )
    if not signals:
        raise InputError("otlp.off", "OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER are both none")
    return Destination(text_without_secrets(urls[0]), signals, base if url else None)


def require_http(url: str) -> None:
    """Check the URL of a collector.

    Raises:
        InputError: the URL is not an HTTP URL.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number
        known = False
    if not known:
        raise InputError(
            "otlp.url",
            f"{text_without_secrets(url)!r} is no URL of a collector",
            hint="expected http://HOST:PORT; collectors take OTLP over HTTP at port 4318",
        )


def _variable(name: str) -> str:
    return _env(f"OTEL_EXPORTER_OTLP_{name}")


def _env(name: str) -> str:
    return os.environ.get(name, "").strip()


class Telemetry:
    """The sender of traces; without a destination it sends nothing and costs nothing.

    Make it with `telemetry_to`. It is used by one thread.

    Attributes:
        conversations: how many have a trace.
        lost: whether anything could not be sent; known once the telemetry is closed.
    """

    def __init__(self, where: Destination | None = None, why_not: str = "") -> None:
        self._where, self._why_not = where, why_not
        self._exporter: Exporter | None = None
        self.conversations, self.lost = 0, bool(why_not)
        if where is not None:
            from turngap.telemetry import exporter

            self._exporter = exporter.Exporter({s: where.of(s) for s in where.signals})

    @property
    def on(self) -> bool:
        return self._exporter is not None

    @property
    def untraced(self) -> tuple[str, ...]:
        """Return the headers of a call without a trace, so that the agent makes none either."""
        return (f"traceparent: 00-{token_hex(16)}-{token_hex(8)}-00",) if self.on else ()

    def conversation(
        self,
        agent: str,
        clock: Clock,
        name: str,
        server: tuple[str | None, int | None] = (None, None),
        *,
        begins_s: float = 0.0,
        **about: Any,
    ) -> "Recorder":
        """Begin the trace of a conversation, now or after a delay.

        `about` are attributes of turngap's, by their names without `turngap.`.
        """
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": name,
            "server.address": server[0],
            "server.port": server[1],
        } | _ours(about)
        return Recorder(self, self._exporter, clock, attributes, round(begins_s * 1e9))

    def count(
        self, agent: str, turn: Turn, span: "Span | None" = None, waited_ms: float = 0.0
    ) -> None:
        """Add a turn to the figures, unless the figures of a run leave it out.

        The wait before the person could begin is part of the gap.
        """
        if (exporter := self._exporter) is None or turn.left_out is not None:
            return
        from turngap.telemetry import exporter as names

        of = {"gen_ai.agent.name": agent, "turngap.outcome": turn.outcome}
        exporter.count(names.TURNS, 1, of, span)
        if turn.yield_ms is not None:
            exporter.count(names.YIELD, turn.yield_ms / 1000, of, span)
        if not turn.replied or turn.gap_ms is None:
            return
        exporter.count(names.GAP, (turn.gap_ms + waited_ms) / 1000, of, span)
        claim, _ = claimed_gap(turn.counts)
        if claim is not None:
            exporter.count(names.CLAIMED, claim / 1000, of, span)
        for name, ms in turn.stage_ms.items():
            exporter.count(names.STAGES, ms / 1000, of | {"turngap.stage": name}, span)

    def count_missed(self, agent: str, missed: str) -> None:
        """Count a turn that could not be played, by its outcome."""
        if self._exporter is not None:
            of = {"gen_ai.agent.name": agent, "turngap.outcome": missed}
            self._exporter.count("turngap.turn.outcomes", 1, of)

    async def between(self) -> None:
        """Send all waiting data, between two conversations; on return nothing is being sent."""
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.flush)

    def close(self) -> str | None:
        """Send the rest, and return a sentence about it; None if telemetry is off."""
        if self._exporter is None or self._where is None:
            return f"telemetry is not sent: {self._why_not}" if self._why_not else None
        exporter, self._exporter = self._exporter, None
        exporter.close()
        shown, self.lost = self._where.shown, bool(exporter.failed)
        if self.lost:
            what, sent = " and ".join(exporter.failed), f"{exporter.sent} spans were sent"
            return f"telemetry: {what} could not be sent to {shown}, {sent}: {exporter.why}"
        of = f"{self.conversations} conversation" + ("" if self.conversations == 1 else "s")
        return f"telemetry of {of} sent to {shown}: {exporter.sent} spans"


class Recorder:
    """A conversation's trace while it is played, used as a context.

    The spans of its turns are made when it is over.

    Attributes:
        headers: the headers of its WebSocket, each `Name: value`, by which the agent's own spans
            become its children.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        exporter: "Exporter | None",
        clock: Clock,
        attributes: Attributes,
        begins_ns: int,
    ) -> None:
        self._telemetry, self._exporter, self._clock = telemetry, exporter, clock
        self._attributes = attributes
        self._turns: list[_EndedTurn] = []
        self.headers: tuple[str, ...] = ()
        # The caller's clock has no date: both are read once, when no one speaks.
        self._date_ns = wall_ns() - clock.now_ns()
        if exporter is not None:
            at_ns = clock.now_ns() + self._date_ns + begins_ns
            name = f"invoke_agent {attributes['gen_ai.agent.name']}"
            self._root = exporter.span(name, at_ns, _sendable(attributes))
            self.headers = (exporter.header_of(self._root),)

    def note(self, **about: Any) -> None:
        """Add attributes of turngap's that are now known, by their names without `turngap.`."""
        if self._exporter is not None:
            self._root.set_attributes(_sendable(_ours(about)))

    def turn(
        self,
        turn: Turn,
        ended_ns: int | None = None,
        *,
        waited_ms: float = 0.0,
        counts: bool = True,
    ) -> None:
        """Keep a finished turn with its time; nothing is computed before all turns are over.

        `waited_ms` is how much later than intended the person began. If the turn does not count,
        it is in the trace alone.
        """
        if self._exporter is not None:
            self._turns.append(_EndedTurn(turn, ended_ns, waited_ms, counts))

    def failed(self, why: str, kind: str) -> None:
        """Note why the call ended before all turns were played, and the kind of error."""
        if self._exporter is not None:
            self._exporter.fail(self._root, why)
            self._root.set_attribute("error.type", kind)

    def raised(self, error: BaseException) -> None:
        """Note the error that ended the call."""
        kind = error.kind if isinstance(error, TurngapError) else type(error).__name__
        self.failed(f"{error}" or type(error).__name__, kind)

    def end(self, ended_ns: int | None = None) -> None:
        """Make the turns' spans and end the trace at `ended_ns` on the caller's clock, or now."""
        exporter, self._exporter = self._exporter, None
        if exporter is None:
            return
        over_ns = self._clock.now_ns() if ended_ns is None else ended_ns
        try:
            for each in self._turns:
                span = self._turn_span(exporter, each)
                over_ns = max(over_ns, each.end_ns)
                if each.counts:
                    agent = self._attributes["gen_ai.agent.name"]
                    self._telemetry.count(agent, each.turn, span, each.waited_ms)
        except Exception as e:  # a fault of telemetry must not end what is measured
            logging.getLogger("turngap").warning(f"a conversation has no whole trace: {e}")
        self._root.set_attribute("turngap.turns", len(self._turns))
        self._telemetry.conversations += self._root.is_recording()
        self._root.end(over_ns + self._date_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.raised(error)
        self.end()

    def _turn_span(self, exporter: "Exporter", each: "_EndedTurn") -> "Span":
        turn = each.turn
        attributes = turn_attributes(turn) | {
            "gen_ai.conversation.id": self._attributes["gen_ai.conversation.id"],
            "turngap.waited_ms": each.waited_ms or None,
        }
        at_ns = each.start_ns + self._date_ns
        span = exporter.span("turngap.turn", at_ns, _sendable(attributes), self._root)
        if turn.outcome in FAILED:
            exporter.fail(span, turn.error or turn.why_no_gap or turn.outcome)
        if turn.gap_ns is not None and turn.gap_ns >= 0:  # a cut-in has no stages
            at_ns = _mark(turn, "user_end") + self._date_ns
            for stage in turn.stages:
                # Nothing by which a tool would take it for a call of an LLM.
                about = {"turngap.stage": stage.name, "turngap.stage_ms": stage.ms}
                exporter.span(f"turngap.{stage.name}", at_ns, about, span).end(at_ns + stage.ns)
                at_ns += stage.ns
        span.end(each.end_ns + self._date_ns)
        return span


@dataclass(frozen=True, slots=True)
class _EndedTurn:
    """A turn with its instants on the caller's clock."""

    turn: Turn
    ended_ns: int | None
    waited_ms: float
    counts: bool

    @property
    def start_ns(self) -> int:
        return _mark(self.turn, "user_end") - ms_to_ns(self.turn.speech_ms or 0.0)

    @property
    def end_ns(self) -> int:
        heard = (mark.at_ns for mark in self.turn.marks if mark.vantage == "caller")
        return max(self.ended_ns or 0, *heard, self.start_ns)


def _mark(turn: Turn, name: str) -> int:
    for mark in turn.marks:
        if mark.name == name:
            return mark.at_ns
    raise ValueError(f"turn {turn.turn} has no mark {name}")


def turn_attributes(turn: Turn) -> Attributes:
    """Return the attributes of a turn's span; its texts only if the environment wants them."""
    claim, source = claimed_gap(turn.counts)
    attributes: Attributes = {
        "error.type": turn.outcome if turn.outcome in FAILED else None,
        "turngap.turn": turn.turn,
        "turngap.llm": turn.llm,
        "turngap.outcome": turn.outcome,
        "turngap.gap_ms": turn.gap_ms,
        "turngap.why_no_gap": turn.why_no_gap,
        "turngap.cut_in": turn.outcome == "cut_in",
        "turngap.budget_ms": turn.budget_ms,
        "turngap.within_budget": turn.outcome == "answered",
        "turngap.agent.gap_ms": claim,
        "turngap.agent.gap_source": source,
        "turngap.gap_difference_ms": (
            None if claim is None or turn.gap_ms is None else turn.gap_ms - claim
        ),
        "turngap.lead_ms": turn.lead_ms,
        "turngap.yield_ms": turn.yield_ms,
        "turngap.right": turn.right,
        "turngap.tools": [call.name for call in turn.calls or ()] or None,
        "turngap.error": turn.error,
        "turngap.left_out": turn.left_out,
        "turngap.starved": turn.pacing.starved,
        "turngap.late_ms": turn.pacing.late_ms_max,
    }
    wanted = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    if wanted.strip().lower() in ("true", "1", "span_only", "span_and_event"):
        spoken = {"say": turn.say, "transcript": turn.transcript, "reply": turn.reply}
        attributes |= {f"turngap.{name}": text for name, text in spoken.items()}
    return attributes


def _sendable(attributes: Mapping[str, Any]) -> Attributes:
    """Drop unknown values and mask secrets."""
    known = {name: v for name, v in attributes.items() if v is not None and v != ""}
    return texts_without_secrets(known, known)


def _ours(about: Mapping[str, Any]) -> Attributes:
    return {f"turngap.{name}": value for name, value in about.items()}


OFF = Telemetry()


def telemetry_to(url: str | None) -> Telemetry:
    """Return telemetry to `--otlp URL`, else to the collector of the environment, else to none.

    Raises:
        InputError: the URL is not one of a collector, or the flag is given and the exporter is not
            installed.
    """
    try:
        where = destination_of(url)
    except InputError as e:
        if url and e.kind != "otlp.off":
            raise
        return Telemetry(None, f"{e.message}: {e.hint}" if e.hint else e.message)
    return OFF if where is None else Telemetry(where)


@contextmanager
def exporting(url: str | None) -> Iterator[Telemetry]:
    """Yield telemetry as of `telemetry_to`; at the end it is sent, and logged as `turngap`.

    Raises:
        InputError: as `telemetry_to`.
    """
    telemetry = telemetry_to(url)
    try:
        yield telemetry
    finally:
        if words := telemetry.close():
            level = logging.WARNING if telemetry.lost else logging.INFO
            logging.getLogger("turngap").log(level, words)

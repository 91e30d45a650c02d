"""Telemetry of what is played: a trace a conversation, and histograms, to an OTLP collector.

docs/telemetry.md lists the names; a test checks that all of them are sent.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from turngap.backends import Need
from turngap.clocks import wall_ns
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.counts import claimed_gap
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.core.secrets import remember_secrets, text_without_secrets, texts_without_secrets

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turngap.telemetry.sdk import Ids, Sender

Attributes = dict[str, Any]

OTLP = Need("module", "opentelemetry.exporter.otlp.proto.http", "pip install 'turngap[otlp]'")
_SIGNALS = ("traces", "metrics")
# Outcomes in which the agent failed the person altogether.
FAILED = ("error", "no_reply")


@dataclass(frozen=True, slots=True)
class Destination:
    """The collector that gets traces and metrics, by OTLP over HTTP.

    Attributes:
        shown: its URL as messages name it.
        traces, metrics: the URL of each signal; None: it is not sent.
    """

    shown: str
    traces: str | None
    metrics: str | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Read `--otlp URL`, to which `/v1/traces` and `/v1/metrics` are added.

        Raises:
            InputError: it is not a URL of HTTP.
        """
        parts = _read(url.strip())
        if parts is None:
            raise InputError(
                "otlp.url",
                f"{text_without_secrets(url)!r} is no URL of a collector",
                hint="expected http://HOST:PORT; collectors take OTLP over HTTP at port 4318",
            )
        if parts.password:
            remember_secrets({"password": unquote(parts.password)})
        path = parts.path.rstrip("/")
        for signal in _SIGNALS:
            path = path.removesuffix(f"/v1/{signal}")
        traces, metrics = (
            urlunsplit(parts._replace(path=f"{path}/v1/{signal}", fragment=""))
            for signal in _SIGNALS
        )
        shown = text_without_secrets(url.strip())
        return cls(shown, _if_wanted("traces", traces), _if_wanted("metrics", metrics))

    @classmethod
    def of_environment(cls) -> Self | None:
        """Read OTEL_EXPORTER_OTLP_ENDPOINT and the URLs of the signals; None: none of them is set.

        Raises:
            InputError: one of them is not a URL of HTTP.
        """
        base, traces, metrics = (_variable(name) for name in ("", "TRACES_", "METRICS_"))
        if not (shown := base or traces or metrics):
            return None
        for url in filter(None, (traces, metrics)):
            cls.of(url)  # only to check it: the URL of a signal is used as it is
        whole = cls.of(base) if base else None
        return cls(
            text_without_secrets(shown),
            _if_wanted("traces", traces or (whole and whole.traces)),
            _if_wanted("metrics", metrics or (whole and whole.metrics)),
        )


def _read(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number
        return None
    return parts if known else None


def _variable(signal: str, what: str = "ENDPOINT") -> str:
    return os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}{what}", "").strip()


def _if_wanted(signal: str, url: str | None) -> str | None:
    """Return None where the environment turns a signal off."""
    chosen = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower()
    return None if chosen == "none" else url


def why_unsendable(where: Destination) -> str | None:
    """Return why nothing can be sent there, by what is installed and set; None if it can."""
    try:
        installed = OTLP.met()
    except ModuleNotFoundError:  # not even the package that contains it
        installed = False
    if not installed:
        return f"it needs OpenTelemetry's exporter: {OTLP.remedy}"
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED is set"
    protocols = {_variable(signal, "PROTOCOL") for signal in ("", "TRACES_", "METRICS_")}
    if others := protocols - {"", "http/protobuf"}:
        return f"the environment wants OTLP by {min(others)}; turngap speaks http/protobuf"
    if where.traces is None and where.metrics is None:
        return "OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER are both none"
    return None


def remember_headers() -> None:
    """Learn the values of OTEL_EXPORTER_OTLP_HEADERS, which hold keys: no text shows them."""
    for signal in ("", "TRACES_", "METRICS_"):
        for pair in _variable(signal, "HEADERS").split(","):
            if value := unquote(pair.partition("=")[2].strip()):
                remember_secrets({"secret": value})


class Telemetry:
    """Where conversations are traced; without a destination nothing is sent, and nothing costs.

    Make it with `telemetry_to`. It is used by one thread.

    Attributes:
        lost: whether something could not be sent; known when it is closed.
    """

    def __init__(self, where: Destination | None = None, why_not: str = "") -> None:
        self._where, self._why_not = where, why_not
        self._sender: Sender | None = None
        self._conversations = 0
        self.lost = False
        if where is not None and not why_not:
            from turngap.telemetry import sdk

            remember_headers()
            self._sender = sdk.Sender(where.traces, where.metrics)

    @property
    def on(self) -> bool:
        return self._sender is not None

    @property
    def untraced(self) -> tuple[str, ...]:
        """Return the headers of a call that is no conversation: the agent is not to trace it."""
        return () if self._sender is None else (self._sender.ids(sampled=False).header,)

    def conversation(
        self, about: Mapping[str, Any], agent: str, clock: Clock, *, sampled: bool = True
    ) -> "TracedConversation":
        """Begin a conversation; `about` are attributes that are known by now.

        Without `sampled` it has no trace, and the agent is told to make none.
        """
        return TracedConversation(self, self._sender, clock, about, agent, sampled=sampled)

    def count(
        self, agent: str, turn: Turn, span: "Span | None" = None, waited_ms: float = 0.0
    ) -> None:
        """Add a turn to the figures, unless no figure of a run counts it.

        What was waited before the person could begin is part of the gap.
        """
        if (sender := self._sender) is None or turn.left_out is not None:
            return
        from turngap.telemetry import sdk

        of = {"gen_ai.agent.name": agent, "turngap.outcome": turn.outcome}
        sender.count(sdk.TURNS, 1, of, span)
        if turn.yield_ms is not None:
            sender.count(sdk.YIELD, turn.yield_ms / 1000, of, span)
        if not turn.replied or turn.gap_ms is None:
            return
        sender.count(sdk.GAP, (turn.gap_ms + waited_ms) / 1000, of, span)
        claim, _ = claimed_gap(turn.counts)
        if claim is not None:
            sender.count(sdk.CLAIMED, claim / 1000, of, span)
        for name, ms in turn.stage_ms.items():
            sender.count(sdk.STAGES, ms / 1000, of | {"turngap.stage": name}, span)

    def count_missed(self, agent: str, missed: str) -> None:
        """Count a turn that could not be played, by what became of it."""
        if self._sender is not None:
            of = {"gen_ai.agent.name": agent, "turngap.outcome": missed}
            self._sender.count("turngap.turn.outcomes", 1, of)

    def ended(self) -> None:
        """Note that a conversation has its trace."""
        self._conversations += 1

    async def between(self) -> None:
        """Send what there is, between two conversations; when it returns, nothing is being sent."""
        if self._sender is not None:
            await asyncio.to_thread(self._sender.flush)

    def close(self) -> str | None:
        """Send the rest, and return a sentence on what was sent; None: nothing was to be."""
        if self._where is None:
            return None
        if (sender := self._sender) is None:
            self.lost = True
            return f"telemetry is not sent: {self._why_not}"
        self._sender = None
        sender.close()
        self.lost = bool(sender.failed)
        of = f"{self._conversations} conversation" + ("" if self._conversations == 1 else "s")
        if self.lost:
            what = " and ".join(sender.failed)
            sent = f"{sender.sent} spans were sent"
            return (
                f"telemetry: {what} could not be sent to {self._where.shown}, {sent}: {sender.why}"
            )
        return f"telemetry of {of} sent to {self._where.shown}: {sender.sent} spans"


class TracedConversation:
    """A conversation while it is played, used as a context; its spans are made when it is over.

    Attributes:
        headers: those that its WebSocket is opened with, so that the agent's own spans hang under
            it: each `Name: value`.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        sender: "Sender | None",
        clock: Clock,
        about: Mapping[str, Any],
        agent: str,
        *,
        sampled: bool,
    ) -> None:
        self._telemetry, self._sender, self._clock = telemetry, sender, clock
        self._about, self._agent = dict(about), agent
        self._turns: list[_TracedTurn] = []
        self._begun_ns, self._ended_ns = clock.now_ns(), None
        self._why = self._error_type = ""
        self._ids: Ids | None = None if sender is None else sender.ids(sampled=sampled)
        self.headers = () if self._ids is None else (self._ids.header,)

    def note(self, **about: Any) -> None:
        """Add attributes of turngap's that came to be known, by their names without `turngap.`."""
        self._about |= {f"turngap.{name}": value for name, value in about.items()}

    def turn(
        self,
        turn: Turn,
        ended_ns: int | None = None,
        *,
        waited_ms: float = 0.0,
        counts: bool = True,
    ) -> None:
        """Keep a turn that is over, and when it was; nothing is computed before all are.

        `waited_ms` is how much later than intended the person began. If the turn does not count,
        it is in the trace alone.
        """
        if self._sender is not None:
            self._turns.append(_TracedTurn(turn, ended_ns, waited_ms, counts))

    def lasted(self, begun_ns: int, ended_ns: int) -> None:
        """Set when it was, on the caller's clock, where that is known only afterwards."""
        self._begun_ns, self._ended_ns = begun_ns, ended_ns

    def failed(self, why: str, kind: str) -> None:
        """Set why the call ended before all turns were played, and the kind of error."""
        self._why, self._error_type = why, kind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        sender, self._sender = self._sender, None
        if sender is None or self._ids is None:
            return
        if error is not None:
            self.failed(f"{error}" or type(error).__name__, error_type(error))
        try:
            self._send_to(sender, self._ids)
        except Exception as e:  # a fault of telemetry must not end what is measured
            logging.getLogger("turngap").warning(f"a conversation has no whole trace: {e}")

    def _send_to(self, sender: "Sender", ids: "Ids") -> None:
        # The caller's clock has no date: both are read once, when nobody speaks.
        now_ns = self._clock.now_ns()
        date_ns = wall_ns() - now_ns
        root = None
        if ids.sampled:
            about = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self._agent,
                "turngap.turns": len(self._turns),
                "error.type": self._error_type,
            }
            begun_ns = min(self._begun_ns, *(turn.start_ns for turn in self._turns[:1]), now_ns)
            attributes = _known(about | self._about)
            name = f"invoke_agent {self._agent}"
            root = sender.span(name, begun_ns + date_ns, attributes, ids=ids)
            if self._why:
                sender.fail(root, self._why)
        for each in self._turns:
            span = root and self._turn_span(sender, root, each, date_ns)
            if each.counts:
                self._telemetry.count(self._agent, each.turn, span, each.waited_ms)
        if root is not None:
            over_ns = now_ns if self._ended_ns is None else self._ended_ns
            root.end(max(over_ns, self._begun_ns, *(t.end_ns for t in self._turns)) + date_ns)
            self._telemetry.ended()

    def _turn_span(
        self, sender: "Sender", root: "Span", each: "_TracedTurn", date_ns: int
    ) -> "Span":
        turn = each.turn
        attributes = turn_attributes(turn) | {
            "gen_ai.conversation.id": self._about.get("gen_ai.conversation.id", ""),
            "turngap.waited_ms": each.waited_ms or None,
        }
        span = sender.span("turngap.turn", each.start_ns + date_ns, _known(attributes), root)
        if turn.outcome in FAILED:
            sender.fail(span, turn.error or turn.why_no_gap or turn.outcome)
        if turn.gap_ns is not None and turn.gap_ns >= 0:  # a cut-in has no stages
            at_ns = _mark(turn, "user_end") + date_ns
            for stage in turn.stages:
                # Nothing by which a tool would take it for a call of an LLM.
                about = {"turngap.stage": stage.name, "turngap.stage_ms": stage.ms}
                sender.span(f"turngap.{stage.name}", at_ns, about, span).end(at_ns + stage.ns)
                at_ns += stage.ns
        span.end(each.end_ns + date_ns)
        return span


@dataclass(frozen=True, slots=True)
class _TracedTurn:
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
    """Return what a turn's span says; what was said in words only if the environment wants it."""
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


def error_type(error: BaseException) -> str:
    """Return what kind of error it is, of which there are few."""
    return error.kind if isinstance(error, TurngapError) else type(error).__name__


def _known(attributes: Mapping[str, Any]) -> Attributes:
    """Leave out what is not known, and every secret."""
    known = {name: v for name, v in attributes.items() if v is not None and v != ""}
    return texts_without_secrets(known)


def conversation_about(
    run: str,
    scenario: str,
    repeat: int,
    phase_ms: float,
    *,
    server: tuple[str | None, int | None] = (None, None),
    **more: Any,
) -> Attributes:
    """Return what is known of a conversation before it begins; `more` are turngap's attributes."""
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


OFF = Telemetry()


def telemetry_to(url: str | None) -> Telemetry:
    """Return telemetry to `--otlp URL`, or else to where the environment's variables say; or none.

    Raises:
        InputError: the URL is not one of a collector, or the flag is given and the exporter is not
            installed.
    """
    if url:
        where = Destination.of(url)
    else:
        try:
            where = Destination.of_environment()
        except InputError as e:  # nobody asked this command for it
            return Telemetry(Destination("", None, None), e.message)
        if where is None:
            return OFF
    why_not = why_unsendable(where) or ""
    if url and OTLP.remedy in why_not:
        what = "telemetry needs OpenTelemetry's exporter, which is not installed"
        raise InputError("otlp.missing", what, hint=OTLP.remedy)
    return Telemetry(where, why_not)


@contextmanager
def telling(url: str | None) -> Iterator[Telemetry]:
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

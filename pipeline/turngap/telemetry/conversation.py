"""A conversation as it is told: its turns while it is played, its spans when it is over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from turngap.clocks import wall_ns
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.results import Turn
from turngap.telemetry.attributes import (
    FAILED,
    Attributes,
    conversation_attributes,
    error_type,
    stage_attributes,
    turn_attributes,
)
from turngap.telemetry.names import INVOKE_AGENT, STAGE_SPAN, TURN_SPAN

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turngap.telemetry.sender import Ids, Sender
    from turngap.telemetry.telemetry import Telemetry


class ToldConversation:
    """A conversation while it is played, used as a context; its spans are made when it is over.

    Attributes:
        headers: those that its WebSocket is opened with, so that the agent's own spans hang under
            it: each `Name: value`.
    """

    def __init__(
        self,
        telemetry: "Telemetry",
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
        self._turns: list[_Told] = []
        self._begun_ns, self._ended_ns = clock.now_ns(), None
        self._why = self._error_type = ""
        self.headers = () if ids is None else (ids.header,)

    def note(self, **about: Any) -> None:
        """Add attributes of turngap's that came to be known, by their names without `turngap.`."""
        self.describe({f"turngap.{name}": value for name, value in about.items()})

    def describe(self, about: Mapping[str, Any]) -> None:
        """Add attributes that came to be known, by their whole names."""
        self._about |= about

    def turn(
        self,
        turn: Turn,
        ended_ns: int | None = None,
        *,
        waited_ms: float = 0.0,
        counts: bool = True,
    ) -> None:
        """Tell a turn that is over, and when it was; nothing is computed before all are.

        `waited_ms` is how much later than intended the person began. If the turn does not count,
        it is in the trace alone.
        """
        if self._sender is not None:
            self._turns.append(_Told(turn, ended_ns, waited_ms, counts))

    def lasted(self, begun_ns: int, ended_ns: int) -> None:
        """Say when it was, on the caller's clock, where it is told only afterwards."""
        self._begun_ns, self._ended_ns = begun_ns, ended_ns

    def failed(self, why: str, kind: str) -> None:
        """Say that the call ended before all of its turns were played, and why.

        `kind` is the kind of error, of which there are few.
        """
        self._why, self._error_type = why, kind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if (sender := self._sender) is None or self._ids is None:
            return
        self._sender = None
        if error is not None:
            self.failed(f"{error}" or type(error).__name__, error_type(error))
        try:
            self._tell(sender, self._ids)
        except Exception as e:  # a fault of what only tells must not end what is measured
            self._telemetry.untold(e)

    def _tell(self, sender: "Sender", ids: "Ids") -> None:
        # The caller's clock has no date: both are read once, when nobody speaks.
        now_ns = self._clock.now_ns()
        date_ns = wall_ns() - now_ns
        root = None
        if ids.sampled:
            root = self._root(sender, date_ns)
            if self._why:
                sender.fail(root, self._why)
        for told in self._turns:
            span = root and self._turn(sender, root, told, date_ns)
            if told.counts:
                self._telemetry.count(self._agent, told.turn, span, told.waited_ms)
        if root is not None:
            over_ns = now_ns if self._ended_ns is None else self._ended_ns
            root.end(max(over_ns, self._begun_ns, *(told.end_ns for told in self._turns)) + date_ns)
            self._telemetry.told()

    def _root(self, sender: "Sender", date_ns: int) -> "Span":
        told = self._about | {"turngap.turns": len(self._turns), "error.type": self._error_type}
        attributes = conversation_attributes(told, self._agent)
        name, begun_ns = f"{INVOKE_AGENT} {self._agent}", self._begun_ns
        if self._turns:
            begun_ns = min(begun_ns, self._turns[0].start_ns)
        return sender.span(name, begun_ns + date_ns, attributes, ids=self._ids)

    def _turn(self, sender: "Sender", root: "Span", told: "_Told", date_ns: int) -> "Span":
        turn = told.turn
        conversation = str(self._about.get("gen_ai.conversation.id", ""))
        attributes = turn_attributes(turn, conversation, contents=self._contents)
        if told.waited_ms:
            attributes["turngap.waited_ms"] = told.waited_ms
        span = sender.span(TURN_SPAN, told.start_ns + date_ns, attributes, root)
        if turn.outcome in FAILED:
            sender.fail(span, turn.error or turn.why_no_gap or turn.outcome)
        for name, start_ns, end_ns, said in _stages(turn):
            sender.span(f"{STAGE_SPAN}{name}", start_ns + date_ns, said, span).end(end_ns + date_ns)
        span.end(told.end_ns + date_ns)
        return span


@dataclass(frozen=True, slots=True)
class _Told:
    """A turn as it was told, with its instants on the caller's clock."""

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


def _stages(turn: Turn) -> Sequence[tuple[str, int, int, Attributes]]:
    """Each stage with its instants on the caller's clock; none of a turn that was cut into."""
    if turn.gap_ns is None or turn.gap_ns < 0:
        return ()
    found: list[tuple[str, int, int, Attributes]] = []
    at_ns = _mark(turn, "user_end")
    for stage in turn.stages:
        found.append((stage.name, at_ns, at_ns + stage.ns, stage_attributes(stage)))
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
    """Build a conversation's attributes before it begins; `more` are turngap's own."""
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

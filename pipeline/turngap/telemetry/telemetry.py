"""Telemetry of what is played: its conversations are told here, and sent when they are over."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.secrets import text_without_secrets
from turngap.telemetry.attributes import claimed_ms, contents_wanted
from turngap.telemetry.conversation import ToldConversation
from turngap.telemetry.destination import OTLP, Destination, remember_headers, why_unsendable
from turngap.telemetry.names import CLAIMED, GAP, STAGES, TURNS, YIELD

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from turngap.telemetry.sender import Sender, Thread

# Between two conversations so much time is given to the collector: then no request is begun, and
# one that is under way ends within `exporters.BRIEF_S`. After the first time that it is slower, or
# refuses, all the rest is sent at the end.
BETWEEN_S = 0.5
# A request that even then does not end, as where no name server answers, is waited for so long.
STUCK_S = 10.0
# And at the end nobody waits longer than this.
AT_THE_END_S = 10.0


class Telemetry:
    """Where conversations are told; without a destination nothing is sent, and nothing costs.

    Make it with `telemetry_to`. It is used by one thread.

    Attributes:
        lost: whether something could not be sent; known when it is closed.
    """

    def __init__(self, where: Destination | None = None, why_not: str = "") -> None:
        self._where, self._why_not = where, why_not
        self._sender: Sender | None = None
        self._thread: Thread | None = None
        self._patient = True
        self._conversations = 0
        self._untold: list[Exception] = []
        self._contents = False
        self.lost = False
        if where is not None and not why_not:
            from turngap.telemetry import sender

            remember_headers()
            self._contents = contents_wanted()
            self._sender = sender.Sender(where)

    @property
    def on(self) -> bool:
        return self._sender is not None

    @property
    def untraced(self) -> tuple[str, ...]:
        """Headers of a call that is no conversation: they tell the agent to make no trace of it."""
        return () if self._sender is None else (self._sender.ids(sampled=False).header,)

    def conversation(
        self, about: Mapping[str, Any], agent: str, clock: Clock, *, sampled: bool = True
    ) -> ToldConversation:
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

    def count(
        self, agent: str, turn: Turn, span: "Span | None" = None, waited_ms: float = 0.0
    ) -> None:
        """Add a turn to the figures, unless no figure of a run counts it.

        What was waited before the person could begin is part of the gap.
        """
        if (sender := self._sender) is None or turn.left_out is not None:
            return
        of = {"gen_ai.agent.name": agent, "turngap.outcome": turn.outcome}
        sender.count(TURNS, 1, of, span)
        if turn.yield_ms is not None:
            sender.count(YIELD, turn.yield_ms / 1000, of, span)
        if not turn.replied or turn.gap_ms is None:
            return
        sender.count(GAP, (turn.gap_ms + waited_ms) / 1000, of, span)
        claim, _ = claimed_ms(turn)
        if claim is not None:
            sender.count(CLAIMED, claim / 1000, of, span)
        for name, ms in turn.stage_ms.items():
            sender.count(STAGES, ms / 1000, of | {"turngap.stage": name}, span)

    def count_missed(self, agent: str, missed: str) -> None:
        """Count a turn that could not be played, by what became of it."""
        if self._sender is not None:
            self._sender.count(TURNS, 1, {"gen_ai.agent.name": agent, "turngap.outcome": missed})

    def told(self) -> None:
        """Note that a conversation has been told."""
        self._conversations += 1

    def untold(self, why: Exception) -> None:
        """Note that a conversation could not be told, by a fault of turngap's own."""
        self._untold.append(why)

    async def between(self) -> None:
        """Send what is there, between two conversations; when it returns, nothing is being sent.

        It takes about a second at most. What was not sent by then waits for the next time.
        """
        if self._sender is None or not self._patient:
            return
        thread = self._begun(self._sender, brief=True)
        await asyncio.wait([asyncio.wrap_future(thread.done)], timeout=BETWEEN_S)
        await self.pause()
        self._patient = thread.done.done() and thread.done.result() is None

    async def send(self) -> None:
        """Send what is there, while nobody talks; `pause` ends it, as soon as `between` would."""
        if self._sender is not None:
            thread = self._begun(self._sender, brief=True)
            await asyncio.wait([asyncio.wrap_future(thread.done)])

    async def pause(self) -> None:
        """Begin no further request, and wait until the one that is under way has ended."""
        if self._thread is not None:
            self._thread.stop.set()
            await asyncio.wait([asyncio.wrap_future(self._thread.done)], timeout=STUCK_S)

    def close(self, at_most_s: float = AT_THE_END_S) -> str | None:
        """Send the rest, and return a sentence on what was sent; None: nothing was to be.

        It takes `at_most_s` at most, whatever the collector does.
        """
        if self._where is None:
            return None
        if (sender := self._sender) is None:
            self.lost = True
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
        if why is None and sender.waiting:
            why = sender.why_dropped
        self.lost = why is not None or bool(self._untold)
        return self._words(sender, why) + self._words_of_untold()

    def _begun(self, sender: "Sender", *, brief: bool = False) -> "Thread":
        """Return the running delivery, or begin a new one."""
        from turngap.telemetry.sender import Thread

        if self._thread is None or self._thread.done.done():
            self._thread = Thread(sender, brief=brief)
        return self._thread

    def _words(self, sender: "Sender", why: str | None) -> str:
        where = "" if self._where is None else self._where.shown
        of = f"{self._conversations} conversation" + ("" if self._conversations == 1 else "s")
        sent = f"telemetry of {of} sent to {where}: {sender.sent} spans"
        if why is None:
            nothing = f"telemetry: no conversation was played, and nothing was sent to {where}"
            return sent if self._conversations else nothing
        if not sender.waiting and sender.sent:  # a collector of traces alone
            hint = "set OTEL_METRICS_EXPORTER=none if it takes none"
            return f"{sent}, without the histograms: {why} ({hint})"
        lost = [f"{sender.waiting} of {sender.waiting + sender.sent} spans"]
        lost += ["the histograms"] if sender.figures_waiting else []
        return f"telemetry: {' and '.join(lost)} could not be sent to {where}: {why}"

    def _words_of_untold(self) -> str:
        if not self._untold:
            return ""
        first, n = self._untold[0], len(self._untold)
        said = text_without_secrets(str(first) or type(first).__name__)
        return f"; {n} conversation{'' if n == 1 else 's'} could not be told whole: {said}"


OFF = Telemetry()


def telemetry_to(url: str | None) -> Telemetry:
    """Telemetry to `--otlp URL`, or else to where the environment's variables say; or none.

    Raises:
        InputError: the URL is none of a collector, or the flag is given and the exporter is not
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
    """Telemetry as of `telemetry_to`; when the block is left, it is sent, and logged as `turngap`.

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

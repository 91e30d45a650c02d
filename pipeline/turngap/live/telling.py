"""Tells telemetry of conversations at the page: once they are over, and while nobody talks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turngap.core.clock import Clock
from turngap.core.results import MarkRecord, Turn
from turngap.telemetry.conversation import ToldConversation
from turngap.telemetry.telemetry import Telemetry

# So many conversations wait as they are for a pause; of more, the spans are made at once, of which
# the number is bounded.
MOST_WAITING = 200


class TalkTold:
    """What is told of one conversation; its instants are the server's."""

    def __init__(self, told: ToldConversation, clock: Clock) -> None:
        self._told, self._clock = told, clock
        self._begun_ns = clock.now_ns()

    @property
    def headers(self) -> Sequence[str]:
        """Those that the line to a foreign agent is opened with."""
        return self._told.headers

    def turn(self, turn: Turn, ended_ns: int, offset_ns: int | None) -> None:
        """Note a turn that was stored, and its end on the page clock.

        `offset_ns` is the server's clock minus the page's. Where nobody has told it, or what it
        says cannot be, the turn ends now.
        """
        now_ns = self._clock.now_ns()
        placed = None if offset_ns is None else ended_ns + offset_ns
        if placed is None or not self._begun_ns <= placed <= now_ns:
            placed = now_ns
        shift = placed - ended_ns
        marks = [m.model_copy(update={"at_ns": m.at_ns + shift}) for m in turn.marks]
        marks = marks or [MarkRecord(name="user_end", at_ns=placed, vantage="caller")]
        self._told.turn(turn.model_copy(update={"marks": tuple(marks)}), placed)

    def over(self, about: Mapping[str, Any], failure: str | None) -> None:
        """Note that the conversation is over, what is known of it, and why it failed."""
        self._told.describe(about)
        self._told.lasted(self._begun_ns, self._clock.now_ns())
        if failure is not None:
            self._told.failed(failure, "live.failed")

    def make(self) -> None:
        """Make its spans."""
        with self._told:
            pass


class Telling:
    """Tells of all conversations of a server, at moments when `quiet` says that nobody talks."""

    def __init__(self, telemetry: Telemetry, clock: Clock, quiet: Callable[[], bool]) -> None:
        self._telemetry, self._clock, self._quiet = telemetry, clock, quiet
        self._waiting: list[TalkTold] = []
        self._sending = asyncio.Lock()
        self._closed = False

    def begin(self, agent: str) -> TalkTold | None:
        """Begin to tell of a conversation with this agent; None: nobody wants to know."""
        if not self._telemetry.on:
            return None
        return TalkTold(self._telemetry.conversation({}, agent, self._clock), self._clock)

    async def over(
        self, talk: TalkTold | None, about: Mapping[str, Any], failure: str | None
    ) -> None:
        """Take a conversation that is over, and send all that are, unless somebody talks.

        One that is taken twice, since it was interrupted, is told once.
        """
        if talk is None:
            return
        talk.over(about, failure)
        self._waiting.append(talk)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.pop(0).make()
        async with self._sending:
            if not self._closed and self._quiet():
                self._make()
                await self._telemetry.send()

    async def hush(self) -> None:
        """Send nothing from now on, since somebody begins to talk."""
        await self._telemetry.pause()

    def close(self) -> None:
        """Send nothing more by itself: whoever closes the telemetry sends what is left."""
        self._closed = True

    async def closed(self) -> None:
        """Make what has not been told, once all conversations are over."""
        self._make()
        await self.hush()

    def _make(self) -> None:
        while self._waiting:
            self._waiting.pop(0).make()

"""The conversations that a server holds: those that run, and those that may come back."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loguru import logger

from turngap.agent.switching import Memory
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import OffsetRecord, Turn
from turngap.live.conversation import KeptTurn, LiveConversation
from turngap.live.figures import figures_of
from turngap.live.keeping import Keeping, LiveRun, zipped
from turngap.live.limits import Limits
from turngap.live.saving import Saved, save

# Whoever knows it may download the conversation: 128 bits.
ID_BYTES = 16


class Held:
    """One conversation over all its connections.

    Attributes:
        id: names it, and cannot be guessed.
        memory: what the agent remembers over a lost line.
        connected: a socket is open for it.
        begun_ns: when its first socket was opened.
    """

    def __init__(
        self, keeping: Keeping, *, name: str, agent: Mapping[str, Any], in_rate: int, now_ns: int
    ) -> None:
        self.id = secrets.token_urlsafe(ID_BYTES)
        self.memory = Memory()
        self.conversation = LiveConversation(name, in_rate)
        self.run = LiveRun(keeping, name, agent)
        self.connected = False
        self.begun_ns = now_ns
        self.over = False
        self._writing = asyncio.Lock()

    async def keep(self, turn: KeptTurn, offset: OffsetRecord | None) -> Turn:
        """Store a turn, after those before it.

        Raises:
            InputError: it cannot be written.
        """
        async with self._writing:
            return await asyncio.to_thread(self.run.keep, turn, offset)

    async def figures(self) -> dict[str, Any]:
        """The figures of what is stored so far (`turngap.live.figures`)."""
        return await asyncio.to_thread(figures_of, tuple(self.run.turns))

    async def finish(self, how: str, failure: str | None = None) -> None:
        """The conversation is over: store what is left of it, and judge its run."""
        self.over = True
        async with self._writing:
            await asyncio.to_thread(self._finish, how, failure)

    async def packed(self) -> Path:
        """A zip of the run; the caller removes it.

        Raises:
            InputError: nothing is stored yet.
        """
        async with self._writing:
            return await asyncio.to_thread(self.run.packed)

    async def saved(self, name: str, folder: Path) -> Saved:
        """The conversation as a scenario in `folder`.

        Raises:
            InputError: as `turngap.live.saving.save`.
        """
        async with self._writing:
            turns = tuple(self.run.turns)
            return await asyncio.to_thread(save, self.run.stored(), turns, name, folder)

    async def packed_scenario(self, name: str, folder: Path) -> tuple[Path, Saved]:
        """The scenario as a zip, made in an empty `folder`; the caller removes it.

        Raises:
            InputError: as `turngap.live.saving.save`.
        """
        saved = await self.saved(name, folder)
        return await asyncio.to_thread(zipped, folder), saved

    def _finish(self, how: str, failure: str | None) -> None:
        conversation = self.conversation
        for connection in list(conversation.connections.values()):
            for turn in conversation.lost(connection):
                self.run.keep(turn, None)
        conversation.connections.clear()  # their audio is stored, or of no use
        self.run.finish(how, failure)


class Conversations:
    """All conversations of a server.

    Args:
        begin: makes a conversation, given the present instant.
    """

    def __init__(self, begin: Callable[[int], Held], limits: Limits, clock: Clock) -> None:
        self._begin = begin
        self._limits = limits
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def new(self) -> Held:
        """A conversation that begins."""
        held = self._begin(self._clock.now_ns())
        self._held[held.id] = held
        return held

    def get(self, id_: str) -> Held:
        """A conversation that runs, may come back, or was over lately.

        Raises:
            InputError: there is none of that id.
        """
        if id_ not in self._held:
            raise InputError(
                "live.unknown",
                "no such conversation: it is over, or the server was started again since",
                hint="its run stays in the server's folder of runs (turngap report)",
            )
        return self._held[id_]

    def resumed(self, id_: str) -> Held:
        """A conversation that comes back.

        Raises:
            InputError: there is none, or it is over.
        """
        held = self.get(id_)
        if held.over:
            raise InputError("live.over", "that conversation is over", hint="begin another")
        if waiting := self._waiting.pop(id_, None):
            waiting.cancel()
        return held

    def left(self, held: Held, how: str, failure: str | None, *, for_good: bool) -> None:
        """A conversation's socket is gone; it is over, or is waited for a while."""
        task = asyncio.create_task(self._end(held, how, failure, for_good=for_good))
        self._waiting[held.id] = task

    async def close(self) -> None:
        """The server ends: every run is finished."""
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        for held in self._held.values():
            if not held.over:
                await _finished(held, "the server ended", None)
            held.run.forget()
        self._held.clear()

    async def _end(self, held: Held, how: str, failure: str | None, *, for_good: bool) -> None:
        if not for_good:
            await self._sleep(self._limits.resume_s)
        await _finished(held, how, failure)
        await self._sleep(self._limits.download_s)
        self._held.pop(held.id, None)
        self._waiting.pop(held.id, None)
        held.run.forget()

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(seconds * 1000))


async def _finished(held: Held, how: str, failure: str | None) -> None:
    try:
        await held.finish(how, failure)
    except TurngapError as e:
        logger.warning(f"a conversation could not be kept whole: {e.message}")

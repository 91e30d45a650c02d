"""The conversations that a server holds: those that run, and those that may come back."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from turngap.agent.limits import Limits
from turngap.agent.stack import Chosen
from turngap.core.budget import DEFAULT_BUDGET_MS, OUTCOMES
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import OffsetRecord, Turn
from turngap.core.stats import Proportion
from turngap.core.summary import counted_turns, summarise
from turngap.live.conversation import KeptTurn, LiveConversation
from turngap.live.keeping import Keeping, LiveRun, zipped
from turngap.live.relay import Delays
from turngap.live.saving import Saved, save
from turngap.live.telling import TalkTold, Telling
from turngap.report import words as report_words

# 128 bits, because anyone who knows the id may download the conversation.
ID_BYTES = 16


class Held:
    """One conversation over all its connections.

    Attributes:
        id: its name, which cannot be guessed.
        memory: what the agent remembers across a lost line; None if that is not ours to say.
        delays: how long a relay keeps audio.
        line_bound_ns: how far off a foreign agent's clock may be as the relay has compared it.
        connected: whether a socket is open for it.
        begun_ns: when its first socket was opened.
        told: what telemetry is told of it; None if nobody wants to know.
    """

    def __init__(
        self,
        keeping: Keeping,
        *,
        name: str,
        agent: Mapping[str, Any],
        stand_ins: tuple[str, ...],
        chosen: Chosen,
        simulated: Collection[str],
        in_rate: int,
        now_ns: int,
        memory: Any = None,
    ) -> None:
        self.id = secrets.token_urlsafe(ID_BYTES)
        self.memory = memory
        self.delays = Delays()
        self.line_bound_ns = 0
        self.conversation = LiveConversation(name, in_rate)
        self.run = LiveRun(keeping, name, agent, stand_ins)
        self.run.on_chosen(chosen)
        self.run.simulated = simulated
        self.connected = False
        self.told: TalkTold | None = None
        self.begun_ns = now_ns
        self.over = False
        self._finishing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def keep(self, turn: KeptTurn, offset: OffsetRecord | None) -> Turn:
        """Store a turn after those before it.

        Raises:
            InputError: it cannot be written.
        """
        async with self._writing:
            return await asyncio.to_thread(self._keep, turn, offset)

    async def figures(self) -> dict[str, Any]:
        return await asyncio.to_thread(figures_of, tuple(self.run.turns))

    async def finish(self, how: str, failure: str | None = None) -> None:
        """End the conversation: store what is left of it, and judge its run.

        It is ended once. Who calls again, or is cancelled while it is written, loses nothing.
        """
        self.over = True
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._write_end(how, failure))
        await asyncio.shield(self._finishing)

    async def _write_end(self, how: str, failure: str | None) -> None:
        async with self._writing:
            await asyncio.to_thread(self._finish, how, failure)

    async def packed(self) -> Path:
        """Make a zip of the run, which the caller removes.

        Raises:
            InputError: nothing is stored yet.
        """
        async with self._writing:
            return await asyncio.to_thread(self.run.packed)

    async def saved(self, name: str, folder: Path) -> Saved:
        """Save the conversation as a scenario in `folder`; raises as `saving.save` does."""
        async with self._writing:
            turns = tuple(self.run.turns)
            return await asyncio.to_thread(
                save, self.run.stored(), turns, name, folder, self.run.with_whom
            )

    async def packed_scenario(self, name: str, folder: Path) -> tuple[Path, Saved]:
        """Save a scenario in an empty `folder` and zip it; the caller removes the zip."""
        saved = await self.saved(name, folder)
        return await asyncio.to_thread(zipped, folder), saved

    def _keep(self, turn: KeptTurn, offset: OffsetRecord | None) -> Turn:
        record = self.run.keep(turn, offset)
        if self.told is not None:
            self.told.turn(record, turn.window[1], None if offset is None else offset.offset_ns)
        return record

    def _finish(self, how: str, failure: str | None) -> None:
        conversation = self.conversation
        try:
            for connection in list(conversation.connections.values()):
                for turn in conversation.lost(connection):
                    self._keep(turn, None)
        finally:
            conversation.connections.clear()  # their audio is stored or useless
            self.run.finish(how, failure)


class Conversations:
    """All conversations of a server; `begin` makes one at the given instant."""

    def __init__(
        self, begin: Callable[[int], Held], limits: Limits, clock: Clock, telling: Telling
    ) -> None:
        self._begin = begin
        self._telling = telling
        self._limits = limits
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._left: dict[str, _Left] = {}

    @property
    def count(self) -> int:
        """How many conversations are held: those that run, may come back, or can be downloaded."""
        return len(self._held)

    def new(self) -> Held:
        """Begin a conversation; the one that was left longest ago makes room for it."""
        held = self._begin(self._clock.now_ns())
        held.told = self._telling.begin(held.run.agent_name)
        self._held[held.id] = held
        for left in list(self._left.values())[: max(0, len(self._left) - self._limits.left)]:
            left.forgotten.set()
        return held

    def get(self, id_: str) -> Held:
        """Return a conversation that runs, may come back, or has ended recently.

        Raises:
            InputError: there is none with that id.
        """
        if id_ not in self._held:
            raise InputError(
                "live.unknown",
                "no such conversation: it is over, or the server has restarted",
                hint="its run is still in the server's folder of runs (turngap report)",
            )
        return self._held[id_]

    def resumed(self, id_: str) -> Held:
        """Return a conversation whose page comes back.

        Raises:
            InputError: there is none, or it is over.
        """
        held = self.get(id_)
        if held.over:
            raise InputError("live.over", "that conversation is over", hint="start a new one")
        if left := self._left.pop(id_, None):
            left.task.cancel()
        return held

    def left(self, held: Held, how: str, failure: str | None, *, for_good: bool) -> None:
        """End a conversation whose socket is gone, at once or unless the page comes back."""
        left = _Left(held, how, failure, for_good=for_good)
        self._left[held.id] = left
        left.task = asyncio.create_task(self._end(left))

    async def close(self) -> None:
        self._telling.close()
        left = dict(self._left)
        for each in left.values():
            each.task.cancel()
        await asyncio.gather(*(each.task for each in left.values()), return_exceptions=True)
        running = [held for held in self._held.values() if held.id not in left]
        stopped = [_Left(held, "the server ended", None, for_good=True) for held in running]
        ended = (*left.values(), *stopped)
        await asyncio.gather(*map(self._finished, ended), return_exceptions=True)
        await self._telling.closed()
        for held in self._held.values():
            held.run.forget()
        self._held.clear()
        self._left.clear()

    async def _end(self, left: "_Left") -> None:
        if not left.for_good:
            await self._wait(left, self._limits.resume_s)
        await self._finished(left)
        if left.held.run.path is not None:  # otherwise there is nothing to download
            await self._wait(left, self._limits.download_s)
        del self._held[left.held.id], self._left[left.held.id]
        left.held.run.forget()

    async def _finished(self, left: "_Left") -> None:
        try:
            await left.held.finish(left.how, left.failure)
        except TurngapError as e:
            logger.warning(f"a conversation could not be stored completely: {e.message}")
        await self._telling.over(left.held.told, left.held.run.about(), left.failure)

    async def _wait(self, left: "_Left", seconds: float) -> None:
        """Wait so long, unless there are too many others."""
        until_ns = self._clock.now_ns() + ms_to_ns(seconds * 1000)
        sleeping = asyncio.ensure_future(self._clock.sleep_until_ns(until_ns))
        forgotten = asyncio.ensure_future(left.forgotten.wait())
        try:
            await asyncio.wait({sleeping, forgotten}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            forgotten.cancel()


class _Left:
    """A conversation whose page left, and why. `forgotten` is set when nobody waits for it."""

    task: asyncio.Task[None]

    def __init__(self, held: Held, how: str, failure: str | None, *, for_good: bool) -> None:
        self.held = held
        self.how = how
        self.failure = failure
        self.for_good = for_good
        self.forgotten = asyncio.Event()


# Stands for the LLM of an agent that does not name it.
UNNAMED = "agent"


def figures_of(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return figures of `all` turns and of each of the `llms`, in order of first answer."""
    names = dict.fromkeys(turn.llm or UNNAMED for turn in turns)
    by_llm = {name: [t for t in turns if (t.llm or UNNAMED) == name] for name in names}
    return {"all": _figures(turns), "llms": {name: _figures(own) for name, own in by_llm.items()}}


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return figures, and the words that the page shows of them.

    `others` counts turns that were no hit, left-out ones by their reason.
    """
    summary = summarise(turns)
    rate, p50 = summary.hit_rate, summary.gap_ms["p50"]
    outcomes = Counter(turn.outcome for turn in counted_turns(turns))
    reasons = Counter(turn.left_out for turn in turns if turn.left_out is not None)
    others = {o: outcomes[o] for o in OUTCOMES if o != "answered" and outcomes[o]}
    others |= {f"left out: {why}": count for why, count in reasons.items()}
    words = [_in_words(rate)] if rate.n else []
    words += [f"{count} {what}" for what, count in others.items() if what != "cut_in"]
    gap = f"– ({p50.why_none})" if p50.value is None else f"{report_words.ms(p50.value)} ms"
    cut_ins = report_words.cut_in_sentence(summary.cut_ins)
    return {
        "n": rate.n,
        "hits": rate.hits,
        "ci95": [rate.low, rate.high],
        "p50_ms": p50.value,
        "why_no_p50": p50.why_none,
        "cut_ins": {
            **summary.cut_ins.as_json(),
            "percent": report_words.hit_rate_words(summary.cut_ins)[0],
            "words": cut_ins,
        },
        "others": others,
        "percent": report_words.hit_rate_words(rate)[0],
        "words": " · ".join(words),
        "caption": " · ".join([f"p50 {gap}", cut_ins, *words]),
    }


def _in_words(rate: Proportion) -> str:
    interval = report_words.hit_rate_words(rate)[1]
    return f"{rate.hits} of {rate.n} within {DEFAULT_BUDGET_MS:g} ms ({interval})"

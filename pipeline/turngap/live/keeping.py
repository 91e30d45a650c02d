"""The conversations that a server holds, and each one's run on disk, written turn by turn."""

import asyncio
import dataclasses
import os
import secrets
import tempfile
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loguru import logger

from turngap.agent.stack import Chosen
from turngap.caller.stream import RATE
from turngap.core import __version__
from turngap.core.budget import DEFAULT_BUDGET_MS, OUTCOMES
from turngap.core.clock import NS_PER_MS
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.core.run_record import SIMULATED_LLM, OffsetRecord, RunRecord, worse_offset
from turngap.core.summary import counted_turns, summarise
from turngap.live.conversation import TYPED, Connection, KeptTurn, LiveConversation
from turngap.live.saving import Saved, end_error_ms, save, scenario_name, why_unsaved
from turngap.report import words as report_words
from turngap.store.documents import git_commit, this_machine
from turngap.store.folders import utc_now
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter

# Makes a run's report.html; this layer does not know the layer of reports.
Render = Callable[[Run], object]

# 128 bits, because anyone who knows the id may download the conversation.
ID_BYTES = 16
# This many conversations can still be downloaded after their end.
MOST_ENDED = 20
# How many delays of a relay are kept: the packets of ten seconds.
MOST_DELAYS = 500
# Stands for the LLM of an agent that does not name it.
UNNAMED = "agent"


@dataclasses.dataclass(frozen=True, slots=True)
class Keeping:
    """The place where conversations are kept.

    Attributes:
        out: the folder of runs; None keeps them only as long as they can be downloaded.
        record: the folder that gets every conversation as a scenario; None saves none.
        render: called with a run that a person will look at.
    """

    out: Path | None = Path("runs")
    record: Path | None = None
    render: Render = lambda _: None


@dataclasses.dataclass(slots=True)
class Delays:
    """The times for which the relay holds audio, ns: on the way to the agent, and to the page."""

    to_agent: deque[int] = dataclasses.field(default_factory=lambda: deque[int](maxlen=MOST_DELAYS))
    to_page: deque[int] = dataclasses.field(default_factory=lambda: deque[int](maxlen=MOST_DELAYS))

    @property
    def ms(self) -> float | None:
        """Return the median time that both delays together add to a gap; None before any audio."""
        if not (self.to_agent and self.to_page):
            return None
        return round((median(self.to_agent) + median(self.to_page)) / NS_PER_MS, 3)


class Held:
    """One conversation and its run; the first turn makes the folder.

    Attributes:
        id: its name, which cannot be guessed.
        delays: how long a relay holds audio.
        line_bound_ns: how far off a foreign agent's clock may be by the relay's comparison.
        flags: options of `turngap replay` that play against the same agent; empty for a stack.
        turns: the turns stored so far.
        settings: further settings of the run.
        path: the run's folder; None before the first turn.
    """

    def __init__(
        self,
        keeping: Keeping,
        *,
        name: str,
        agent: Mapping[str, Any],
        in_rate: int,
        stand_ins: tuple[str, ...] = (),
        chosen: Chosen | None = None,
        simulated: Collection[str] = (),
        flags: str = "",
    ) -> None:
        self.id = secrets.token_urlsafe(ID_BYTES)
        self.conversation = LiveConversation(name, in_rate)
        self.delays = Delays()
        self.line_bound_ns = 0
        self.flags = flags
        self.turns: list[Turn] = []
        self.settings: dict[str, Any] = {}
        self.path: Path | None = None
        self._keeping = keeping
        self._agent = dict(agent)
        self._stand_ins = stand_ins
        self._chosen = chosen or Chosen()
        self._simulated = simulated
        self._offset: OffsetRecord | None = None
        self._run: tuple[RunWriter, RunRecord] | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._missing = 0
        self._finished = False
        self._writing = asyncio.Lock()

    @property
    def is_kept(self) -> bool:
        """Check whether the run stays after the server has ended."""
        return self._keeping.out is not None

    @property
    def with_whom(self) -> str:
        """Return the foreign agent's name for a saved scenario; empty for a stack."""
        url, dialect = self._agent.get("url"), self._agent.get("dialect")
        return f"{url} ({dialect})" if url else ""

    async def keep(self, turn: KeptTurn, offset: OffsetRecord | None) -> Turn:
        """Store a turn, after all earlier turns.

        Raises:
            InputError: the turn cannot be written.
        """
        async with self._writing:
            return await asyncio.to_thread(self._keep, turn, offset)

    async def figures(self) -> dict[str, Any]:
        """Return the figures of all turns so far."""
        return await asyncio.to_thread(figures_of, tuple(self.turns))

    async def finish(self, how: str, failure: str | None = None) -> None:
        """End the run once: store the turn in progress, the last record, the report, the scenario.

        Raises:
            InputError: a folder is not writable.
        """
        async with self._writing:
            await asyncio.to_thread(self._finish, how, failure)

    async def packed(self) -> Path:
        """Make a zip of the run as it is now, with its report; the caller removes the file.

        Raises:
            InputError: nothing is stored yet.
        """
        async with self._writing:
            return await asyncio.to_thread(self._packed)

    async def saved(self, name: str, folder: Path) -> Saved:
        """Save the conversation as a scenario in `folder`; raises as `saving.save` does."""
        async with self._writing:
            turns = tuple(self.turns)
            return await asyncio.to_thread(save, self.stored(), turns, name, folder, self.with_whom)

    def forget(self) -> None:
        """Remove what is kept in a temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _keep(self, turn: KeptTurn, offset: OffsetRecord | None) -> Turn:
        writer, _ = self._run = self._run or self._begun()
        # Until the turn is on the disk, it is missing: a run that lacks one is not valid.
        self._missing += 1
        if offset is not None:
            self._offset = worse_offset(self._offset, offset)
        name = f"{len(self.turns) + 1:03d}"
        record = _with_file(turn, writer.write_audio(name, turn.user, turn.heard(), RATE))
        writer.append_turn(record)
        self.turns.append(record)
        self._missing -= 1
        return record

    def _begun(self) -> tuple[RunWriter, RunRecord]:
        out = self._keeping.out
        if out is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="turngap-live-")
            out = Path(self._temporary.name)
        name = self.conversation.name
        record = RunRecord(
            turngap_version=__version__,
            commit=git_commit(),
            name=name,
            started_utc=utc_now(),
            machine=this_machine(),
            agent=self._agent,
            settings={"live": True},
            scenario_hashes={},
            planned_turns=0,
            budget_ms=DEFAULT_BUDGET_MS,
            stand_ins=self._stand_ins,
            held_out=self._chosen.held_out,
            found=self._chosen.found,
        )
        writer = RunWriter.create(out, name, record)
        self.path = writer.path
        return writer, record

    def _finish(self, how: str, failure: str | None) -> None:
        if self._finished:
            return
        self._finished = True
        try:
            for turn in self.conversation.lost():
                self._keep(turn, None)
        finally:
            self.conversation.connection = Connection(0)  # its audio is stored or useless
            if self._run is not None:
                self._close(*self._run, how, failure)

    def _close(self, writer: RunWriter, record: RunRecord, how: str, failure: str | None) -> None:
        reasons = [] if failure is None else [f"ended early: {failure}"]
        if self._missing:
            reasons.append(f"{report_words.turns_words(self._missing)} could not be stored")
        # The stack's own LLM is known from the start, another one may have been picked.
        picked = [SIMULATED_LLM] if any(t.llm in self._simulated for t in self.turns) else []
        closing = {
            "finished_utc": utc_now(record.started_utc),
            "clock_offset": self._offset,
            "settings": {"live": True, "ended": how, **self.settings},
            "stand_ins": tuple(dict.fromkeys((*picked, *self._stand_ins))),
            "valid": not reasons,
            "why_invalid": tuple(reasons),
            "failure": failure,
        }
        writer.finish(record.model_copy(update=closing))
        self._keeping.render(read_run(writer.path))
        folder, foreign = self._keeping.record, bool(self.with_whom)
        if folder is not None and any(why_unsaved(t, foreign=foreign) is None for t in self.turns):
            save(writer.path, self.turns, scenario_name(writer.path), folder, self.with_whom)

    def _packed(self) -> Path:
        path = self.stored()
        if not self._finished:
            self._keeping.render(read_run(path))
        return zipped(path, path.name)

    def stored(self) -> Path:
        """Return the run's folder.

        Raises:
            InputError: nothing is stored yet.
        """
        if self.path is None:
            raise InputError(
                "live.nothing_kept",
                "no turn of this conversation has been stored yet",
                hint="say something and wait until the reply ends",
            )
        return self.path


class Conversations:
    """All conversations of a server: those that run, and the last that ended; `begin` makes one.

    Attributes:
        last: the run of the conversation that ended last, if its turns are kept.
    """

    def __init__(self, begin: Callable[[], Held]) -> None:
        self.last: Path | None = None
        self._begin = begin
        self._held: dict[str, Held] = {}
        self._ending: dict[Held, asyncio.Task[None]] = {}

    @property
    def count(self) -> int:
        """Count the held conversations."""
        return len(self._held)

    def new(self) -> Held:
        """Begin a conversation."""
        held = self._begin()
        self._held[held.id] = held
        return held

    def get(self, id_: str) -> Held:
        """Return a conversation that runs, or has ended recently.

        Raises:
            InputError: no conversation has that id.
        """
        if id_ not in self._held:
            raise InputError(
                "live.unknown",
                "no such conversation: it is over, or the server has restarted",
                hint="its run is still in the server's folder of runs (turngap report)",
            )
        return self._held[id_]

    def end(self, held: Held, how: str, failure: str | None = None) -> None:
        """End a conversation whose socket is closed, and drop the oldest that ended."""
        if held not in self._ending:
            self._ending[held] = asyncio.create_task(self._end(held, how, failure))

    async def close(self) -> None:
        """End all conversations, and wait until they are stored."""
        for held in self._held.values():
            self.end(held, "the server ended")
        await asyncio.gather(*self._ending.values(), return_exceptions=True)
        for held in list(self._held.values()):
            self._forget(held)

    async def _end(self, held: Held, how: str, failure: str | None) -> None:
        try:
            await held.finish(how, failure)
        except TurngapError as e:
            logger.warning(f"a conversation could not be stored completely: {e.message}")
        if held.path is None:  # there is nothing to download
            self._forget(held)
        elif held.is_kept:
            self.last = held.path
        ended = [each for each, task in self._ending.items() if task.done()]
        for oldest in ended[:-MOST_ENDED]:
            self._forget(oldest)

    def _forget(self, held: Held) -> None:
        self._held.pop(held.id, None)
        self._ending.pop(held, None)
        held.forget()


def zipped(folder: Path, name: str = "") -> Path:
    """Zip a folder's files below the folder `name`; the caller removes the zip.

    Raises:
        InputError: there is no room on the disk.
    """
    descriptor, temporary = tempfile.mkstemp(suffix=".zip", prefix="turngap-")
    os.close(descriptor)
    file = Path(temporary)
    try:
        with zipfile.ZipFile(file, "w") as archive:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                # FLAC does not shrink. WAV shrinks by a third for a second of CPU a minute.
                packing = zipfile.ZIP_STORED if path.suffix == ".flac" else zipfile.ZIP_DEFLATED
                archive.write(path, Path(name) / path.relative_to(folder), packing, 1)
    except OSError as e:
        file.unlink(missing_ok=True)
        raise InputError("live.no_room", f"cannot pack {folder.name}: {e.strerror or e}") from e
    return file


def _with_file(turn: KeptTurn, file: str) -> Turn:
    """Return the record with its file, and with the possible error of the page's end of speech."""
    audio = turn.record.audio
    if audio is None:
        return turn.record
    changes: dict[str, Any] = {"file": file}
    if turn.record.left_out != TYPED:
        changes["label_error_ms"] = end_error_ms(turn.user, RATE, audio)
    return turn.record.model_copy(update={"audio": audio.model_copy(update=changes)})


def figures_of(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return figures of `all` turns and of each of the `llms`, in order of first answer."""
    names = dict.fromkeys(turn.llm or UNNAMED for turn in turns)
    by_llm = {name: [t for t in turns if (t.llm or UNNAMED) == name] for name in names}
    return {"all": _figures(turns), "llms": {name: _figures(own) for name, own in by_llm.items()}}


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return figures, and the page's words for them.

    `others` counts turns that were no hit; for turns that were left out, it has the reason.
    """
    summary = summarise(turns)
    rate, p50 = summary.hit_rate, summary.gap_ms["p50"]
    percent, interval = report_words.hit_rate_words(rate)[:2]
    outcomes = Counter(turn.outcome for turn in counted_turns(turns))
    reasons = Counter(turn.left_out for turn in turns if turn.left_out is not None)
    others = {o: outcomes[o] for o in OUTCOMES if o != "answered" and outcomes[o]}
    others |= {f"left out: {why}": count for why, count in reasons.items()}
    within = f"{rate.hits} of {rate.n} within {DEFAULT_BUDGET_MS:g} ms ({interval})"
    words = [within] if rate.n else []
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
        "percent": percent,
        "words": " · ".join(words),
        "caption": " · ".join([f"p50 {gap}", cut_ins, *words]),
    }

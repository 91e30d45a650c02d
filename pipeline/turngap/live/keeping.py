"""A live conversation on disk: a run like any other, written turn by turn, to be downloaded.

Everything here blocks on the disk and is called from a worker thread.
"""

import dataclasses
import os
import tempfile
import threading
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from turngap import __version__
from turngap.agent.stack import Chosen
from turngap.caller.endpoint import Endpoint
from turngap.caller.stream import RATE
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.errors import InputError
from turngap.core.results import HeldOutRecord, OffsetRecord, Turn, worse_offset
from turngap.core.run_record import SIMULATED_LLM, RunRecord
from turngap.live.conversation import TYPED, KeptTurn
from turngap.live.saving import Saved, can_be_saved, end_error_ms, save, scenario_name
from turngap.report.words import turns_words
from turngap.store.folders import utc_now
from turngap.store.provenance import git_commit, this_machine
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter
from turngap.telemetry.conversation import conversation_about
from turngap.telemetry.telemetry import OFF, Telemetry

# Makes a run's report.html; this layer does not know the layer of reports.
Render = Callable[[Run], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Keeping:
    """Where conversations are kept.

    Attributes:
        out: the folder of runs; None keeps them only as long as they can be downloaded.
        record: the folder that gets every conversation as a scenario; None saves none.
        render: called with a run that somebody wants to look at.
        telemetry: where conversations are told; whoever made it closes it.
    """

    out: Path | None = Path("runs")
    record: Path | None = None
    render: Render = lambda _: None
    telemetry: Telemetry = OFF


class LiveRun:
    """The run of one conversation; its first turn makes the folder.

    Attributes:
        turns: those stored.
        narrow: whether the agent's LLM knows nothing but the library's talk.
        flags: what `turngap replay` is given to play against the same agent; empty for a stack.
        simulated: the LLMs by name that are simulated, of those that may answer.
    """

    def __init__(
        self,
        keeping: Keeping,
        name: str,
        agent: Mapping[str, Any],
        stand_ins: tuple[str, ...] = (),
        held_out: tuple[HeldOutRecord, ...] = (),
    ) -> None:
        self.narrow = False
        self._found: dict[str, str] = {}
        self.keeping = keeping
        self.flags = ""
        self.simulated: Collection[str] = ()
        self.turns: list[Turn] = []
        self.settings: dict[str, Any] = {}
        self._name = name
        self._agent = dict(agent)
        self._stand_ins = stand_ins
        self._held_out = held_out
        self._lock = threading.Lock()
        self._offset: OffsetRecord | None = None
        self._writer: RunWriter | None = None
        self._opening: RunRecord | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._missing = 0
        self._finished = False

    def on_chosen(self, chosen: Chosen) -> None:
        """Take what the agent chose when it started, before the first turn."""
        self._found, self._held_out = chosen.found, chosen.held_out
        self.narrow = chosen.narrow

    @property
    def with_whom(self) -> str:
        """The foreign agent, as a saved scenario names it; empty for a stack."""
        url, dialect = self._agent.get("url"), self._agent.get("dialect")
        return f"{url} ({dialect})" if url else ""

    @property
    def agent_name(self) -> str:
        """The agent's name in telemetry: the stack's, or host, port and path of its URL."""
        url = str(self._agent.get("url", ""))
        return url.partition("?")[0].partition("://")[2] or str(self._agent.get("stack", ""))

    def about(self) -> Mapping[str, Any]:
        """What telemetry is told of the conversation; a run without a turn has no name."""
        server = Endpoint(str(self._agent.get("url", ""))).host_and_port
        path, opening = self.path, self._opening
        if path is None or opening is None:
            return {"server.address": server[0], "server.port": server[1]}
        commit, dialect = opening.commit, self._agent.get("dialect")
        return conversation_about(
            path.name, self._name, 1, 0.0, server=server, commit=commit, dialect=dialect
        )

    @property
    def path(self) -> Path | None:
        """The run's folder; None before the first turn."""
        return self._writer.path if self._writer else None

    def keep(self, turn: KeptTurn, offset: OffsetRecord | None) -> Turn:
        """Store a turn.

        Raises:
            InputError: it cannot be written.
        """
        with self._lock:
            writer = self._opened()
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

    def finish(self, how: str, failure: str | None = None) -> Saved | None:
        """Write the run's last record with `how` it ended, its report and its scenario.

        Returns:
            The scenario, if one was wanted and there was a turn to save.

        Raises:
            InputError: the scenario's folder is not writable.
        """
        with self._lock:
            if self._finished or self._writer is None:
                return None
            self._finished = True
            self._writer.finish(self._closing(how, failure))
        self._render()
        record, path = self.keeping.record, self._writer.path
        foreign = bool(self.with_whom)
        if record is None or not any(can_be_saved(t, foreign=foreign) for t in self.turns):
            return None
        return save(path, self.turns, scenario_name(path), record, self.with_whom)

    def packed(self) -> Path:
        """Make a zip of the run as it is now, with its report; the caller removes the file.

        Raises:
            InputError: nothing is stored yet.
        """
        path = self.stored()
        if not self._finished:
            self._render()
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

    def forget(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _opened(self) -> RunWriter:
        if self._writer is None:
            out = self.keeping.out
            if out is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="turngap-live-")
                out = Path(self._temporary.name)
            self._opening = RunRecord(
                turngap_version=__version__,
                commit=git_commit(),
                name=self._name,
                started_utc=utc_now(),
                machine=this_machine(),
                agent=self._agent,
                settings={"live": True},
                scenario_hashes={},
                planned_turns=0,
                budget_ms=DEFAULT_BUDGET_MS,
                stand_ins=self._stand_ins,
                held_out=self._held_out,
                found=self._found,
            )
            self._writer = RunWriter.create(out, self._name, self._opening)
        return self._writer

    def _closing(self, how: str, failure: str | None) -> RunRecord:
        assert self._opening is not None
        reasons = [] if failure is None else [f"ended early: {failure}"]
        if self._missing:
            reasons.append(f"{turns_words(self._missing)} could not be stored")
        # The stack's own LLM is known from the start, another one may have been picked.
        picked = [SIMULATED_LLM] if any(t.llm in self.simulated for t in self.turns) else []
        return self._opening.model_copy(
            update={
                "finished_utc": utc_now(),
                "clock_offset": self._offset,
                "settings": {"live": True, "ended": how, **self.settings},
                "stand_ins": tuple(dict.fromkeys((*picked, *self._stand_ins))),
                "valid": not reasons,
                "why_invalid": tuple(reasons),
                "failure": failure,
            }
        )

    def _render(self) -> None:
        if self.path is not None:
            self.keeping.render(read_run(self.path))


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
    """Return the record with its file, and with how far off the page's end of speech may be."""
    audio = turn.record.audio
    if audio is None:
        return turn.record
    changes: dict[str, Any] = {"file": file}
    if turn.record.left_out != TYPED:
        changes["label_error_ms"] = end_error_ms(turn.user, RATE, audio)
    return turn.record.model_copy(update={"audio": audio.model_copy(update=changes)})

"""A disk that fails or a process that is killed at every single write of a run."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import soundfile

from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.play.plan import PlayPlan
from turngap.play.run import RunInProgress, all_kept
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import LoadedScenario, load_scenarios
from turngap.scenario.model import library_dir, scenario_paths
from turngap.store.runs import Run, read_run
from turngap.testing import LoopClock, in_virtual_time
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to

Fault = Literal["full", "io_error", "killed"]

# Whatever changes a file or a folder, and what puts it on the disk.
_BY_PATH = ("open", "mkdir", "replace", "rename", "unlink", "rmdir")
_BY_DESCRIPTOR = ("write", "fsync", "ftruncate", "fchmod", "close")
# What a full disk refuses: whatever needs a block more.
NEEDS_ROOM = ("open", "mkdir", "write")
ALL = (*_BY_PATH, *_BY_DESCRIPTOR)
TURNS = 2
# Between two of these, a process that is killed leaves the same on the disk.
CHANGING = ("mkdir", "open", "write", "replace", "rename", "unlink", "rmdir")
AT: dict[Fault, tuple[str, ...]] = {"full": NEEDS_ROOM, "killed": CHANGING, "io_error": ALL}


class Killed(BaseException):
    """The process is gone: nothing that it does from here on reaches the disk."""


class FaultyDisk:
    """Counts the operations below `folder`, and lets number `at` (from 0) fail.

    A `full` disk stays full, an `io_error` happens once, and what is `killed` does nothing more. Of
    a write that fails, half gets to the disk.

    Attributes:
        done: the operations so far, by name.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, folder: Path, fault: Fault = "full", at: int | None = None
    ) -> None:
        self.done: list[str] = []
        self._folder = str(folder)
        self._fault: Fault = fault
        self._at = at
        self._struck = False
        self._descriptors: set[int] = set()
        for name in ALL:
            patch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def let_go(self) -> None:
        """Close what a process that was killed has left open, as the system does."""
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _call(self, name: str, real: Callable[..., Any], of: Any, *args: Any, **more: Any) -> Any:
        if name in _BY_DESCRIPTOR:
            ours = of in self._descriptors
        else:
            ours = os.fspath(of).startswith(self._folder)
        if not ours:
            return real(of, *args, **more)
        if self._fails(name):
            if name == "write" and not (self._struck and self._fault == "killed"):
                real(of, bytes(args[0])[: len(args[0]) // 2])
            self._struck = True
            raise self._failure()
        self.done.append(name)
        result = real(of, *args, **more)
        if name == "open":
            self._descriptors.add(result)
        elif name == "close":
            self._descriptors.discard(of)
        return result

    def _fails(self, name: str) -> bool:
        if self._struck:
            return self._fault == "killed" or (self._fault == "full" and name in NEEDS_ROOM)
        return len(self.done) == self._at

    def _failure(self) -> BaseException:
        if self._fault == "killed":
            return Killed()
        code = errno.ENOSPC if self._fault == "full" else errno.EIO
        return OSError(code, os.strerror(code))


@pytest.fixture(scope="module")
def questions() -> LoadedScenario:
    """The first turns of a scenario."""
    (loaded,) = load_scenarios(scenario_paths(library_dir(), ["quick-questions"]))
    turns = loaded.scenario.turns[:TURNS]
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": turns}))


@dataclass
class Course:
    """A run's result: its reports while it was played, and its record in the end."""

    reported: list[Turn] = field(default_factory=list)
    run: Run | None = None
    error: BaseException | None = None


def play(questions: LoadedScenario, out: Path, continues: Run | None = None) -> Course:
    """Play the scenario against a scripted agent in memory, as `turngap replay` does."""
    course = Course()

    async def converse(run: RunInProgress) -> None:
        clock = LoopClock()
        async with line_to(Script(replies=(Reply(speech_ms=200),))) as line:
            await run.play_over(line, clock, questions, watch=clock)

    try:
        plan = PlayPlan(scenarios=[questions], out=out)
        target = Target(AgentChoice("ws://scripted/"), library_dir(), None)
        run = RunInProgress(plan, target, "faulty", course.reported.append, continues=continues)
        try:
            with all_kept([run]):
                in_virtual_time(converse(run))
        except TurngapError as e:
            course.error = e
        course.run = run.finish(course.error and str(course.error))
        course.error = course.error or run.unwritten
    except (TurngapError, Killed) as e:
        course.error = e
    return course


def require_readable(course: Course, out: Path) -> None:
    """Whatever was reported is there; what is not whole is not valid; an error says what to do."""
    folder = next(out.iterdir(), out)
    try:
        stored = Run.load(folder)
    except InputError as e:
        assert e.kind in ("run.not_a_run", "run.empty")
        assert course.reported == []
        return
    assert {t.key for t in course.reported} <= {t.key for t in stored.turns}
    assert len(stored.turns) == len({t.key for t in stored.turns})
    assert not stored.valid or len(stored.turns) == TURNS
    assert stored.valid or stored.record.why_invalid
    if course.error is not None and course.run is not None:
        assert not course.run.valid


def require_continued(questions: LoadedScenario, out: Path) -> None:
    """Check that missing turns can be played into the same folder, whatever was left there."""
    folder = next(out.iterdir(), out)
    if not (folder / "run.json").exists():
        return
    before = read_run(folder, empty=True)
    if before.complete:
        return
    course = play(questions, out, continues=before)
    assert course.error is None
    after = Run.load(folder)
    assert after.valid
    assert [t.turn for t in after.turns] == list(range(1, TURNS + 1))
    assert after.turns[: len(before.turns)] == before.turns
    added = len(after.turns) - len(before.turns)
    pieces = after.record.pieces
    expected = [len(before.turns), added] if before.turns and added else []
    assert [piece.turns for piece in pieces] == expected
    assert sorted(p.name for p in (folder / "audio").iterdir()) == ["001.wav", "002.wav"]
    assert all(t.audio and soundfile.info(folder / t.audio.file).frames for t in after.turns)


def test_a_run_on_a_good_disk_is_valid(questions: LoadedScenario, tmp_path: Path) -> None:
    course = play(questions, tmp_path)
    assert course.error is None
    assert course.run is not None
    assert course.run.valid
    assert Run.load(course.run.path).turns == tuple(course.reported)


@pytest.mark.parametrize("fault", ["full", "io_error", "killed"])
def test_at_every_write(
    questions: LoadedScenario, tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        good = FaultyDisk(patch, tmp_path / "good")
        play(questions, tmp_path / "good")
    for at, name in enumerate(good.done):
        if name not in AT[fault]:
            continue
        out = tmp_path / f"{at}-{name}"
        with monkeypatch.context() as patch:
            disk = FaultyDisk(patch, out, fault, at)
            course = play(questions, out)
        disk.let_go()
        if course.error is None:  # nothing hangs on it: all is on the disk
            assert name == "close", f"{name}, number {at}, failed and nobody said so"
            assert course.run is not None
            assert Run.load(course.run.path).valid
        elif fault != "killed":
            assert isinstance(course.error, InputError)
            assert course.error.hint
        if out.exists():
            require_readable(course, out)
            require_continued(questions, out)

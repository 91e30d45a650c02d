"""Store a load test while it is played, and report its progress."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from turngap.clocks import MonotonicClock
from turngap.core import __version__
from turngap.core.clock import NS_PER_S
from turngap.core.errors import InputError
from turngap.load.calls import CallMark, News
from turngap.load.figures import pooled_at_once
from turngap.load.plan import LoadPlan
from turngap.load.schedule import Step
from turngap.load.search import Search
from turngap.scenario.library import content_hashes
from turngap.store.documents import (
    MAX_LOAD_BYTES,
    encode,
    git_commit,
    this_machine,
    write_document,
    writing,
)
from turngap.store.folders import TURNS_FILE, new_folder, utc_now
from turngap.store.loads import LOAD_FILE, Certificate, LoadRecord, LoadTurn, StepFigures
from turngap.store.writer import Lines
from turngap.workers.pool import Executor

# How often turns are stored and the progress is reported.
TICK_S = 1.0
# A disk that refuses turns this many times in a row will not take them later: the test ends.
MOST_REFUSED = 10


Phase = Literal["calibration", "start", "warm-up", "measured", "cool-down"]


@dataclass(frozen=True, slots=True)
class Now:
    """The progress of a load test.

    Attributes:
        step: counted from 1; 0 before the first.
        phase: in `start` the agent and the callers start; turns count only in `measured`.
        sessions: the level that is held; None if calls arrive at a rate, and before a step.
        confirms: whether the step's turns count towards the certificate of a search.
        running: calls that are open now.
        planned: turns of this step that count.
        turns: turns of these that are over, missed ones included.
        hits: turns of these that were on time.
        done_s: seconds that the test has run.
        left_s: seconds that it probably still takes; None if not known.
        certified: the most sessions that are certified so far; None if there are none.
    """

    step: int
    phase: Phase
    sessions: int | None
    confirms: bool
    running: int
    planned: int
    turns: int
    hits: int
    done_s: float
    left_s: float | None
    certified: int | None = None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Callbacks that receive a load test's progress.

    `on_now` is called about once a second; `on_folder` once, with the folder that stores the test.
    """

    on_now: Callable[[Now], None] = lambda _: None
    on_folder: Callable[[Path], None] = lambda _: None


class Keeper:
    """Writer of a load test into a new folder, and its progress report; `finish` closes the folder.

    The folder has `turns.jsonl`, to which turns are added as they come, and `load.json`. Every
    failed write is an `InputError`; what was written before is kept.

    Attributes:
        folder: in the plan's `out` (default `./runs`), never an existing one.
        search: the search of the test, if it is one; its certificate is stored.

    Raises (when made):
        InputError: the folder cannot be made, or written to.
    """

    def __init__(self, plan: LoadPlan, executor: Executor, progress: LoadProgress) -> None:
        self._plan = plan
        self._progress = progress
        self._clock = MonotonicClock()
        self._begun_ns = self._clock.now_ns()
        self._record = _opening_record(plan, executor)
        started = datetime.fromisoformat(self._record.started_utc)
        self.folder = new_folder(plan.out, f"{plan.agent.choice.name}-load", started)
        with writing(self.folder, "load.unwritable"):
            self._turns = Lines(self.folder / TURNS_FILE)
        self._write_record()
        self._unwritten = deque[LoadTurn]()  # filled here, emptied by the thread that writes
        self._flushing = threading.Lock()
        self._now = Now(0, "start", None, False, 0, 0, 0, 0, 0.0, plan.probable_s)
        self._step: Step | None = None
        self._step_ns = 0
        self._left_s = plan.probable_s  # after the present step
        self.search: Search | None = None

    def phase(self, phase: Phase) -> None:
        """Report the phase of work outside of steps."""
        self._now = replace(self._now, phase=phase)
        self._report()

    def begin(self, step: Step, left_s: float, *, confirms: bool) -> None:
        """Begin a step, after which the test takes about `left_s` more."""
        self._step, self._step_ns, self._left_s = step, self._clock.now_ns(), left_s
        self._now = replace(
            self._now,
            step=step.number,
            sessions=step.sessions,
            confirms=confirms,
            running=0,
            planned=step.turns,
            turns=0,
            hits=0,
        )

    def certified(self, sessions: int | None) -> None:
        """Report what a search has certified so far."""
        self._now = replace(self._now, certified=sessions)

    def take(self, news: News) -> None:
        """Take a caller's report: turns are stored with the next tick."""
        now = self._now
        if isinstance(news, CallMark):
            self._now = replace(now, running=now.running + (1 if news.running else -1))
        elif isinstance(news, LoadTurn):
            self._unwritten.append(news)
            if news.counted:
                hits = now.hits + news.hit(self._plan.pass_ms)
                self._now = replace(now, turns=now.turns + 1, hits=hits)

    async def end(self, figures: StepFigures) -> None:
        """Store a step that is over.

        Raises:
            InputError: the step cannot be written; what was stored before is kept.
        """
        self._step = None
        await self._flushed()
        self.note(steps=(*self._record.steps, figures))

    def note(self, **fields: object) -> None:
        """Store fields of the record.

        Raises:
            InputError: the record cannot be written; the one before it is kept.
        """
        self._record = self._record.model_copy(update=fields)
        self._write_record()

    def note_agent(self, **about: object) -> None:
        """Store further facts about the agent."""
        self.note(agent={**self._record.agent, **about})

    def _write_record(self) -> None:
        write_document(self.folder / LOAD_FILE, self._record)

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Store turns and report the progress, every `TICK_S`, inside this block.

        Raises:
            InputError: turns could not be written several times in a row; the block is cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._tick(), name="turngap-load-tick")
                try:
                    yield
                finally:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _tick(self) -> None:
        refused = 0
        while True:
            self._report()
            try:
                await self._flushed()
                refused = 0
            except InputError:
                refused += 1
                if refused == MOST_REFUSED:
                    raise
            await self._clock.sleep_until_ns(self._clock.now_ns() + round(TICK_S * NS_PER_S))

    def _report(self) -> None:
        done_s = (self._clock.now_ns() - self._begun_ns) / NS_PER_S
        phase, left_s = self._now.phase, max(0.0, self._plan.probable_s - done_s)
        if self._step is not None:
            window = self._step.window
            at_s = (self._clock.now_ns() - self._step_ns) / NS_PER_S
            phase = "measured" if at_s < window.end_s else "cool-down"
            phase = "warm-up" if at_s < window.warm_up_s else phase
            left_s = self._left_s + max(0.0, window.end_s - at_s)
        self._progress.on_now(replace(self._now, phase=phase, done_s=done_s, left_s=left_s))

    async def _flushed(self) -> None:
        """Write the turns that have come; cancelling this waits until they are written.

        Raises:
            InputError: as `_flush`.
        """
        flush = asyncio.ensure_future(asyncio.to_thread(self._flush))
        try:
            await asyncio.shield(flush)
        except asyncio.CancelledError:
            await asyncio.wait([flush])
            raise

    def _flush(self) -> None:
        """Write the turns that have come, after those that are being written.

        Raises:
            InputError: they cannot be written; they are kept for the next time.
        """
        with self._flushing:
            turns = [self._unwritten.popleft() for _ in range(len(self._unwritten))]
            try:
                self.append(turns)
            except InputError:
                self._unwritten.extendleft(reversed(turns))
                raise

    def append(self, turns: Sequence[LoadTurn]) -> None:
        """Add turns; they are on the disk (fsync) when this returns.

        Raises:
            InputError: they cannot be written, and none of them is stored.
        """
        lines = b"".join(map(encode, turns))
        if self._turns.size + len(lines) > MAX_LOAD_BYTES:
            raise InputError(
                "load.too_large",
                f"{self.folder}: with more turns {TURNS_FILE} could not be read any more",
                hint="measure for a shorter time (--duration)",
            )
        if lines:
            self._turns.append(lines, "load.unwritable")

    def finish(self, failure: str | None = None) -> LoadRecord:
        """Store how the test ended, and close the folder.

        Raises:
            InputError: it cannot be written; what was stored before is kept.
        """
        capacity: Certificate | None = None
        if self.search is not None:
            if failure:
                self.search.stop(failure)
            capacity = self.search.certificate()
            confirming = [s for s in self._record.steps if s.confirms and s.void is None]
            steps = [step for step in confirming if step.sessions == capacity.sessions]
            capacity = replace(capacity, at_once=pooled_at_once(steps))
        ended = failure or self._void(capacity) or (capacity.why if capacity is not None else None)
        update = {
            "finished_utc": None if failure else utc_now(self._record.started_utc),
            "capacity": capacity,
            "ended": ended or "",
            "failure": failure,
        }
        self._record = self._record.model_copy(update=update)
        try:
            self._flush()
        finally:
            self._write_record()
            self._turns.close()
        return self._record

    def _void(self, capacity: Certificate | None) -> str | None:
        """Return why a void step ended the test; None if it ended well."""
        steps = self._record.steps
        if capacity is not None and capacity.sessions is not None:
            unknown = {capacity.not_held} - {step.sessions for step in steps if not step.void}
            steps = [step for step in steps if step is steps[-1] or step.sessions in unknown]
        return next((step.void for step in steps if step.void), None)


def _opening_record(plan: LoadPlan, executor: Executor) -> LoadRecord:
    settings = {
        "levels": list(plan.levels) or None,
        "calls_per_s": plan.per_s,
        "duration_s": plan.duration_s,
        "min_sessions": plan.min_sessions,
        "max_minutes": plan.max_minutes,
        "callers": plan.callers,
        **plan.line_setting,
        **(plan.settings or {}),
    }
    return LoadRecord(
        turngap_version=__version__,
        commit=git_commit(),
        name=plan.agent.choice.name,
        started_utc=utc_now(),
        machine=this_machine(),
        agent=plan.agent.describe(),
        mode=plan.mode,
        arrivals=plan.arrivals or "held",
        scenario_hashes=content_hashes(plan.scenarios),
        voices={s.scenario.name: s.voice for s in plan.scenarios if s.voice is not None},
        stand_ins=plan.agent.stand_ins(s.scenario for s in plan.scenarios),
        budget_ms=plan.pass_ms,
        target=plan.target,
        confidence=plan.confidence,
        seed=plan.schedule_seed,
        warm_up_s=plan.warm_up_s,
        executor=executor.name,
        workers=executor.workers,
        steps=(),
        capacity=None,
        caller_late_limit_ms=plan.starved_ms,
        label=plan.label,
        settings={name: value for name, value in settings.items() if value is not None},
    )

"""A folder of recorded calls becomes a run: each call is a piece of work for a pool of processes.

A call's turns are on the disk before the next call is stored, so that a run which is interrupted
loses the calls in flight and nothing else.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from turngap.core import __version__
from turngap.core.audio import Pcm
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import NS_PER_S, instant, ms_to_ns
from turngap.core.errors import InputError, TurngapError, known_names
from turngap.core.results import Turn
from turngap.core.run_record import ClaimsRecord, RunRecord, ScoredCall, ScoredRecord, UnscoredCall
from turngap.core.summary import summarise
from turngap.core.untrusted import harmless
from turngap.play.options import Asked
from turngap.play.plan import SILENT, Progress
from turngap.play.run import kept, why_invalid
from turngap.score.claims import Claims, read_claims
from turngap.score.hearing import HeardCall, hear_call
from turngap.score.recording import find_recordings, read_recording
from turngap.store.documents import git_commit, this_machine
from turngap.store.folders import utc_now
from turngap.store.runs import Run, rewritten
from turngap.store.writer import RunWriter
from turngap.telemetry import OFF, Telemetry
from turngap.workers import executor
from turngap.workers.pool import Done, Lost, OnResult, Result

Side = Literal["left", "right", "auto"]
# Of the files that could not be scored, the most whose reasons an error gives.
MOST_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePlan:
    """Recordings to score, and how.

    Attributes:
        files: the recordings, each a call.
        folders: those that were given; a file is stored by its path below one, or by its name.
        name: names the run where no platform names its agent.
        workers: how many calls are heard at once.
        audio: whether the run keeps the audio of each turn.
        transcribe: a recogniser of the agent's replies, `STT[,KEY=VALUE…]`.
        settings: are stored with the run.
    """

    files: tuple[Path, ...]
    name: str
    person: Side
    offset_ms: float | None
    budget_ms: float
    no_reply_ms: float
    workers: int
    audio: bool = True
    transcribe: str = ""
    label: str = ""
    out: Path | None = None
    folders: tuple[Path, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    telemetry: Telemetry = OFF

    def shown(self, file: Path) -> str:
        """Name a recording without the folders above the given one, which are the user's own."""
        below = [file.relative_to(f) for f in self.folders if file.is_relative_to(f)]
        return below[0].as_posix() if below else file.name

    def unscored(self, file: Path, kind: str, why: str, hint: str = "") -> UnscoredCall:
        """Build the record of a file that could not be scored, without the path to it."""
        for path in (harmless(str(file)), str(file)):
            why, hint = (text.replace(path, self.shown(file)) for text in (why, hint))
        return UnscoredCall(file=self.shown(file), kind=kind, why=why, hint=hint)

    @classmethod
    def asked(cls, asked: Asked, **settings: Any) -> "ScorePlan":
        """Plan what a command or a function was asked for; its values are checked already.

        Raises:
            InputError: there are no recordings, or an argument cannot be used.
        """
        if asked.person not in get_args(Side):
            raise InputError(
                "argument.person",
                f"--person {asked.person[:40]!r}: expected left, right or auto",
                hint=known_names(asked.person, list(get_args(Side))),
            )
        if asked.transcribe and not asked.audio:
            raise InputError(
                "score.no_audio",
                "a recogniser reads the stored audio, and --no-audio stores none",
                hint="drop --no-audio, or --transcribe",
            )
        if asked.budget_ms is not None and asked.budget_ms > asked.no_reply_ms:
            raise InputError(
                "argument.budget",
                f"--budget-ms {asked.budget_ms:g} is longer than the wait for a reply, "
                f"{asked.no_reply_ms:g} ms",
                hint="raise --no-reply-ms, too",
            )
        files = tuple(find_recordings(asked.calls))
        given = ("person", "offset_ms", "no_reply_ms", "transcribe")
        return cls(
            files=files,
            folders=tuple(path for path in asked.calls if path.is_dir()),
            name=asked.calls[0].resolve().stem if asked.calls else "calls",
            person=cast("Side", asked.person),
            offset_ms=asked.offset_ms,
            budget_ms=asked.budget_ms or DEFAULT_BUDGET_MS,
            no_reply_ms=asked.no_reply_ms,
            workers=min(asked.workers or os.cpu_count() or 1, len(files)),
            audio=asked.audio,
            transcribe=asked.transcribe or "",
            label=asked.label,
            out=asked.out,
            settings={n: asked[n] for n in given if asked[n] not in (None, "")} | settings,
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """A call to hear, for a worker."""

    file: Path
    name: str
    plan: ScorePlan


@dataclass(frozen=True, slots=True)
class _Scored:
    """A heard call: its turns, and each one's audio (the person's and the agent's)."""

    call: ScoredCall
    turns: tuple[Turn, ...]
    cuts: tuple[tuple[Pcm, Pcm], ...]
    rate: int


def score_call(task: _Task, on_result: OnResult) -> None:
    """Hear one call, and report it or the reason why it cannot be scored: a `Work`."""
    try:
        on_result(_heard(task))
    except InputError as e:
        on_result(task.plan.unscored(task.file, e.kind, e.message, e.hint))


def _heard(task: _Task) -> _Scored:
    plan, file = task.plan, task.file
    claims, unread, side = None, "", plan.person
    try:
        claims = read_claims(file)
    except ValueError as e:
        unread = f"what its platform wrote is left out: {e}"
    if side == "auto" and claims is not None and claims.person is not None:
        side = claims.person
    recording = read_recording(file, person=side, offset_ms=plan.offset_ms)
    if claims is not None and side != plan.person:
        recording = replace(recording, why_side=f"{claims.platform} records the person there")
    heard: HeardCall = hear_call(
        recording,
        task.name,
        budget_ms=plan.budget_ms,
        no_reply_ms=plan.no_reply_ms,
        claims=claims,
    )
    notes = tuple(filter(None, dict.fromkeys((*recording.notes, *heard.notes, unread))))
    if not heard.turns:
        about = f": {'; '.join(notes)}" if notes else ""
        raise InputError(
            "call.no_turn",
            f"{file}: no turn of a person was heard in the {recording.side} channel{about}",
            hint="--person says which channel holds the person",
        )
    call = ScoredCall(
        name=task.name,
        file=plan.shown(file),
        sha256=recording.sha256,
        seconds=len(recording.person) / recording.rate,
        turns=len(heard.turns),
        side=recording.side,
        why_side=recording.why_side,
        notes=notes,
        echo_db=recording.echo_db,
        offset_ms=recording.offset_ms,
        greeting_ms=heard.greeting_ms,
        claims=None if claims is None else _record_of(claims),
    )
    person, agent = recording.recorded or (recording.person, recording.agent)
    cuts = tuple(
        (person[first:last], agent[first:last])
        for first, last in (heard.windows if plan.audio else ())
    )
    return _Scored(call, heard.turns, cuts, recording.rate)


def _record_of(claims: Claims) -> ClaimsRecord:
    return ClaimsRecord(
        platform=claims.platform,
        call_id=claims.call_id,
        started_utc=claims.started_utc,
        agent=claims.agent,
        latency_ms=claims.latency_ms,
    )


def names_of(files: Sequence[Path]) -> list[str]:
    """Name each call after its file, and after its folder too where several have one name."""
    stems = Counter(file.stem for file in files)
    names = [f.stem if stems[f.stem] == 1 else f"{f.resolve().parent.name}-{f.stem}" for f in files]
    unique: dict[str, None] = {}
    for name in names:
        numbered = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
        unique[next(each for each in numbered if each not in unique)] = None
    return [*unique]


class _RunOfCalls:
    """The run while its calls are heard; its folder is made with the first call."""

    def __init__(self, plan: ScorePlan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        self._started_utc = utc_now()
        self._order = {name: n for n, name in enumerate(names_of(plan.files))}
        self._writer: RunWriter | None = None
        self._calls: list[ScoredCall] = []
        self._turns: list[Turn] = []
        self.unscored: list[UnscoredCall] = []

    def _record(self, **update: Any) -> RunRecord:
        plan = self._plan
        calls = sorted(self._calls, key=lambda call: self._order[call.name])
        known = [c.claims for c in calls if c.claims is not None]
        agents = {(c.platform, c.agent) for c in known} if len(known) == len(calls) else set()
        name, agent = plan.name, dict[str, Any]()
        if len(agents) == 1:
            platform, of = agents.pop()
            name = f"{of} ({platform})" if of else platform
            agent = {"platform": platform, "agent": of}
        return RunRecord(
            turngap_version=__version__,
            commit=git_commit(),
            name=name,
            started_utc=self._started_utc,
            machine=this_machine(),
            agent={"recorded": plan.name, **agent},
            settings=plan.settings,
            scenario_hashes={call.name: call.sha256 for call in calls},
            planned_turns=0,
            budget_ms=plan.budget_ms,
            label=plan.label,
            scored=ScoredRecord(calls=tuple(calls), unscored=tuple(self.unscored)),
        ).model_copy(update=update)

    def keep(self, heard: _Scored) -> tuple[Turn, ...]:
        """Store a call, turn by turn.

        Raises:
            InputError: the folder cannot be written to.
        """
        if self._writer is None:
            self._writer = RunWriter.create(self._plan.out, self._plan.name, self._record())
            self._progress.on_folder(self._writer.path)
        before = len(self._turns)
        for number, turn in enumerate(heard.turns):
            file = ""
            if heard.cuts:
                name = f"{len(self._turns) + 1:03d}"
                file = self._writer.write_audio(name, *heard.cuts[number], heard.rate)
            if turn.audio is not None:
                audio = turn.audio.model_copy(update={"file": file})
                turn = turn.model_copy(update={"audio": audio})  # noqa: PLW2901
            self._writer.append_turn(turn)
            self._turns.append(turn)
            self._progress.on_turn(turn)
        self._calls.append(heard.call)
        return tuple(self._turns[before:])

    @property
    def begun(self) -> bool:
        """Return whether the run has a folder."""
        return self._writer is not None

    def finish(self, failure: str | None = None) -> Run:
        """Judge the run and close it, its turns in the order of the calls.

        Raises:
            InputError: no call could be scored, or the folder cannot be written to.
        """
        self.unscored.sort(key=lambda each: each.file)
        if self._writer is None:
            raise none_scored(self.unscored)
        turns = tuple(sorted(self._turns, key=lambda turn: self._order[turn.scenario]))
        reasons = why_invalid(summarise(turns))
        if failure is not None:
            done, planned = len(self._calls), len(self._plan.files)
            reasons = (*reasons, f"ended after {done} of {planned} calls: {failure}")
        closing = self._writer.with_digests(
            self._record(
                finished_utc=utc_now(self._started_utc),
                planned_turns=len(turns),
                failure=failure,
                valid=not reasons,
                why_invalid=reasons,
            )
        )
        self._writer.finish(closing)
        run = Run(closing, turns, self._writer.path)
        return run if turns == tuple(self._turns) else rewritten(run, closing, turns)


def none_scored(unscored: Sequence[UnscoredCall]) -> InputError:
    """Build the error for a set of files of which none could be scored, in a few lines."""
    if len(unscored) == 1:
        return InputError(unscored[0].kind, unscored[0].why, hint=unscored[0].hint)
    kinds = {each.kind for each in unscored}
    if not unscored:
        return InputError("score.interrupted", "it ended before the first call was scored")
    return InputError(
        kinds.pop() if len(kinds) == 1 else "score.none",
        f"none of the {len(unscored)} calls could be scored. {unscored_words(unscored)}",
        hint=next((each.hint for each in unscored if each.hint), ""),
    )


def unscored_words(unscored: Sequence[UnscoredCall]) -> str:
    """Say why calls could not be scored: how many for each kind of reason, with one example."""
    counted = Counter(each.kind for each in unscored).most_common(MOST_REASONS)
    first = {each.kind: each for each in reversed(unscored)}
    parts = [
        f"{first[kind].why}" + (f" (and {n - 1} more)" if n > 1 else "") for kind, n in counted
    ]
    return "; ".join(parts)


async def score(
    plan: ScorePlan,
    progress: Progress = SILENT,
    on_call: Callable[[], None] = lambda: None,
) -> tuple[Run, TurngapError | None]:
    """Score every call, and store the run; `on_call` is called after each file.

    Returns:
        The run, and the failure that ended it early, if any.

    Raises:
        InputError: no call could be scored, or the run's folder cannot be made.
    """
    recogniser = None
    if plan.transcribe:
        from turngap.judge import recogniser_backend

        recogniser = recogniser_backend(plan.transcribe, None)
        recogniser.prepare()
    run, failure = _RunOfCalls(plan, progress), None
    bare = replace(plan, telemetry=OFF, settings={})
    tasks = [_Task(f, n, bare) for f, n in zip(plan.files, names_of(plan.files), strict=True)]
    with kept(run.finish):
        try:
            await _score(run, tasks, plan, on_call)
        except TurngapError as e:
            if not run.begun:
                raise
            failure = e
        stored = run.finish(None if failure is None else str(failure))
    if recogniser is not None and failure is None:
        from turngap.judge import with_replies

        progress.on_step("transcribing")
        stored = await with_replies(stored, recogniser)
    return stored, failure


async def _score(
    run: _RunOfCalls, tasks: Sequence[_Task], plan: ScorePlan, on_call: Callable[[], None]
) -> None:
    async with (
        executor("local", plan.workers) as workers,
        aclosing(workers.run(score_call, tasks)) as reports,
    ):
        async for each in reports:
            match each:
                case Result(_, _Scored() as heard):
                    turns = run.keep(heard)
                    _trace(plan.telemetry, heard.call, turns)
                    await plan.telemetry.between()
                case Result(_, UnscoredCall() as why):
                    run.unscored.append(why)
                case Lost(piece, why):
                    file = tasks[piece].file
                    run.unscored.append(plan.unscored(file, "call.failed", f"{file}: {why}"))
            if isinstance(each, Done | Lost):
                on_call()


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A clock that shows the time since a recording began."""

    since_ns: int

    def now_ns(self) -> int:
        return self.since_ns

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        raise NotImplementedError


def _trace(telemetry: Telemetry, call: ScoredCall, turns: Sequence[Turn]) -> None:
    """Send the trace of a call, dated when it took place if its platform says so, else now."""
    length_ns = ms_to_ns(call.seconds * 1000)
    since_ns, claims = length_ns, call.claims
    if claims is not None and claims.started_utc:
        try:
            ago = instant(utc_now()) - instant(claims.started_utc)
            since_ns = max(length_ns, round(ago.total_seconds() * NS_PER_S))
        except ValueError:
            pass
    agent = claims.agent or claims.platform if claims else "recording"
    traced = telemetry.conversation(
        agent, _Replayed(since_ns), call.name, begins_s=-since_ns / NS_PER_S, scenario=call.name
    )
    for turn in turns:
        traced.turn(turn)
    traced.end(length_ns)

"""One run while it happens: it plays conversations and stores each turn as it ends."""

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from turngap.agent.stack import Chosen
from turngap.caller.connection import HUNG_UP, ONE_URL_A_CALL, OTHER_PROTOCOL, Line
from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.endpoint import Endpoint
from turngap.caller.opening import LINE_LOST
from turngap.caller.recording import agent_side, user_side
from turngap.caller.stream import RATE
from turngap.clocks import MonotonicClock
from turngap.core import __version__
from turngap.core.budget import DEFAULT_BUDGET_MS, STARVED_MS, TurnEnd
from turngap.core.clock import Clock
from turngap.core.credits import is_sudden
from turngap.core.errors import AgentError, InputError, TurngapError
from turngap.core.results import AMBIGUOUS, Turn, TurnKey
from turngap.core.run_record import (
    TOLD_BY_THE_LINE,
    CalibrationRecord,
    OffsetRecord,
    RunRecord,
    worse_offset,
)
from turngap.core.stats import n_needed
from turngap.core.summary import Summary, calls_of, summarise
from turngap.play.lines import PlainPlays, line_record, with_dead_peer
from turngap.play.plan import PlayPlan
from turngap.play.resume import next_piece, noted, with_last_piece
from turngap.play.target import Target
from turngap.play.turns import Greetings, cues_of, doubts_of, pacing_record, turn_record, unplayed
from turngap.scenario.library import LoadedScenario, content_hashes
from turngap.store.documents import git_commit, this_machine
from turngap.store.folders import INTERRUPTED, utc_now
from turngap.store.runs import Run, rewritten
from turngap.store.writer import RunWriter
from turngap.telemetry import Recorder

LATE_GREETING = (
    "the agent first spoke before the person had ended: if that was a greeting, wait for it longer "
    "(--greeting-ms)"
)
MORE_GREETING = "the agent had greeted, and the cut-in may be the rest of its greeting"
UNHEARD_GREETING = "this agent greets in other calls, and its first speech here may be its greeting"
STEADY_GREETING = (
    "the agent first spoke at the same time of each call, whenever the person had ended: if that "
    "is its greeting, wait for it longer (--greeting-ms)"
)
QUICK_GREETING = "the first speech came much sooner than other replies, and may be a greeting"
CLAIMED = "speech in a later turn may be its answer"
QUICK = 0.5  # of the median gap
# Above this share of lost calls, of this many or more, or after this many in a row, a run is not
# worth continuing.
MOST_LOST, FEWEST_CALLS = 0.5, 4
MOST_AMBIGUOUS = 0.5  # of the turns of a valid run
# Above this share of starved turns even p95 rests on turns that the caller itself delayed.
MAX_STARVED_SHARE = 0.05


class RunInProgress:
    """The run of one agent of a plan while it is played. `finish` judges and closes it.

    Args:
        name: the name of the run's folder, after the UTC stamp.
        out: the folder to store it in, if not the plan's.
        settings: stored with the run instead of the plan's.
        continues: the stored run whose next piece this is; its turns are not stored again.

    Raises (when made):
        InputError: the folder cannot be made, or written to.
    """

    def __init__(
        self,
        plan: PlayPlan,
        target: Target,
        name: str,
        on_turn: Callable[[Turn], None] = lambda _: None,
        *,
        out: Path | None = None,
        settings: dict[str, Any] | None = None,
        continues: Run | None = None,
    ) -> None:
        self.target = target
        self._name = name
        self._plan = plan
        self._on_turn = on_turn
        opening = _opening_record(plan, target, settings or plan.settings or {})
        if continues is None:
            self._opening = opening
            self._writer = RunWriter.create(out or plan.out, name, self._opening)
        else:
            self._opening = next_piece(continues, opening)
            self._writer = RunWriter.reopen(continues.path, self._opening)
        self._offset: OffsetRecord | None = None
        ours = not target.choice.is_url
        self._greetings = Greetings(0.0 if ours and plan.greeting_ms is None else plan.greeting_ms)
        self._reached = False
        self._lost: AgentError | None = None
        self.calibration: CalibrationRecord | None = None
        self.unwritten: InputError | None = None
        self.turns: list[Turn] = [] if continues is None else list(continues.turns)
        self._stored = {turn.key for turn in self.turns}
        self._earlier = frozenset(self._stored)
        self._claimed: set[TurnKey] = set()
        self._failed_ns: int | None = None
        self._plain = PlainPlays()

    def lacks(self, scenario: LoadedScenario, repeat: int, phase: int) -> bool:
        """Return whether a turn of this conversation is not stored yet."""
        played = scenario.scenario
        return any(
            _key(played.name, number, repeat, phase) not in self._stored
            for number, _ in enumerate(played.turns, start=1)
        )

    @property
    def folder(self) -> Path:
        return self._writer.path

    async def play(
        self, scenario: LoadedScenario, endpoint: Endpoint, *, repeat: int = 1, phase: int = 0
    ) -> None:
        """Play one conversation against this agent, `phase` samples at 16 kHz off the grid.

        If the plan is paired, play it without the line, too, every second time first.

        Raises:
            AgentError: the agent cannot be reached, or the line was lost and the run must stop for
                that; everything finished before is stored.
        """
        plays = [self._play_call]
        if self._plan.is_paired:
            place = [each is scenario for each in self._plan.scenarios].index(True) + repeat
            plays.insert(place % 2, self._play_plain)
        for play in plays:
            await play(scenario, endpoint, repeat, phase)

    async def _play_plain(
        self, scenario: LoadedScenario, endpoint: Endpoint, repeat: int, phase: int
    ) -> None:
        """Play a conversation without the line, for the gaps of its turns alone."""
        clock, name = MonotonicClock(precise=True), scenario.scenario.name
        try:
            plain = endpoint.with_headers(self._plan.telemetry.untraced)
            async with plain.open(clock) as line:
                how = {"offset": await line.clock_offset(), "phase_ms": phase * 1000 / RATE}
                conversation = self._conversation(line, clock, scenario, **how)
                async with aclosing(conversation.play()) as turns:
                    async for played in turns:
                        key = _key(name, played.turn.turn, repeat, phase)
                        late = (played.late_ns, played.lag_ns, self._plan.starved_ms)
                        self._plain.keep(key, played.turn, pacing_record(*late))
                        gc.collect(0)
            failure = conversation.failure
        except AgentError as e:
            failure = e
        if failure is not None:
            self._plain.lose((name, phase * 1000 / RATE, repeat), failure.message)

    async def _play_call(
        self, scenario: LoadedScenario, endpoint: Endpoint, repeat: int, phase: int
    ) -> None:
        clock, reached = MonotonicClock(precise=True), self._reached
        opened: Line | None = None
        self._failed_ns = None
        call = f"{scenario.scenario.name}/{repeat}"
        try:
            with self._traced(endpoint, clock, scenario, repeat, phase) as traced:
                opening = endpoint.with_headers(traced.headers)
                async with opening.open(clock, line=self._plan.line, call=call) as opened:
                    traced.note(dialect=opened.dialect)
                    self._reached, reached = True, False
                    await self.play_over(
                        opened, clock, scenario, repeat=repeat, phase=phase, traced=traced
                    )
        except AgentError as e:
            ours = not self.target.choice.is_url or self.target.choice.start is not None
            # An agent that turngap has started, and that is not there any more, has ended.
            if not reached or (ours and e.kind == "agent.unreachable"):
                raise
            await _in_a_thread(self._lose_call, (scenario, repeat, phase), 0, e)
        finally:
            record = self._opening.line
            if opened is not None and opened.crossings is not None and record is not None:
                about = (scenario.scenario.name, repeat, opened.crossings, self._failed_ns)
                if (found := with_dead_peer(record, *about)) != record:
                    self._note_opening(self._opening.model_copy(update={"line": found}))
            await self._plan.telemetry.between()

    def require_a_call(self) -> None:
        """Refuse a run in which every call was lost before anything was heard.

        Raises:
            AgentError: the reason why the last call was lost.
        """
        calls, lost = calls_of(self.turns)
        if self._lost and calls == lost and not self._has_heard() and not self._plan.breaks:
            raise self._lost

    def _has_heard(self) -> bool:
        return any(turn.gap_ms is not None for turn in self.turns)

    def _traced(
        self,
        endpoint: Endpoint,
        clock: Clock,
        scenario: LoadedScenario,
        repeat: int,
        phase: int,
    ) -> Recorder:
        """Begin the trace of a conversation."""
        name, phase_ms = scenario.scenario.name, phase * 1000 / RATE
        agent = self.target.choice.steady_name
        # One side of a check or a comparison has a name of its own.
        agent = agent if self._name == self.target.choice.name else f"{agent} {self._name}"
        return self._plan.telemetry.conversation(
            agent,
            clock,
            f"{self.folder.name}/{name}/{repeat}/{phase_ms:g}",
            endpoint.host_and_port,
            run=self.folder.name,
            scenario=name,
            repeat=repeat,
            phase_ms=phase_ms,
            commit=self._opening.commit,
            label=self._opening.label,
        )

    async def play_over(
        self,
        line: Line,
        clock: Clock,
        scenario: LoadedScenario,
        *,
        repeat: int = 1,
        phase: int = 0,
        watch: Clock | None = None,
        traced: Recorder | None = None,
    ) -> None:
        """Play one conversation over an open line; `watch` is the `Conversation`'s.

        If the agent ends or loses a call, its other turns are stored as errors.

        Raises:
            AgentError: the line was lost, and the run must stop for that; everything finished
                before is stored.
        """
        where, last = (scenario, repeat, phase), 0
        try:
            offset = await line.clock_offset()
        except AgentError as e:
            await _in_a_thread(self._end_call, where, 0, e)
            return
        if (worse := worse_offset(self._offset, offset)) != self._offset:
            self._offset = worse
            await _in_a_thread(self._note_measured)
        if self.target.choice.is_url:
            await _in_a_thread(self._note_line, line)
        how = {"offset": offset, "phase_ms": phase * 1000 / RATE, "watch": watch}
        conversation = self._conversation(line, clock, scenario, **how)
        async with aclosing(conversation.play()) as turns:
            async for found in turns:
                played = replace(found, notes={**found.notes, **self._notes(conversation, found)})
                last, faults = played.turn.turn, tuple(conversation.faults)
                del conversation.faults[: len(faults)]
                if played.turn.claimed_by is not None:
                    name, owed = scenario.scenario.name, played.turn.claimed_by
                    self._claimed.add(_key(name, owed, repeat, phase))
                before = len(self.turns)
                await _in_a_thread(self._keep, where, conversation, played, faults)
                if traced is not None and len(self.turns) > before:
                    traced.turn(self.turns[-1], played.turn.ended_ns)
                gc.collect(0)
        self._failed_ns = conversation.failed_ns
        if conversation.failure is not None:
            await _in_a_thread(self._end_call, where, last, conversation.failure)

    def _conversation(
        self, line: Line, clock: Clock, scenario: LoadedScenario, **how: Any
    ) -> Conversation:
        cues = cues_of(scenario, self._plan.budget_ms, rate=line.rate)
        patience = self._plan.patience(self._greetings.wait_ms)
        return Conversation(line, cues, clock, patience=patience, **how)

    def _notes(self, conversation: Conversation, played: PlayedTurn) -> dict[str, int]:
        """Note how the call ended, if it did; learn from turn 1 whether the agent greets."""
        failure, turn = conversation.failure, played.turn
        notes = {} if failure is None else {failure.message: 1}
        if turn.turn == 1:
            greeted, cut_in = conversation.greeted, turn.outcome == "cut_in"
            onset_ns, opened_ns = conversation.first_onset_ns, conversation.stream.t0_ns
            both_ns = None if onset_ns is None else (onset_ns, turn.user_end_ns - opened_ns)
            self._greetings.take(greeted=greeted, cut_in=cut_in, first_ns=both_ns)
            if cut_in and (greeted or self._greetings.open):
                notes[AMBIGUOUS + (MORE_GREETING if greeted else LATE_GREETING)] = 1
        return notes

    def _end_call(
        self, where: tuple[LoadedScenario, int, int], last: int, failure: AgentError
    ) -> None:
        """Record how an opened call ended, after turn `last`.

        Raises:
            AgentError: as `_lose_call`, or the agent did something that ends a run.
        """
        whole = last == len(where[0].scenario.turns)
        if failure.kind == LINE_LOST or (failure.kind == HUNG_UP and not whole):
            self._lose_call(where, last, failure)
        elif failure.kind != HUNG_UP:
            raise failure

    def _lose_call(
        self, where: tuple[LoadedScenario, int, int], last: int, failure: AgentError
    ) -> None:
        """Store the remaining turns of a call that was lost after turn `last`.

        Raises:
            AgentError: too many calls were lost, or the run is to stop for one.
        """
        if OTHER_PROTOCOL in failure.hint and self._has_heard():
            failure.hint = f"it spoke this protocol before; {ONE_URL_A_CALL}"
        if self._plan.stop_on_error:
            raise failure
        self._lost = failure
        scenario, repeat, phase = where
        ended: TurnEnd = "hung_up" if failure.kind == HUNG_UP else "line_lost"
        for number in range(last + 1, len(scenario.scenario.turns) + 1):
            record = unplayed(
                scenario.scenario,
                number,
                ended,
                f"not played: {failure.message}",
                self._plan.budget_ms,
                repeat=repeat,
                phase_ms=phase * 1000 / RATE,
            )
            self._store(record)
        calls, lost = calls_of(self.turns)
        most = MOST_LOST * len(calls)
        if self._plan.breaks:
            return
        if len(calls) >= FEWEST_CALLS and (
            len(lost) > most or lost[-FEWEST_CALLS:] == calls[-FEWEST_CALLS:]
        ):
            raise AgentError(
                "agent.calls_lost",
                f"{len(lost)} of {len(calls)} calls were lost, so no more are played; the last "
                f"one: {failure.message}",
                hint=failure.hint,
            )

    def _note_measured(self) -> None:
        """Store the facts that a killed run could no longer store."""
        known = {"clock_offset": self._offset, "calibration": self.calibration}
        self._note_opening(noted(self._opening, known))

    def _note_line(self, line: Line) -> None:
        """Store the line's dialect, and the sample rate at which the person is heard.

        Raises:
            AgentError: the dialect or the rate differs from that of the stored turns.
        """
        agent = self._opening.agent
        spoken = dict(zip(TOLD_BY_THE_LINE, (line.dialect, line.rate), strict=True))
        before = {name: agent[name] for name in TOLD_BY_THE_LINE if agent.get(name) is not None}
        if before == spoken:
            return
        if self.turns and before.items() - spoken.items():
            then, now = (
                ", ".join(f"{k}={v}" for k, v in each.items()) for each in (before, spoken)
            )
            raise AgentError(
                "agent.another_line",
                f"the line is {now}, but was {then} in the turns before: a run measures one line "
                f"only",
                hint="name its dialect with --dialect, or start a new run",
            )
        self._note_opening(self._opening.model_copy(update={"agent": agent | spoken}))

    def on_chosen(self, chosen: Chosen) -> None:
        """Store which models the agent found when it started.

        Raises:
            AgentError: the run is continued, and the models are not the same as before.
        """
        before = self._opening.found
        if self._opening.pieces and before and before != chosen.found:
            raise AgentError(
                "resume.agent",
                f"the agent found another model than before: {chosen.found}, not {before}",
                hint="start the same server as before, or start a new run",
            )
        known = {"found": chosen.found, "held_out": chosen.held_out}
        self._note_opening(self._opening.model_copy(update=known))

    def _note_opening(self, opening: RunRecord) -> None:
        self._opening = opening
        self._writer.note(opening)

    def _keep(
        self,
        where: tuple[LoadedScenario, int, int],
        conversation: Conversation,
        played: PlayedTurn,
        faults: tuple[str, ...],
    ) -> None:
        scenario, repeat, phase = where
        key = _key(scenario.scenario.name, played.turn.turn, repeat, phase)
        if key in self._stored:  # a turn before those that a run lacks, played for them alone
            return
        file = self._writer.write_audio(
            f"{len(self.turns) + 1:03d}",
            user_side(conversation.stream, played.window),
            agent_side(conversation.heard, played.window, conversation.stream.rate),
            conversation.stream.rate,
        )
        record = turn_record(
            scenario.scenario,
            played,
            repeat=repeat,
            phase_ms=phase * 1000 / RATE,
            file=file,
            faults=faults,
            budget_ms=self._plan.budget_ms,
            starved_ms=self._plan.starved_ms,
        )
        self._store(record)

    def _store(self, record: Turn) -> None:
        if record.key in self._stored:
            return
        record = self._plain.beside(record)
        self._writer.append_turn(record)
        self.turns.append(record)
        self._stored.add(record.key)
        self._on_turn(record)

    def finish(self, failure: str | None = None) -> Run:
        """Judge the run, and close it. `unwritten` says whether the last write to disk failed."""
        played, planned = len(self.turns), self._opening.planned_turns
        # Notes that compare a turn with the others wait for all of them: a run may be continued.
        whole = played >= planned
        doubts = doubts_of(self.turns) if whole else {}
        marked = tuple(self._marked(turn, doubts.get(turn.key), whole) for turn in self.turns)
        reasons = why_invalid(summarise(marked), self._plan.starved_ms, breaks=self._plan.breaks)
        if failure is not None:
            reasons = (*reasons, f"ended after {played} of {planned} turns: {failure}")
        elif played and not whole:
            reasons = (*reasons, f"only {played} of {planned} planned turns were played")
        begun = (self._opening, *self._opening.pieces)
        update = {
            "finished_utc": utc_now(*(each.started_utc for each in begun)),
            "clock_offset": self._offset,
            "calibration": self.calibration,
            "failure": failure,
        }
        closing = with_last_piece(self._opening, update, played)
        closing = closing.model_copy(update={"valid": not reasons, "why_invalid": reasons})
        closing = self._writer.with_digests(closing)
        try:
            self._writer.finish(closing)
        except InputError as e:
            # On the disk the run stays unfinished, and so not valid; here it must not be, either.
            self.unwritten = e
            closing = closing.model_copy(
                update={
                    "valid": False,
                    "why_invalid": (*reasons, str(e)),
                    "failure": failure or str(e),
                }
            )
        run = Run(closing, tuple(self.turns), self._writer.path)
        return run if marked == run.turns else rewritten(run, closing, marked)

    def _marked(self, turn: Turn, doubt: str | None, whole: bool) -> Turn:
        """Add what only the rest of the run can show of a turn."""
        if self._plan.is_paired and turn.key not in self._earlier:
            turn = self._plain.beside(turn, "the run was interrupted")
        own = any(mark.name == "endpoint" for mark in turn.marks)
        if own or turn.ambiguous:
            return turn
        why = ""
        if turn.gap_ms is not None:
            why = CLAIMED if turn.key in self._claimed else ""
            if turn.turn == 1 and turn.greeting_ms is None:
                why = self._why_greeting(turn.gap_ms, whole) or why
        note = AMBIGUOUS + why if why else doubt
        return turn.model_copy(update={"notes": {**turn.notes, note: 1}}) if note else turn

    def _why_greeting(self, gap_ms: float, whole: bool) -> str:
        """Say why the first speech in a call may have been a greeting; empty if it was none."""
        if self._greetings.greets:
            return UNHEARD_GREETING
        if self._greetings.steady:
            return STEADY_GREETING
        if not whole:
            return ""
        usual_ms = median(turn.gap_ms for turn in self.turns if turn.gap_ms is not None)
        quick = self._greetings.open and is_sudden(gap_ms, QUICK, usual_ms)
        return QUICK_GREETING if quick else ""


def _opening_record(plan: PlayPlan, target: Target, settings: dict[str, Any]) -> RunRecord:
    """Build the record of a run that begins now; `settings` are stored with it."""
    return RunRecord(
        turngap_version=__version__,
        commit=git_commit(),
        name=target.choice.name,
        started_utc=utc_now(),
        machine=this_machine(),
        agent=target.describe(),
        settings={**settings, **plan.line_setting},
        scenario_hashes=content_hashes(plan.scenarios),
        voices={s.scenario.name: s.voice for s in plan.scenarios if s.voice is not None},
        planned_turns=plan.turns // plan.agents,
        budget_ms=plan.budget_ms or DEFAULT_BUDGET_MS,
        starved_ms=plan.starved_ms,
        stand_ins=target.stand_ins(s.scenario for s in plan.scenarios),
        held_out=target.held_out(),
        plan=plan.record(),
        label=plan.label,
        line=None if plan.line is None else line_record(plan.line),
    )


def why_invalid(
    summary: Summary, starved_ms: float = STARVED_MS, *, breaks: bool = False
) -> tuple[str, ...]:
    """List why a run's figures are not valid; empty if they are. `breaks`: the line loses calls."""
    if not summary.turns:
        return ("no turn was finished",)
    if summary.lost_calls > MOST_LOST * summary.calls and not breaks:
        return (f"{summary.lost_calls} of {summary.calls} calls were lost",)
    if (ambiguous := summary.heard.ambiguous_turns) > MOST_AMBIGUOUS * summary.turns:
        return (
            f"in {ambiguous} of {summary.turns} turns the reply may be the answer to another "
            "turn: their notes say why; with a larger --no-reply-ms turngap waits for slow "
            "answers",
        )
    # One turn alone is marked, and moves no median of five or more.
    several = summary.starved > 1 or summary.turns < n_needed(0.5)
    if several and summary.starved / summary.turns > MAX_STARVED_SHARE:
        return (
            f"the caller was starved in {summary.starved} of {summary.turns} turns (its packets or "
            f"its event loop over {starved_ms:g} ms late): quiet the machine and run again, or "
            "accept that error with a larger --starved-ms (in Python starved_ms, in pytest "
            "--turngap-starved-ms)",
        )
    return ()


def _key(scenario: str, turn: int, repeat: int, phase: int) -> TurnKey:
    return (scenario, turn, phase * 1000 / RATE, repeat)


async def _in_a_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Do file and console work in a thread, and finish it even if cancelled."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


@contextmanager
def kept(finish: Callable[[str], object]) -> Iterator[None]:
    """Store the work as failed, with the reason, if anything other than an agent ends it.

    `finish` stores it.
    """
    try:
        yield
    except TurngapError:
        raise
    except (asyncio.CancelledError, KeyboardInterrupt):
        finish(INTERRUPTED)
        raise
    except BaseException as e:
        finish(f"turngap itself failed: {type(e).__name__}: {e}")
        raise


@contextmanager
def all_kept(runs: Iterable[RunInProgress]) -> Iterator[None]:
    """Store every run as failed if anything other than an agent ends them."""
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(kept(run.finish))
        yield

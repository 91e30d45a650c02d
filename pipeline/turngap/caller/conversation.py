"""Plays one recorded conversation against an agent in real time."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from math import ceil
from typing import Literal

from turngap.caller.connection import HUNG_UP, Line, failed_on
from turngap.caller.ear import SPEECH_GAP_MS, Heard
from turngap.caller.hearing import Listener
from turngap.caller.line.figures import CrossedAudio
from turngap.caller.said import Incoming
from turngap.caller.stream import (
    GRID_MS,
    PACKET_MS,
    LagProbe,
    Rest,
    Sender,
    UserStream,
    loop_probe,
)
from turngap.core.budget import NO_REPLY_MS, QUIET_MS, TurnEnd
from turngap.core.clock import NS_PER_MS, Clock, ms_to_ns
from turngap.core.credits import PAUSE_MS, SENTENCE_MS
from turngap.core.cue import AFTER_REPLY_MS, BackchannelCue, Cue, Recording, When
from turngap.core.errors import AgentError
from turngap.core.events import (
    Event,
    Flush,
    TrackedTurn,
    TurnEnded,
    UserBackchannel,
    UserSpeech,
    unfinished,
)
from turngap.core.run_record import OffsetRecord
from turngap.core.stored import LineTurn

# Silence before anybody speaks, because VADs need a moment of the line.
ROOM_MS = 500.0

# The same where a recording can begin, on the stream's grid.
ROOM_ON_GRID_MS = GRID_MS * ceil(ROOM_MS / GRID_MS)

# A reply whose audio runs out for 150 ms, to the millisecond, has a hole.
HOLE_MS = 149.0

# How far ahead of its first sample a recording is put into the stream.
AHEAD_MS = 4.0 * PACKET_MS


@dataclass(frozen=True, slots=True)
class Patience:
    """The times that the caller waits.

    Attributes:
        no_reply_ms: time after the user's end until the turn counts as unanswered. A turn
            classifier's wrong "incomplete" typically costs 3 s; this is well above.
        late_ms: time to keep listening after that, at most another `no_reply_ms`, so that a late
            answer is not heard as the next one.
        quiet_ms: silence that ends a reply if the agent does not say that it is done.
        quiet_after_done_ms: silence that ends a reply after the agent has called it done.
        hold_ms: silence that ends a reply short enough to be a hold phrase ("one moment"), at most
            `no_reply_ms`; not used if the agent has called the reply whole.
        longest_reply_ms: the caller stops waiting for a reply that is longer than this.
        settle_ms: time to wait for the agent's marks after the reply.
        backchannel_ms: a reply that falls silent within this time was stopped by the backchannel.
        greeting_ms: time for the agent to begin a greeting; the caller then hears it out.
        speech_gap_ms: the longest pause that does not end the agent's speech.
    """

    no_reply_ms: float = NO_REPLY_MS
    quiet_ms: float = QUIET_MS
    late_ms: float = 6000.0
    quiet_after_done_ms: float = 200.0
    hold_ms: float = 4000.0
    longest_reply_ms: float = 60_000.0
    settle_ms: float = 500.0
    backchannel_ms: float = 1000.0
    speech_gap_ms: float = SPEECH_GAP_MS
    greeting_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class BackchannelHeard:
    """A backchannel that was played from `start_ns`, and whether the reply stopped for it."""

    index: int
    start_ns: int
    reply_stopped: bool


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A finished turn with the facts that only the caller knows.

    Attributes:
        window: first and last instant of the turn's recording, ns.
        late_ns: lateness of each packet between the user's start and the agent's onset.
        lag_ns: the longest hold-up of the caller's event loop in that time; None if not known.
        notes: oddities of the messages that the agent sent, each with its count.
        greeting_ns: time from the open line to the agent's greeting; in a call's first turn only.
        holes: long silences within the reply: start, counted from its onset, and length, in ns.
        line: what the line did to the turn; None without one.
    """

    turn: TrackedTurn
    window: tuple[int, int]
    late_ns: tuple[int, ...]
    lag_ns: int | None
    backchannels: tuple[BackchannelHeard, ...]
    events: tuple[Event, ...]
    notes: Mapping[str, int] = field(default_factory=dict[str, int])
    greeting_ns: int | None = None
    holes: tuple[tuple[int, int], ...] = ()
    line: LineTurn | None = None


@dataclass(slots=True)
class _Running:
    """A turn that is not finished; if `cut_short`, the next turn does not wait for its end."""

    number: int
    cue: Cue
    start_ns: int
    end_ns: int
    reason: TurnEnd | None = None
    cut_short: bool = False
    backchannels: list[BackchannelHeard] = field(default_factory=list[BackchannelHeard])

    @property
    def begun_ns(self) -> int:
        return self.start_ns - ms_to_ns(self.cue.speech.start_ms)


class Conversation:
    """Player of cues over a line, which yields each turn when it is finished.

    Everything stays in memory while turns run: the caller writes nothing and prints nothing.
    `watch` is the clock that measures the lateness of the event loop, the real one by default.
    `phase_ms` shifts every recording on the stream's grid. `begins_ns` is when the first recording
    begins, whatever its `when` says. If the line opens too late for that, the recording begins as
    soon as possible.
    """

    def __init__(
        self,
        line: Line,
        cues: Sequence[Cue],
        clock: Clock,
        *,
        offset: OffsetRecord,
        patience: Patience | None = None,
        phase_ms: float = 0.0,
        begins_ns: int | None = None,
        watch: Clock | None = None,
    ) -> None:
        self._line = line
        self._cues = cues
        self._clock = clock
        self._compared = offset.offset_ns is not None
        self._patience = patience or Patience()
        self._phase_ms = phase_ms
        self._begins_ns = begins_ns
        self._waited_ns = 0
        self._first = 0
        self._crossed = CrossedAudio(line.crossings)
        self._listener = Listener(
            clock,
            offset=offset,
            speech_gap_ms=self._patience.speech_gap_ms,
            tells_flushes=line.tells_flushes,
            words=line.first_word == "speech",
            is_late=lambda: self._crossed.is_late,
        )
        self._tracker = self._listener.tracker
        self._watch = watch
        self._greeted = False
        self._open: list[_Running] = []

    @property
    def heard(self) -> list[Heard]:
        return self._listener.ear.heard

    @property
    def stream(self) -> UserStream:
        return self._sender.stream

    @property
    def late_ns(self) -> Sequence[int]:
        """Return how late each packet so far was handed to the socket."""
        return self._sender.late_ns

    @property
    def faults(self) -> list[str]:
        return self._listener.faults

    @property
    def greeted(self) -> bool:
        return self._greeted

    @property
    def first_onset_ns(self) -> int | None:
        """Return the time from the open line to the agent's first speech; None without any."""
        onset_ns = self._tracker.first_onset_ns
        return None if onset_ns is None else onset_ns - self.stream.t0_ns

    @property
    def waited_ns(self) -> int:
        """Return how long after `begins_ns` the first recording could begin."""
        return self._waited_ns

    @property
    def ready_ns(self) -> int:
        """Return when the first recording could begin, before alignment to the stream's grid."""
        return self.stream.instant_ns(self._first)

    @property
    def failure(self) -> AgentError | None:
        return self._listener.failure

    @property
    def failed_ns(self) -> int | None:
        """Return when the line was lost; None while it is not."""
        return self._listener.failed_ns

    async def play(self) -> AsyncGenerator[PlayedTurn]:
        """Play all turns; end early, with `failure` set, if the line is lost."""
        stream = UserStream(self._stream_begins_ns(), self._line.rate)
        line = self._line
        self._sender = Sender(
            stream, self._clock, line.send_audio_now, line.prepare_audio, line.lead
        )
        self._lag = loop_probe() if self._watch is None else LagProbe(self._watch)
        tasks = [
            asyncio.create_task(self._receive(), name="turngap-receive"),
            asyncio.create_task(self._sender.run(self._tick), name="turngap-send"),
            asyncio.create_task(self._lag.run(stream.t0_ns), name="turngap-lag"),
        ]
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        try:
            not_before = self._first = await self._first_start()
            for number, cue in enumerate(self._cues, start=1):
                async for played in self._one_turn(number, cue, not_before):
                    yield played
                if self.failure is not None:
                    break
                not_before = self._not_before(number)
            async for played in self._settle():
                yield played
            self._listener.check()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> None:
        try:
            await self._line.receive(self._on_message)
        except AgentError as e:
            if e.kind == HUNG_UP:  # what it said before is still to be heard
                await self._clock.sleep_until_ns(self._listener.ear.ends_ns)
            self._listener.lose(e)

    def _on_message(self, now_ns: int, incoming: Incoming) -> None:
        incoming = self._crossed.on_message(now_ns, incoming)
        self._listener.on_message(now_ns, incoming)
        self._line.played(self._listener.ear.played, self._listener.ear.dropped)

    def _tick(self, now_ns: int) -> Rest:
        self._listener.tick(now_ns)
        self._line.played(self._listener.ear.played, self._listener.ear.dropped)
        return self._line.send_waiting_now()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        # A task ends by itself only if the line is lost. Anything else is a fault of the caller,
        # which must be raised at once rather than heard as silence.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._listener.crash(error)

    def _stream_begins_ns(self) -> int:
        """Return when the stream begins: if possible, when its grid meets `begins_ns`."""
        # The first packet's deadline lies one packet ahead; a little slack lets the tasks start.
        soonest_ns = self._clock.now_ns() + ms_to_ns(PACKET_MS)
        if self._begins_ns is None:
            return soonest_ns
        spare_ns = self._begins_ns - soonest_ns - ms_to_ns(self._phase_ms + ROOM_ON_GRID_MS)
        self._waited_ns = max(0, -spare_ns)
        return soonest_ns + max(0, spare_ns) % ms_to_ns(GRID_MS)

    async def _first_start(self) -> int:
        """Return the first sample of the first recording, after hearing out a greeting."""
        when = self._cues[0].when
        stream, at_ms = self._sender.stream, when.at_ms
        if self._begins_ns is not None:
            at_ms = (self._begins_ns + self._waited_ns - stream.t0_ns) / NS_PER_MS
        room = stream.samples(max(ROOM_MS, at_ms or 0.0))
        await self._listener.changed_until(stream.instant_ns(room) - ms_to_ns(AHEAD_MS))
        greeting_by_ns = stream.t0_ns + ms_to_ns(self._patience.greeting_ms)
        while self.failure is None and self._tracker.first_onset_ns is None:
            if not await self._listener.changed_before(greeting_by_ns):
                break
        listener = self._listener
        heard = listener.silent_since_ns > 0 or listener.ear.speech_ahead
        spoken = heard or self._tracker.agent_speaking
        if when.at_ms is None and spoken:
            await self._wait_for_quiet(None)
            room = max(room, self._after_reply(when))
        # What was no more than sound is no greeting.
        self._greeted = spoken and self._tracker.first_onset_ns is not None
        return room

    async def _one_turn(self, number: int, cue: Cue, not_before: int) -> AsyncIterator[PlayedTurn]:
        running = self._begin(number, cue, not_before)
        follows = self._cues[number].when if number < len(self._cues) else None
        await self._wait_for_reply(running, follows)
        replied = self._tracker.onset_of(number) is not None
        if running.reason is None and replied and follows and follows.barge_in_ms is not None:
            await self._wait_to_barge_in(running, follows.barge_in_ms)
        elif running.reason is None:
            await self._hear_out(running)
        # A turn that the next one cuts short stays open, as its marks come when it is interrupted.
        if not running.cut_short:
            async for played in self._settle():
                yield played

    def _begin(self, number: int, cue: Cue, not_before: int) -> _Running:
        start = self._lay(cue, not_before)
        start_ns, end_ns = self._sounds(cue, start)
        running = self._before = _Running(number, cue, start_ns, end_ns)
        self._open.append(running)
        over_reply = self._tracker.agent_speaking
        self._listener.feed(UserSpeech(number, start_ns, end_ns, over_reply, cue.budget_ms))
        self._line.user_ends(self._sender.stream.sample_at(end_ns))
        return running

    async def _wait_for_reply(self, running: _Running, follows: When | None) -> None:
        """Wait until the user has ended and the reply has begun, or until the wait runs out."""
        deadline_ns = self._due_ns(running)
        if follows is not None and follows.at_ms is not None:
            next_ns = self._lay_at_ns(running.end_ns + ms_to_ns(follows.at_ms), running.number)
            if next_ns < deadline_ns:
                await self._wait_for_next(running, next_ns)
                return
        while self.failure is None:
            replied = self._tracker.onset_of(running.number) is not None
            if not await self._listener.changed_before(running.end_ns if replied else deadline_ns):
                return

    async def _wait_for_next(self, running: _Running, next_ns: int) -> None:
        """Wait until the next turn must be put into the stream, whatever the agent does."""
        await self._listener.changed_until(next_ns)
        if self.failure is None:
            running.cut_short = True
            replied = self._tracker.onset_of(running.number) is not None
            over = replied and self._quiet_at(running) <= self._clock.now_ns()
            running.reason = "reply_done" if over else "interrupted"

    async def _wait_to_barge_in(self, running: _Running, barge_in_ms: float) -> None:
        onset_ns = self._tracker.onset_of(running.number)
        if onset_ns is None:
            return
        lay_ns = self._lay_at_ns(onset_ns + ms_to_ns(barge_in_ms), running.number)
        await self._listener.changed_until(lay_ns)
        if self.failure is None:
            running.cut_short = self._tracker.agent_speaking
            running.reason = "interrupted" if running.cut_short else "reply_done"

    async def _hear_out(self, running: _Running) -> None:
        """Hear the reply out; if no reply came in time, wait for a late answer."""
        for index, cue in enumerate(running.cue.backchannels):
            await self._lay_backchannel(running, index, cue)
        # What was taken for the reply may turn out to be none, and then the wait continues.
        while self.failure is None and running.reason is None:
            if self._tracker.onset_of(running.number) is None:
                if not await self._listener.changed_before(self._due_ns(running)):
                    running.reason = "timeout"
                continue
            await self._wait_for_quiet(running)
            if self.failure is None and self._tracker.onset_of(running.number) is not None:
                running.reason = "reply_done"
        if running.reason != "timeout":
            return
        late_ms = min(self._patience.late_ms, self._patience.no_reply_ms)
        by_ns = self._due_ns(running) + ms_to_ns(late_ms)
        while self._tracker.onset_of(running.number) is None:
            if self.failure is not None or not await self._listener.changed_before(by_ns):
                return
        await self._wait_for_quiet(running)

    async def _wait_for_quiet(self, running: _Running | None) -> None:
        longest_ns = self._clock.now_ns() + ms_to_ns(self._patience.longest_reply_ms)
        while self.failure is None:
            quiet_at_ns = min(self._quiet_at(running), longest_ns)
            if quiet_at_ns <= self._clock.now_ns():
                return
            await self._listener.changed_before(quiet_at_ns)

    def _quiet_at(self, running: _Running | None) -> int:
        """Return when a reply or a greeting counts as over if nothing follows."""
        listener, patience = self._listener, self._patience
        if self._tracker.agent_speaking or listener.ear.speech_ahead:
            return self._clock.now_ns() + ms_to_ns(patience.quiet_ms)
        since_ns = listener.silent_since_ns
        if running and self._tracker.is_owed(running.number):
            return self._due_ns(running)
        if listener.reply_due:
            return since_ns + ms_to_ns(patience.no_reply_ms)
        done = listener.called_done_since(running.end_ns if running else 0)
        quiet_ns = since_ns + ms_to_ns(patience.quiet_after_done_ms if done else patience.quiet_ms)
        if self._is_whole(running):
            return quiet_ns
        return max(quiet_ns, since_ns + ms_to_ns(min(patience.hold_ms, patience.no_reply_ms)))

    def _due_ns(self, running: _Running) -> int:
        """Return when the wait for a turn's reply runs out."""
        return running.end_ns + ms_to_ns(self._patience.no_reply_ms)

    def _is_whole(self, running: _Running | None) -> bool:
        """Return whether the reply is more than a hold phrase, by length or the agent's word."""
        if running is None:  # a greeting may begin with no more than "hello", too
            first_ns, over_ns = self._tracker.first_onset_ns or 0, self._listener.silent_since_ns
            long = over_ns - first_ns >= ms_to_ns(SENTENCE_MS)
            return long or self._listener.called_done_since(0, whole=True)
        return (
            not self._tracker.may_go_on(running.number)
            or self._listener.called_done_since(running.end_ns, whole=True)
            or self._tracker.has_heard_marks(running.number)
        )

    async def _lay_backchannel(self, running: _Running, index: int, cue: BackchannelCue) -> None:
        onset_ns = self._tracker.onset_of(running.number)
        if onset_ns is None:
            return
        at_ns = onset_ns + ms_to_ns(cue.reply_ms - cue.speech.start_ms)
        await self._listener.changed_until(at_ns - ms_to_ns(AHEAD_MS))
        if self.failure is not None or not self._tracker.agent_speaking:
            return
        start = self._lay(cue, self._sender.stream.sample_at(at_ns))
        start_ns, end_ns = self._sounds(cue, start)
        self._listener.feed(UserBackchannel(start_ns))
        by_ns = end_ns + ms_to_ns(self._patience.backchannel_ms)
        # Silence counts only after the longest pause that speech may have.
        await self._listener.changed_until(by_ns + ms_to_ns(self._patience.speech_gap_ms))
        stopped = self._stopped_between(start_ns, by_ns)
        running.backchannels.append(BackchannelHeard(index, start_ns, stopped))

    def _stopped_between(self, start_ns: int, by_ns: int) -> bool:
        """Return whether the reply was broken off; a reply that the agent calls done was not."""
        listener = self._listener
        flushes = (e.at_ns for e in listener.events if isinstance(e, Flush))
        if any(start_ns < at_ns <= by_ns for at_ns in flushes):
            return True
        silent = start_ns < listener.silent_since_ns <= by_ns and not self._tracker.agent_speaking
        return silent and not listener.called_done_since(start_ns)

    async def _settle(self) -> AsyncIterator[PlayedTurn]:
        """Wait a moment for marks that are still on their way, then close every open turn."""
        deadline_ns = self._clock.now_ns() + ms_to_ns(self._patience.settle_ms)
        while self.failure is None and not all(self._has_marks(r) for r in self._open):
            if not await self._listener.changed_before(deadline_ns):
                break
        for running, following in zip_longest(self._open, self._open[1:]):
            reason = running.reason or self._why_lost(running)
            more = None if following or reason != "reply_done" else self._more(running)
            ended = TurnEnded(running.number, self._clock.now_ns(), reason, more)
            turn = self._finished(running, ended)
            events = (*self._take_events(following), ended)
            played = self._played(running, turn, events, following)
            yield played
            self._listener.ear.forget_until(played.window[1])
        self._open.clear()

    def _more(self, running: _Running) -> Literal["due", "may"] | None:
        """Return whether more of a reply that fell silent is due, or may still come."""
        if self._listener.reply_due:
            return "due"
        return None if self._is_whole(running) else "may"

    def _why_lost(self, running: _Running) -> TurnEnd:
        quiet_ns = self._clock.now_ns() - self._listener.silent_since_ns
        done = not self._tracker.agent_speaking and quiet_ns >= ms_to_ns(self._patience.quiet_ms)
        replied = self._tracker.onset_of(running.number) is not None
        if self.failure is None or (replied and done and not self._listener.reply_due):
            return "reply_done"
        return "hung_up" if self.failure.kind == HUNG_UP else "line_lost"

    def _finished(self, running: _Running, ended: TurnEnded) -> TrackedTurn:
        """Close a turn with all that is known of the reply; note in it a failure of turngap."""
        try:
            (turn,) = self._tracker.feed(ended)
        except Exception as e:
            why = failed_on("make out what came in the turn", e)
            self._listener.broken(ended.at_ns, why, traceback.format_exc(limit=-8))
            speech = UserSpeech(running.number, running.start_ns, running.end_ns)
            turn = unfinished(speech, ended, why)
        return turn

    def _take_events(self, following: _Running | None) -> tuple[Event, ...]:
        """Take the events up to the announcement of the next turn, or all of them."""
        events = self._listener.events
        number = following.number if following else None
        cuts = (i for i, e in enumerate(events) if isinstance(e, UserSpeech) and e.turn == number)
        cut = next(cuts, len(events))
        taken, events[:cut] = tuple(events[:cut]), []
        return taken

    def _has_marks(self, running: _Running) -> bool:
        if not self._compared or self._tracker.onset_of(running.number) is None:
            return True
        return self._tracker.has_heard_marks(running.number)

    def _played(
        self,
        running: _Running,
        turn: TrackedTurn,
        events: tuple[Event, ...],
        following: _Running | None,
    ) -> PlayedTurn:
        stream = self._sender.stream
        first = stream.sample_at(turn.user_start_ns)
        last = stream.sample_at(turn.onset_ns or turn.user_end_ns)
        heard_ns = turn.marks.get("received", turn.user_end_ns)
        turn, crossed = self._crossed.finish(turn, stream, self.heard)
        return PlayedTurn(
            turn,
            (running.begun_ns, following.begun_ns if following else turn.ended_ns),
            tuple(self._sender.lateness_ns(first, max(first, last))),
            self._lag.worst_ns(turn.user_start_ns, max(heard_ns, turn.user_end_ns)),
            tuple(running.backchannels),
            events,
            self._listener.take_notes(),
            self._greeting_ns(turn) if running.number == 1 else None,
            self._holes(turn.parts_ns),
            crossed,
        )

    def _greeting_ns(self, first: TrackedTurn) -> int | None:
        """Return the time from the open line to a greeting; None if the person spoke first."""
        onset_ns = self._tracker.first_onset_ns
        if onset_ns is None or onset_ns >= first.user_start_ns:
            return None
        # Not from the stream's begin: the pings come before, and last 1 s if they get no answer.
        return max(0, onset_ns - self._line.opened_ns)

    def _holes(self, parts_ns: Sequence[tuple[int, int | None]]) -> tuple[tuple[int, int], ...]:
        """List the holes of a reply: audio that ran out for a moment, and long silences."""
        if not parts_ns:
            return ()
        onset_ns, ends_ns = parts_ns[0][0], parts_ns[-1][1] or self._clock.now_ns()
        silent = [(a or b, b) for (_, a), (b, _) in pairwise(parts_ns)]
        found = [(a, b) for a, b in silent if b - a >= ms_to_ns(PAUSE_MS)]
        played = [h for h in self.heard if h.end_ns > onset_ns and h.start_ns < ends_ns]
        for a, b in ((one.end_ns, then.start_ns) for one, then in pairwise(played)):
            known = any(since <= a and b <= until for since, until in found)
            if b - a >= ms_to_ns(HOLE_MS) and not known:
                found.append((a, b))
        return tuple((a - onset_ns, b - a) for a, b in sorted(found))

    def _lay(self, cue: Recording, not_before: int) -> int:
        """Put a recording into the stream as soon as it can still be sent; return its start."""
        stream = self._sender.stream
        soonest = max(not_before, self._sender.next_sample + 2 * stream.packet)
        return stream.place(cue.pcm, soonest, phase=stream.samples(self._phase_ms))

    def _sounds(self, cue: Recording, start: int) -> tuple[int, int]:
        stream, speech = self._sender.stream, cue.speech
        first, last = stream.samples(speech.start_ms), stream.samples(speech.end_ms)
        return stream.instant_ns(start + first), stream.instant_ns(start + last)

    def _lay_at_ns(self, onset_ns: int, number: int) -> int:
        """Return when to place turn `number + 1` if its speech is to begin at `onset_ns`."""
        return onset_ns - ms_to_ns(self._cues[number].speech.start_ms + AHEAD_MS)

    def _not_before(self, number: int) -> int:
        """Return the first sample at which the recording of turn `number + 1` may begin."""
        if number >= len(self._cues):
            return 0
        cue, before = self._cues[number], self._before
        onset_ns = None
        if cue.when.at_ms is not None:
            onset_ns = before.end_ns + ms_to_ns(cue.when.at_ms)
        elif cue.when.barge_in_ms is not None and before.cut_short:
            reply_ns = self._tracker.onset_of(before.number)
            onset_ns = None if reply_ns is None else reply_ns + ms_to_ns(cue.when.barge_in_ms)
        if onset_ns is not None:
            return self._sender.stream.sample_at(onset_ns - ms_to_ns(cue.speech.start_ms))
        return self._after_reply(cue.when)

    def _after_reply(self, when: When) -> int:
        wait_ms = AFTER_REPLY_MS if when.after_reply_ms is None else when.after_reply_ms
        return self._sender.next_sample + self._sender.stream.samples(wait_ms)

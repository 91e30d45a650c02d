"""The listening half of a conversation: it turns messages into events to wait for."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from turngap.caller import said
from turngap.caller.connection import failed_on
from turngap.caller.ear import Ear, Speech
from turngap.caller.intake import MOST_NOTES, Intake
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import AgentError
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Event,
    Fault,
    Flush,
    Marks,
    NoReply,
    ReplyText,
    Transcript,
    TurnBroken,
    TurnOver,
    UserSpeech,
    stamped,
)
from turngap.core.run_record import OffsetRecord
from turngap.core.stages import Slack
from turngap.core.turns import TurnTracker
from turngap.core.untrusted import MOST_SENTENCE

WAV_HEADERS = "the agent sends its audio with WAV headers, which were taken off"
WAV_REST = "bytes after the samples that a WAV header counts, which were left out"
MARKS_AHEAD = "marks later than the message that brings them, by the agent's clock"
OTHER_NOTES = "and more of other kinds"
# An agent on a real-time stream that says it was interrupted and speaks on for longer was not.
MOST_AFTER_FLUSH_MS = 2000.0


class Listener:
    """A listener on a line: it feeds arriving events to the tracker, and wakes waiting tasks.

    Args:
        offset: the agent's clock minus the caller's; if unknown, the marks cannot be placed.
        speech_gap_ms: the longest pause that does not end the agent's speech.
        tells_flushes: as in `TurnTracker`.
        words: as in `Ear`.

    Attributes:
        reply_due: the agent has said that more of its reply is to come.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        offset: OffsetRecord,
        speech_gap_ms: float,
        tells_flushes: bool = True,
        words: bool = True,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._offset_ns = offset.offset_ns
        self._slack = Slack(offset.bound_ns or 0, compared_ns=clock.now_ns())
        self._make_ear = partial(Ear, speech_gap_ms, words=words, is_late=is_late)
        self._changed = asyncio.Event()
        self._done_ns = 0
        self._done_whole = False
        self.reply_due = False
        self._flushed_ns = 0
        self._flush: Flush | None = None  # of a real-time stream, until it is heard
        self._speech_received_ns = 0
        self._crash: BaseException | None = None
        self._intake = Intake()
        self._arrived = 0  # samples
        self._begun = False
        self._broken: set[str] = set()
        self.tracker = TurnTracker(self._slack, tells_flushes=tells_flushes)
        self.ear = self._make_ear()
        self.events: list[Event] = []
        self.silent_since_ns = 0
        self.faults: list[str] = []
        self.notes: Counter[str] = Counter()
        self.failure: AgentError | None = None
        self.failed_ns: int | None = None

    def on_message(self, now_ns: int, incoming: said.Incoming) -> None:
        """Take a message that arrived.

        Raises:
            AgentError: the agent has sent more than a conversation may hold.
        """
        samples = len(incoming.pcm) if isinstance(incoming, said.AudioChunk) else 0
        self._arrived += samples
        if why := self._intake.refuses(incoming, self.ear.waiting_bytes):
            self.ear.lose(samples)
            self.broken(now_ns, why)
            if too_much := self._intake.is_over():
                raise AgentError("agent.too_much", f"the agent sent {too_much} in a conversation")
        else:
            self._survive(now_ns, "take in a message", lambda: self._take(now_ns, incoming))

    def tick(self, now_ns: int) -> None:
        """Play the audio that is due by now."""
        self._survive(now_ns, "hear", lambda: self._feed_all(self.ear.advance(now_ns)))

    def broken(self, now_ns: int, why: str, trace: str = "") -> None:
        """Note why the turn at `now_ns` cannot be measured; before the first turn, only note it."""
        self.note(why)
        if trace:
            self.note(trace[-MOST_SENTENCE:])
        # Once for each reason: a flood must not fill the turn with what was left out of it.
        if self._begun and why not in self._broken and len(self._broken) < MOST_NOTES:
            self._broken.add(why)
            self.feed(TurnBroken(now_ns, why))

    def note(self, what: str, n: int = 1) -> None:
        """Count a remark on the agent's messages, for the turn that ends next."""
        known = what in self.notes or len(self.notes) < MOST_NOTES
        self.notes[what if known else OTHER_NOTES] += n

    def take_notes(self) -> dict[str, int]:
        """Return the remarks since the last call, each with its count."""
        taken, self.notes = dict(self.notes), Counter()
        return taken

    def _survive(self, now_ns: int, what: str, work: Callable[[], None]) -> None:
        """Handle something that the agent sent; if turngap fails on it, record that in the turn."""
        try:
            work()
        except Exception as e:
            before, self.ear = self.ear, self._make_ear()
            self.ear.heard = before.heard
            self.ear.played, self.ear.dropped = before.played, before.dropped
            self.ear.lose(self._arrived - before.played)
            self.broken(now_ns, failed_on(what, e), traceback.format_exc(limit=-8))

    def _take(self, now_ns: int, incoming: said.Incoming) -> None:
        match incoming:
            case said.LeftOut(why, n):
                self.note(why, n)
            case said.Unreadable(why, trace):
                self.broken(now_ns, why, trace)
            case said.ReplyDue():
                self.reply_due = True
                self.tracker.announce(now_ns)
                self._changed.set()
            case said.ReplyDone(whole):
                self._done_ns, self._done_whole, self.reply_due = now_ns, whole, False
                self._changed.set()
            case Fault(error=error, refuses=refuses):
                self.faults.append(error)
                if not refuses:
                    self.feed(stamped(incoming, now_ns))
            case said.AudioChunk(pcm, rate, wav, left_out, packet, goes_on):
                if wav:
                    self.note(WAV_HEADERS)
                if left_out:
                    self.note(WAV_REST)
                self._feed_all(self.ear.receive(now_ns, pcm, rate, packet, goes_on=goes_on))
            case Flush():
                self._flushed_ns, self.reply_due = now_ns, False
                if self.ear.hears_packets and self.tracker.agent_speaking:
                    self._flush = stamped(incoming, now_ns)  # its audio ends when it is silent
                else:
                    self._feed_all(self.ear.flush(now_ns))
                    self.feed(stamped(incoming, now_ns))
            case TurnOver() | Transcript() | ReplyText() | NoReply():
                self.feed(stamped(incoming, now_ns))
            case Marks():
                self._feed_marks(now_ns, incoming)
            case _:  # it is ready and has answered pings already
                pass

    def lose(self, failure: AgentError) -> None:
        """Note that the line is lost and nothing more will be heard."""
        self.failure, self.failed_ns = failure, self._clock.now_ns()
        self._feed_all(self.ear.flush(self.failed_ns))
        self._changed.set()

    def crash(self, error: BaseException) -> None:
        """Pass an error of the caller itself to the waiting tasks."""
        self._crash = error
        self._changed.set()

    def check(self) -> None:
        if self._crash is not None:
            raise self._crash

    def feed(self, event: Event) -> None:
        if isinstance(event, UserSpeech):
            self._begun, self.reply_due = True, False
            self._broken.clear()
            self._intake.begin_turn()
        self.events.append(event)
        self.tracker.feed(event)
        self._changed.set()

    def called_done_since(self, ns: int, *, whole: bool = False) -> bool:
        """Return whether the agent called its reply done, after `ns` and after its last speech.

        With `whole`, the agent must have said that no more comes. An agent also calls an
        interrupted reply done, although an answer is still due. So a message after a flush does
        not count unless there was speech in between.
        """
        heard_ns = self._speech_received_ns
        done = self._done_ns > max(ns, heard_ns) and self._flushed_ns <= heard_ns
        return done and (self._done_whole or not whole)

    async def changed_before(self, deadline_ns: int) -> bool:
        """Wait until something is heard; return False once `deadline_ns` has passed."""
        self._changed.clear()
        self.check()
        left_s = (deadline_ns - self._clock.now_ns()) / 1e9
        if left_s <= 0:
            return False
        try:
            async with asyncio.timeout(left_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def changed_until(self, deadline_ns: int) -> None:
        while self.failure is None and await self.changed_before(deadline_ns):
            pass

    def _feed_marks(self, now_ns: int, reported: Marks) -> None:
        for why in reported.left_out:
            self.note(why)
        placed = reported.placed(self._offset_ns, now_ns)
        if max(placed.marks.values(), default=now_ns) > now_ns + self._slack.at(now_ns):
            self.note(MARKS_AHEAD)
            placed = reported.placed(None, now_ns)
        self.feed(placed)

    def _feed_all(self, events: Sequence[Speech]) -> None:
        for event in events:
            if isinstance(event, AgentSilence):
                self.silent_since_ns = event.at_ns
                if self._flush and event.at_ns - self._flush.at_ns < ms_to_ns(MOST_AFTER_FLUSH_MS):
                    self.feed(stamped(self._flush, max(event.at_ns, self._flush.at_ns)))
                self._flush = None
            elif isinstance(event, AgentSpeech):
                self._speech_received_ns = event.received_ns
            self.feed(event)

"""The listening half of a conversation: it turns what arrives into events to wait for."""

import asyncio
from collections.abc import Sequence

from turngap.caller import dialect as said
from turngap.caller.ear import Ear
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.events import (
    AgentFault,
    AgentMarks,
    AgentSilence,
    AgentSpeech,
    AgentText,
    EndpointTold,
    Event,
    PlayoutFlushed,
    UserTranscript,
)
from turngap.core.turns import TurnTracker


class Listener:
    """Feeds the tracker with what arrives on the line, and wakes whoever waits for it.

    Args:
        offset_ns: the agent's clock minus the caller's; None if its marks cannot be placed.
        speech_gap_ms: the longest pause that does not end the agent's speech.
    """

    def __init__(self, clock: Clock, *, offset_ns: int | None, speech_gap_ms: float) -> None:
        self._clock = clock
        self._offset_ns = offset_ns
        self._changed = asyncio.Event()
        self._done_ns = 0
        self._flushed_ns = 0
        self._speech_received_ns = 0
        self._crash: BaseException | None = None
        self.tracker = TurnTracker()
        self.ear = Ear(speech_gap_ms)
        self.events: list[Event] = []
        self.silent_since_ns = 0
        self.faults: list[str] = []
        self.truths: list[said.Truth] = []
        self.failure: AgentError | None = None

    def on_message(self, now_ns: int, incoming: said.Incoming) -> None:
        match incoming:
            case said.AudioChunk(pcm, rate):
                self._feed_all(self.ear.receive(now_ns, pcm, rate))
            case said.Flush():
                self._feed_all(self.ear.flush(now_ns))
                self._flushed_ns = now_ns
                self.feed(PlayoutFlushed(now_ns))
            case said.TurnOver():
                self.feed(EndpointTold(now_ns))
            case said.ReplyDone():
                self._done_ns = now_ns
                self._changed.set()
            case said.Transcript(text):
                self.feed(UserTranscript(now_ns, text))
            case said.ReplyText(text):
                self.feed(AgentText(now_ns, text))
            case said.Marks():
                self._feed_marks(now_ns, incoming)
            case said.Truth():
                self.truths.append(incoming)
            case said.Fault(text, refuses=refuses):
                self.faults.append(text)
                if not refuses:
                    self.feed(AgentFault(now_ns, text))
            case said.Ready() | said.Pong():
                pass

    def tick(self, now_ns: int) -> None:
        self._feed_all(self.ear.advance(now_ns))

    def lose(self, failure: AgentError) -> None:
        """Note that the line is gone and nothing more will be heard."""
        self.failure = failure
        self._feed_all(self.ear.flush(self._clock.now_ns()))
        self._changed.set()

    def crash(self, error: BaseException) -> None:
        """Give an error of the caller itself to whoever waits."""
        self._crash = error
        self._changed.set()

    def check(self) -> None:
        if self._crash is not None:
            raise self._crash

    def feed(self, event: Event) -> None:
        self.events.append(event)
        self.tracker.feed(event)
        self._changed.set()

    def called_done_since(self, ns: int) -> bool:
        """Whether the agent has called its reply done, after `ns` and after its latest speech.

        An agent calls an interrupted reply done too, although an answer is still due. So a message
        after a flush does not count unless there was speech in between.
        """
        heard_ns = self._speech_received_ns
        return self._done_ns > max(ns, heard_ns) and self._flushed_ns <= heard_ns

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

    def _feed_marks(self, now_ns: int, told: said.Marks) -> None:
        # Without a clock comparison, marks cannot be placed on the caller's clock.
        if self._offset_ns is None or not told.marks:
            if told.error:
                self.feed(AgentFault(now_ns, told.error))
            return
        marks = {name: at - self._offset_ns for name, at in told.marks.items()}
        raw = dict(told.marks)
        about = (told.counts, told.why, told.error, told.calls)
        self.feed(AgentMarks(told.agent_turn, marks, raw, *about))

    def _feed_all(self, events: Sequence[AgentSpeech | AgentSilence]) -> None:
        for event in events:
            if isinstance(event, AgentSilence):
                self.silent_since_ns = event.at_ns
            else:
                self._speech_received_ns = event.received_ns
            self.feed(event)

"""Keeps in the conversation what the person heard of a reply that was broken off.

pipecat adds a clause to the conversation once all of it was written, so that an interrupted clause
is lost although half of it was heard. Here its words that were played by then are kept, too: as
many as fit the part of the clause's audio that was played. A TTS that times its own words is left
to pipecat.
"""

from dataclasses import dataclass

from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    InterruptionFrame,
    OutputAudioRawFrame,
    SystemFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.utils.text.base_text_aggregator import TextType

from turngap.core.spoken import LETTER_MS, letters, words_heard


@dataclass
class HeardTextFrame(TTSTextFrame, SystemFrame):
    """The words of a broken-off clause that were heard.

    A system frame, so that it comes to the conversation's memory before the interruption that
    follows it.
    """


@dataclass(slots=True)
class _Clause:
    text: str
    made_ms: float = 0.0
    complete: bool = False
    played_ms: float = 0.0
    told: bool = False


class Ledger:
    """Knows which clause the audio belongs to that is made, and that is played. No I/O."""

    def __init__(self) -> None:
        self._clauses: dict[int, _Clause] = {}
        self._making: _Clause | None = None
        self._playing: _Clause | None = None
        self._letter_ms = LETTER_MS

    def announced(self, segment: int, text: str) -> None:
        self._making = self._clauses[segment] = _Clause(text)

    def made(self, ms: float) -> None:
        if self._making is not None:
            self._making.made_ms += ms

    def finished(self, segment: int) -> None:
        if clause := self._clauses.get(segment):
            clause.complete = True
            if clause.made_ms:
                self._letter_ms = clause.made_ms / max(letters(clause.text), 1.0)

    def begins(self, segment: int) -> None:
        self._playing = self._clauses.get(segment)

    def played(self, ms: float) -> None:
        if self._playing is not None:
            self._playing.played_ms += ms

    def told(self, segment: int) -> None:
        if clause := self._clauses.pop(segment, None):
            clause.told = True

    def broken_off(self) -> str:
        """Stop. Returns what was heard of the clause that was being played."""
        clause, self._playing, self._making = self._playing, None, None
        self._clauses.clear()
        if clause is None or clause.told:
            return ""
        whole_ms = clause.made_ms if clause.complete else self._letter_ms * letters(clause.text)
        return words_heard(clause.text, clause.played_ms, max(whole_ms, clause.played_ms))


def _ms(frame: OutputAudioRawFrame) -> float:
    return frame.num_frames * 1000 / frame.sample_rate


def _announced(frame: Frame) -> AggregatedTextFrame | None:
    """Return the frame, if it announces a clause that is to be spoken."""
    if isinstance(frame, AggregatedTextFrame) and not isinstance(frame, TTSTextFrame):
        return frame if frame.will_be_spoken else None
    return None


class MadeCounter(FrameProcessor):
    """Stands before the output and counts the audio made for each clause."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(enable_direct_mode=True)
        self._ledger = ledger

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            if (clause := _announced(frame)) is not None:
                self._ledger.announced(clause.id, clause.text)
            elif isinstance(frame, TTSAudioRawFrame):
                self._ledger.made(_ms(frame))
            elif isinstance(frame, TTSTextFrame) and frame.segment_id is not None:
                self._ledger.finished(frame.segment_id)
        await self.push_frame(frame, direction)


class HeardKeeper(FrameProcessor):
    """Stands after the output, where frames come as they are played, and adds what was heard.

    It tells the conversation what was heard of a reply before the interruption gets there.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(enable_direct_mode=True)
        self._ledger = ledger

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            if (clause := _announced(frame)) is not None:
                self._ledger.begins(clause.id)
            elif isinstance(frame, OutputAudioRawFrame):
                self._ledger.played(_ms(frame))
            elif isinstance(frame, TTSTextFrame) and frame.segment_id is not None:
                self._ledger.told(frame.segment_id)
            elif isinstance(frame, InterruptionFrame) and (text := self._ledger.broken_off()):
                await self.push_frame(HeardTextFrame(text, TextType.SENTENCE))
        await self.push_frame(frame, direction)

"""What the person heard of a reply that was broken off is what the agent remembers of it.

pipecat adds a clause to the conversation once all of it was written, so that of the clause in which
it is interrupted nothing is kept, though half of it was heard. Here the words that were played by
then are kept too: as many as the part of the clause's audio that was played has room for. A TTS
that times its own words is left to pipecat.
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
    """Which clause the audio belongs to that is made, and that is played. No I/O."""

    def __init__(self) -> None:
        self._clauses: dict[int, _Clause] = {}
        self._making: _Clause | None = None
        self._playing: _Clause | None = None
        self._letter_ms = LETTER_MS

    def announced(self, segment: int, text: str) -> None:
        """The TTS is to say a clause: the audio that it makes from here on is that clause's."""
        self._making = self._clauses[segment] = _Clause(text)

    def made(self, ms: float) -> None:
        """The TTS made audio."""
        if self._making is not None:
            self._making.made_ms += ms

    def finished(self, segment: int) -> None:
        """All audio of the clause is made."""
        if clause := self._clauses.get(segment):
            clause.complete = True
            if clause.made_ms:
                self._letter_ms = clause.made_ms / max(letters(clause.text), 1.0)

    def begins(self, segment: int) -> None:
        """What is played from here on is that clause."""
        self._playing = self._clauses.get(segment)

    def played(self, ms: float) -> None:
        """Audio was written to the line."""
        if self._playing is not None:
            self._playing.played_ms += ms

    def told(self, segment: int) -> None:
        """The memory has the clause, or words of it, already."""
        if clause := self._clauses.pop(segment, None):
            clause.told = True

    def broken_off(self) -> str:
        """Nothing more is played. Returns what was heard of the clause that was."""
        clause, self._playing, self._making = self._playing, None, None
        self._clauses.clear()
        if clause is None or clause.told:
            return ""
        whole_ms = clause.made_ms if clause.complete else self._letter_ms * letters(clause.text)
        return words_heard(clause.text, clause.played_ms, max(whole_ms, clause.played_ms))


def _ms(frame: OutputAudioRawFrame) -> float:
    return frame.num_frames * 1000 / frame.sample_rate


def _announced(frame: Frame) -> AggregatedTextFrame | None:
    """The frame, if it announces a clause that is to be spoken."""
    if isinstance(frame, AggregatedTextFrame) and not isinstance(frame, TTSTextFrame):
        return frame if frame.will_be_spoken else None
    return None


class MadeCounter(FrameProcessor):
    """Stands before the output and counts what is made of each clause."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(enable_direct_mode=True)
        self._ledger = ledger

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Count, and pass everything on."""
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
    """Stands behind the output, where frames come as they are played, and keeps the memory true."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(enable_direct_mode=True)
        self._ledger = ledger

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Count what is played; tell the memory what was heard before it is interrupted."""
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

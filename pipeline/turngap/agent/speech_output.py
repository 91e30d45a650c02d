"""Speech from a reply's text: gathered, synthesised, cut to its onset, held until it lasts.

`PacedText` is the processor before the TTS and `SpeechOutput` the one after it. Both report to one
`SpeechFeed` and do as it decides.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from pipecat.frames.frames import (
    AggregatedTextFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    SystemFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.utils.text.base_text_aggregator import Aggregation, BaseTextAggregator

from turngap.agent.feed import SpeechFeed
from turngap.agent.speculation import SpeculationDropped
from turngap.agent.stack import Stack
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_MS, Clock
from turngap.core.voice import (
    ENDING,
    MIN_WORDS,
    LeadCut,
    cuts,
    ends_clause,
    is_abbreviation,
    may_be_in_a_number,
    without_leftover,
)

FIRST_MAX_WORDS = 6

_FIRST_WORDS = re.compile(rf"\s*(?:\S+\s+){{{FIRST_MAX_WORDS},}}")


class _Aggregator(BaseTextAggregator):
    """The text that was not handed over yet; an interruption drops it."""

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    @property
    def text(self) -> Aggregation:
        return Aggregation(self._text.strip(), self.kind)

    async def flush(self) -> Aggregation | None:
        rest = self.text
        await self.reset()
        return rest if any(c.isalnum() for c in rest.text) else None

    async def handle_interruption(self) -> None:
        await self.reset()

    async def reset(self) -> None:
        self._text = ""


class ClauseAggregator(_Aggregator):
    """Clauses, each handed over at the token that ends it, without look-ahead.

    Pipecat's sentence mode waits for the first character of the next sentence, which cost 144 ms at
    50 words a second. A full stop, comma or colon after a digit ends nothing until the next word is
    there ("3." may become "3.5"), and a full stop after an abbreviation never does. Without
    punctuation the first piece ends after FIRST_MAX_WORDS words.
    """

    kind = "clause"

    def __init__(self) -> None:
        super().__init__()
        self._first = True

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        self._text += text
        if not self._first:
            self._text = without_leftover(self._text)
        while (end := self._clause_end()) is not None:
            clause, self._text = self._text[:end].strip(), self._text[end:]
            if any(c.isalnum() for c in clause):
                self._first = False
                yield Aggregation(clause, self.kind)

    async def reset(self) -> None:
        await super().reset()
        self._first = True

    def _clause_end(self) -> int | None:
        """Return where the first clause of the text ends, or None while it may continue."""
        for ending in ENDING.finditer(self._text):
            words = self._text[: ending.end()].split()
            goes_on = ending.end() == len(self._text) and may_be_in_a_number(words[-1])
            if len(words) >= MIN_WORDS and not goes_on and not is_abbreviation(words[-1]):
                return ending.end()
        first = _FIRST_WORDS.match(self._text) if self._first else None
        return first.end() if first else None


class WordAggregator(_Aggregator):
    """Words, each handed over as soon as it is whole: a token may be part of a word."""

    kind = "word"

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        text = without_leftover(self._text + text)
        ends = [0, *(cut.end for cut in cuts(text, ended=False))]
        self._text = text[ends[-1] :]
        for start, end in itertools.pairwise(ends):
            if any(c.isalnum() for c in text[start:end]):
                yield Aggregation(text[start:end].strip(), self.kind)


class ReplyAggregator(_Aggregator):
    """The whole reply, handed over when it is complete."""

    kind = "reply"

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        self._text += text
        return
        yield  # makes this a generator, as pipecat expects

    async def flush(self) -> Aggregation | None:
        whole = self.text
        await self.reset()
        return whole if whole.text else None


class PacedText(FrameProcessor):
    """A processor that gathers the LLM's tokens into the pieces that a `SpeechFeed` wants.

    The end of a reply waits until the last of its text was handed over.
    """

    def __init__(self, feed: SpeechFeed, clock: Clock) -> None:
        super().__init__()
        self._feed = feed
        self._clock = clock
        self._stirred = asyncio.Event()
        self._handing_over = asyncio.Lock()
        self._all_handed_over = asyncio.Event()
        self._pacer: asyncio.Task[None] | None = None
        self._changed: Callable[[], Awaitable[None]] = _nothing

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        self._pacer = self.create_task(self._pace())

    async def cleanup(self) -> None:
        await super().cleanup()
        if self._pacer is not None:
            await self.cancel_task(self._pacer)
            self._pacer = None

    def heard_by(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Have `changed` called when text has come or ended."""
        self._changed = changed

    def stir(self) -> None:
        """Check what to hand over, because something after the TTS may ask for more text."""
        self._stirred.set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
            return
        if isinstance(frame, LLMTextFrame) and not frame.skip_tts:
            self._feed.text(self._clock.now_ns(), frame.text)
            await self._hand_over()
            await self._changed()
            self.stir()
            return
        if isinstance(frame, InterruptionFrame):
            self._feed.reset()
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._feed.start(self._clock.now_ns())
        elif isinstance(frame, LLMFullResponseEndFrame | EndFrame):
            self._feed.end()
            await self._changed()
            await self._drain()
        await self.push_frame(frame, direction)

    async def _drain(self) -> None:
        self._all_handed_over.clear()
        await self._hand_over()
        if self._feed.waiting:
            self.stir()
            await self._all_handed_over.wait()

    async def _hand_over(self) -> None:
        """Push the feed's pieces in order."""
        async with self._handing_over:
            for piece in self._feed.take(self._clock.now_ns()):
                frame = AggregatedTextFrame(text=piece, text_type="clause", raw_text=piece)
                frame.append_to_context = True
                await self.push_frame(frame)
        if not self._feed.waiting:
            self._all_handed_over.set()

    async def _pace(self) -> None:
        """Hand over text when its time has come, or when something has happened."""
        while True:
            self._stirred.clear()
            due_ns = self._feed.due_ns(self._clock.now_ns())
            if due_ns is None:
                await self._stirred.wait()
            else:
                await self._until(due_ns)
            await self._hand_over()

    async def _until(self, due_ns: int) -> None:
        due = self.create_task(self._wake(due_ns))
        try:
            await self._stirred.wait()
        finally:
            await self.cancel_task(due)

    async def _wake(self, due_ns: int) -> None:
        await self._clock.sleep_until_ns(max(due_ns, self._clock.now_ns() + NS_PER_MS))
        self._stirred.set()


async def _nothing() -> None:
    """Do nothing, because there is no callback yet."""


# A break shorter than this in running speech is not heard as one.
HEARD_BREAK_MS = 5.0

Count = Callable[[str, float], None]


class SpeechOutput(FrameProcessor):
    """A processor that cuts the silence before speech and holds speech until it lasts.

    It has no queue. While it holds speech, because the engines are too slow for it to last,
    everything behind the speech waits, too.

    Args:
        feed: the feed of the `PacedText` before the TTS; without one, speech is passed on at once.
        cut_lead: cut off silence before a reply, and before a piece that continues in mid-clause.
        gated: a later processor decides when the caller hears the speech, and calls `playing`.
        stir: called when the TTS is ready for more text.
        count: receives how much silence was cut, and how often and how long speech ran dry.
    """

    def __init__(
        self,
        feed: SpeechFeed | None,
        clock: Clock,
        *,
        cut_lead: bool,
        gated: bool = False,
        stir: Callable[[], None] = lambda: None,
        count: Count = lambda name, value: None,
    ) -> None:
        super().__init__(enable_direct_mode=True)
        self._feed = feed
        self._clock = clock
        self._cuts = cut_lead
        self._gated = gated
        self._stir = stir
        self._count = count
        self._lead: LeadCut | None = None
        self._in_clause = False
        self._held: list[Frame] = []
        self._open = True
        self._passing = asyncio.Lock()

    def playing(self, at_ns: int) -> None:
        """Note that the caller hears the speech from now on; called only if speech is `gated`."""
        if self._feed is not None and self._feed.begin(at_ns):
            self._stir()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction != FrameDirection.DOWNSTREAM or isinstance(frame, SystemFrame):
            if isinstance(frame, InterruptionFrame):
                self._forget()
                # `PacedText` has reset the feed for a dropped guess, and the feed's words are now
                # the next guess's: a TTS takes a while to fall silent.
                if self._feed is not None and not isinstance(frame, SpeculationDropped):
                    self._feed.reset()
            await self.push_frame(frame, direction)
            return
        async with self._passing:
            for passed in self._noted(frame):
                if self._open and not self._held:
                    await self.push_frame(passed)
                else:
                    self._held.append(passed)
            await self._let_through(over=isinstance(frame, TTSStoppedFrame | EndFrame))

    async def look_again(self) -> None:
        """Check whether held speech may begin, because new text may make it last."""
        if self._held:
            async with self._passing:
                await self._let_through(over=False)

    async def _let_through(self, *, over: bool) -> None:
        feed, now_ns = self._feed, self._clock.now_ns()
        if feed is None or self._open:
            return
        if over or feed.may_begin(now_ns):
            self._open = True
            if not self._gated:
                feed.begin(now_ns)
            held, self._held = self._held, []
            for frame in held:
                await self.push_frame(frame)
            self._stir()

    def _noted(self, frame: Frame) -> list[Frame]:
        """Note the meaning of a frame, and return the frames to pass on."""
        match frame:
            case TTSAudioRawFrame():
                return self._heard(frame)
            case TTSTextFrame():
                if frame.pts is None:  # comes after the speech; words with a time come during it
                    self._made()
            case AggregatedTextFrame() if frame.will_be_spoken:
                self._asked(frame.text)
            case TTSStartedFrame():
                self._open = self._feed is None
                self._lead = None
            case TTSStoppedFrame():
                self._made()
                if self._feed is not None:
                    self._feed.over()
            case _:
                pass
        return [frame]

    def _asked(self, text: str) -> None:
        if self._in_clause:
            self._lead = None
        self._in_clause = not ends_clause(text)
        if self._feed is not None:
            self._feed.asked(self._clock.now_ns(), len(text))

    def _made(self) -> None:
        if self._feed is not None:
            self._feed.made()
            self._stir()

    def _heard(self, frame: TTSAudioRawFrame) -> list[Frame]:
        passed = self._from_onset(frame) if self._cuts and frame.num_channels == 1 else frame
        if passed is None:
            return []
        if self._feed is not None:
            audio_ms = passed.num_frames * 1000 / passed.sample_rate
            dry_ms = self._feed.audio(self._clock.now_ns(), audio_ms)
            if dry_ms > HEARD_BREAK_MS:
                self._count("ran_dry", 1)
                self._count("dry_ms", dry_ms)
        return [passed]

    def _from_onset(self, frame: TTSAudioRawFrame) -> TTSAudioRawFrame | None:
        """Return the frame without its leading silence; None if nothing else is in it."""
        lead = self._lead = self._lead or LeadCut(frame.sample_rate)
        if lead.sounds:
            return frame
        rest = lead.feed(np.frombuffer(frame.audio, dtype="<i2"))
        if lead.sounds:
            self._count("lead_cut_ms", lead.cut_ms)
        return _with_audio(frame, rest) if len(rest) else None

    def _forget(self) -> None:
        self._held = []
        self._open = True  # other frames need not wait until the next speech begins
        self._lead, self._in_clause = None, False


def _with_audio(frame: TTSAudioRawFrame, pcm: Pcm) -> TTSAudioRawFrame:
    """Return a copy with other audio, because observers may not have read the frame yet."""
    other = TTSAudioRawFrame(
        pcm.tobytes(), frame.sample_rate, frame.num_channels, context_id=frame.context_id
    )
    other.pts = frame.pts
    other.interruptible = frame.interruptible
    other.transport_destination = frame.transport_destination
    return other


# By `text.aggregation`; `sentence` is left to the TTS service, `adaptive` is paced.
AGGREGATORS: dict[str, type[BaseTextAggregator]] = {
    "token": WordAggregator,
    "clause": ClauseAggregator,
    "reply": ReplyAggregator,
}


@dataclass(frozen=True, slots=True)
class Speaking:
    """The processors from the LLM to the output, in order.

    Attributes:
        playing: receives when the caller begins to hear a reply (ns); if a later processor decides
            that, it must call `playing`.
    """

    processors: tuple[FrameProcessor, ...]
    playing: Callable[[int], None]


def speaking(
    stack: Stack,
    tts: FrameProcessor,
    clock: Clock,
    *,
    feed: SpeechFeed,
    gated: bool,
    count: Count = lambda name, value: None,
) -> Speaking:
    """Return the processors that speak a reply in one session; `feed` knows the engines' speeds.

    `gated` says that a processor after the TTS may keep a reply from being heard. `count` receives
    figures of the speech, by name.
    """
    paced = PacedText(feed, clock) if stack.text.aggregation == "adaptive" else None
    aggregator = AGGREGATORS.get(stack.text.aggregation)
    gathered = [LLMTextProcessor(text_aggregator=aggregator())] if aggregator else []
    if paced is None and not stack.audio.cut_lead_in:
        return Speaking((*gathered, tts), lambda at_ns: None)
    output = SpeechOutput(
        feed if paced else None,
        clock,
        cut_lead=stack.audio.cut_lead_in,
        gated=gated,
        stir=paced.stir if paced else lambda: None,
        count=count,
    )
    if paced is not None:
        paced.heard_by(output.look_again)
    return Speaking((*([paced] if paced else gathered), tts, output), output.playing)

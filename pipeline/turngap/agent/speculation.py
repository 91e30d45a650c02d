"""Answers that begin before the turn is over, and are not heard before it is.

pipecat asks for them (`LLMContextFrame.speculation`, on a copy of the context) and holds them back
in the LLM service, so that the TTS begins only once they are confirmed. Here they go through the
TTS and wait before the output, so that the first clause is already synthesised by then.

Frames of a withdrawn guess in the processors' queues must not come out later. Signals cannot
prevent that, because pipecat's system frames overtake the frames that they are about. So every
frame of an answer carries its guess's number, and each processor drops frames of a void guess
before processing them. The gate before the output checks the number of everything that it lets out.
The client learns of an answer once it is confirmed (`DiscreetObserver`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMRunFrame,
    LLMTextFrame,
    SystemFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIObserver, RTVIObserverParams, RTVIProcessor
from pipecat.services.llm_service import LLMService
from pipecat.turns.speculation_gate import GatedFrame, SpeculationGate

from turngap.clocks import others_first
from turngap.marks.turn import GUESS

State = Literal["heard", "pending", "void"]


@dataclass
class SpeculationDropped(InterruptionFrame):
    """An interruption of the answer to a turn that continued.

    The LLM service pushes it after the withdrawal. To every processor up to the gate it is an
    interruption, so that a voice stops speaking what will not be heard. The gate does not pass it
    on.
    """


class Guesses:
    """A conversation's guesses: at most one is pending, earlier ones are void or confirmed."""

    def __init__(self) -> None:
        self._count = 0
        self._pending: int | None = None
        self._confirmed = False
        self._refused = False
        self._void: set[int] = set()

    def ask(self) -> int:
        """Note a request for a turn that may not be over. Returns its number."""
        self.withdraw()
        self._count += 1
        self._pending = self._count
        return self._count

    def withdraw(self) -> None:
        """Make the guess void: the turn continued, or the person said something else."""
        self._confirmed = self._refused = False
        if self._pending is not None:
            self._void.add(self._pending)
            self._pending = None

    def confirm(self) -> bool:
        """Note that the turn is over.

        Returns:
            Whether the turn's guess was refused. If so, the caller of this method requests the
            answer.
        """
        unanswered = self._refused
        self._confirmed = self._pending is not None
        self._pending, self._refused = None, False
        return unanswered

    def refuse(self) -> bool:
        """Note that the guess is not answered, for example because the LLM would call a tool.

        Returns:
            Whether the turn is over already. If so, the caller of this method requests the answer.
        """
        unanswered, refused = self._confirmed, self._pending is not None
        self.withdraw()
        self._refused = refused
        return unanswered

    def asked_anew(self) -> None:
        """Note that the answer is requested again, no longer as a guess."""
        self._refused = False

    def state(self, frame: Frame) -> State:
        """Return the state of a frame's guess; a frame without a guess may be heard."""
        guess = frame.metadata.get(GUESS)
        if guess is None or not frame.interruptible:
            return "heard"
        if guess in self._void:
            return "void"
        return "pending" if guess == self._pending else "heard"

    def guard(self, processor: FrameProcessor) -> None:
        """Make a processor drop frames of a void guess when they come up in its queue."""
        process = processor.process_frame

        async def process_unless_void(frame: Frame, direction: FrameDirection) -> None:
            if self.state(frame) != "void":
                await process(frame, direction)

        processor.process_frame = process_unless_void

    def guarded(self, processors: Sequence[FrameProcessor]) -> list[FrameProcessor]:
        """Guard the processors between the LLM and the gate, and number what they push."""
        for processor in processors:
            self.guard(processor)
        return [step for processor in processors for step in (processor, _Numbering())]

    def let_through(self, service: FrameProcessor) -> None:
        """Make an LLM service pass on its answers to guesses, each frame marked with its number.

        A service that is not one of pipecat's LLM services has no gate to open.
        """
        if not isinstance(service, LLMService):
            return
        gate = OpenGate(name=f"{service}::OpenGate")
        # The only way to have a guess spoken, as pipecat has no setting that opens the gate.
        service._speculation_gate = gate
        process = service.process_frame

        async def process_knowing(frame: Frame, direction: FrameDirection) -> None:
            # A reply that was made before the service, and passes through it, answers no guess.
            if isinstance(frame, LLMContextFrame | LLMFullResponseStartFrame):
                gate.guess = frame.metadata.get(GUESS)
            await process(frame, direction)

        service.process_frame = process_knowing
        self.guard(service)


class Announcer(FrameProcessor):
    """A processor before the LLM that numbers guesses and notes their outcome.

    A guess whose answer would call a tool is refused by pipecat's LLM service, and requested again
    when the turn is over. If the turn ends before the requesters know of the refusal, the answer is
    requested again here.

    It has no queue, so a guess is void in the step in which that is decided.
    """

    def __init__(self, guesses: Guesses, gate: "AudioGate") -> None:
        super().__init__(enable_direct_mode=True)
        self._guesses = guesses
        self._gate = gate

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        down = direction == FrameDirection.DOWNSTREAM
        if isinstance(frame, EagerEndOfTurnCancelFrame) and not down:
            if self._guesses.refuse():
                await self.push_frame(LLMRunFrame(), FrameDirection.UPSTREAM)
        elif isinstance(frame, LLMContextFrame) and frame.speculation:
            frame.metadata[GUESS] = self._guesses.ask()
        elif isinstance(frame, LLMContextFrame):
            self._guesses.asked_anew()
        elif isinstance(frame, EagerEndOfTurnCancelFrame | InterruptionFrame):
            self._guesses.withdraw()
        over = down and isinstance(frame, UserStoppedSpeakingFrame)
        unanswered = over and self._guesses.confirm()
        await self.push_frame(frame, direction)
        if over:
            await self._gate.let_out()
        if unanswered:
            await self.push_frame(LLMRunFrame(), FrameDirection.UPSTREAM)


class OpenGate(SpeculationGate):
    """pipecat's gate, which knows whether the LLM answers a guess, but lets the answer through.

    Attributes:
        guess: number of the guess that is being answered, if it is one.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.guess: int | None = None
        self._begun = False

    def process(self, frame: Frame, direction: FrameDirection) -> list[GatedFrame]:
        """Return the frame, numbered; after a withdrawal, also a `SpeculationDropped`."""
        if direction != FrameDirection.DOWNSTREAM:
            return [(frame, direction)]
        if isinstance(frame, SystemFrame):
            return self._verdict(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame):
            self._begun = self.is_speculating
        if self.guess is not None:
            frame.metadata[GUESS] = self.guess
        return [(frame, direction)]

    def _verdict(self, frame: SystemFrame, direction: FrameDirection) -> list[GatedFrame]:
        void = self._begun and isinstance(frame, EagerEndOfTurnCancelFrame)
        super().process(frame, direction)  # it holds no frames to release
        self._begun = self._begun and self.is_speculating
        return [(frame, direction), *([(SpeculationDropped(), direction)] if void else [])]


class _Numbering(FrameProcessor):
    """A processor that gives all frames of an answer the number of its first one."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self._guess: int | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM and not isinstance(frame, SystemFrame):
            if isinstance(frame, LLMFullResponseStartFrame):
                self._guess = frame.metadata.get(GUESS)
            elif self._guess is not None:
                frame.metadata.setdefault(GUESS, self._guess)
            if isinstance(frame, LLMFullResponseEndFrame):
                self._guess = None
        await self.push_frame(frame, direction)


class AudioGate(FrameProcessor):
    """A gate that holds the answer to a guess, text and sound, until the turn is over.

    It has no queue: the first sound is pushed in the step in which the turn ends. Then the output
    gets a turn after each frame, and writes the first without waiting for the last. By itself that
    gained nothing visible (`sent` 57 ms against 54, n = 18 each, busy machine); together with
    `PromptSender` it does.

    Args:
        playing: called when the first sound of a reply is let out (ns of the pipeline's clock).
    """

    def __init__(
        self, guesses: Guesses, playing: Callable[[int], None] = lambda at_ns: None
    ) -> None:
        super().__init__(enable_direct_mode=True)
        self._guesses = guesses
        self._playing = playing
        self._held: deque[Frame] = deque()
        self._letting_out = False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, SpeculationDropped):
            await self.let_out()
            return
        if isinstance(frame, InterruptionFrame):
            self._held.clear()
        passes = isinstance(frame, SystemFrame) or not frame.interruptible
        if passes or direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
        else:
            # Held frames go first, even if their turn has ended in between.
            self._held.append(frame)
            await self.let_out()

    async def let_out(self) -> None:
        """Push the frames that may be heard by now, in order, and forget void ones."""
        if self._letting_out:  # the running loop comes to what is held now
            return
        self._letting_out = True
        try:
            while self._held and (state := self._guesses.state(self._held[0])) != "pending":
                frame = self._held.popleft()
                if state == "heard":
                    await self._let_out(frame)
        finally:
            self._letting_out = False

    async def _let_out(self, frame: Frame) -> None:
        if not isinstance(frame, TTSAudioRawFrame):
            await self.push_frame(frame)
            return
        self._playing(self.get_clock().get_time())
        await self.push_frame(frame)
        await others_first()


# Frames of an answer that pipecat's observer reports to the client before they are heard.
_ANSWER = (
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMFullResponseEndFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)


class DiscreetObserver(RTVIObserver):
    """An RTVI observer that reports a speculative answer once it is confirmed, or never."""

    def __init__(self, guesses: Guesses, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guesses = guesses
        self._kept: deque[FramePushed] = deque()
        self._asked: LLMContextFrame | None = None
        self._confirmed: object = None  # the number of the latest guess whose turn has ended

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        if isinstance(frame, SpeculationDropped):
            return
        down = data.direction == FrameDirection.DOWNSTREAM
        if down and isinstance(frame, _ANSWER):
            if isinstance(frame, LLMContextFrame) and frame.speculation:
                self._asked = frame
            await self._tell()
            state = self._state(frame)
            if state == "pending" and data.first_push:
                self._kept.append(data)
            if state != "heard":
                return
        await super().on_push_frame(data)
        if down and isinstance(frame, UserStoppedSpeakingFrame) and self._asked is not None:
            self._confirmed = self._asked.metadata.get(GUESS)
            await self._tell()

    async def _tell(self) -> None:
        """Pass on kept pushes that the client may see by now, and forget void ones."""
        while self._kept and (state := self._state(self._kept[0].frame)) != "pending":
            data = self._kept.popleft()
            if state == "heard":
                await super().on_push_frame(data)

    def _state(self, frame: Frame) -> State:
        """Return the state that the client may see; pushes are handled late, but in their order."""
        guess = frame.metadata.get(GUESS)
        if guess is None:
            asked = isinstance(frame, LLMContextFrame) and frame.speculation
            return "pending" if asked else "heard"
        state = self._guesses.state(frame)
        return "pending" if state == "heard" and guess != self._confirmed else state


class DiscreetRTVI(RTVIProcessor):
    """pipecat's RTVI processor with a `DiscreetObserver`."""

    def __init__(self, guesses: Guesses) -> None:
        super().__init__()
        self._guesses = guesses

    def create_rtvi_observer(
        self, *, params: RTVIObserverParams | None = None, **kwargs: Any
    ) -> RTVIObserver:
        return DiscreetObserver(self._guesses, self, params=params, **kwargs)

"""Answers that are begun before the turn is over, and are not heard before it is.

pipecat asks for them (`LLMContextFrame.speculation`, on a copy of the context) and holds them back
in the LLM service, so that the TTS begins only once they are confirmed. Here that gate stands open,
and pipecat's own gate stands behind the TTS instead: the first clause is spoken by then, unheard.

What is told of a guess travels with it, as system frames, which keep their order among each other:
`SpeculationBegun` in front of its answer, `SpeculationDropped` behind its withdrawal. To every
processor in between the latter is an interruption; neither goes further than the gate. Tools are
never called on a guess: that is pipecat's rule, which the open gate keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    SystemFrame,
    TTSAudioRawFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.turns.speculation_gate import GatedFrame, SpeculationGate


@dataclass
class SpeculationBegun(SystemFrame):
    """The answer that follows is to a turn that may not be over."""


@dataclass
class SpeculationDropped(InterruptionFrame):
    """The answer to a turn that went on is to be forgotten, wherever it has got to."""


class OpenGate(SpeculationGate):
    """Knows whether the LLM answers a guess, as its base does, and lets the answer through."""

    def process(self, frame: Frame, direction: FrameDirection) -> list[GatedFrame]:
        """The frame, and what tells others that it belongs to a guess or that one is void."""
        if direction != FrameDirection.DOWNSTREAM:
            return [(frame, direction)]
        if isinstance(frame, LLMFullResponseStartFrame) and self.is_speculating:
            return [(SpeculationBegun(), direction), (frame, direction)]
        if not isinstance(frame, SystemFrame):
            return [(frame, direction)]
        was_guess = self.is_speculating
        super().process(frame, direction)  # for its verdict: it holds nothing to release
        void = was_guess and isinstance(frame, EagerEndOfTurnCancelFrame)
        return [(frame, direction), *([(SpeculationDropped(), direction)] if void else [])]


def let_through(service: FrameProcessor) -> None:
    """Have an LLM service's answers to guesses come as far as the `AudioGate`.

    A service that is none of pipecat's LLM services has no gate to open.
    """
    if isinstance(service, LLMService):
        # The one way to have a guess spoken: pipecat has no setting that opens the gate.
        service._speculation_gate = OpenGate(name=f"{service}::OpenGate")


class AudioGate(FrameProcessor):
    """Holds the answer to a guess, text and sound, until the turn is over or goes on.

    It has no queue: what is released is pushed in the step that releases it.

    Args:
        playing: told when the first sound of a reply is let out (ns of pipecat's clock).
    """

    def __init__(self, playing: Callable[[int], None] | None = None) -> None:
        super().__init__(enable_direct_mode=True)
        self._gate = SpeculationGate(name="turngap::AudioGate")
        self._forgetting = False
        self._playing = playing
        self._silent = True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Let out what may be heard."""
        await super().process_frame(frame, direction)
        if direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
        elif isinstance(frame, SpeculationBegun):
            self._gate.begin_speculation(True)
        elif isinstance(frame, SpeculationDropped):
            self._forgetting = False
        elif not self._is_forgotten(frame):
            for gated, way in self._gate.process(frame, direction):
                self._note(gated)
                await self.push_frame(gated, way)

    def _is_forgotten(self, frame: Frame) -> bool:
        """Whether it was pushed by a processor that had not yet forgotten a void guess."""
        if isinstance(frame, EagerEndOfTurnCancelFrame):
            self._forgetting = self._gate.is_speculating
        elif isinstance(frame, InterruptionFrame):
            self._forgetting = False
        return self._forgetting and not isinstance(frame, SystemFrame) and frame.interruptible

    def _note(self, frame: Frame) -> None:
        if isinstance(frame, LLMFullResponseStartFrame | InterruptionFrame):
            self._silent = True
        elif self._silent and isinstance(frame, TTSAudioRawFrame):
            self._silent = False
            if self._playing is not None:
                self._playing(self.get_clock().get_time())

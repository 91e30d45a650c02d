"""What a `turn` engine creates, and what it and the agent's pipeline tell each other."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipecat.audio.vad.vad_analyzer import VADAnalyzer
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.turns.user_turn_strategies import UserTurnStrategies


class Floor:
    """Permission for the agent to be heard: the output waits for it.

    What is withheld is not lost: given back, the agent speaks on where it fell silent.
    """

    def __init__(self) -> None:
        self._given = asyncio.Event()
        self._given.set()

    @property
    def withheld(self) -> bool:
        """Return whether the agent has to be silent."""
        return not self._given.is_set()

    def withhold(self) -> None:
        """Make the agent fall silent where it is."""
        self._given.clear()

    def give(self) -> None:
        """Let the agent speak on."""
        self._given.set()

    async def wait(self) -> None:
        """Return once the agent may speak."""
        await self._given.wait()


@dataclass(frozen=True, slots=True)
class Decision:
    """The reason why a turn was taken for over.

    Attributes:
        at_ns: when that was decided, on the clock that the engine was created with.
        hold_ms: how long the person had been silent, from the last audible sample.
        why: what the hold was chosen for, in the engine's words.
    """

    at_ns: int
    hold_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class TurnTaking:
    """An engine of the kind `turn`: it says when the user is speaking, and when the turn is over.

    Attributes:
        vad: pipecat's; None where `ears` stand in its place.
        hold_ms: how long the turn's end is held after the VAD's stop before it is decided.
        ears: a processor that hears the caller in place of a VAD and pushes pipecat's VAD frames.
        speculates: whether the strategies ask for answers before the turn is over; the pipeline
            then keeps them from being heard.
        floor: withholds the agent's voice while it is made out what the person wants.
        decisions: why each turn was taken for over, oldest first; whoever reads one removes it.
    """

    vad: "VADAnalyzer | None"
    strategies: "UserTurnStrategies"
    hold_ms: float
    ears: "FrameProcessor | None" = None
    speculates: bool = False
    floor: Floor = field(default_factory=Floor)
    decisions: deque[Decision] = field(default_factory=deque[Decision])

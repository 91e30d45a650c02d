"""Frames between the engines of this package."""

from dataclasses import dataclass

from pipecat.frames.frames import SystemFrame


@dataclass
class SpeechPausedFrame(SystemFrame):
    """The person has been silent for `silence_ms`, up to the latest audio, and may continue.

    What finds the turn's end tells the recogniser, so that both see the same pauses.
    """

    silence_ms: float = 0.0

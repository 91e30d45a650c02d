"""The services that `pipecat eval` is given for its own side: a recording, and no ears.

Its own voice and recogniser are fetched from a hub. It runs in an environment of its own, in which
turngap is not installed.
"""

import os
import wave
from collections.abc import AsyncGenerator
from typing import Any

from pipecat.frames.frames import Frame, TTSAudioRawFrame, TTSStartedFrame, TTSStoppedFrame
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService


class Voice(TTSService):
    """Says the recording in $RECORDING, whatever the text."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        with wave.open(os.environ["RECORDING"]) as file:
            pcm, rate = file.readframes(file.getnframes()), file.getframerate()
        yield TTSStartedFrame()
        yield TTSAudioRawFrame(pcm, rate, 1)
        yield TTSStoppedFrame()


class Ears(STTService):
    """Understands nothing: what the agent says is read from its own messages."""

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        return
        yield


def voice(config: dict[str, Any]) -> TTSService:
    return Voice(sample_rate=16_000, settings=TTSSettings(model="", voice="", language=None))


def ears(config: dict[str, Any]) -> STTService:
    return Ears(settings=STTSettings(model="", language=None))

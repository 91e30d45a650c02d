"""espeak-ng as a pipecat service."""

from collections.abc import AsyncGenerator

import numpy as np
from pipecat.frames.frames import ErrorFrame, Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService

from turngap.core.clock import Clock, samples_to_ns
from turngap.core.errors import TurngapError
from turngap_services.tts.espeak import EspeakSettings
from turngap_services.tts.espeak.engine import Espeak, EspeakVoice

# -60 dBFS: the engine's own lead-in is digital silence, the softest attack of a voice lies above.
_SILENT_BELOW = 33


class EspeakTTSService(TTSService):
    """Speaks each piece of text, chunk by chunk as the engine makes it."""

    def __init__(self, *, settings: EspeakSettings, clock: Clock, engine: Espeak) -> None:
        super().__init__(
            sample_rate=engine.rate,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="espeak-ng", voice=settings.voice, language=None),
        )
        self._engine = engine
        self._clock = clock
        self._speech = EspeakVoice(settings.voice, settings.speed_wpm, settings.pitch)
        self._lead_in = bytes(2 * round(settings.lead_in_ms * engine.rate / 1000))
        self._realtime_factor = settings.realtime_factor
        self._begun: str | None = None  # context of the reply whose audio has begun

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await self.start_tts_usage_metrics(text)
        start_ns = self._clock.now_ns()
        made = 0
        speech = self._engine.speak(text, self._speech)
        try:
            async for pcm in speech:
                made += len(pcm) // 2
                if self._realtime_factor is not None:
                    spent_ns = samples_to_ns(made, self._engine.rate) * self._realtime_factor
                    await self._clock.sleep_until_ns(start_ns + round(spent_ns))
                if audio := self._from_onset(pcm, context_id):
                    yield TTSAudioRawFrame(audio, self._engine.rate, 1, context_id=context_id)
        except TurngapError as e:
            yield ErrorFrame(error=e.message)
        finally:
            await speech.aclose()

    def _from_onset(self, pcm: bytes, context_id: str) -> bytes:
        """Return `pcm`; at the start of a reply the lead-in and `pcm` from its first sound on."""
        if context_id == self._begun:
            return pcm
        sound = np.flatnonzero(
            np.abs(np.frombuffer(pcm, np.int16).astype(np.int32)) > _SILENT_BELOW
        )
        if len(sound) == 0:
            return b""
        self._begun = context_id
        return self._lead_in + pcm[2 * int(sound[0]) :]

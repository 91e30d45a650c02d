"""piper as a pipecat service."""

from collections.abc import AsyncGenerator, Sequence

from pipecat.frames.frames import ErrorFrame, Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService

from turngap.backends import COUNTS
from turngap.core.audio import Pcm
from turngap.core.clauses import parted
from turngap.core.clock import Clock, ns_to_ms
from turngap.core.errors import TurngapError
from turngap.core.lead import LeadCut
from turngap.core.speeds import Request, VoiceSpeed
from turngap_services.tts.piper import PiperSettings
from turngap_services.tts.piper.voice import Voice


class PiperTTSService(TTSService):
    """Speaks each piece of text, clause by clause.

    piper makes a whole sentence before it gives out any of it. Here the first clause is heard while
    the rest is made. If the voice is so slow that speech would run dry, speech is held until it
    lasts. Audio has the rate of the output.
    """

    def __init__(self, *, settings: PiperSettings, clock: Clock, voice: Voice) -> None:
        super().__init__(
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="piper", voice=voice.name, language=None),
        )
        self._clock = clock
        self._voice = voice
        self._manner = voice.manner(settings)
        self._by_clause = settings.clauses
        self._begun: str | None = None  # context of the reply whose audio has begun

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await self.start_tts_usage_metrics(text)
        pieces = parted(text) if self._by_clause else [text]
        held: list[TTSAudioRawFrame] = []
        held_ms, sounds = 0.0, False
        try:
            for number, piece in enumerate(pieces, start=1):
                if frame := self._frame(await self._made(piece), context_id, first=number == 1):
                    held.append(frame)
                    held_ms += frame.num_frames * 1000 / frame.sample_rate
                sounds = sounds or lasts(self._voice.speed, held_ms, pieces[number:])
                while sounds and held:
                    yield held.pop(0)
        except TurngapError as e:
            yield ErrorFrame(error=f"{e.message} ({e.hint})" if e.hint else e.message)

    async def _made(self, piece: str) -> Pcm:
        asked_ns = self._clock.now_ns()
        pcm = await self._voice.speak(piece, self._manner, self.sample_rate)
        made_ms = ns_to_ms(self._clock.now_ns() - asked_ns)
        audio_ms = len(pcm) * 1000 / self.sample_rate
        self._voice.speed.add(Request(len(piece), audio_ms, made_ms, made_ms, audio_ms))
        return pcm

    def _frame(self, pcm: Pcm, context_id: str, *, first: bool) -> TTSAudioRawFrame | None:
        """Return the audio, without leading silence before a reply or in the middle of a clause."""
        cut_ms = 0.0
        if not first or context_id != self._begun:
            lead = LeadCut(self.sample_rate)
            pcm, cut_ms = lead.feed(pcm), lead.cut_ms
        if len(pcm) == 0:
            return None
        self._begun = context_id
        frame = TTSAudioRawFrame(pcm.tobytes(), self.sample_rate, 1, context_id=context_id)
        if cut_ms:
            frame.metadata[COUNTS] = {"lead_cut_ms": cut_ms}
        return frame


def lasts(speed: VoiceSpeed, made_ms: float, pieces: Sequence[str]) -> bool:
    """Return whether `made_ms` of speech, with `pieces` made after it, never runs dry.

    The pieces are made one after another, and each is heard only when the whole of it is there.
    Each is assumed to be as slow to make and as short to hear as may be expected of this voice. So
    a voice that is slower than speech begins only when the rest is made by the time it is due.
    """
    dry_ms, free_ms = made_ms, 0.0
    for piece in pieces:
        least_ms, most_ms = speed.speech_ms(len(piece))
        free_ms += speed.make_ms(most_ms)
        if free_ms > dry_ms:
            return False
        dry_ms += least_ms
    return True

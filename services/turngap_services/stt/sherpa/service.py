"""A streaming transducer as a pipecat service that reads as the audio arrives."""

import asyncio
from collections.abc import AsyncGenerator

from loguru import logger
from pipecat.frames.frames import Frame

from turngap.core.counts import BEHIND
from turngap.core.errors import AgentError
from turngap_services.stt.reading import ReadingSTTService
from turngap_services.stt.sherpa import SherpaSettings
from turngap_services.stt.sherpa.model import Hearing, Recogniser
from turngap_services.stt.sherpa.utterances import LATE_MS, Piece, Utterance, Utterances

_FASTER = "fewer sessions, a faster machine or --set stt.threads=2 may keep up"


class SherpaSTTService(ReadingSTTService[Utterances]):
    """Each stop frame of the VAD is followed by one finalized `TranscriptionFrame`.

    It is followed by none if there were no words. What was heard so far is pushed as an interim
    transcript whenever it changes.
    """

    def __init__(self, *, settings: SherpaSettings, recogniser: Recogniser) -> None:
        super().__init__(
            engine="sherpa",
            model=recogniser.name,
            language=None,
            takes_s=recogniser.takes_s,
            spoken=Utterances(settings.pre_roll_ms, settings.pause_ms),
        )
        self._recogniser = recogniser
        self._hearing: Hearing | None = None  # of the utterance that is read
        self._told_late: Utterance | None = None
        self._told_failed: Utterance | None = None

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._spoken.audio(audio)
        spoken = self._spoken.open
        if spoken is not None:
            self._news.set()
            if spoken.behind_ms > LATE_MS and spoken is not self._told_late:
                self._told_late = spoken
                logger.warning(
                    f"stt sherpa: {self._recogniser.name} is {spoken.behind_ms / 1000:.1f} s "
                    f"behind what is said, this machine is too slow for it: {_FASTER}"
                )
        return
        yield  # what makes it a generator, which pipecat wants

    async def _end(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        await super()._end()

    async def _read_due(self) -> None:
        while due := self._spoken.due():
            await self._read(*due)

    async def _read(self, utterance: Utterance, piece: Piece) -> None:
        before = utterance.text
        try:
            text = await asyncio.to_thread(self._hear, utterance, piece)
        except AgentError as e:
            text = before
            if utterance is not self._told_failed:
                self._told_failed = utterance
                await self._tell(e)
        utterance.read(text)
        if utterance.over:
            await self._conclude()
        elif text and text != before:
            await self._push_interim(text)

    def _hear(self, utterance: Utterance, piece: Piece) -> str:
        """Read a piece in this thread; return the text so far."""
        hearing = self._hearing
        if hearing is None:
            hearing = self._hearing = self._recogniser.begin(utterance.known)
        text = hearing.hear(piece.pcm)
        if piece.is_last:
            return hearing.conclude()
        return hearing.rest() if piece.rests else text

    async def _push_concluded(self) -> None:
        while (utterance := self._spoken.concluded()) is not None:
            self._hearing = None
            if utterance.lost_ms:
                await self._tell(
                    AgentError(
                        "stt.lost",
                        f"{utterance.lost_ms / 1000:.1f} s of what was said were not heard: this "
                        f"machine is too slow for {self._recogniser.name}",
                        hint=_FASTER,
                    )
                )
            await self._push_final(utterance.text, {BEHIND: utterance.behind_ms})

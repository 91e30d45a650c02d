"""The closed-domain recogniser: audio and the VAD's verdicts in, text out, as a pipecat service."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator
from functools import cache

import numpy as np
from loguru import logger
from numpy.typing import NDArray
from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.utils.time import time_now_iso8601

from turngap.core.audio import Pcm, dbfs_to_amplitude
from turngap.core.clock import Clock
from turngap.core.counts import OUT_OF_DOMAIN
from turngap_services.sound import RATE, Levelled, require_rate
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.sentences import (
    FRAME_MS,
    LEAST_MS,
    Heard,
    Model,
    Word,
    library_model,
    make_decoder,
    shipped,
)

# White noise under everything, 61 dB below the loudest of the voice: digital silence gets a
# spectrum, and no voice that is levelled drowns in it. From 51 to 81 dB nothing changes (25 people
# and the library: 5.7 % and 0.5 to 1.6 % of the words are wrong).
DITHER_DBFS = -81.0
# A telephone carries nothing above 4 kHz, where the model was trained to hear speech. Noise in that
# band, 30 dB below the loudest of the voice, keeps the features in their range: over an 8 kHz
# mu-law line 5.7 % of these people's words are wrong instead of 28 %. From 21 to 31 dB below it is
# 5.3 to 5.7 %, 41 dB below 10.2 %.
BAND_DBFS = -50.0
# The band counts as empty if it holds no more than the rounding to 16 bits makes, and half of that.
BAND_FROM_HZ = 4400.0
ROUNDING = 1 / 12 * 1.5
TAPS = 65


class Filling:
    """The noise of one utterance, the same in every one, so that runs repeat.

    Args:
        pre_roll: the utterance so far as it arrived, before any gain. It shows whether the line
            carries the band above 4 kHz.
    """

    def __init__(self, pre_roll: Pcm) -> None:
        self._noise = _telephone_noise() if lacks_high_band(pre_roll) else _dither()
        self._at = 0

    def feed(self, pcm: Pcm) -> Pcm:
        """Return the next samples, at the voice's level, with noise mixed in."""
        at = np.arange(self._at, self._at + len(pcm)) % len(self._noise)
        self._at += len(pcm)
        return np.clip(np.rint(pcm + self._noise[at]), -32768, 32767).astype(np.int16)


def lacks_high_band(pcm: Pcm) -> bool:
    """Return whether `pcm` (16 kHz) comes from a line of 8 kHz: nothing sounds above 4 kHz."""
    frame = RATE // 50
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame)
    if not frames.any():
        return False
    window = np.hanning(frame)
    powers = np.square(np.abs(np.fft.rfft(frames * window)))
    band = np.fft.rfftfreq(frame, 1 / RATE) >= BAND_FROM_HZ
    per_sample = powers[:, band].mean() / np.square(window).sum()
    return bool(per_sample <= ROUNDING)


@cache
def _dither() -> NDArray[np.float64]:
    return _white() * dbfs_to_amplitude(DITHER_DBFS)


@cache
def _telephone_noise() -> NDArray[np.float64]:
    """Return dither and noise above 4 kHz: a windowed high-pass, applied once around the loop."""
    centred = np.arange(TAPS) - TAPS // 2
    cutoff = 2 * BAND_FROM_HZ / RATE
    taps = np.hamming(TAPS) * (np.sinc(centred) - cutoff * np.sinc(cutoff * centred))
    spectrum = np.fft.rfft(_white()) * np.fft.rfft(taps, RATE)
    return _dither() + np.fft.irfft(spectrum, RATE) * dbfs_to_amplitude(BAND_DBFS)


def _white() -> NDArray[np.float64]:
    """Return one second of white noise of power 1."""
    return np.random.default_rng(0).normal(0, 1, RATE)


# Packets decoded per arriving packet while the pre-roll is worked off: the event loop is never
# blocked for longer than about 2 ms.
_CATCH_UP = 4
# What is at least so loud belongs to the voice, whose loudest is brought to -20 dBFS.
_SOUNDING_DBFS = -38.0
_FRAME = round(RATE * FRAME_MS / 1000)
_SOUNDING_POWER = dbfs_to_amplitude(_SOUNDING_DBFS) ** 2
# A score that is too small to be a number.
_LEAST = 1e-300
_FILLERS = frozenset({"<s>", "</s>", "<sil>", "[NOISE]", "[SPEECH]"})


class Recogniser:
    """A recogniser of utterances between the VAD's start and stop."""

    def __init__(self, model: Model, settings: PocketsphinxSettings) -> None:
        self._decoder = make_decoder(
            model, language_weight=settings.language_weight, cmninit=settings.cmninit
        )
        self._phones = model.phones()
        self._sentences = model.sentences
        self._while_speaking = settings.while_speaking
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._pre_roll_bytes = round(settings.pre_roll_ms * RATE / 1000) * 2
        self.in_utterance = False

    def audio(self, pcm: bytes) -> None:
        """Take samples: mono int16, 16 kHz."""
        self._waiting.append(pcm)
        self._waiting_bytes += len(pcm)
        if self.in_utterance:
            self._decode(_CATCH_UP if self._while_speaking else 0)
        else:
            while self._waiting_bytes - len(self._waiting[0]) >= self._pre_roll_bytes:
                self._waiting_bytes -= len(self._waiting.popleft())

    def start(self) -> None:
        """Begin an utterance with the pre-roll, because the VAD finds speech late."""
        if not self.in_utterance:
            pre_roll = np.frombuffer(b"".join(self._waiting), np.int16)
            self._level, self._filling = Levelled(RATE, pre_roll), Filling(pre_roll)
            self._sounding = 0
            self._decoder.start_utt()
            self.in_utterance = True

    def partial(self) -> str:
        return self._text() if self.in_utterance else ""

    def stop(self) -> str:
        """End the utterance. Returns its text, empty for no words."""
        if not self.in_utterance:
            return ""
        self._decode(len(self._waiting))
        self._take(self._level.flush())
        self._decoder.end_utt()
        self.in_utterance = False
        return self._text()

    def heard(self) -> Heard | None:
        """Return how the decoder read the utterance that has ended; None without a word."""
        words = tuple(
            Word(
                segment.word.partition("(")[0],
                segment.end_frame - segment.start_frame + 1,
                self._phones[segment.word],
                math.log(max(segment.ascore, _LEAST)),
                math.log(max(segment.lscore, _LEAST)),
            )
            for segment in self._decoder.seg() or ()
            if segment.word not in _FILLERS
        )
        return Heard(words, self._sounding * FRAME_MS, self._sentences) if words else None

    def _decode(self, packets: int) -> None:
        for _ in range(min(packets, len(self._waiting))):
            pcm = self._waiting.popleft()
            self._waiting_bytes -= len(pcm)
            self._take(self._level.feed(np.frombuffer(pcm, np.int16)))

    def _take(self, pcm: Pcm) -> None:
        if len(pcm):  # the decoder takes no empty buffer
            frames = pcm[: len(pcm) // _FRAME * _FRAME].reshape(-1, _FRAME).astype(np.float64)
            self._sounding += int(np.sum(np.mean(frames**2, axis=1) >= _SOUNDING_POWER))
            self._decoder.process_raw(self._filling.feed(pcm).tobytes(), False, False)

    def _text(self) -> str:
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr if hypothesis is not None else ""


# pipecat counts the time from the end of speech to the final text, the VAD's verdict included: over
# the library's 35 recordings 0.34 s at p99 to Silero's stop (stop_secs 0.2), 2 ms from there on.
_TTFS_P99_S = 0.35


class PocketsphinxSTTService(STTService):
    """A service that decodes as the audio arrives, between the VAD's start and stop frames.

    It needs a VAD before it (`VADProcessor`): audio and the VAD's frames are all system frames, so
    they arrive in the order in which they were pushed. Each stop frame is followed by one finalized
    `TranscriptionFrame`; its text is `OUT_OF_DOMAIN` if none of the sentences was said. There is
    none if no word was recognised, or only in a short sound: a turn of noise should not be answered
    (pipecat closes it by `user_turn_stop_timeout`).
    """

    def __init__(self, *, settings: PocketsphinxSettings, model: Model) -> None:
        super().__init__(
            ttfs_p99_latency=_TTFS_P99_S,
            settings=STTSettings(model="en-us", language="en-US"),
        )
        self._hearing = Recogniser(model, settings)
        # What an agent says is transcribed to be judged, and then the nearest words count.
        self._known = shipped() if settings.listens_to == "person" else None
        self._while_speaking = settings.while_speaking
        every_ms = settings.partial_every_ms
        self._partial_bytes = None if every_ms is None else every_ms * RATE // 500
        self._since_partial = 0
        self._partial = ""

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        require_rate("pocketsphinx", self.sample_rate)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._since_partial, self._partial = 0, ""
            self._hearing.start()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            if self._while_speaking:
                text = self._hearing.stop()
            else:  # decoding the whole utterance would block the event loop for too long
                text = await asyncio.to_thread(self._hearing.stop)
            if text := self._checked(text):
                await self.push_frame(
                    TranscriptionFrame(text, self._user_id, time_now_iso8601(), finalized=True)
                )
            await self.emit_stt_usage_metrics()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._hearing.audio(audio)
        if self._partial_bytes is None or not self._hearing.in_utterance:
            return
        self._since_partial += len(audio)
        if self._since_partial >= self._partial_bytes:
            self._since_partial = 0
            text = self._hearing.partial()
            if text and text != self._partial:
                self._partial = text
                yield InterimTranscriptionFrame(text, self._user_id, time_now_iso8601())

    def _checked(self, text: str) -> str:
        """Return the text of the utterance that has ended, if it is one of the sentences."""
        heard = self._hearing.heard() if text and self._known is not None else None
        if self._known is None or heard is None or self._known.knows(heard):
            return text
        return OUT_OF_DOMAIN if heard.sounding_ms >= LEAST_MS else ""


def _model(settings: PocketsphinxSettings) -> Model:
    given = tuple(sorted(settings.pronunciations.items()))
    return library_model(settings.library, given, settings.listens_to)


def prepare(settings: PocketsphinxSettings) -> None:
    """Make the model, and warn of pronunciations that are guesses."""
    shipped()
    for word, scenario in _model(settings).guessed.items():
        logger.warning(
            f"stt pocketsphinx: {word!r} (scenario {scenario!r}) is not in the dictionary, so its "
            f"pronunciation is guessed from its spelling; give its phones in [stt.pronunciations]"
        )


def create(settings: PocketsphinxSettings, clock: Clock) -> PocketsphinxSTTService:
    """Make the service of one session."""
    return PocketsphinxSTTService(settings=settings, model=_model(settings))

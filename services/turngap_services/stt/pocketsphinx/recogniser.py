"""One session's recogniser, without a pipeline: audio and the VAD's verdicts in, text out."""

import math
from collections import deque

import numpy as np

from turngap.core.audio import Pcm, dbfs_to_amplitude
from turngap_services.level import Levelled
from turngap_services.stt.pocketsphinx import PocketsphinxSettings
from turngap_services.stt.pocketsphinx.filling import Filling
from turngap_services.stt.pocketsphinx.known import FRAME_MS, Heard, Word
from turngap_services.stt.pocketsphinx.model import Model, make_decoder
from turngap_services.stt.sound import RATE

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
    """Recognises utterances between the VAD's start and stop."""

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
        """Begin an utterance with the pre-roll, as the VAD finds speech late."""
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

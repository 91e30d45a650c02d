"""Readings of a recorded turn by the detectors and the recogniser, computed once and kept.

The rest of `adaptive` takes no time: a change of its rules is judged over hundreds of turns in
seconds.
"""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from training.turn_over.takes import RATE, Take
from turngap.core.audio import Pcm
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import Model, Saying, build_model
from turngap_services.turn.voice import Voice, silero_model

PACKET = RATE // 50
_CLASSIFIED = 8 * RATE
# Words come at most this long after the voice.
_READ_ON = RATE


@dataclass(slots=True)
class Heard:
    """Readings of one take.

    Attributes:
        speech: Silero's probabilities, hop by hop.
        read: the words so far, by each packet at which they changed.
        complete: smart turn's probability, by the sample it was asked at.
    """

    speech: list[float]
    read: dict[int, str]
    complete: dict[int, float] = field(default_factory=dict[int, float])


def asked_at(silence: int) -> int:
    """Return the sample up to which smart turn hears a silence: the packet that makes it 60 ms."""
    return -(-(silence + RATE * 60 // 1000) // PACKET) * PACKET


def recogniser_of(sayings: Sequence[str]) -> Model:
    """Make the closed-domain recogniser that knows these sentences."""
    return build_model([Saying("take", text) for text in dict.fromkeys(sayings)], {})


class Hearing:
    """Hears takes with one recogniser, and keeps what it heard in a folder."""

    def __init__(self, model: Model, kept: Path) -> None:
        self._model = model
        self._kept = kept
        kept.mkdir(parents=True, exist_ok=True)
        self._settings = PocketsphinxSettings(partial_every_ms=20, pre_roll_ms=300)  # embedded's

    def hear(self, take: Take) -> Heard:
        path = self._path(take)
        if path.exists():
            return pickle.loads(path.read_bytes())
        heard = self._hear(take.pcm)
        path.write_bytes(pickle.dumps(heard))
        return heard

    def complete(self, take: Take, heard: Heard, at: int) -> float:
        """Return smart turn's probability that the turn is over, asked at sample `at`."""
        if at not in heard.complete:
            heard.complete[at] = smart_turn(take.pcm[max(at - _CLASSIFIED, 0) : at])
            self._path(take).write_bytes(pickle.dumps(heard))
        return heard.complete[at]

    def _path(self, take: Take) -> Path:
        told = (self._model.arpa, repr(self._settings))
        key = hashlib.sha1(take.pcm.tobytes() + "".join(told).encode()).hexdigest()
        return self._kept / f"{key[:20]}.pickle"

    def _hear(self, pcm: Pcm) -> Heard:
        heard = Heard([], {})

        def noted(judge: Any) -> Any:
            def judged(window: np.ndarray) -> float:
                heard.speech.append(judge(window))
                return heard.speech[-1]

            return judged

        voice = Voice(RATE, (noted(silero_model(RATE)), noted(silero_model(RATE))), 0.5)
        recogniser = Recogniser(self._model, self._settings)
        text = ""
        for packet, at in enumerate(range(0, len(pcm) - PACKET + 1, PACKET)):
            samples = pcm[at : at + PACKET]
            voice.feed(samples)
            if voice.onset is not None:
                recogniser.start()
            last = voice.last_audible
            if last is not None and voice.heard - last > _READ_ON:
                continue
            recogniser.audio(samples.tobytes())
            if (now := recogniser.partial()) != text:
                text = heard.read[packet] = now
        return heard


@cache
def _classifier() -> Any:
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

    classifier = LocalSmartTurnAnalyzerV3()
    classifier.set_sample_rate(RATE)
    return classifier


def smart_turn(pcm: Pcm) -> float:
    """Return smart turn's probability that a turn with this ending is over."""
    return float(_classifier()._predict_endpoint(pcm.astype(np.float32) / 32768)["probability"])

"""Speak the scenario texts that have no recording, with an installed voice; later from a cache.

A voice's audio is stored unchanged. The audio is processed each time it is loaded: cut, levelled
and laid on a floor of noise like the shipped recordings, and labelled exactly.
"""

import hashlib
import zlib
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np

from turngap.backends import BackendChoice, BackendSettings, BackendSpec, specs
from turngap.backends.weights import bring, state_of, user_cache
from turngap.core.audio import (
    AUDIBLE_DBFS,
    LINE_FLOOR_DBFS,
    Pcm,
    SpeechDetector,
    SpeechStart,
    dbfs_to_amplitude,
)
from turngap.core.cue import Pause, SpeechBounds
from turngap.core.errors import InputError, TurngapError, known_names
from turngap.core.untrusted import shown
from turngap.core.wording import say_wait
from turngap.scenario.speech import PAUSE_MS, speech_bounds
from turngap.store.documents import write_atomically
from turngap.store.sound import read_sound

# As the shipped recordings have it: peaks that a voice activity detector hears reliably, and
# silence in which it settles.
PEAK_DBFS = -7.0
LEAD_MS, TAIL_MS = 120, 200
# Where sound that much softer counts as well, a bound of speech that fades lies elsewhere: by so
# much it may be off. The shipped recordings were chosen by the same levels.
LEVELS_DB = (-10.0, -5.0)


@dataclass(frozen=True, slots=True)
class Take:
    """A text as it was spoken: samples at `rate` Hz, and the bounds of its speech."""

    pcm: Pcm
    rate: int
    speech: SpeechBounds
    pauses: tuple[Pause, ...]


class Voice:
    """An installed voice that speaks texts.

    Args:
        name: how the scenario names it, as `piper,voice=en_US-ljspeech-medium`.
    """

    def __init__(self, name: str, spec: BackendSpec, settings: BackendSettings) -> None:
        self.name = name
        self._spec = spec
        self._settings = settings
        self._kept: bool | None = None

    @classmethod
    def of(cls, asked: str | None) -> "Voice":
        """Return the voice with this name, or the first that is installed.

        Raises:
            InputError: there is no such voice, or none at all; the hint says how to install one.
        """
        if asked is None:
            return _first()
        choice = BackendChoice.parse(asked)
        spec = next((s for s in _that_speak() if s.name == choice.backend), None)
        if spec is None:
            raise InputError(
                "scenario.voice",
                f"there is no voice {choice.backend!r}",
                hint=known_names(choice.backend, [s.name for s in _that_speak()]),
            )
        if missing := _missing(spec):
            raise InputError(
                "scenario.no_voice",
                f"the voice {spec.name} is not installed here",
                hint=" and ".join(missing),
            )
        return cls(asked.strip(), spec, spec.settings(choice.values()))

    def take(self, text: str) -> Take:
        """Speak a text.

        Raises:
            InputError: the result has no audible speech.
            TurngapError: the voice cannot be loaded, or failed.
        """
        pcm, rate = self._spoken(text)
        bounds = speech_bounds(_levelled(pcm), rate, AUDIBLE_DBFS)
        if bounds is None:
            raise InputError(
                "scenario.unspoken", f"the voice {self.name} says nothing for {shown(text, 60)}"
            )
        first, last = (round(ms * rate / 1000) for ms in (bounds.start_ms, bounds.end_ms))
        lead, tail = (round(ms * rate / 1000) for ms in (LEAD_MS, TAIL_MS))
        padded = np.pad(_levelled(pcm), (lead, tail))
        return _take(padded[first : last + lead + tail], rate, seed=zlib.crc32(text.encode()))

    def _spoken(self, text: str) -> tuple[Pcm, int]:
        """Synthesise a text with the voice, or take it from the cache."""
        settings = self._settings.model_dump_json(exclude={"library"})
        key = hashlib.sha256(f"{self._spec.name}\n{settings}\n{text}".encode()).hexdigest()
        file = cache() / f"{key}.flac"
        if file.is_file():
            with suppress(InputError):  # what cannot be read is spoken again
                sound = read_sound(file, "cache")
                return sound.samples[:, 0], sound.rate
        if (speak := self._spec.speak) is None:
            raise AssertionError(f"{self._spec.name} was chosen, as it speaks")
        bring(self._spec.downloads(self._settings))
        if self._kept is None:
            say_wait(f"{self.name} speaks the texts without a recording")
        pcm, rate = speak(self._settings, text)
        kept = _keep(file, pcm, rate)
        if kept != self._kept:
            self._kept = kept
            say_wait(
                f"it is kept in {file.parent}"
                if kept
                else f"it is not kept: {file.parent} cannot be written to"
            )
        return pcm, rate


def cache() -> Path:
    """Return the folder in which spoken texts are kept."""
    return user_cache() / "turngap" / "spoken"


def _keep(file: Path, pcm: Pcm, rate: int) -> bool:
    """Store a text's speech if possible; otherwise it is spoken each time."""
    import soundfile

    encoded = BytesIO()
    soundfile.write(encoded, pcm, rate, format="FLAC", subtype="PCM_16")
    with suppress(OSError, InputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, encoded.getvalue())
        return True
    return False


def _that_speak() -> list[BackendSpec]:
    return [spec for spec in specs() if spec.kind == "tts" and spec.speak is not None]


def _missing(spec: BackendSpec) -> list[str]:
    """List the commands that install the parts that the voice lacks."""
    return list(dict.fromkeys(need.remedy for need in spec.speaks_with if not need.met()))


def _first() -> Voice:
    """Find the first voice, by name, that can speak without a download."""
    for spec in _that_speak():
        with suppress(TurngapError):  # an engine without a voice of its own
            settings = spec.settings({})
            if not _missing(spec) and all(state_of(w).complete for w in spec.downloads(settings)):
                return Voice(spec.name, spec, settings)
    ways = [
        f"{remedy} ({spec.name})"
        for spec in _that_speak()
        for remedy in _missing(spec) or [f"turngap fetch {spec.name}"]
    ]
    raise InputError(
        "scenario.no_voice",
        "turns without audio are spoken by a voice, and none is installed here",
        hint=" or ".join(dict.fromkeys(ways)) or "pip install turngap_services",
    )


def _levelled(pcm: Pcm) -> Pcm:
    """Scale the samples so that their peak is at `PEAK_DBFS`; silence stays silence."""
    peak = float(np.abs(pcm.astype(np.int32)).max(initial=0))
    return np.rint(pcm * (dbfs_to_amplitude(PEAK_DBFS) / max(peak, 1.0))).astype(np.int16)


def _take(pcm: Pcm, rate: int, *, seed: int) -> Take:
    """Label clean speech, and lay it on the floor of noise that also lies between the turns."""
    floor = np.random.default_rng(seed).standard_normal(len(pcm))
    noisy = pcm + floor * dbfs_to_amplitude(LINE_FLOOR_DBFS)
    at, *others = (speech_bounds(pcm, rate, AUDIBLE_DBFS + db) for db in (0.0, *LEVELS_DB))
    if at is None:
        raise AssertionError("it was cut around its speech")
    errors = {
        f"{side}_error_ms": round(
            max(abs(getattr(o, f"{side}_ms") - getattr(at, f"{side}_ms")) for o in others if o)
        )
        for side in ("start", "end")
    }
    detector = SpeechDetector(rate, gap_ms=PAUSE_MS)
    events = [*detector.feed(pcm), *detector.cut()]
    pauses = tuple(
        Pause(
            start_ms=round(before.sample * 1000 / rate, 1),
            end_ms=round(after.sample * 1000 / rate, 1),
        )
        for before, after in pairwise(events)
        if isinstance(after, SpeechStart)
    )
    return Take(np.rint(noisy).astype(np.int16), rate, at.model_copy(update=errors), pauses)

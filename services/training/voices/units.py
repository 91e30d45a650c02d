"""Sounds cut out of espeak-ng's speech, from the middle of one to the middle of the next.

A process has one espeak-ng, which reports where each phoneme begins only if it was started to do
so. Run this in a process of its own.
"""

import ctypes
import itertools
import unicodedata
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]
K = TypeVar("K", bound=Hashable)

# From espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _IPA, _DO_NOT_EXIT = 1, 2, 0x8000
_CHARS_UTF8 = 1
_POSITION_CHARACTER = 1
_RATE, _RANGE = 1, 4
_PHONEME = 7

# In the IPA but no sounds: stress, length, ties. They are left out of what is spoken too.
MARKS = "ˈˌːˑ‿͡"
SILENCE = "_"

# How much of a pause belongs to the sounds around it.
_EDGE_MS = 30.0
# A zero crossing is looked for so far around the middle of a sound: half a period of 100 Hz.
_AROUND_MS = 5.0


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("string", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Speaker:
    """espeak-ng with one voice, on one note: what is cut from different words fits together."""

    def __init__(self, voice: str, speed_wpm: int = 165) -> None:
        self._pcm: list[bytes] = []
        self._begun: list[tuple[int, str]] = []
        self._on_samples = _Callback(self._samples)  # kept: the library holds a bare pointer to it
        lib = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(Path(espeakng_loader.get_data_path()).parent)
        options = _PHONEME_EVENTS | _IPA | _DO_NOT_EXIT
        self.rate = int(lib.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), options))
        if self.rate <= 0 or lib.espeak_SetVoiceByName(voice.encode()) != 0:
            raise SystemExit(f"espeak-ng does not start with the voice {voice}")
        lib.espeak_SetSynthCallback(self._on_samples)
        lib.espeak_SetParameter(_RATE, speed_wpm, 0)
        lib.espeak_SetParameter(_RANGE, 0, 0)
        self._lib = lib

    def say(self, text: str) -> tuple[Pcm, list[tuple[int, str]]]:
        """Speak the text; return the samples, and where in them each phoneme begins."""
        self._pcm, self._begun = [], []
        said = text.encode()
        self._lib.espeak_Synth(
            said, len(said) + 1, 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        return np.frombuffer(b"".join(self._pcm), np.int16), self._begun

    def _samples(
        self, wav: "ctypes._Pointer[ctypes.c_short]", count: int, events: "ctypes._Pointer[_Event]"
    ) -> int:
        if wav and count > 0:
            self._pcm.append(ctypes.string_at(wav, count * 2))
        at = 0
        while events[at].type:
            if events[at].type == _PHONEME:
                name = bytes(events[at].string).decode(errors="ignore")
                self._begun.append((events[at].sample, name))
            at += 1
        return 0


@dataclass(slots=True)
class Units:
    """The units of one voice.

    Attributes:
        pairs: by two sounds, from the middle of the first to the middle of the second.
        ends: of each sound its second half, for pairs that were never heard.
        starts: of each sound its first half.
    """

    pairs: dict[tuple[str, str], list[Pcm]] = field(default_factory=dict)
    ends: dict[str, list[Pcm]] = field(default_factory=dict)
    starts: dict[str, list[Pcm]] = field(default_factory=dict)

    def sounds(self) -> set[str]:
        """Return every sound that was heard."""
        return set(self.ends) | set(self.starts)


def cut(speaker: Speaker, texts: Iterable[str]) -> Units:
    """Cut every pair of sounds out of the texts."""
    units = Units()
    for text in texts:
        pcm, begun = speaker.say(text)
        sounds = [s for s in _sounds(begun, len(pcm)) if s.end > s.begin]
        for left, right in itertools.pairwise(sounds):
            begin, end = left.leave(pcm, speaker.rate), right.enter(pcm, speaker.rate)
            if begin < left.end and right.begin < end:
                _keep(units.pairs, (left.name, right.name), pcm[begin:end])
                _keep(units.ends, left.name, pcm[begin : left.end])
                _keep(units.starts, right.name, pcm[right.begin : end])
    return units


def usual(found: list[Pcm]) -> Pcm:
    """Return the sound of middle length: neither hurried nor drawn out."""
    return sorted(found, key=len)[len(found) // 2]


@dataclass(frozen=True, slots=True)
class _Sound:
    name: str
    begin: int
    end: int

    def leave(self, pcm: Pcm, rate: int) -> int:
        """Return where the pair that begins with this sound begins."""
        if self.name == SILENCE:
            return max(self.begin, self.end - round(_EDGE_MS * rate / 1000))
        return self._middle(pcm, rate)

    def enter(self, pcm: Pcm, rate: int) -> int:
        """Return where the pair that ends with this sound ends."""
        if self.name == SILENCE:
            return min(self.end, self.begin + round(_EDGE_MS * rate / 1000))
        return self._middle(pcm, rate)

    def _middle(self, pcm: Pcm, rate: int) -> int:
        """Find a rising zero crossing near the middle, where one sound can be joined to another."""
        middle, around = (self.begin + self.end) // 2, round(_AROUND_MS * rate / 1000)
        low, high = max(self.begin, middle - around), min(self.end - 1, middle + around)
        near = pcm[low : high + 1]
        rising = np.flatnonzero((near[:-1] < 0) & (near[1:] >= 0)) + low + 1
        return int(rising[np.argmin(np.abs(rising - middle))]) if len(rising) else middle


def _sounds(begun: list[tuple[int, str]], total: int) -> Iterator[_Sound]:
    """Yield the phonemes, those of several letters split evenly, with silence first and last."""
    yield _Sound(SILENCE, 0, begun[0][0] if begun else total)
    ends = [at for at, _ in begun[1:]] + [total]
    for (begin, name), end in zip(begun, ends, strict=True):
        letters = letters_of(name) or [SILENCE]
        bounds = np.linspace(begin, end, len(letters) + 1).round().astype(int).tolist()
        for letter, (at, until) in zip(letters, itertools.pairwise(bounds), strict=True):
            yield _Sound(letter, at, until)


def letters_of(phoneme: str) -> list[str]:
    """List the sounds that piper asks for in place of this phoneme of espeak-ng."""
    letters = unicodedata.normalize("NFD", phoneme.strip())
    return [c for c in letters if c.isalpha() and c not in MARKS and not unicodedata.combining(c)]


def _keep(found: dict[K, list[Pcm]], name: K, pcm: Pcm) -> None:
    found.setdefault(name, []).append(pcm)

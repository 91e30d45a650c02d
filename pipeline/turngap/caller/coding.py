"""Detect audio bytes from an agent that are coded in another way than was agreed.

Sound can be predicted from the samples before it; bytes read with the wrong coding cannot. Over
three windows of 1,000 bytes of 40 recordings of speech at 8, 16 and 24 kHz, another coding was
better by 1.2 dB at most if the agreed one was right, and by 5.8 dB at least, somewhere, if wrong.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import Pcm
from turngap.core.wire import A_LAW, MU_LAW, Law

WINDOW_BYTES, WINDOWS = 1_000, 3
LEAD_DB = 4.0
# Of 1,000 random bytes it is 7.8 bits, and of speech 7.5 at most; of speech so loud that its peaks
# are cut off more, but that can still be predicted.
COMPRESSED_BITS = 7.72
# Below these, a window has too little sound to decide, or too few different samples; and one
# that is silent for this many bytes has a step in every other reading, which can be predicted.
LEAST_PEAK, LEAST_BITS, SILENT_BYTES = 328, 3.0, 40
# All windows are looked at in the beginning, and later one of these, to save time.
FIRST_WINDOWS, EACH = 60, 10
ORDER = 8

# Containers and codecs by their first bytes; as samples they would be noise from the first.
CONTAINERS = {
    b"RIFX": "a big-endian WAV file",
    b"RF64": "an RF64 file",
    b"OggS": "Ogg",
    b"fLaC": "FLAC",
    b"ID3\x02": "MP3",
    b"ID3\x03": "MP3",
    b"ID3\x04": "MP3",
    b"\x1aE\xdf\xa3": "WebM",
}
# Of MPEG audio, layer III: kbit/s by the header's index, for version 1 and for 2 and 2.5.
_KBITS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
# Frames in a row that no other audio has.
_FRAMES = 3


def container(data: bytes) -> str:
    """Return the name of the container or codec that begins here; empty if none does."""
    return CONTAINERS.get(data[:4], "") or ("MP3" if _is_mp3(data) else "")


class Coding:
    """Check of how one line's audio is coded, for as long as the line lasts."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._windows: deque[tuple[dict[str, float], bool]] = deque(maxlen=WINDOWS)
        self._loud = 0
        self._found = ""

    def differs(self, data: bytes, law: Law | None) -> str:
        """Return the coding found instead of `law` (None: PCM16), where a window ends in `data`.

        Return an empty text while the coding seems right or too little audio has arrived.
        """
        self._bytes += data
        found = ""
        while len(self._bytes) >= WINDOW_BYTES:
            window = bytes(self._bytes[:WINDOW_BYTES])
            del self._bytes[:WINDOW_BYTES]
            found = self._look(window, law) or found
        return found

    def _look(self, window: bytes, law: Law | None) -> str:
        pcm = law.decode(window) if law else np.frombuffer(window, "<i2")
        if np.abs(pcm.astype(np.int32)).max() < LEAST_PEAK:
            return ""
        bits = _bits(window)
        if bits < LEAST_BITS or _longest_run(window) >= SILENT_BYTES:
            return ""
        self._loud += 1
        if self._loud > FIRST_WINDOWS and self._loud % EACH and not self._found:
            return ""
        agreed = law.name if law else "PCM16"
        gains = {name: _gain_db(pcm) for name, pcm in _readings(window).items()}
        leads = {name: gain - gains[agreed] for name, gain in gains.items() if name != agreed}
        even = bits >= COMPRESSED_BITS and gains[agreed] < LEAD_DB
        self._windows.append((leads, even))
        self._found = ""
        if len(self._windows) > 1 and all(even for _, even in list(self._windows)[-2:]):
            self._found = "compressed, as MP3 or Opus are"
            self._windows.clear()
        elif len(self._windows) == WINDOWS:
            means = {name: np.mean([w[name] for w, _ in self._windows]) for name in leads}
            best = max(means, key=lambda name: means[name])
            self._found = best if means[best] >= LEAD_DB else ""
        return self._found


def _readings(data: bytes) -> dict[str, Pcm]:
    """Return the bytes decoded in each known way, by its name."""
    return {
        **{law.name: law.decode(data) for law in (MU_LAW, A_LAW)},
        "PCM16": np.frombuffer(data, "<i2"),
        "PCM16 with its bytes swapped, or cut in mid-sample": np.frombuffer(data, ">i2"),
    }


def _gain_db(pcm: Pcm) -> float:
    """Return by how many dB a linear prediction's error is smaller than the samples."""
    x: NDArray[np.float64] = pcm.astype(np.float64)
    x -= x.mean()
    energy = x @ x
    if energy <= len(x):
        return 0.0
    r = np.array([x[: len(x) - lag] @ x[lag:] for lag in range(ORDER + 1)]) / energy
    r[0] += 1e-4  # so that the equations can be solved for a tone
    lags = np.abs(np.subtract.outer(np.arange(ORDER), np.arange(ORDER)))
    left = 1 - np.linalg.solve(r[lags], r[1:]) @ r[1:]
    return float(-10 * np.log10(max(1e-6, left)))


def _bits(data: bytes) -> float:
    """Return the entropy of a byte, in bits."""
    share = np.bincount(np.frombuffer(data, np.uint8), minlength=256) / len(data)
    return float(-(share[share > 0] @ np.log2(share[share > 0])))


def _longest_run(data: bytes) -> int:
    """Return the length of the longest run of equal bytes."""
    changes = np.flatnonzero(np.diff(np.frombuffer(data, np.uint8)))
    return int(np.diff(changes, prepend=-1, append=len(data) - 1).max())


def _is_mp3(data: bytes) -> bool:
    """Return whether the bytes are MP3 frames that follow each other from the first byte on."""
    at = 0
    for _ in range(_FRAMES):
        length = _mp3_frame(data[at : at + 4])
        if not length:
            return False
        at += length
    return True


def _mp3_frame(head: bytes) -> int:
    """Return the length of the MP3 frame that this header begins; 0 if it is no such header."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return 0
    version, rate = head[1] >> 3 & 3, head[2] >> 2 & 3
    kbits = _KBITS[version != 3][head[2] >> 4]
    if version == 1 or rate == 3 or not kbits:
        return 0
    samples = 144 if version == 3 else 72
    return samples * kbits * 1000 // _HZ[version][rate] + (head[2] >> 1 & 1)

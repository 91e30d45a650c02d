"""Take WAV headers off an agent's audio, and check that it is coded as was agreed.

Bots may send each chunk of audio as a WAV file (pipecat's `add_wav_header`), or one file cut into
messages. Played as sound, a header's 44 bytes are a click of 22 samples before each chunk. The
gap would then be too short by the silence at the beginning of the reply.

Sound can be predicted from the samples before it; bytes read with the wrong coding cannot. Over
three windows of 1,000 bytes of 40 recordings of speech at 8, 16 and 24 kHz, another coding
predicted the sound better by at most 1.2 dB if the agreed coding was right, and by at least 5.8 dB
in some window if it was wrong.
"""

import struct
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from turngap.caller.said import AudioBytes, AudioChunk, UnplayableError
from turngap.core.audio import Pcm
from turngap.core.wire import A_LAW, MU_LAW, Law

# The usual header has 44 bytes. Titles and tool names make it longer, pictures belong elsewhere.
MOST_HEADER = 4096

# Chunks of audio, each a file, that something on the way may have put into one message: 20 s in
# chunks of 20 ms.
MOST_FILES = 1_000

_EXTENSIBLE = 0xFFFE
_FORMATS = {1: "PCM", 3: "float", 6: "A-law", 7: "µ-law"}


@dataclass(frozen=True, slots=True)
class _Header:
    """A WAV header: its rate, and the place where the samples start."""

    rate: int
    start: int
    end: int


class WavReader:
    """Reader of one line's audio, which keeps a header that continues in a later message."""

    def __init__(self) -> None:
        self._held = b""
        self._coding = Coding()
        self._law: Law | None = None

    def flush(self) -> None:
        """Forget the beginning of a header, because its end will not come."""
        self._held = b""

    def read(self, audio: AudioBytes) -> AudioChunk:
        """Return the samples, without headers.

        Raises:
            UnplayableError: they are not mono, they are coded in another way than was agreed, or a
                header contradicts the frame.
        """
        data, self._held = self._held + audio.data, b""
        if audio.law is not self._law:
            self._law, self._coding = audio.law, Coding()
        if audio.channels != 1:
            raise self._unplayable(f"{audio.channels} channels, {audio.rate} Hz", len(data))
        if name := container(data):
            raise self._unplayable(f"it begins as {name}", len(data))
        if b"RIFF" not in data:  # nor does a file begin in it
            return self._chunk(data, audio.rate, wav=False, left_out=0)
        begun = data.rfind(b"RIFF", -11 if len(data) > 11 else 0)
        if begun >= 0 and _may_be_wav(data[begun:]):
            data, self._held = data[:begun], data[begun:]
        samples: list[bytes] = []
        wav, left_out = False, 0
        pieces = _files(data)
        if len(pieces) > MOST_FILES:
            raise self._unplayable(f"more than {MOST_FILES:,} WAV files in a message", len(data))
        for piece in pieces:
            if not _may_be_wav(piece):
                samples.append(piece)
                continue
            wav, header = True, self._header(piece)
            if header is None and piece is not pieces[-1]:
                raise self._unplayable("a WAV header without samples", len(data))
            if header is None:
                self._held = piece + self._held
                continue
            if header.rate != audio.rate:
                said = f"its WAV header says {header.rate} Hz, its frame {audio.rate} Hz"
                raise self._unplayable(said, len(data))
            samples.append(piece[header.start : header.end])
            left_out += _after_chunks(piece, header.end)
        return self._chunk(b"".join(samples), audio.rate, wav=wav, left_out=left_out)

    def _unplayable(self, said: str, size: int) -> UnplayableError:
        name = self._law.name if self._law else "PCM16"
        return UnplayableError(f"audio that is no {name} mono ({size} bytes, {said})")

    def _chunk(self, data: bytes, rate: int, *, wav: bool, left_out: int) -> AudioChunk:
        if self._law is None and len(data) % 2:
            raise self._unplayable(f"half a sample, 1 channels, {rate} Hz", len(data))
        if found := self._coding.differs(data, self._law):
            raise self._unplayable(f"its sound shows that it is {found}", len(data))
        pcm = self._law.decode(data) if self._law else np.frombuffer(data, dtype="<i2")
        try:
            return AudioChunk(pcm, rate, wav, left_out)
        except UnplayableError:
            raise self._unplayable(f"1 channels, {rate} Hz", len(data)) from None

    def _header(self, data: bytes) -> _Header | None:
        """Read a header; None if it continues in a later message."""
        rate, at = None, 12
        while at + 8 <= len(data):
            kind, size = struct.unpack_from("<4sI", data, at)
            at += 8
            if kind == b"data":
                if rate is None:
                    raise self._unplayable("a WAV header without a format", len(data))
                # A file that is written while it is made says 0, or the most that there may be; one
                # that is cut into messages says more than this one holds.
                end = at + size if 0 < size <= len(data) - at else len(data)
                return _Header(rate, at, end)
            if kind == b"fmt " and 16 <= size <= len(data) - at:
                rate = self._rate(data, at, size)
            at += size + size % 2
            if at > MOST_HEADER:
                raise self._unplayable(f"a WAV header of over {MOST_HEADER} bytes", len(data))
        if len(data) > MOST_HEADER:
            raise self._unplayable(f"a WAV header of over {MOST_HEADER} bytes", len(data))
        return None

    def _rate(self, data: bytes, at: int, size: int) -> int:
        """Return the rate of a header's format, which must be mono and coded as agreed."""
        code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
        if code == _EXTENSIBLE and size >= 26:
            (code,) = struct.unpack_from("<H", data, at + 24)
        name = _FORMATS.get(code, f"format {code}")
        agreed = (self._law.name, 1, 8) if self._law else ("PCM", 1, 16)
        if (name, channels, bits) != agreed:
            said = f"its WAV header says {name}, {bits} bits, {channels} channels, {rate} Hz"
            raise self._unplayable(said, len(data))
        return rate


def _files(data: bytes) -> list[bytes]:
    """Cut a message where WAV files begin; the first piece may be plain samples."""
    starts, at = [0], data.find(b"RIFF", 1)
    while at >= 0:
        if data[at + 8 : at + 12] == b"WAVE":
            starts.append(at)
        at = data.find(b"RIFF", at + 4)
    return [data[start:end] for start, end in pairwise([*starts, len(data)])]


def _may_be_wav(data: bytes) -> bool:
    """Return whether a WAV file begins here, or may begin once more data arrives."""
    return data[:4] == b"RIFF" and data[8:12] in (b"WAVE", b"WAVE"[: max(0, len(data) - 8)])


def _after_chunks(data: bytes, at: int) -> int:
    """Count the bytes from `at` on that follow the well-formed chunks (such as titles) there."""
    while len(data) - at >= 8:
        kind, size = struct.unpack_from("<4sI", data, at)
        if not all(0x20 <= byte < 0x7F for byte in kind) or size > len(data) - at - 8:
            break
        at += 8 + size + size % 2
    return max(0, len(data) - at)


# The coding

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

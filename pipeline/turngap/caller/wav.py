"""Take WAV headers off an agent's audio.

Bots may send each chunk of audio as a WAV file (pipecat's `add_wav_header`), or one file cut into
messages. Played as sound, a header's 44 bytes are a click of 22 samples before each chunk. The
gap would then be too short by the silence at the beginning of the reply.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from turngap.caller.coding import Coding, container
from turngap.caller.said import AudioBytes, AudioChunk, UnplayableError
from turngap.core.wire import Law

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

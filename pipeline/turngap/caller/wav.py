"""Takes WAV headers off an agent's audio.

Bots may send each chunk of audio as a WAV file (pipecat's `add_wav_header`), or a file cut into
messages. Taken for sound, the 44 bytes of a header are a click of 22 samples before each chunk,
and the gap reads short by whatever silence the reply begins with.
"""

import struct
from dataclasses import dataclass

import numpy as np

from turngap.caller.dialect import AudioBytes, AudioChunk, UnplayableError

# The usual header has 44 bytes. Titles and tool names make it longer, pictures belong elsewhere.
MOST_HEADER = 4096

_PCM, _EXTENSIBLE = 1, 0xFFFE
_FORMATS = {3: "float", 6: "A-law", 7: "µ-law"}
# Other containers and codecs, by their first bytes; as samples they would be noise from the first.
_OTHERS = {
    b"RIFX": "a big-endian WAV file",
    b"RF64": "an RF64 file",
    b"OggS": "Ogg",
    b"fLaC": "FLAC",
    b"ID3\x03": "MP3",
    b"ID3\x04": "MP3",
}


@dataclass(frozen=True, slots=True)
class _Header:
    """A WAV header: its rate, and where the samples lie in the bytes that it begins."""

    rate: int
    start: int
    end: int


class WavReader:
    """Reads one line's audio; keeps the beginning of a header that ends in a later message."""

    def __init__(self) -> None:
        self._held = b""

    def read(self, audio: AudioBytes) -> AudioChunk:
        """Return the samples, without a header.

        Raises:
            UnplayableError: they are not PCM16 mono, or a header contradicts the frame.
        """
        data, self._held = self._held + audio.data, b""
        if audio.channels != 1:
            raise _not_pcm16(f"{audio.channels} channels, {audio.rate} Hz", len(data))
        if data[:4] in _OTHERS:
            raise _not_pcm16(f"it begins as {_OTHERS[data[:4]]}", len(data))
        if data[:4] != b"RIFF" or (len(data) >= 12 and data[8:12] != b"WAVE"):
            return _chunk(data, audio.rate)
        header = _header(data)
        if header is None:
            if len(data) > MOST_HEADER:
                raise _not_pcm16(f"a WAV header of over {MOST_HEADER} bytes", len(data))
            self._held = data
            return AudioChunk(np.empty(0, dtype=np.int16), audio.rate, wav=True)
        if header.rate != audio.rate:
            said = f"its WAV header says {header.rate} Hz, its frame {audio.rate} Hz"
            raise _not_pcm16(said, len(data))
        return _chunk(data[header.start : header.end], header.rate, wav=True)


def _chunk(data: bytes, rate: int, *, wav: bool = False) -> AudioChunk:
    if len(data) % 2:
        raise _not_pcm16(f"half a sample, 1 channels, {rate} Hz", len(data))
    try:
        return AudioChunk(np.frombuffer(data, dtype="<i2"), rate, wav)
    except UnplayableError:
        raise _not_pcm16(f"1 channels, {rate} Hz", len(data)) from None


def _header(data: bytes) -> _Header | None:
    """Read a header; None if it goes on in a later message."""
    rate, at = None, 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"data":
            if rate is None:
                raise _not_pcm16("a WAV header without a format", len(data))
            # A file that is written while it is made says 0, or the most that there may be; one
            # that is cut into messages says more than this one holds.
            end = at + size if 0 < size <= len(data) - at else len(data)
            return _Header(rate, at, end)
        if kind == b"fmt " and 16 <= size <= len(data) - at:
            rate = _rate(data, at, size)
        at += size + size % 2
        if at > MOST_HEADER:
            raise _not_pcm16(f"a WAV header of over {MOST_HEADER} bytes", len(data))
    return None


def _rate(data: bytes, at: int, size: int) -> int:
    """Return the rate of a header's format, if that is PCM16 mono."""
    code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
    if code == _EXTENSIBLE and size >= 26:
        (code,) = struct.unpack_from("<H", data, at + 24)
    if (code, channels, bits) != (_PCM, 1, 16):
        name = "PCM" if code == _PCM else _FORMATS.get(code, f"format {code}")
        said = f"its WAV header says {name}, {bits} bits, {channels} channels, {rate} Hz"
        raise _not_pcm16(said, len(data))
    return rate


def _not_pcm16(said: str, size: int) -> UnplayableError:
    return UnplayableError(f"audio that is no PCM16 mono ({size} bytes, {said})")

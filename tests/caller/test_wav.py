"""Audio with WAV headers: taken off whole or in pieces, and refused where it is not PCM16 mono."""

import io
import struct
import wave

import numpy as np
import pytest
import soundfile

from turngap.caller.said import AudioBytes, AudioChunk, NotSpokenError
from turngap.caller.wav import MOST_HEADER, WavReader

PCM = np.arange(-400, 400, dtype="<i2")
RATE = 16_000


def wav(pcm: np.ndarray = PCM, rate: int = RATE, channels: int = 1) -> bytes:
    """Write a WAV file as pipecat does, with Python's own writer."""
    out = io.BytesIO()
    with wave.open(out, "wb") as f:
        f.setparams((channels, pcm.dtype.itemsize, rate, 0, "NONE", ""))
        f.writeframes(pcm.tobytes())
    return out.getvalue()


def written(subtype: str, kind: str = "WAV", rate: int = RATE) -> bytes:
    """Write a WAV file as libsndfile does."""
    out = io.BytesIO()
    soundfile.write(out, PCM, rate, subtype=subtype, format=kind)
    return out.getvalue()


def read(*messages: bytes, rate: int = RATE) -> list[AudioChunk]:
    reader = WavReader()
    return [reader.read(AudioBytes(data, rate)) for data in messages]


def samples(chunks: list[AudioChunk]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks])


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_each_chunk_may_have_a_header(rate: int) -> None:
    chunks = read(wav(PCM[:300], rate), wav(PCM[300:], rate), rate=rate)
    np.testing.assert_array_equal(samples(chunks), PCM)
    assert [(chunk.rate, chunk.wav) for chunk in chunks] == [(rate, True)] * 2


@pytest.mark.parametrize(
    "file", [written("PCM_16"), written("PCM_16", "WAVEX")], ids=["plain", "extensible"]
)
@pytest.mark.parametrize("size", [4, 6, 14, 44, 46, 160, 10_000])
def test_a_file_may_be_cut_anywhere(file: bytes, size: int) -> None:
    messages = [file[i : i + size] for i in range(0, len(file), size)]
    np.testing.assert_array_equal(samples(read(*messages)), PCM)


@pytest.mark.parametrize("size", [0, 2**31 - 1, 2**32 - 1])
def test_a_header_written_before_its_length_is_known(size: int) -> None:
    file = wav()
    streamed = file[:40] + struct.pack("<I", size) + file[44:]
    np.testing.assert_array_equal(samples(read(streamed)), PCM)


TITLE = b"LIST" + struct.pack("<I", 12) + b"INFOINAMturn"


def streamed(pcm: np.ndarray) -> bytes:
    """Write a WAV file as a program does that does not know its length yet."""
    file = wav(pcm)
    return file[:40] + b"\xff" * 4 + file[44:]


def test_what_follows_the_samples_is_no_sound() -> None:
    (chunk,) = read(wav() + TITLE)
    np.testing.assert_array_equal(chunk.pcm, PCM)
    assert chunk.left_out == 0


@pytest.mark.parametrize(
    "message",
    [
        wav(PCM[:300]) + wav(PCM[300:]),
        wav(PCM[:300]) + TITLE + wav(PCM[300:]) + TITLE,
        streamed(PCM[:300]) + streamed(PCM[300:]),
        wav(PCM[:0]) + wav(PCM),
        PCM[:300].tobytes() + wav(PCM[300:]),
    ],
    ids=["plain", "titles", "streamed", "an empty one", "samples first"],
)
@pytest.mark.parametrize("cut", [0, 4, 10, 20])
def test_several_files_may_come_in_one_message(message: bytes, cut: int) -> None:
    second = message.rindex(b"RIFF") + cut
    (chunk,) = read(message)
    np.testing.assert_array_equal(chunk.pcm, PCM)
    assert (chunk.wav, chunk.left_out) == (True, 0)
    np.testing.assert_array_equal(samples(read(message[:second], message[second:])), PCM)


def test_what_a_header_does_not_count_is_left_out_and_counted() -> None:
    (chunk,) = read(wav(PCM[:300]) + PCM[300:].tobytes())
    np.testing.assert_array_equal(chunk.pcm, PCM[:300])
    assert chunk.left_out == 1000


def test_a_message_of_nothing_but_small_chunks_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_bytes = 0

    class Counted(bytes):
        def __getitem__(self, part: object) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
            nonlocal read_bytes
            got = super().__getitem__(part)  # pyright: ignore
            read_bytes += len(got) if isinstance(got, bytes) else 1
            return Counted(got) if isinstance(got, bytes) else got

    monkeypatch.setattr("turngap.caller.wav._files", lambda data: [Counted(data)])
    small = (b"LIST" + bytes(4)) * 8_192
    (chunk,) = read(wav(PCM[:300]) + small)
    assert (len(chunk.pcm), chunk.left_out) == (300, 0)
    assert read_bytes < 3 * len(small)


def test_a_thousand_files_are_the_most_in_a_message() -> None:
    with pytest.raises(NotSpokenError, match="more than 1,000 WAV files"):
        read(wav(PCM[:1]) * 1001)


def test_a_title_before_the_samples_is_skipped() -> None:
    file = wav()
    title = b"LIST" + struct.pack("<I", 13) + b"INFOINAMturns" + b"\0"
    np.testing.assert_array_equal(samples(read(file[:36] + title + file[36:])), PCM)


@pytest.mark.parametrize("begin", [b"RIFF", b"RIFFxxxx", b"RIFFxxxxWAVX", b"WAVE", b"\0\0"])
def test_samples_that_only_resemble_a_header_are_samples(begin: bytes) -> None:
    data = begin + bytes(100)
    (chunk,) = read(data)
    assert (len(chunk.pcm), chunk.wav) == (len(data) // 2, False)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (wav(channels=2), "PCM, 16 bits, 2 channels, 16000 Hz"),
        (wav(PCM.astype(np.uint8)), "PCM, 8 bits, 1 channels"),
        (written("PCM_24"), "PCM, 24 bits"),
        (written("FLOAT"), "float, 32 bits"),
        (written("ULAW"), "µ-law, 8 bits"),
        (written("ALAW"), "A-law, 8 bits"),
        (wav(rate=24_000), "its WAV header says 24000 Hz, its frame 16000 Hz"),
        (written("PCM_16", "FLAC"), "it begins as FLAC"),
        (written("VORBIS", "OGG"), "it begins as Ogg"),
        (wav()[:-1], "half a sample"),
        (wav()[:12] + wav()[36:], "a WAV header without a format"),
        (wav()[:36] + wav(), "a WAV header without"),
        (wav()[:36] + b"LIST" + struct.pack("<I", 10**6), f"over {MOST_HEADER} bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_pcm16_mono_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(NotSpokenError, match="audio that is no PCM16 mono") as raised:
        read(data)
    assert said in str(raised.value)

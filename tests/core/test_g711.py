"""The telephone's codecs against libsndfile's, on every sample and every byte that there is."""

import io

import numpy as np
import pytest
import soundfile

from turngap.core.audio import rms_dbfs
from turngap.core.wire import A_LAW, MU_LAW, RATE, Law

EVERY_SAMPLE = np.arange(-32_768, 32_768).astype(np.int16)
EVERY_BYTE = bytes(range(256))
LAWS = [pytest.param(MU_LAW, "ULAW", id="mu"), pytest.param(A_LAW, "ALAW", id="a")]


@pytest.mark.parametrize(("law", "subtype"), LAWS)
def test_every_sample_is_encoded_as_libsndfile_does(law: Law, subtype: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, EVERY_SAMPLE, RATE, format="RAW", subtype=subtype)
    assert law.encode(EVERY_SAMPLE) == file.getvalue()


@pytest.mark.parametrize(("law", "subtype"), LAWS)
def test_every_byte_is_decoded_as_libsndfile_does(law: Law, subtype: str) -> None:
    pcm, _ = soundfile.read(
        io.BytesIO(EVERY_BYTE),
        dtype="int16",
        format="RAW",
        subtype=subtype,
        samplerate=RATE,
        channels=1,
    )
    assert law.decode(EVERY_BYTE).tolist() == pcm.tolist()


def test_the_bytes_of_the_recommendation() -> None:
    # G.711, tables 1 and 2: silence, the two loudest levels, and what they decode to.
    loudest = np.array([0, 32_767, -32_768], dtype=np.int16)
    assert MU_LAW.encode(loudest) == bytes([0xFF, 0x80, 0x00])
    assert A_LAW.encode(loudest) == bytes([0xD5, 0xAA, 0x2A])
    assert MU_LAW.decode(bytes([0xFF, 0x7F, 0x80, 0x00])).tolist() == [0, 0, 32_124, -32_124]
    assert A_LAW.decode(bytes([0xD5, 0x55, 0xAA, 0x2A])).tolist() == [8, -8, 32_256, -32_256]


@pytest.mark.parametrize("law", [MU_LAW, A_LAW])
def test_speech_comes_back_with_the_noise_of_eight_bits(law: Law) -> None:
    speech = np.random.default_rng(0).normal(0, 3000, 8000).astype(np.int16)
    back = law.decode(law.encode(speech))
    # The recommendation promises about 38 dB between speech and the noise of coding.
    assert rms_dbfs(speech) - rms_dbfs(back - speech) == pytest.approx(38, abs=2)
    assert law.decode(law.encode(back)).tolist() == back.tolist()


@pytest.mark.parametrize("law", [MU_LAW, A_LAW])
def test_nothing_is_nothing(law: Law) -> None:
    assert law.encode(np.empty(0, np.int16)) == b""
    assert law.decode(b"").dtype == np.int16
    assert len(law.decode(b"")) == 0

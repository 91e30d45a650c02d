"""Audio that is coded in another way than its dialect says: noticed by its bytes, and said."""

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from turngap.caller.dialects.registry import find_dialect
from turngap.caller.said import NotSpokenError, UnplayableError
from turngap.caller.wav import Coding
from turngap.core.audio import Pcm
from turngap.core.wire import A_LAW, MU_LAW, Law
from turngap.scenario.model import library_dir

RATE = 8_000
SWAPPED = "PCM16 with its bytes swapped, or cut in mid-sample"
CODED = {
    "µ-law": MU_LAW.encode,
    "A-law": A_LAW.encode,
    "PCM16": lambda pcm: pcm.astype("<i2").tobytes(),
    SWAPPED: lambda pcm: pcm.astype(">i2").tobytes(),
}
AGREED: dict[str, Law | None] = {"µ-law": MU_LAW, "A-law": A_LAW, "PCM16": None}


def recordings() -> list[Pcm]:
    found: list[Pcm] = []
    for file in sorted(library_dir().glob("*/*.flac"))[:40:5]:
        sound, rate = soundfile.read(file, dtype="float32")
        found.append(np.rint(soxr.resample(sound, rate, RATE) * 30_000).astype(np.int16))
    assert len(found) > 3
    return found


def found_in(data: bytes, law: Law | None) -> str:
    coding = Coding()
    pieces = [data[at : at + 160] for at in range(0, len(data) - 159, 160)]
    return next((found for piece in pieces if (found := coding.differs(piece, law))), "")


@pytest.mark.parametrize("agreed", AGREED)
@pytest.mark.parametrize("true", CODED)
def test_speech_in_another_code_than_agreed_is_named(agreed: str, true: str) -> None:
    for pcm in recordings():
        found = found_in(CODED[true](pcm), AGREED[agreed])
        assert found == ("" if true == agreed else true)


def test_loud_speech_with_its_peaks_cut_off_is_not_compressed() -> None:
    for pcm in recordings():
        loud = (3.5 * pcm.astype(np.float64)).clip(-32768, 32767).astype(np.int16)
        assert found_in(CODED["PCM16"](loud), None) == ""


@pytest.mark.parametrize("agreed", AGREED)
def test_no_other_sound_is_taken_for_another_code(agreed: str) -> None:
    random = np.random.default_rng(1)
    t = np.arange(2 * RATE)
    sounds = [np.sin(2 * np.pi * hz / RATE * t) for hz in (50, 220, 1000, 2000, 3100, 3900)]
    sounds += [random.normal(size=len(t)) * level for level in (0.01, 0.1, 0.3)]
    strokes = [t % 1120 < length for length in (80, 160, 320)]  # of a keyboard
    sounds += [random.normal(size=len(t)) * on * 0.1 for on in strokes]
    sounds += [(t % 400 < 5) * 1.0, np.sign(sounds[1]), np.full(len(t), 0.1), t * 0.0, t / len(t)]
    for sound in sounds:
        pcm = np.rint(np.clip(sound, -1, 1) * 30_000).astype(np.int16)
        assert found_in(CODED[agreed](pcm), AGREED[agreed]) == ""
    assert found_in(MU_LAW.encode(np.zeros(8000, np.int16)), A_LAW) == ""
    assert found_in(bytes(8000), MU_LAW) == ""


def written(kind: str, subtype: str, rate: int = RATE) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, recordings()[0], rate, format=kind, subtype=subtype)
    return out.getvalue()


def first_said(dialect: str, data: bytes, **settings: Any) -> Any:
    """Return the first of a file's messages that a phone dialect takes or refuses."""
    session = find_dialect(dialect).session(settings)
    session.open()
    for at in range(0, len(data), 640):
        piece: bytes | str = data[at : at + 640]
        if dialect != "vonage":
            media = {"payload": base64.b64encode(piece).decode()}  # pyright: ignore[reportArgumentType]
            media |= {"contentType": "audio/x-mulaw", "sampleRate": "8000"}
            event = "playAudio" if dialect == "plivo" else "media"
            piece = json.dumps({"event": event, "media": media})
        if said := session.receive_data(piece):
            return said[0]
    raise AssertionError("nothing is said")


PHONES = ("twilio", "telnyx", "plivo", "exotel", "vonage")


@pytest.mark.parametrize("dialect", PHONES)
@pytest.mark.parametrize(
    ("kind", "subtype", "name"),
    [("MP3", "MPEG_LAYER_III", "MP3"), ("OGG", "VORBIS", "Ogg"), ("FLAC", "PCM_16", "FLAC")],
)
def test_phones_refuse_a_compressed_file(dialect: str, kind: str, subtype: str, name: str) -> None:
    with pytest.raises(UnplayableError, match=f"it begins as {name}"):
        first_said(dialect, written(kind, subtype))


def test_what_is_compressed_is_noticed_from_its_middle_on_too() -> None:
    data = written("MP3", "MPEG_LAYER_III")
    assert found_in(data[len(data) // 4 :], MU_LAW).startswith("compressed")
    assert found_in(np.random.default_rng(1).bytes(8_000), None).startswith("compressed")


@pytest.mark.parametrize("dialect", PHONES)
def test_phones_take_wav_headers_off_and_check_them(dialect: str) -> None:
    linear = dialect in ("exotel", "vonage")
    settings = {"rate": RATE} if dialect == "vonage" else {}
    own, other = ("PCM_16", "ULAW") if linear else ("ULAW", "PCM_16")
    data = written("WAV", own)
    chunk = first_said(dialect, data, **settings)
    assert chunk.wav
    header = data.index(b"data") + 8
    heard = data[header : header + 2 * len(chunk.pcm)]
    want = np.frombuffer(heard, "<i2") if linear else MU_LAW.decode(heard)[: len(chunk.pcm)]
    np.testing.assert_array_equal(chunk.pcm, want)
    with pytest.raises(NotSpokenError, match="its WAV header says"):
        first_said(dialect, written("WAV", other), **settings)


def test_each_direction_may_have_a_code_of_its_own() -> None:
    pcm = recordings()[0][:160]
    telnyx = find_dialect("telnyx").session({"reply_encoding": "L16", "reply_rate": 16_000})
    telnyx.open()
    media = {"payload": base64.b64encode(pcm.tobytes()).decode()}
    (chunk,) = telnyx.receive_data(json.dumps({"event": "media", "media": media}))
    assert chunk.rate == 16_000  # pyright: ignore[reportAttributeAccessIssue]
    telnyx.data_to_send()
    telnyx.send_audio(pcm.tobytes())
    (said,) = telnyx.data_to_send()
    assert json.loads(said)["media"]["payload"] == base64.b64encode(MU_LAW.encode(pcm)).decode()

    plivo = find_dialect("plivo").session({"encoding": "audio/x-l16", "rate": 16_000})
    plivo.open()
    begun = json.loads(plivo.data_to_send()[0])["start"]["mediaFormat"]
    assert (begun, plivo.rate) == ({"encoding": "audio/x-l16", "sampleRate": 16_000}, 16_000)

    realtime = find_dialect("openai-realtime").session({"format": "pcm", "reply_format": "pcmu"})
    realtime.receive_data('{"type": "session.created", "session": {"type": "realtime"}}')
    audio = json.loads(realtime.data_to_send()[0])["session"]["audio"]
    formats = (audio["input"]["format"]["type"], audio["output"]["format"]["type"])
    assert formats == ("audio/pcm", "audio/pcmu")

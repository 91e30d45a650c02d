"""Twilio Media Streams: exact messages both ways, and a call in virtual time."""

import base64
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engines import fake_assembly
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageUrgentFrame,
)

from helpers.guarded_line import guarded
from turngap.agent.limits import HangUpError
from turngap.agent.protocols.twilio import TwilioStream
from turngap.testing import in_virtual_time
from turngap.testing.virtual import virtual_clocks

CONNECTED = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
START: dict[str, Any] = {
    "event": "start",
    "sequenceNumber": "1",
    "streamSid": "MZ1",
    "start": {
        "streamSid": "MZ1",
        "accountSid": "AC1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "customParameters": {},
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    },
}


def media(audio: bytes) -> dict[str, Any]:
    payload = base64.b64encode(audio).decode()
    return {
        "event": "media",
        "sequenceNumber": "2",
        "media": {"track": "inbound", "chunk": "1", "timestamp": "5", "payload": payload},
        "streamSid": "MZ1",
    }


def wire(payload: Any) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": json.dumps(payload)}


async def started() -> TwilioStream:
    protocol = TwilioStream()
    for payload in (CONNECTED, START):
        taken = await protocol.take(wire(payload))
        assert not taken.passes
    return protocol


async def test_what_the_agent_says_is_a_telephone_s() -> None:
    protocol = await started()
    serialize = protocol.serializer.serialize
    audio = await serialize(OutputAudioRawFrame(bytes(160), 8000, 1))
    assert audio == (
        '{"event": "media", "streamSid": "MZ1", "media": {"payload": "'
        + base64.b64encode(b"\xff" * 80).decode()
        + '"}}'
    )
    clear = await serialize(InterruptionFrame())
    assert clear == '{"event": "clear", "streamSid": "MZ1"}'
    assert audio is not None
    assert protocol.is_speech(audio)
    assert not protocol.is_speech(clear)
    marks = {"label": "rtvi-ai", "type": "server-message", "data": {"turngap": "marks"}}
    assert await serialize(OutputTransportMessageUrgentFrame(marks)) is None


async def test_what_a_person_says_reaches_the_pipeline_at_its_rate() -> None:
    protocol = await started()
    await protocol.serializer.setup(SimpleNamespace(audio_in_sample_rate=16_000))  # type: ignore[arg-type]
    frame = await protocol.serializer.deserialize(wire(media(ulaw_tone(160)))["text"])
    assert isinstance(frame, InputAudioRawFrame)
    assert (frame.sample_rate, frame.num_channels) == (16_000, 1)
    # All but what is in the resampler: 16 of 160 samples at 8 kHz.
    assert 320 - 2 * 17 <= frame.num_frames <= 320
    assert np.abs(np.frombuffer(frame.audio, "<i2")).max() > 10_000


async def test_only_audio_reaches_the_pipeline() -> None:
    protocol = await started()
    taken = await protocol.take(wire(media(b"\xff" * 160)))
    assert (taken.passes, taken.audio_s) == (True, 0.02)
    for other in (
        {"event": "mark", "streamSid": "MZ1", "mark": {"name": "a"}},
        {"event": "dtmf", "streamSid": "MZ1", "dtmf": {"track": "inbound_track", "digit": "1"}},
        {"event": "new in some later version"},
        {"event": ["media"]},
        {},
    ):
        taken = await protocol.take(wire(other))
        assert (taken.passes, taken.audio_s, taken.answers) == (False, 0.0, ())


HOSTILE: dict[str, tuple[Any, int, str]] = {
    "bytes": ({"bytes": b"\x00"}, 1003, "expected Twilio Media Streams in text messages"),
    "no JSON": ({"text": "{"}, 1007, "got no JSON object"),
    "a list": (wire([]), 1007, "got no JSON object"),
    "deep JSON": ({"text": "[" * 60_000}, 1007, "got no JSON object"),
    "no payload": (wire({"event": "media"}), 1007, "expected media.payload"),
    "a payload that is no base64": (
        wire({"event": "media", "media": {"payload": "?"}}),
        1007,
        "expected media.payload",
    ),
    "a payload of another type": (
        wire({"event": "media", "media": {"payload": 7}}),
        1007,
        "expected media.payload",
    ),
    "the end": (wire({"event": "stop", "streamSid": "MZ1"}), 1000, "the stream has stopped"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_not_twilio_s_is_refused_with_a_reason(name: str) -> None:
    message, code, words = HOSTILE[name]
    protocol = await started()
    with pytest.raises(HangUpError) as raised:
        await protocol.take(message)
    assert (raised.value.code, words in raised.value.reason) == (code, True), raised.value.reason


@pytest.mark.parametrize(
    "start",
    [
        {"event": "start"},
        {"event": "start", "streamSid": 7},
        {"event": "start", "streamSid": "M" * 101},
        {**START, "start": {"mediaFormat": {"encoding": "audio/l16", "sampleRate": 16_000}}},
        {**START, "start": {"mediaFormat": "\x1b[2J"}},
    ],
)
async def test_a_stream_that_cannot_be_heard_is_refused(start: Any) -> None:
    with pytest.raises(HangUpError) as raised:
        await TwilioStream().take(wire(start))
    assert raised.value.code == 1007


async def test_media_before_its_stream_is_refused() -> None:
    with pytest.raises(HangUpError, match="expected Twilio's start before its media"):
        await TwilioStream().take(wire(media(b"\xff" * 160)))


def ulaw_tone(samples: int) -> bytes:
    """A loud tone, from the two codes of it that alternate fastest below 4 kHz."""
    return bytes([0x10, 0x10, 0x10, 0x10, 0x90, 0x90, 0x90, 0x90] * (samples // 8))


def test_a_call_with_an_interruption() -> None:
    async def play() -> list[tuple[float, dict[str, Any]]]:
        async with guarded(fake_assembly(), TwilioStream()) as client:
            for payload in (CONNECTED, START):
                client.send(json.dumps(payload))
            await client.wait(200)
            for k in range(180):
                loud = k < 40 or 75 < k < 120
                client.send(json.dumps(media(ulaw_tone(160) if loud else b"\xff" * 160)))
                await client.wait(20)
        return [(ns / 1e6, json.loads(data)) for ns, data in client.got]

    with virtual_clocks():
        got = in_virtual_time(play())
    assert {e["event"] for _, e in got} == {"media", "clear"}
    assert {e["streamSid"] for _, e in got} == {"MZ1"}
    clears = [at for at, e in got if e["event"] == "clear"]
    media_at = [(at, e["media"]["payload"]) for at, e in got if e["event"] == "media"]
    spoken = [(at, base64.b64decode(payload)) for at, payload in media_at]
    broken_off = next(at for at in clears if at > spoken[0][0])
    # After the `clear` nothing comes until the person has finished and been answered.
    assert not [at for at, _ in spoken if broken_off <= at < 200 + 120 * 20]
    assert spoken[-1][0] > 200 + 120 * 20
    assert sum(len(audio) for at, audio in spoken if at > broken_off) >= 8 * 2 * 350
    # The tone follows 150 ms of the voice's own silence; our resampling adds none.
    first = b"".join(audio for at, audio in spoken if at < broken_off)
    onset = next(i for i, code in enumerate(first) if (~code & 0x70) >> 4 >= 5)  # over -18 dBFS
    assert abs(onset / 8 - 150) < 0.5

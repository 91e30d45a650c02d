"""The page's codec against pipecat's own, both ways, in Chromium."""

import base64
import json
import random
from typing import Any

import numpy as np
import pytest
from page_browser import Call, needs_chromium
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageFrame,
    TextFrame,
    TranscriptionFrame,
)
from pipecat.serializers.protobuf import ProtobufFrameSerializer

from turngap.caller.dialects.pipecat import audio_frame

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

PIPECAT = ProtobufFrameSerializer()
DECODE = """(m, frames) => frames.map((text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  try {
    const frame = m.decode(bytes.buffer);
    return { ...frame, pcm: frame.pcm && [...frame.pcm] };
  } catch (error) {
    if (!(error instanceof m.FrameError)) throw error;
    return { error: error.message };
  }
})"""


async def decoded(call: Call, *frames: bytes | str | None) -> list[dict[str, Any]]:
    assert all(isinstance(frame, bytes) for frame in frames)
    texts = [base64.b64encode(frame).decode() for frame in frames if isinstance(frame, bytes)]
    return await call("codec", DECODE, texts)


async def encoded(call: Call, function: str, *values: Any) -> bytes:
    return bytes(await call("codec", f"(m, ...values) => [...({function})(m, ...values)]", *values))


async def test_pipecats_audio_is_read(call: Call) -> None:
    pcm = np.arange(-16_000, 16_000, 7).astype(np.int16)
    frame = OutputAudioRawFrame(pcm.tobytes(), 22_050, 1)
    frame.pts = 2**60
    (read,) = await decoded(call, await PIPECAT.serialize(frame))
    assert (read["kind"], read["rate"], read["pcm"]) == ("audio", 22_050, pcm.tolist())


async def test_the_pages_audio_is_read_by_pipecat(call: Call) -> None:
    pcm = [0, 1, -1, 32767, -32768, 1234] * 50
    data = await encoded(call, "(m, pcm) => m.encodeAudio(Int16Array.from(pcm), 16000)", pcm)
    frame = await PIPECAT.deserialize(data)
    assert isinstance(frame, InputAudioRawFrame)
    assert (frame.sample_rate, frame.num_channels) == (16_000, 1)
    assert np.frombuffer(frame.audio, "<i2").tolist() == pcm
    assert data == audio_frame(frame.audio, 16_000)


async def test_messages_go_both_ways(call: Call) -> None:
    message = {
        "label": "rtvi-ai",
        "type": "x",
        "data": {"text": "naïve “☃” 🫖\u0000\\", "n": [1, None]},
    }
    data = await encoded(call, "(m, message) => m.encodeMessage(message)", message)
    frame = await PIPECAT.deserialize(data)
    assert isinstance(frame, InputTransportMessageFrame)
    assert frame.message == message
    (read,) = await decoded(call, await PIPECAT.serialize(OutputTransportMessageFrame(message)))
    assert read == {"kind": "message", "value": message, "pcm": None}


async def test_a_long_message_and_long_audio_come_through(call: Call) -> None:
    text = "x" * 70_000
    data = await encoded(call, "(m, text) => m.encodeMessage({ text })", text)
    frame = await PIPECAT.deserialize(data)
    assert isinstance(frame, InputTransportMessageFrame)
    assert frame.message == {"text": text}
    pcm = bytes(100_000)
    (read,) = await decoded(call, await PIPECAT.serialize(OutputAudioRawFrame(pcm, 48_000, 1)))
    assert len(read["pcm"]) == 50_000


async def test_frames_of_other_kinds_are_named(call: Call) -> None:
    frames = [InterruptionFrame(), TextFrame("hello"), TranscriptionFrame("hi", "me", "now")]
    read = await decoded(call, *[await PIPECAT.serialize(frame) for frame in frames])
    assert [frame["kind"] for frame in read] == ["interruption", "text", "transcription"]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "empty"),
        (b"\x12", "cut short"),
        (b"\x12\x05abc", "cut short"),
        (b"\xff" * 11, "does not end"),
        (b"\x13\x00", "unknown field"),
        (b"\x02\x00", "unknown field"),
        (b"\x32\x00", "empty or unknown frame"),
        (audio_frame(b"abc", 16_000), "no PCM16 mono"),
        (audio_frame(b"abcd", 1_000_000), "no PCM16 mono"),
        (b"\x12\x02\x28\x02", "no PCM16 mono"),
        (b"\x12\x02\x18\x02", "no PCM16 mono"),
        (b"\x22\x03\x0a\x01{", "not JSON"),
        (b"\x22\x03\x0a\x01\xff", "not JSON"),
        (b"\x22\x00", "not JSON"),
    ],
)
async def test_what_is_no_frame_is_refused(call: Call, frame: bytes, why: str) -> None:
    (read,) = await decoded(call, frame)
    assert why in read["error"]


async def test_damaged_frames_are_read_or_refused(call: Call) -> None:
    chance = random.Random(0)
    sound = [
        audio_frame(bytes(range(40)), 16_000),
        await encoded(call, "(m, message) => m.encodeMessage(message)", {"a": ["b", 1]}),
    ]
    damaged: list[bytes] = []
    for _ in range(2000):
        frame = bytearray(chance.choice(sound))
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        damaged.append(bytes(frame[: chance.randint(1, len(frame))]))
    read = await decoded(call, *damaged)
    assert {"error", "kind"} <= {key for frame in read for key in frame}
    assert json.dumps(read)

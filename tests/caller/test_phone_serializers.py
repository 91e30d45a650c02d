"""Software that was not written here reads and writes the phone companies' dialects: pipecat's."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pipecat.frames.frames import InputAudioRawFrame, InterruptionFrame, OutputAudioRawFrame
from pipecat.runner.utils import parse_telephony_websocket
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.serializers.vonage import VonageFrameSerializer

from turngap.caller.dialects.registry import find_dialect
from turngap.caller.dialects.telephony import FROM_NUMBER
from turngap.caller.said import AudioChunk, Flush, Message
from turngap.core.audio import rms_dbfs


class Socket:
    """A source from which pipecat's runner reads the first messages."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = messages

    async def iter_text(self) -> AsyncIterator[Message]:
        for message in self._messages:
            yield message


def recognised(messages: Iterable[Message]) -> tuple[str, Any]:
    socket: Any = Socket(messages)
    return asyncio.run(parse_telephony_websocket(socket))


def opening(dialect: str, **settings: Any) -> tuple[Any, list[Message]]:
    session = find_dialect(dialect).session(settings)
    session.open()
    session.send_audio(bytes(320))
    return session, session.data_to_send()


def serializer(dialect: str, call: Any, **settings: Any) -> FrameSerializer:
    match dialect:
        case "twilio":
            params = TwilioFrameSerializer.InputParams(auto_hang_up=False)
            return TwilioFrameSerializer(call.stream_id, params=params)
        case "telnyx":
            encoding = settings.get("encoding", "PCMU")
            telnyx = TelnyxFrameSerializer.InputParams(auto_hang_up=False)
            return TelnyxFrameSerializer(call.stream_id, encoding, encoding, params=telnyx)
        case "plivo":
            plivo = PlivoFrameSerializer.InputParams(auto_hang_up=False)
            return PlivoFrameSerializer(call.stream_id, params=plivo)
        case "exotel":
            return ExotelFrameSerializer(call.stream_id)
        case _:
            return VonageFrameSerializer()


@pytest.mark.parametrize(
    ("dialect", "settings"),
    [
        ("twilio", {"parameters": {"lang": "en", "from_number": "+15550100009"}}),
        ("telnyx", {}),
        ("plivo", {}),
        ("exotel", {}),
    ],
)
def test_pipecats_runner_knows_who_calls(dialect: str, settings: Any) -> None:
    _, messages = opening(dialect, **settings)
    name, call = recognised(messages)
    assert name == dialect
    assert call.stream_id in str(messages)
    assert call.call_id in str(messages)
    if dialect != "plivo":
        assert call.from_number == settings.get("parameters", {}).get("from_number", FROM_NUMBER)
    if dialect == "twilio":
        assert call.body == settings["parameters"]
    if dialect == "telnyx":
        assert call.outbound_encoding == "PCMU"


@pytest.mark.parametrize(
    ("dialect", "settings"),
    [
        ("twilio", {}),
        ("telnyx", {}),
        ("telnyx", {"encoding": "PCMA"}),
        ("plivo", {}),
        ("exotel", {}),
        ("vonage", {}),
    ],
)
def test_pipecats_serializer_hears_and_is_heard(dialect: str, settings: Any) -> None:
    session, messages = opening(dialect, **settings)
    call = None if dialect == "vonage" else recognised(messages)[1]
    theirs = serializer(dialect, call, **settings)
    rate = session.rate
    voice = np.random.default_rng(0).normal(0, 3000, rate // 50).astype(np.int16)

    setup: Any = SimpleNamespace(audio_in_sample_rate=rate)

    async def course() -> tuple[Any, list[Message]]:
        await theirs.setup(setup)
        session.send_audio(voice.tobytes())
        (up,) = session.data_to_send()
        heard = await theirs.deserialize(up)
        downs = [
            await theirs.serialize(OutputAudioRawFrame(voice.tobytes(), rate, 1)),
            await theirs.serialize(InterruptionFrame()),
        ]
        return heard, [down for down in downs if down is not None]

    heard, (audio, interruption) = asyncio.run(course())
    assert isinstance(heard, InputAudioRawFrame)
    assert heard.sample_rate == rate
    # Nothing but what eight bits lose, about 38 dB below; where the audio is linear, nothing.
    lossless = dialect in ("exotel", "vonage")
    assert_like(np.frombuffer(heard.audio, np.int16), voice, lossless)
    (chunk,) = session.receive_data(audio)
    assert isinstance(chunk, AudioChunk)
    assert chunk.rate == rate
    assert_like(chunk.pcm, voice, lossless)
    assert session.receive_data(interruption) == [Flush()]


def assert_like(found: Any, said: Any, lossless: bool) -> None:
    assert len(found) == len(said)
    if lossless:
        assert found.tolist() == said.tolist()
    else:
        assert rms_dbfs(said) - rms_dbfs(found - said) > 35

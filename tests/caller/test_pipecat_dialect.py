"""The pipecat dialect against pipecat's own serializer, and against what no pipecat bot sends."""

import dataclasses
import functools
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageFrame,
    TextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
)
from pipecat.frames.protobufs import frames_pb2
from pipecat.processors.frameworks.rtvi import models
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat_messages import decode

from turngap.caller.dialects.pipecat import PipecatSession, audio_frame, interruption_frame, parse
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.said import (
    AudioBytes,
    AudioChunk,
    Fault,
    Flush,
    Incoming,
    Marks,
    NotSpokenError,
    Pong,
    Ready,
    ReplyDone,
    ReplyText,
    Transcript,
    TurnOver,
)
from turngap.caller.wav import WavReader
from turngap.core.events import ToolCall
from turngap.core.untrusted import MOST_SENTENCE
from turngap.core.wire import PING, message_frame

PCM = np.array([0, 1, -1, 32767, -32768, 258], dtype="<i2")


async def serialized(frame: Any) -> bytes:
    data = await ProtobufFrameSerializer().serialize(frame)
    assert isinstance(data, bytes)
    return data


async def from_bot(model: Any) -> Incoming | None:
    """Return the event of an RTVI message as a bot's own models write it."""
    message = OutputTransportMessageFrame(message=model.model_dump(exclude_none=True))
    return decode(await serialized(message))


def decoded(payload: Any) -> Incoming | None:
    return decode(message_frame(payload))


def heard(message: bytes) -> AudioChunk:
    audio = decode(message)
    assert isinstance(audio, AudioBytes)
    return WavReader().read(audio)


def raw_audio(audio: bytes, rate: int, channels: int) -> bytes:
    frame = frames_pb2.Frame()  # pyright: ignore[reportAttributeAccessIssue]
    frame.audio.audio, frame.audio.sample_rate, frame.audio.num_channels = audio, rate, channels
    return frame.SerializeToString()


# --- what a bot sends -------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 48_000])
async def test_a_bots_audio(rate: int) -> None:
    frame = OutputAudioRawFrame(PCM.tobytes(), sample_rate=rate, num_channels=1)
    chunk = heard(await serialized(frame))
    assert (chunk.rate, chunk.wav) == (rate, False)
    assert chunk.pcm.dtype == np.int16
    np.testing.assert_array_equal(chunk.pcm, PCM)


async def test_a_bots_interruption() -> None:
    assert decode(await serialized(InterruptionFrame())) == Flush()
    frame = await ProtobufFrameSerializer().deserialize(interruption_frame())
    assert isinstance(frame, InterruptionFrame)


async def test_a_bots_rtvi_messages() -> None:
    ready = models.BotReady(id="1", data=models.BotReadyData(version="2.0.0"))
    assert await from_bot(ready) == Ready()
    assert await from_bot(models.UserStoppedSpeakingMessage()) == TurnOver()
    assert await from_bot(models.VADUserStoppedSpeakingMessage()) is None
    assert await from_bot(models.BotStoppedSpeakingMessage()) == ReplyDone()
    text = models.TextMessageData(text=" there")
    assert await from_bot(models.BotLLMTextMessage(data=text)) == ReplyText(" there")
    own = {"turngap": "pong", "ping": 3, "agent_ns": 12}
    assert await from_bot(models.ServerMessage(data=own)) == Pong(3, 12)
    error = models.ErrorData(error="no voice", fatal=True)
    assert await from_bot(models.Error(data=error)) == Fault("no voice", fatal=True)
    refusal = models.ErrorResponse(id="1", data=models.ErrorResponseData(error="too old"))
    assert await from_bot(refusal) == Fault("too old", fatal=False, refuses=True)


@pytest.mark.parametrize(("final", "expected"), [(True, Transcript("hello")), (False, None)])
async def test_only_a_final_transcript_is_one(final: bool, expected: Incoming | None) -> None:
    data = models.UserTranscriptionMessageData(
        text="hello", user_id="", timestamp="now", final=final
    )
    assert await from_bot(models.UserTranscriptionMessage(data=data)) == expected


@pytest.mark.parametrize(
    "frame",
    [TextFrame("hi"), TranscriptionFrame("hi", "user", "now")],
    ids=["text", "transcription"],
)
async def test_other_frames_of_a_bot_say_nothing_to_the_caller(frame: Any) -> None:
    assert decode(await serialized(frame)) is None


@pytest.mark.parametrize("kind", ["bot-started-speaking", "metrics", "bot-tts-started", "no-such"])
def test_other_rtvi_messages_say_nothing_to_the_caller(kind: str) -> None:
    assert decoded(rtvi(kind, {"text": "x", "error": "y"})) is None


@pytest.mark.parametrize(
    "payload",
    [[], [1, 2], "text", 5, None, True, {}, {"type": "bot-ready"}, {"turngap": "marks"}],
)
def test_what_a_bot_says_to_its_own_client_says_nothing_to_the_caller(payload: Any) -> None:
    assert decoded(payload) is None


# --- what the caller sends --------------------------------------------------------------------


async def test_a_bot_reads_the_callers_audio() -> None:
    session = PipecatSession()
    session.send_audio(PCM.tobytes())
    (message,) = session.data_to_send()
    frame = await ProtobufFrameSerializer().deserialize(message)
    assert isinstance(frame, InputAudioRawFrame)
    assert (frame.audio, frame.sample_rate, frame.num_channels) == (PCM.tobytes(), 16_000, 1)


async def test_the_callers_audio_is_as_pipecat_would_write_it() -> None:
    # pipecat adds the frame's id and name, which no bot needs.
    frame = TTSAudioRawFrame(PCM.tobytes(), sample_rate=24_000, num_channels=1)
    own = OutputAudioRawFrame(frame.audio, frame.sample_rate, frame.num_channels)
    theirs = parse(await serialized(own)).audio
    ours = parse(audio_frame(PCM.tobytes(), 24_000)).audio
    for name in ("audio", "sample_rate", "num_channels"):
        assert getattr(ours, name) == getattr(theirs, name)


async def test_a_bot_reads_the_opening_and_the_pings() -> None:
    session = PipecatSession()
    assert session.open() == []
    (opening,) = session.data_to_send()
    ready = await ProtobufFrameSerializer().deserialize(opening)
    assert isinstance(ready, InputTransportMessageFrame)
    message = models.Message.model_validate(ready.message)
    assert (message.label, message.type) == ("rtvi-ai", "client-ready")
    assert message.data is not None
    models.AboutClientData.model_validate(message.data["about"])
    assert int(message.data["version"].split(".")[0]) == int(models.PROTOCOL_VERSION.split(".")[0])

    assert session.ping(7)
    (ping,) = session.data_to_send()
    assert session.data_to_send() == []
    frame = await ProtobufFrameSerializer().deserialize(ping)
    assert isinstance(frame, InputTransportMessageFrame)
    message = models.Message.model_validate(frame.message)
    assert message.type == "client-message"
    data = models.RawClientMessageData.model_validate(message.data)
    assert (data.t, data.d) == (PING, {"ping": 7})


# --- what no pipecat bot sends ----------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    ["", "hello", '{"type": "bot-ready"}', b"", b"\xff\xff\xff\xff", b"RIFF0000WAVE", b"\x00" * 9],
)
def test_what_is_no_frame_is_refused(message: bytes | str) -> None:
    with pytest.raises(NotSpokenError):
        decode(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    try:
        decode(message)
    except NotSpokenError as e:
        assert str(e)


@pytest.mark.parametrize(
    ("audio", "rate", "channels"),
    [
        (b"\x00" * 3, 16_000, 1),
        (b"\x00" * 4, 16_000, 2),
        (b"\x00" * 4, 16_000, 0),
        (b"\x00" * 4, 0, 1),
        (b"\x00" * 4, 1, 1),
        (b"\x00" * 4, 2**32 - 1, 1),
    ],
    ids=["odd length", "stereo", "no channel", "no rate", "1 Hz", "4 GHz"],
)
def test_audio_that_is_not_pcm16_mono_is_refused(audio: bytes, rate: int, channels: int) -> None:
    with pytest.raises(
        NotSpokenError, match=f"{len(audio)} bytes, .*{channels} channels, {rate} Hz"
    ):
        heard(raw_audio(audio, rate, channels))


def test_audio_may_be_empty_and_may_be_long() -> None:
    for samples in (0, 5_000_000):
        assert len(heard(audio_frame(bytes(2 * samples), 48_000)).pcm) == samples


@pytest.mark.parametrize("text", ["", "{", "not json", '{"type": ', "[" * 100_000, "9" * 5_000])
def test_a_message_that_is_not_json_is_refused(text: str) -> None:
    frame = frames_pb2.Frame()  # pyright: ignore[reportAttributeAccessIssue]
    frame.message.data = text
    with pytest.raises(NotSpokenError):
        decode(frame.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        {"turngap": "marks"},
        {"turngap": "marks", "turn": 1},
        {"turngap": "marks", "turn": "one", "marks": {}},
        {"turngap": "marks", "turn": 1, "marks": []},
        {"turngap": "pong", "ping": 1},
        {"turngap": "pong", "ping": None, "agent_ns": 5},
        {"turngap": "marks", "turn": 1, "marks": {}, "counts": 5},
        {"turngap": "marks", "turn": 1, "marks": {}, "calls": 5},
        {"turngap": "marks", "turn": 1, "marks": {}, "calls": [{"arguments": {}}]},
        {"turngap": "marks", "turn": 1, "marks": {}, "calls": [{"name": "a", "arguments": 1}]},
    ],
    ids=str,
)
def test_a_malformed_message_of_our_own_is_left_out(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="malformed turngap message"):
        decoded(rtvi("server-message", data))


DEEP = functools.reduce(lambda inner, _: {"in": inner}, range(300), "bottom")


@pytest.mark.parametrize(
    ("part", "left_out"),
    [
        ({"marks": {"sent": None}}, "the mark sent: expected a 62-bit whole number, got None"),
        ({"marks": {"sent": 1.5}}, "the mark sent: expected a 62-bit whole number, got 1.5"),
        ({"marks": {"sent": True}}, "the mark sent: expected a 62-bit whole number, got True"),
        ({"marks": {"sent": 2**63}}, "the mark sent: .* a number of more than 64 bits"),
        ({"marks": {"sent": 10**4000}}, "the mark sent: .* a number of more than 64 bits"),
        ({"marks": {"sent": math.inf}}, "the mark sent: .* got inf"),
        ({"marks": {"sent": math.nan}}, "the mark sent: .* got nan"),
        ({"marks": {"sent": []}}, "the mark sent: .* got a list"),
        ({"marks": {str(n): n for n in range(5000)}}, "more than 100 marks in a message"),
        ({"counts": {"hold_ms": "long"}}, "the count hold_ms: .* got 'long'"),
        ({"counts": {"hold_ms": math.nan}}, "the count hold_ms: .* got nan"),
        ({"counts": {"hold_ms": 1e300}}, "the count hold_ms: expected a finite number, .*"),
        ({"calls": [{"name": "pay", "ms": math.nan}]}, "how long pay took: .* got nan"),
        ({"calls": [{"name": "pay", "ms": "long"}]}, "how long pay took: .* got 'long'"),
        ({"calls": [{"name": "pay", "arguments": DEEP}]}, "arguments of pay that cannot be kept"),
        ({"calls": [{"name": "pay", "arguments": {"sum": math.inf}}]}, "arguments of pay .*"),
        ({"calls": [{"name": "pay"}] * 5000}, "more than 100 tool calls in a message"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_that_cannot_be_kept_is_left_out_and_the_rest_stays(
    part: dict[str, Any], left_out: str
) -> None:
    told = decoded(rtvi("server-message", {"turngap": "marks", "turn": 1, "marks": {}} | part))
    assert isinstance(told, Marks)
    assert re.fullmatch(left_out, told.left_out[0])
    stored = json.dumps(dataclasses.asdict(told), allow_nan=False)
    assert len(stored) < 10_000


def test_texts_of_an_agent_are_printable_and_bounded() -> None:
    told = {
        "turngap": "marks",
        "turn": 1,
        "marks": {},
        "why": "\x1b[2J\ud83d",
        "error": "x" * 10**5,
    }
    marks = decoded(rtvi("server-message", told))
    assert isinstance(marks, Marks)
    assert marks.why == " [2J\ufffd"
    assert len(marks.error or "") == MOST_SENTENCE + 1
    reply = decoded(rtvi("bot-llm-text", {"text": " half \ud83d of a pair\n"}))
    assert reply == ReplyText(" half \ufffd of a pair ")
    fault = decoded(rtvi("error", {"error": "\x1b]0;title\x07", "fatal": "no"}))
    assert fault == Fault(" ]0;title ", fatal=False)


@pytest.mark.parametrize("data", [{}, {"turngap": "other"}, {"turngap": None}, {"app": 1}, [], "x"])
def test_a_server_message_of_somebody_else_says_nothing(data: Any) -> None:
    assert decoded(rtvi("server-message", data)) is None


def test_our_own_messages() -> None:
    marks = {"turngap": "marks", "turn": 2, "marks": {"endpoint": 5, "sent": 9.0}}
    assert decoded(rtvi("server-message", marks)) == Marks(2, {"endpoint": 5, "sent": 9})
    about = {**marks, "counts": {"hold_ms": 250, "wasted_usd": 1e-6}, "why": "number"}
    assert decoded(rtvi("server-message", about)) == Marks(
        2, {"endpoint": 5, "sent": 9}, {"hold_ms": 250.0, "wasted_usd": 1e-6}, "number"
    )
    assert decoded(rtvi("server-message", {**marks, "counts": None, "why": None})) == Marks(
        2, {"endpoint": 5, "sent": 9}
    )
    failed = {**marks, "error": "VllmLLMService: no server"}
    assert decoded(rtvi("server-message", failed)) == Marks(
        2, {"endpoint": 5, "sent": 9}, error="VllmLLMService: no server"
    )


def test_the_tools_that_were_called_are_told_with_the_marks() -> None:
    marks = {"turngap": "marks", "turn": 3, "marks": {"sent": 5}}
    weather = {"name": "weather", "arguments": {"day": "today"}, "ms": 12, "result": "{}"}
    told = decoded(rtvi("server-message", {**marks, "calls": [weather, {"name": "clock"}]}))
    assert isinstance(told, Marks)
    assert told.calls == (ToolCall("weather", {"day": "today"}, 12.0, "{}"), ToolCall("clock", {}))
    none = decoded(rtvi("server-message", {**marks, "calls": []}))
    silent = decoded(rtvi("server-message", marks))
    assert isinstance(none, Marks)
    assert isinstance(silent, Marks)
    assert (none.calls, silent.calls) == ((), None)


@pytest.mark.parametrize("kind", ["user-transcription", "bot-llm-text", "error", "error-response"])
@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_rtvi_data_of_the_wrong_kind_says_nothing(kind: str, data: Any) -> None:
    assert decoded(rtvi(kind, data)) is None


def test_a_text_that_is_null_is_no_text() -> None:
    assert decoded(rtvi("user-transcription", {"text": None, "final": True})) == Transcript("")
    assert decoded(rtvi("bot-llm-text", {"text": None})) == ReplyText("")


def test_an_error_without_words_is_one_all_the_same() -> None:
    assert decoded(rtvi("error", {})) == Fault("unspecified", fatal=False)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_json_is_a_message_or_nothing_or_refused(data: Any) -> None:
    for kind in ("server-message", "error", "user-transcription", "bot-ready"):
        for payload in (data, rtvi(kind, data), rtvi(kind, {"turngap": "marks", "marks": data})):
            try:
                incoming = decode(message_frame(json.loads(json.dumps(payload))))
            except (NotSpokenError, ValueError) as e:
                assert str(e)
            else:
                stored = None if incoming is None else dataclasses.asdict(incoming)
                json.dumps(stored, allow_nan=False, ensure_ascii=False).encode()

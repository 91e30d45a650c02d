"""The `pipecat` dialect: pipecat's protobuf frames with RTVI messages in them.

It has both directions, because the scripted agent of `turngap.testing` speaks the other one.
turngap's own messages are RTVI client and server messages with the key `turngap`.
"""

import json
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from pipecat.frames.protobufs import frames_pb2

from turngap.caller.dialect import (
    AudioChunk,
    Fault,
    Flush,
    Incoming,
    Marks,
    Message,
    NotSpokenError,
    Pong,
    Ready,
    ReplyDone,
    ReplyText,
    Transcript,
    Truth,
    TurnOver,
)
from turngap.core.events import ToolCall
from turngap.core.messages import PING

RTVI_LABEL = "rtvi-ai"
# The version that pipecat 1.14 serves. A bot with an older major version objects in an
# error-response and continues.
RTVI_VERSION = "2.2.0"

# From telephony to studio. Any other rate is a mistake, and would size the caller's buffers.
RATES = range(8_000, 192_001)

_Frame: Any = frames_pb2.Frame  # type: ignore[attr-defined]  # made by protoc at import


def audio_frame(pcm: bytes, rate: int) -> bytes:
    """Make a protobuf audio frame of PCM16 mono."""
    frame = _Frame()
    frame.audio.audio = pcm
    frame.audio.sample_rate = rate
    frame.audio.num_channels = 1
    return frame.SerializeToString()


def message_frame(payload: dict[str, Any]) -> bytes:
    """Make a protobuf message frame of a JSON payload."""
    frame = _Frame()
    frame.message.data = json.dumps(payload)
    return frame.SerializeToString()


def interruption_frame() -> bytes:
    """Make a protobuf interruption frame, which drops what has not been played."""
    frame = _Frame()
    frame.interruption.SetInParent()
    return frame.SerializeToString()


def rtvi(kind: str, data: Any = None, number: int = 0) -> dict[str, Any]:
    """Make an RTVI message."""
    return {"label": RTVI_LABEL, "type": kind, "id": str(number), "data": data}


def parse(message: Message) -> Any:
    """Parse the protobuf frame in a message.

    Raises:
        NotSpokenError: the message is text, or not such a frame.
    """
    if isinstance(message, str):
        raise NotSpokenError(f"a text message ({message[:40]!r})")
    try:
        frame = _Frame.FromString(message)
    except DecodeError as e:
        raise NotSpokenError(f"{len(message)} bytes that are no protobuf frame") from e
    if frame.WhichOneof("frame") is None:
        raise NotSpokenError(f"an empty or unknown protobuf frame of {len(message)} bytes")
    return frame


def payload_of(frame: Any) -> dict[str, Any]:
    """Return the JSON object in a message frame; empty if it is JSON of another kind.

    Raises:
        NotSpokenError: it is not JSON, which pipecat always sends.
    """
    try:
        payload = json.loads(frame.message.data)
    except (ValueError, RecursionError) as e:
        raise NotSpokenError("a message frame that is not JSON") from e
    return payload if isinstance(payload, dict) else {}


class PipecatDialect:
    """Speaks to any pipecat bot with `ProtobufFrameSerializer` and RTVI on (the default)."""

    name = "pipecat"

    def opening(self) -> list[Message]:
        about = {"library": "turngap"}
        return [message_frame(rtvi("client-ready", {"version": RTVI_VERSION, "about": about}))]

    def audio(self, pcm: bytes, rate: int) -> Message:
        return audio_frame(pcm, rate)

    def ping(self, number: int) -> Message | None:
        """Return an RTVI client message that only an agent with turngap's observer answers."""
        return message_frame(rtvi("client-message", {"t": PING, "d": {"ping": number}}, number))

    def decode(self, message: Message) -> Incoming | None:
        frame = parse(message)
        kind = frame.WhichOneof("frame")
        if kind == "audio":
            return _decode_audio(frame.audio)
        if kind == "interruption":
            return Flush()
        if kind == "message":
            payload = payload_of(frame)
            # A bot may send other messages to its own client.
            return _decode_rtvi(payload) if payload.get("label") == RTVI_LABEL else None
        return None


def _decode_audio(audio: Any) -> AudioChunk:
    pcm, rate, channels = audio.audio, audio.sample_rate, audio.num_channels
    if len(pcm) % 2 or channels != 1 or rate not in RATES:
        raise NotSpokenError(
            f"audio that is no PCM16 mono ({len(pcm)} bytes, {channels} channels, {rate} Hz)"
        )
    return AudioChunk(np.frombuffer(pcm, dtype="<i2"), rate)


# Messages that say all by their type.
_SAYS_ALL: dict[str, Incoming] = {
    "bot-ready": Ready(),
    "user-stopped-speaking": TurnOver(),  # by its turn-taking; a VAD's stop has another name
    "bot-stopped-speaking": ReplyDone(),
    "bot-llm-stopped": ReplyText(" "),  # what follows is another reply
}


def _decode_rtvi(payload: dict[str, Any]) -> Incoming | None:
    data = payload.get("data")
    match payload.get("type"):
        case str(kind) if kind in _SAYS_ALL:
            return _SAYS_ALL[kind]
        case "user-transcription" if isinstance(data, dict) and data.get("final"):
            return Transcript(str(data.get("text") or ""))
        case "bot-llm-text" if isinstance(data, dict):
            return ReplyText(str(data.get("text") or ""))
        case "server-message" if isinstance(data, dict):
            return _decode_own(data)
        case "error" | "error-response" as kind if isinstance(data, dict):
            text = data.get("error") or data.get("message") or "unspecified"
            return Fault(str(text), bool(data.get("fatal")), refuses=kind == "error-response")
        case _:
            return None


def _decode_own(data: dict[str, Any]) -> Incoming | None:
    try:
        match data.get("turngap"):
            case "marks":
                marks = {str(k): _whole(v) for k, v in data["marks"].items()}
                counts = {str(k): float(v) for k, v in (data.get("counts") or {}).items()}
                why, error = (_text(data.get(key)) for key in ("why", "error"))
                calls = data.get("calls")
                told = None if calls is None else tuple(_call(call) for call in calls)
                return Marks(_whole(data["turn"]), marks, counts, why, error, told)
            case "pong":
                return Pong(_whole(data["ping"]), _whole(data["agent_ns"]))
            case "truth":
                return Truth(_whole(data["gap_ns"]), _whole(data["intended_gap_ns"]))
            case _:
                return None
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise NotSpokenError(f"a malformed turngap message: {e!r}") from e


def _call(call: dict[str, Any]) -> ToolCall:
    ms = call.get("ms")
    return ToolCall(
        str(call["name"]),
        dict(call.get("arguments") or {}),
        None if ms is None else float(ms),
        _text(call.get("result")),
        _text(call.get("error")),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int:
    """Read a count or an instant; JSON writers without integers send 5.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise TypeError(f"expected a 64-bit whole number, got {str(value)[:40]}")
    return value

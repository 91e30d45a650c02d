"""The `pipecat` dialect: pipecat's protobuf frames with RTVI messages in them.

It has both directions, because the scripted agent of `turngap.testing` speaks the other one.
turngap's own messages are RTVI client and server messages with the key `turngap`.
"""

import json
from typing import Any

from google.protobuf.message import DecodeError
from pipecat.frames.protobufs import frames_pb2

from turngap.caller.dialect import (
    AudioBytes,
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
from turngap.core.untrusted import parse_json, printable, shown

RTVI_LABEL = "rtvi-ai"
# The version that pipecat 1.14 serves. A bot with an older major version objects in an
# error-response and continues.
RTVI_VERSION = "2.2.0"

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
        raise NotSpokenError(f"a text message ({shown(message)})")
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
        payload = parse_json(frame.message.data)
    except ValueError as e:
        raise NotSpokenError(f"a message frame that is not JSON: {printable(str(e), 80)}") from e
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
            audio = frame.audio
            return AudioBytes(audio.audio, audio.sample_rate, audio.num_channels)
        if kind == "interruption":
            return Flush()
        if kind == "message":
            payload = payload_of(frame)
            # A bot may send other messages to its own client.
            return _decode_rtvi(payload) if payload.get("label") == RTVI_LABEL else None
        return None


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
            return Transcript(data.get("text", ""))
        case "bot-llm-text" if isinstance(data, dict):
            return ReplyText(data.get("text", ""))
        case "server-message" if isinstance(data, dict):
            return _decode_own(data)
        case "error" | "error-response" as kind if isinstance(data, dict):
            text = data.get("error") or data.get("message") or "unspecified"
            words = text if isinstance(text, str) else shown(text)
            return Fault(words, data.get("fatal") is True, refuses=kind == "error-response")
        case _:
            return None


def _decode_own(data: dict[str, Any]) -> Incoming | None:
    try:
        match data.get("turngap"):
            case "marks":
                calls = data.get("calls")
                told = None if calls is None else tuple(_call(call) for call in calls)
                about = (data.get("counts") or {}, data.get("why"), data.get("error"), told)
                return Marks(data["turn"], data["marks"], *about, no_reply=data.get("no_reply"))
            case "pong":
                return Pong(data["ping"], data["agent_ns"])
            case "truth":
                return Truth(data["gap_ns"], data["intended_gap_ns"])
            case _:
                return None
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        said = str(e) if isinstance(e, ValueError) else repr(e)
        raise ValueError(f"a malformed turngap message: {printable(said, 200)}") from e


def _call(call: dict[str, Any]) -> ToolCall:
    about = (call.get("ms"), call.get("result"), call.get("error"))
    return ToolCall(call["name"], call.get("arguments") or {}, *about)

"""Messages between a client and a guard: what is one, and what is in it. No I/O."""

import json
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from pipecat.frames.protobufs import frames_pb2
from starlette.types import Message

from turngap.agent import limits as of
from turngap.agent.limits import HangUpError
from turngap.core.audio import Pcm
from turngap.core.untrusted import printable

# What RTVI clients may send. pipecat's processor takes more: files that the server would fetch from
# a URL, audio past every check, results of functions that nobody called. These are not passed on.
RTVI_TYPES = frozenset({"client-ready", "client-message", "send-text", "disconnect-bot"})

# What tells that somebody speaks. The agent's voice itself is audio.
SPEECH_TYPES = frozenset({"user-started-speaking", "user-transcription", "bot-llm-text"})

Frame: Any = frames_pb2.Frame  # type: ignore[attr-defined]  # made by protoc at import


def parsed(message: Message, most: int) -> Any:
    """Return the frame in a client's message of at most `most` bytes.

    Raises:
        HangUpError: there is none.
    """
    data = message.get("bytes")
    if data is None:
        raise HangUpError(
            of.CODE_NO_TEXT, "expected pipecat's protobuf in binary messages, got text"
        )
    if len(data) > most:
        raise HangUpError(
            of.CODE_TOO_BIG, f"a message has {len(data)} bytes, and {most} are allowed"
        )
    try:
        frame = Frame.FromString(data)
    except DecodeError:
        frame = Frame()
    if frame.WhichOneof("frame") is None:
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected pipecat's protobuf, got {len(data)} bytes that are no frame of it",
        )
    return frame


def pcm_of(audio: Any, rate: int) -> Pcm:
    """Return a client's audio.

    Raises:
        HangUpError: it is not mono PCM16 of that rate.
    """
    if audio.sample_rate != rate or audio.num_channels != 1 or len(audio.audio) % 2:
        channels = "mono" if audio.num_channels == 1 else f"{audio.num_channels} channels"
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected PCM16 mono at {rate} Hz, got {len(audio.audio)} bytes, "
            f"{channels}, {audio.sample_rate} Hz",
        )
    return np.frombuffer(audio.audio, dtype="<i2")


def is_speech(frame: Any) -> bool:
    """Return whether a frame of the agent is speech, or says that somebody speaks."""
    if frame.WhichOneof("frame") != "message":
        return frame.WhichOneof("frame") == "audio"
    payload = json.loads(frame.message.data)
    return isinstance(payload, dict) and payload.get("type") in SPEECH_TYPES


def not_taken(payload: dict[str, Any]) -> Message:
    """Make the answer to an RTVI message that the agent does not take."""
    error = f"not taken: {printable(str(payload.get('type')))[:50]}; taken: {sorted(RTVI_TYPES)}"
    answer = {"label": "rtvi-ai", "type": "error-response", "data": {"error": error}}
    frame = Frame()
    frame.message.data = json.dumps({**answer, "id": str(payload.get("id"))[:100]})
    return {"type": "websocket.send", "bytes": frame.SerializeToString()}

"""A client's messages: pipecat's protobuf with RTVI in it. No I/O.

pipecat's clients, the live page and `turngap replay` speak it.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.types import Message

from turngap.agent import access as of
from turngap.agent.access import TEXT_CHARS, HangUpError
from turngap.core.audio import AUDIBLE_DBFS, Pcm, rms_dbfs
from turngap.core.frames import Frame, frame_in, message_frame
from turngap.core.messages import LLM, SAY
from turngap.core.untrusted import parse_json, printable

# What RTVI clients may send. pipecat's processor takes more: files that the server would fetch from
# a URL, audio past every check, results of functions that nobody called. These are not passed on.
RTVI_TYPES = frozenset({"client-ready", "client-message", "send-text", "disconnect-bot"})

# What tells that somebody speaks. The agent's voice itself is audio.
SPEECH_TYPES = frozenset({"user-started-speaking", "user-transcription", "bot-llm-text"})


@dataclass(frozen=True, slots=True)
class Taken:
    """A client's message after its check.

    Attributes:
        passes: whether the agent's pipeline gets it.
        pcm: the audio in it.
        asks: whether it makes the agent work, as a typed turn does.
        asked: an RTVI client message: what is asked for, and with what.
        answer: what is sent to the client at once.
    """

    passes: bool = False
    pcm: Pcm | None = None
    asks: bool = False
    asked: tuple[str, Any] | None = None
    answer: bytes | None = None


def take(message: Message, rate: int) -> Taken:
    """Check a client's message, of which audio must have that rate.

    Raises:
        HangUpError: it is none of the protocol's.
    """
    frame = _parsed(message)
    kind = frame.WhichOneof("frame")
    if kind == "audio":
        return Taken(passes=True, pcm=_pcm_of(frame.audio, rate))
    if kind != "message":
        raise HangUpError(
            of.CODE_NOT_ALLOWED, f"expected audio or an RTVI message, got a frame of {kind}"
        )
    try:
        payload = parse_json(frame.message.data)
    except ValueError as e:
        raise HangUpError(of.CODE_MALFORMED, "expected JSON in a message frame") from e
    if not isinstance(payload, dict) or payload.get("label") != "rtvi-ai":
        return Taken()
    return _rtvi(payload)


def is_speech(data: bytes) -> bool:
    """Return whether a message for the client is speech, or says that somebody speaks."""
    frame = Frame.FromString(data)
    if frame.WhichOneof("frame") == "audio":
        # An agent that is relayed may send silence for as long as the line is open.
        pcm = np.frombuffer(frame.audio.audio, dtype="<i2")
        return rms_dbfs(pcm) >= AUDIBLE_DBFS
    if frame.WhichOneof("frame") != "message":
        return False
    payload = json.loads(frame.message.data)
    return isinstance(payload, dict) and payload.get("type") in SPEECH_TYPES


def _parsed(message: Message) -> Any:
    data = message.get("bytes")
    if data is None:
        raise HangUpError(
            of.CODE_NO_TEXT, "expected pipecat's protobuf in binary messages, got text"
        )
    frame = frame_in(data)
    if frame is None:
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected pipecat's protobuf, got {len(data)} bytes that are no frame of it",
        )
    return frame


def _pcm_of(audio: Any, rate: int) -> Pcm:
    if audio.sample_rate != rate or audio.num_channels != 1 or len(audio.audio) % 2:
        channels = "mono" if audio.num_channels == 1 else f"{audio.num_channels} channels"
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected PCM16 mono at {rate} Hz, got {len(audio.audio)} bytes, "
            f"{channels}, {audio.sample_rate} Hz",
        )
    return np.frombuffer(audio.audio, dtype="<i2")


def _rtvi(payload: dict[str, Any]) -> Taken:
    kind, data = payload.get("type"), payload.get("data")
    if not isinstance(kind, str) or kind not in RTVI_TYPES:
        error = f"not taken: {printable(str(kind))[:50]}; taken: {sorted(RTVI_TYPES)}"
        refused = {"label": "rtvi-ai", "type": "error-response", "data": {"error": error}}
        return Taken(answer=message_frame({**refused, "id": str(payload.get("id"))[:100]}))
    if kind == "send-text":
        content = data.get("content") if isinstance(data, dict) else None
        if isinstance(content, str) and len(content) > TEXT_CHARS:
            why = f"a text has {len(content)} characters, and {TEXT_CHARS} are allowed"
            raise HangUpError(of.CODE_NOT_ALLOWED, why)
        return Taken(passes=True, asks=True)
    if kind == "client-message" and isinstance(data, dict):
        named = str(data.get("t"))
        return Taken(passes=True, asks=named in (SAY, LLM), asked=(named, data.get("d")))
    return Taken(passes=True)

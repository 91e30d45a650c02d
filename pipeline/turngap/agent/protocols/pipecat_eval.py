"""What `pipecat eval` speaks: RTVI in JSON, with audio in it, and requests of its own."""

import json
from collections import deque
from typing import Any

import numpy as np
from pipecat.evals import serializer as evals
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    LLMConfigureOutputFrame,
    LLMMessagesAppendFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.processors.frameworks.rtvi.frames import RTVIConfigureObserverFrame
from pipecat.processors.frameworks.rtvi.observer import RTVIFunctionCallReportLevel as Level
from starlette.types import Message

from turngap.agent import limits as of
from turngap.agent.limits import TEXT_CHARS, HangUpError
from turngap.agent.protocols import rtvi
from turngap.agent.protocols.base import Taken, WireProtocol, decoded, object_of, text_of
from turngap.agent.resampling import RATES, StreamResampler
from turngap.core.audio import Pcm

EXPECTED = "the JSON of pipecat's evals"

# Requests of the harness that its serializer answers, beside those of every RTVI client. An image
# is not among them: no stack looks at one.
_OWN = frozenset(
    {
        evals.EVAL_CONNECT_MESSAGE_TYPE,
        evals.EVAL_CONFIGURE_MESSAGE_TYPE,
        evals.EVAL_CONTEXT_MESSAGE_TYPE,
        evals.EVAL_CANCEL_MESSAGE_TYPE,
    }
)

# Earlier turns that an evaluation may add in all: each later turn has the LLM read them again.
MOST_CONTEXT = 50


class PipecatEval(WireProtocol):
    """An evaluation. It is told what every RTVI client is, but no marks.

    Args:
        in_rate: the pipeline's rate for the person's audio, Hz.
        traced: whether it may be told with what the agent's functions are called, and what they
            return; their names it may always be told.
    """

    def __init__(self, in_rate: int, *, traced: bool) -> None:
        self._in_rate = in_rate
        self._traced = traced
        self._more_context = MOST_CONTEXT
        self._resampler = StreamResampler()
        self.serializer = self._eval = _Serializer()

    async def take(self, message: Message) -> Taken:
        payload = object_of(text := text_of(message, EXPECTED), EXPECTED)
        if not rtvi.is_rtvi(payload):
            raise HangUpError(of.CODE_MALFORMED, f"expected {EXPECTED}, got no RTVI message")
        if payload.get("type") == "raw-audio":
            return self._heard(payload.get("data"))
        data = payload.get("data")
        if payload.get("type") == "client-message" and isinstance(data, dict):
            kind = str(data.get("t"))
            if kind in _OWN:
                return await self._own(kind, data.get("d"), text)
            if kind == evals.EVAL_IMAGE_MESSAGE_TYPE:
                return Taken(answers=(json.dumps(rtvi.not_taken(payload)),))
        taken = rtvi.taken(payload)
        if taken is None:
            return Taken(answers=(json.dumps(rtvi.not_taken(payload)),))
        self._eval.frames.append(await self._eval.read(text))
        return taken

    def _heard(self, data: Any) -> Taken:
        data = data if isinstance(data, dict) else {}
        audio, rate = decoded(data.get("base64Audio")), data.get("sampleRate")
        known = isinstance(rate, int) and rate in RATES
        if audio is None or len(audio) % 2 or not known or data.get("numChannels") != 1:
            raise HangUpError(
                of.CODE_MALFORMED,
                f"expected raw-audio of PCM16 mono in base64 at one of {RATES} Hz",
            )
        pcm: Pcm = np.frombuffer(audio, "<i2")
        made = self._resampler.add(pcm, rate, self._in_rate)
        frame = InputAudioRawFrame(made.tobytes(), self._in_rate, 1)
        self._eval.frames.append(frame)
        return Taken(passes=True, audio_s=len(pcm) / rate)

    async def _own(self, kind: str, details: Any, text: str) -> Taken:
        if kind == evals.EVAL_CONTEXT_MESSAGE_TYPE:
            messages = _context_of(details, self._more_context)
            self._more_context -= len(messages)
            frame: Frame | None = LLMMessagesAppendFrame(messages, run_llm=False)
        else:
            try:
                frame = await self._eval.read(text)
            except (ValueError, TypeError) as e:  # pydantic's errors are ValueErrors
                raise HangUpError(of.CODE_MALFORMED, f"this is no {kind} of pipecat's") from e
            if isinstance(frame, RTVIConfigureObserverFrame) and not self._traced:
                _hide_values(frame)
        self._eval.frames.append(frame)
        asks = "" if kind == evals.EVAL_CONTEXT_MESSAGE_TYPE else None
        return Taken(passes=True, asks=asks)

    def is_speech(self, data: str | bytes) -> bool:
        payload = json.loads(data)
        return payload.get("type") in {*rtvi.SPEECH_TYPES, evals.EVAL_BOT_AUDIO_TYPE}


class _Serializer(evals.EvalSerializer):
    """pipecat's, but what a client sends has been read when pipecat asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = deque[Frame | None]()

    async def serialize(self, frame: Frame) -> str | bytes | None:
        if isinstance(frame, OutputTransportMessageFrame | OutputTransportMessageUrgentFrame) and (
            frame.message.get("type") == "server-message"  # ours, for our own clients
        ):
            return None
        return await super().serialize(frame)

    async def deserialize(self, data: str | bytes) -> Frame | None:
        return self.frames.popleft()

    async def read(self, text: str) -> Frame | None:
        flags = evals.parse_eval_connect(json.loads(text))
        if flags is None:
            return await super().deserialize(text)
        self.set_capture_audio(flags.capture_bot_audio)
        return LLMConfigureOutputFrame(skip_tts=flags.skip_tts)


def is_opening(text: str) -> bool:
    """Return whether a message is how an evaluation begins."""
    try:
        payload = object_of(text, EXPECTED)
    except HangUpError:
        return False
    data = payload.get("data")
    opens = isinstance(data, dict) and data.get("t") == evals.EVAL_CONNECT_MESSAGE_TYPE
    return rtvi.is_rtvi(payload) and opens


def _hide_values(frame: RTVIConfigureObserverFrame) -> None:
    """Have a report of functions name them at most."""
    levels = frame.function_call_report_level or {}
    for name, level in levels.items():
        if level is Level.FULL:
            levels[name] = Level.NAME


def _context_of(details: Any, most: int) -> list[Any]:
    """Return the earlier turns that an evaluation begins with, which follow the stack's prompt.

    Raises:
        HangUpError: they are none, or too many.
    """
    said = details.get("messages") if isinstance(details, dict) else None
    turns = [_turn_of(each) for each in said] if isinstance(said, list) else [None]
    if None in turns or len(turns) > most:
        raise HangUpError(
            of.CODE_NOT_ALLOWED,
            f"expected up to {MOST_CONTEXT} texts of user or assistant in eval-context in all",
        )
    return turns


def _turn_of(said: Any) -> dict[str, str] | None:
    role, text = (said.get("role"), said.get("content")) if isinstance(said, dict) else (0, 0)
    if role not in ("user", "assistant") or not isinstance(text, str) or len(text) > TEXT_CHARS:
        return None
    return {"role": role, "content": text}

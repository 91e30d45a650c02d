"""OpenAI's Realtime API, by the names of its general availability: what a client may send.

Turn-taking, voice, instructions and tools are the stack's. Audio goes down at the speed of speech,
`out_ahead_ms` ahead, so that what a client has not played when it is interrupted is that much.
"""

import json
from collections import deque
from typing import Any

from openai.types.realtime import ConversationItemCreateEvent, ConversationItemTruncateEvent
from openai.types.realtime.realtime_conversation_item_user_message import (
    RealtimeConversationItemUserMessage as UserMessage,
)
from pipecat.audio.utils import alaw_to_pcm, pcm_to_alaw, pcm_to_ulaw, ulaw_to_pcm
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.serializers.base_serializer import FrameSerializer
from pydantic import ValidationError
from starlette.types import Message

from turngap.agent.limits import TEXT_CHARS, HangUpError
from turngap.agent.protocols import rtvi
from turngap.agent.protocols.base import Taken, WireProtocol, decoded, object_of, text_of
from turngap.agent.protocols.openai_events import PCM, RATE, Event, Told, session_of
from turngap.agent.resampling import StreamResampler
from turngap.core.messages import ANSWER, CANCEL, SAY
from turngap.core.untrusted import printable

EXPECTED = "OpenAI Realtime's JSON"
G711_RATE = 8000
FORMATS = {"audio/pcm": RATE, "audio/pcmu": G711_RATE, "audio/pcma": G711_RATE}

# Texts that a client may add between two answers.
MOST_TYPED = 16


class _RefusedError(Exception):
    """What a client asked for cannot be had; it is told why, and stays.

    Args:
        param: the part of the event that is wrong.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class OpenAIRealtime(WireProtocol):
    """A session of the Realtime API.

    Args:
        in_rate: the pipeline's rate for the person's audio, Hz.
        model: what the session says that it is.
    """

    out_rate = RATE

    def __init__(self, in_rate: int, model: str) -> None:
        self._in_rate = in_rate
        self._model = model
        self._formats: dict[str, dict[str, Any]] = {"input": PCM, "output": PCM}
        self._typed: list[int] = []  # the characters of each text that no answer has read yet
        self._is_unanswered = False  # a text was added since the client last asked for a response
        self._up, self._down = StreamResampler(), StreamResampler()
        self._frames = deque[Frame]()
        self._told = Told()
        self.serializer = _Serializer(self)
        self._takes = {
            "session.update": self._update,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.clear": self._clear,
            "input_audio_buffer.commit": self._commit,
            "conversation.item.create": self._create_item,
            "conversation.item.truncate": self._truncate,
            "response.create": self._create_response,
            "response.cancel": self._cancel,
        }

    def opening(self) -> list[str]:
        return [json.dumps(self._told.event("session.created", session=self._session()))]

    async def take(self, message: Message) -> Taken:
        text = text_of(message, EXPECTED)
        event: dict[str, Any] = {}
        try:
            try:
                event = object_of(text, EXPECTED)
            except HangUpError as e:
                raise _RefusedError("invalid_json", e.reason) from e
            kind = event.get("type")
            if not isinstance(kind, str) or kind not in self._takes:
                taken = ", ".join(self._takes)
                named = printable(str(kind))[:50]
                raise _RefusedError("unknown_event", f"not taken: {named}; taken: {taken}", "type")
            return await self._takes[kind](event)
        except ValidationError as e:
            error = e.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, error["loc"]))[:100]
            return self._refused(event, _RefusedError("invalid_value", error["msg"], where))
        except _RefusedError as e:
            return self._refused(event, e)

    def messages(self, data: str | bytes) -> list[str]:
        return str(data).split("\n")

    def is_speech(self, data: str | bytes) -> bool:
        return str(data).startswith(('{"type": "response.output_audio', '{"type": "input_audio'))

    # What a client asks for

    async def _update(self, event: dict[str, Any]) -> Taken:
        session = _object(event, "session")
        if session.get("type") != "realtime":
            raise _RefusedError(
                "unsupported", "expected a session of type realtime", "session.type"
            )
        if session.get("output_modalities", ["audio"]) != ["audio"]:
            words = "this agent answers with audio and its transcript, not with text alone"
            raise _RefusedError("unsupported", words, "session.output_modalities")
        audio = _object(session, "audio", "session.")
        came = _object(audio, "input", "session.audio.")
        if "turn_detection" in came and came["turn_detection"] is None:
            words = "this agent always finds the end of a turn itself: leave turn_detection out"
            raise _RefusedError("unsupported", words, "session.audio.input.turn_detection")
        formats = {
            side: _format_of(audio.get(side), f"session.audio.{side}.format") or self._formats[side]
            for side in self._formats
        }
        self._formats = formats
        return self._answered(self._told.event("session.updated", session=self._session()))

    async def _append(self, event: dict[str, Any]) -> Taken:
        audio = decoded(event.get("audio"))
        kind = self._formats["input"]["type"]
        if audio is None or (kind == "audio/pcm" and len(audio) % 2):
            raise _RefusedError("invalid_value", f"expected {kind} in base64", "audio")
        if not audio:
            return Taken()
        if kind == "audio/pcm":
            audio_s = len(audio) / 2 / RATE
            pcm = await self._up.resample(audio, RATE, self._in_rate)
        else:
            audio_s = len(audio) / G711_RATE
            to_pcm = ulaw_to_pcm if kind == "audio/pcmu" else alaw_to_pcm
            pcm = await to_pcm(audio, G711_RATE, self._in_rate, self._up)
        self._told.came_ms += audio_s * 1000
        self._frames.append(InputAudioRawFrame(pcm, self._in_rate, 1))
        return Taken(passes=True, audio_s=audio_s)

    async def _clear(self, event: dict[str, Any]) -> Taken:
        # The agent has heard what was appended: nothing is left to clear.
        return self._answered(self._told.event("input_audio_buffer.cleared"))

    async def _commit(self, event: dict[str, Any]) -> Taken:
        words = "this agent hears audio as it comes and finds the end of a turn itself"
        raise _RefusedError("input_audio_buffer_commit_empty", words)

    async def _create_item(self, event: dict[str, Any]) -> Taken:
        item = ConversationItemCreateEvent.model_validate(event).item
        texts = [p.text for p in item.content] if isinstance(item, UserMessage) else []
        if not texts or None in texts:
            words = "expected a message of the user with content of type input_text"
            raise _RefusedError("unsupported", words, "item")
        text = " ".join(filter(None, texts)).strip()
        chars = sum(self._typed) + len(text)
        if not text or chars > TEXT_CHARS or len(self._typed) >= MOST_TYPED:
            words = f"expected 1 to {TEXT_CHARS} characters, in at most {MOST_TYPED} items in all"
            raise _RefusedError("invalid_value", f"{words} before the next answer", "item.content")
        self._typed.append(len(text))
        self._is_unanswered = True
        self._ask(SAY, {"text": text, "answer": False})
        return self._answered(*self._told.typed(text), passes=True)

    async def _truncate(self, event: dict[str, Any]) -> Taken:
        asked = ConversationItemTruncateEvent.model_validate(event)
        said_ms = self._told.said_ms.get(asked.item_id)
        if said_ms is None:
            words = "expected the item_id of a reply of this session"
            raise _RefusedError("item_not_found", words, "item_id")
        if not 0 <= asked.audio_end_ms <= said_ms + 1:
            words = f"{said_ms:.0f} ms of that item were sent, not {asked.audio_end_ms}"
            raise _RefusedError("invalid_value", words, "audio_end_ms")
        # The agent remembers what was sent until it was interrupted, which is what was heard but
        # for the few milliseconds that were ahead.
        answer = self._told.event(
            "conversation.item.truncated",
            item_id=asked.item_id,
            content_index=0,
            audio_end_ms=asked.audio_end_ms,
        )
        return self._answered(answer)

    async def _create_response(self, event: dict[str, Any]) -> Taken:
        wanted = _object(event, "response")
        if wanted.get("input") or wanted.get("conversation", "auto") != "auto":
            words = "a response outside the conversation cannot be had"
            raise _RefusedError("unsupported", words, "response")
        if self._told.replies or self._told.thinking:
            words = "a response is in progress: cancel it first, or wait for response.done"
            raise _RefusedError("conversation_already_has_active_response", words)
        if not self._is_unanswered:
            words = "nothing to answer: create an item with text first (speech is answered anyway)"
            raise _RefusedError("unsupported", words)
        self._typed.clear()
        self._is_unanswered = False
        self._ask(ANSWER, {})
        return self._answered(*self._told.asked(), passes=True, asks="")

    async def _cancel(self, event: dict[str, Any]) -> Taken:
        if not self._told.replies:
            raise _RefusedError("response_cancel_not_active", "no response is in progress")
        self._told.by_client = True
        self._ask(CANCEL, {})
        return Taken(passes=True, asks="")

    def _ask(self, kind: str, data: dict[str, Any]) -> None:
        asked = {"t": kind, "d": data}
        message = {"label": "rtvi-ai", "type": "client-message", "id": kind, "data": asked}
        self._frames.append(InputTransportMessageFrame(message=message))

    def _answered(self, *events: Event, passes: bool = False, asks: str | None = None) -> Taken:
        return Taken(passes=passes, asks=asks, answers=[json.dumps(event) for event in events])

    def _refused(self, event: dict[str, Any], error: _RefusedError) -> Taken:
        theirs = event.get("event_id")
        said = {
            "type": "invalid_request_error",
            "code": error.code,
            "message": str(error),
            "param": error.param,
            "event_id": theirs[:100] if isinstance(theirs, str) else None,
        }
        # Who asks again and again is hung up on, whether or not there was anything to answer.
        asks = "" if event.get("type") == "response.create" else None
        return self._answered(self._told.event("error", error=said), asks=asks)

    def _session(self) -> dict[str, Any]:
        return session_of(self._model, self._formats)

    # What the pipeline sends and gets

    def received(self) -> Frame:
        return self._frames.popleft()

    async def sent(self, frame: Frame) -> list[Event]:
        """Return the events of a frame of the agent."""
        if isinstance(frame, InterruptionFrame):
            await self._down.reset()
            return self._told.interrupted()
        if isinstance(frame, OutputAudioRawFrame):
            ms = frame.num_frames * 1000 / frame.sample_rate
            return self._told.audio(await self._encoded(frame.audio, frame.sample_rate), ms)
        if isinstance(frame, OutputTransportMessageFrame | OutputTransportMessageUrgentFrame):
            message = frame.message
            return await self._of_rtvi(message) if rtvi.is_rtvi(message) else []
        return []

    async def _of_rtvi(self, message: dict[str, Any]) -> list[Event]:
        rest: list[Event] = []
        if message.get("type") == "bot-llm-started":
            self._typed.clear()  # it has read them
        elif message.get("type") == "bot-stopped-speaking" and self._told.is_heard:
            # The rest of this reply must not come at the head of the next one.
            kind = self._formats["output"]["type"]
            audio = await self._encoded(await self._down.flush(), FORMATS[kind])
            rest = self._told.audio(audio, 0) if audio else []
        return rest + self._told.rtvi(message)

    def due(self, now_ns: int) -> list[str]:
        return [json.dumps(event) for event in self._told.due(now_ns)]

    async def _encoded(self, audio: bytes, rate: int) -> bytes:
        kind = self._formats["output"]["type"]
        if kind == "audio/pcm":
            return await self._down.resample(audio, rate, RATE)
        from_pcm = pcm_to_ulaw if kind == "audio/pcmu" else pcm_to_alaw
        return await from_pcm(audio, rate, G711_RATE, self._down)


class _Serializer(FrameSerializer):
    """Hands frames to a session and takes them from it; events are told apart by their lines."""

    def __init__(self, session: OpenAIRealtime) -> None:
        super().__init__()
        self._session = session

    async def serialize(self, frame: Frame) -> str | bytes | None:
        events = await self._session.sent(frame)
        return "\n".join(map(json.dumps, events)) or None

    async def deserialize(self, data: str | bytes) -> Frame | None:
        return self._session.received()


def _object(values: dict[str, Any], key: str, where: str = "") -> dict[str, Any]:
    value = values.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _RefusedError("invalid_value", "expected an object", where + key)
    return value


def _format_of(side: Any, where: str) -> dict[str, Any] | None:
    """Return the format that a client wants, if it names one."""
    wanted = side.get("format") if isinstance(side, dict) else None
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    rate = FORMATS.get(kind) if isinstance(kind, str) else None
    if rate is None or wanted.get("rate", rate) != rate:
        known = f"audio/pcm at {RATE} Hz, audio/pcmu or audio/pcma"
        raise _RefusedError("invalid_value", f"expected {known}", where)
    return PCM if kind == "audio/pcm" else {"type": kind}

"""OpenAI's Realtime API: what the agent does, as the events that a client reads. No I/O.

RTVI's messages tell what was heard and what is said, as every other client is told it.
"""

from base64 import b64encode
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from turngap.core.clock import ns_to_ms
from turngap.core.untrusted import printable

RATE = 24_000
PCM: dict[str, Any] = {"type": "audio/pcm", "rate": RATE}

# Replies that a client may still truncate.
MOST_SAID = 256

# From the LLM's end until a reply without a sound is over: a voice has failed after 8 s
# (`turngap.agent.guards.VOICE`).
MOST_SILENT_MS = 10_000.0

Event = dict[str, Any]


def session_of(model: str, formats: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a session as it holds, whatever else was asked for."""
    heard = {
        "format": formats["input"],
        "noise_reduction": None,
        "transcription": {},
        "turn_detection": {"type": "server_vad", "create_response": True},
    }
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_1",
        "model": model,
        "output_modalities": ["audio"],
        "instructions": "",
        "tools": [],
        "tool_choice": "none",
        "audio": {"input": heard, "output": {"format": formats["output"], "speed": 1.0}},
    }


@dataclass(slots=True)
class _Turn:
    """What the person says; `begun_ms` of all audio had come when it began."""

    item: str
    begun_ms: float
    heard: list[str] = field(default_factory=list[str])
    over: bool = False


@dataclass(slots=True)
class _Reply:
    id: str
    item: str
    said: list[str] = field(default_factory=list[str])
    audio_ms: float = 0.0
    error: str = ""  # what went wrong meanwhile

    @property
    def place(self) -> dict[str, Any]:
        return {
            "response_id": self.id,
            "item_id": self.item,
            "output_index": 0,
            "content_index": 0,
        }

    def message(self, status: str) -> dict[str, Any]:
        content = [{"type": "output_audio", "transcript": "".join(self.said)}]
        return {
            "id": self.item,
            "object": "realtime.item",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content if status != "in_progress" else [],
        }


class Told:
    """What a client has been told of the conversation so far, and what comes next.

    Attributes:
        came_ms: how much of the person's audio has come.
        by_client: the client, and not a voice, ends the reply that is being made.
        said_ms: how much audio of each reply was sent, by its item.
    """

    def __init__(self) -> None:
        self.came_ms = 0.0
        self.by_client = False
        self.said_ms: OrderedDict[str, float] = OrderedDict()
        self._count = 0
        self._turn: _Turn | None = None
        self._reply: _Reply | None = None
        # The LLM is at work on the reply.
        self.thinking = False
        # The voice has fallen silent before the LLM was done.
        self._silent = False
        # The voice was interrupted, and what is told of its end is not of the next reply.
        self._cut = False
        self._quiet_since_ns: int | None = None

    @property
    def replies(self) -> bool:
        """Whether a reply is being made."""
        return self._reply is not None

    @property
    def is_heard(self) -> bool:
        """Whether the voice of the reply that is being made was last told to speak."""
        return self._reply is not None and not self._cut

    def asked(self) -> list[Event]:
        """Return what a client is told when it has asked for a response."""
        self.thinking = True
        return self._begun()

    def due(self, now_ns: int) -> list[Event]:
        """Return what time alone brings: the end of a reply of which nothing can be heard."""
        reply = self._reply
        if reply is None or reply.audio_ms or self.thinking:
            self._quiet_since_ns = None
        elif self._quiet_since_ns is None:
            self._quiet_since_ns = now_ns
        elif ns_to_ms(now_ns - self._quiet_since_ns) >= MOST_SILENT_MS:
            self._quiet_since_ns = None
            return self._ended("failed" if reply.error else "completed", error=reply.error)
        return []

    def event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "event_id": self._named("event"), **fields}

    def typed(self, text: str) -> list[Event]:
        """Return what a client is told of a text that it has added."""
        content = [{"type": "input_text", "text": text}]
        return self._added(_user_message(self._named("item"), content))

    def audio(self, encoded: bytes, ms: float) -> list[Event]:
        events = self._begun()
        assert self._reply is not None
        self._reply.audio_ms += ms
        self.said_ms[self._reply.item] = self._reply.audio_ms
        if not encoded:  # still in the resampler
            return events
        delta = b64encode(encoded).decode()
        return [
            *events,
            self.event("response.output_audio.delta", **self._reply.place, delta=delta),
        ]

    def interrupted(self) -> list[Event]:
        """Return what an interruption is: a voice, unless the client asked for it."""
        events = [] if self.by_client else self._speech_started()
        reason = "client_cancelled" if self.by_client else "turn_detected"
        self.by_client = self.thinking = False
        self._cut = True
        return events + self._ended("cancelled", reason)

    def rtvi(self, message: dict[str, Any]) -> list[Event]:
        data = message.get("data")
        data = data if isinstance(data, dict) else {}
        match message.get("type"):
            case "user-started-speaking":
                return self._speech_started()
            case "user-stopped-speaking":
                return self._speech_stopped()
            case "user-input" if data.get("final") and data.get("input_type") == "transcription":
                return self._transcribed(str(data.get("text")))
            case "bot-llm-started":
                self.thinking = True
            case "bot-llm-text" | "llm-raw-text" if self.thinking:
                return self._says(str(data.get("text")))
            case "bot-llm-stopped":
                self.thinking = False
                return self._ended("completed") if self._silent else []
            case "bot-started-speaking":
                self._silent = self._cut = False
            case "bot-stopped-speaking" if not self._cut:
                self._silent = self.thinking
                return [] if self.thinking else self._ended("completed")
            case "error":
                why = printable(str(data.get("error")))[:500]
                return self._failed(why, is_over=data.get("fatal") is True)
            case _:
                pass
        return []

    # The person

    def _speech_started(self) -> list[Event]:
        if self._turn is not None and not self._turn.over:
            return []
        turn = self._turn = _Turn(self._named("item"), self.came_ms)
        at_ms = round(turn.begun_ms)
        kind = "input_audio_buffer.speech_started"
        return [self.event(kind, audio_start_ms=at_ms, item_id=turn.item)]

    def _speech_stopped(self) -> list[Event]:
        turn = self._turn
        if turn is None or turn.over:
            return []
        turn.over = True
        stopped = self.event(
            "input_audio_buffer.speech_stopped",
            audio_end_ms=round(self.came_ms),
            item_id=turn.item,
        )
        committed = self.event("input_audio_buffer.committed", item_id=turn.item)
        content = [{"type": "input_audio", "transcript": " ".join(turn.heard) or None}]
        events = [stopped, committed, *self._added(_user_message(turn.item, content))]
        return [*events, self._transcript(turn)] if turn.heard else events

    def _transcribed(self, text: str) -> list[Event]:
        """Note words; those of a turn are told together, and again if some come too late."""
        if self._turn is None:
            return []
        self._turn.heard.append(text.strip())
        return [self._transcript(self._turn)] if self._turn.over else []

    def _transcript(self, turn: _Turn) -> Event:
        return self.event(
            "conversation.item.input_audio_transcription.completed",
            item_id=turn.item,
            content_index=0,
            transcript=" ".join(turn.heard),
            usage={"type": "duration", "seconds": (self.came_ms - turn.begun_ms) / 1000},
        )

    def _added(self, item: dict[str, Any]) -> list[Event]:
        kinds = ("conversation.item.added", "conversation.item.done")
        return [self.event(kind, item=item) for kind in kinds]

    # The agent

    def _says(self, text: str) -> list[Event]:
        events = self._begun()
        assert self._reply is not None
        self._reply.said.append(text)
        kind = "response.output_audio_transcript.delta"
        return [*events, self.event(kind, **self._reply.place, delta=text)]

    def _begun(self) -> list[Event]:
        if self._reply is not None:
            return []
        reply = self._reply = _Reply(self._named("resp"), self._named("item"))
        self.by_client = False
        self.said_ms[reply.item] = 0.0
        if len(self.said_ms) > MOST_SAID:
            self.said_ms.popitem(last=False)
        item = reply.message("in_progress")
        part = {"type": "audio", "transcript": ""}
        return [
            self.event("response.created", response=_response(reply, "in_progress")),
            self.event(
                "response.output_item.added", response_id=reply.id, output_index=0, item=item
            ),
            self.event("conversation.item.added", item=item),
            self.event("response.content_part.added", **reply.place, part=part),
        ]

    def _ended(self, status: str, reason: str | None = None, error: str = "") -> list[Event]:
        reply, self._reply, self._silent = self._reply, None, False
        if reply is None:
            return []
        text = "".join(reply.said)
        item = reply.message("completed" if status == "completed" else "incomplete")
        part = {"type": "audio", "transcript": text}
        return [
            self.event("response.output_audio.done", **reply.place),
            self.event("response.output_audio_transcript.done", **reply.place, transcript=text),
            self.event("response.content_part.done", **reply.place, part=part),
            self.event(
                "response.output_item.done", response_id=reply.id, output_index=0, item=item
            ),
            self.event("conversation.item.done", item=item),
            self.event("response.done", response=_response(reply, status, reason, error, item)),
        ]

    def _failed(self, why: str, *, is_over: bool) -> list[Event]:
        if self._reply is not None:
            self._reply.error = why
        error = {"type": "server_error", "code": None, "message": why, "param": None}
        ended = self._ended("failed", error=why) if is_over else []
        return [self.event("error", error=error), *ended]

    def _named(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"


def _user_message(item: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": item,
        "object": "realtime.item",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": content,
    }


def _response(
    reply: _Reply,
    status: str,
    reason: str | None = None,
    error: str = "",
    item: dict[str, Any] | None = None,
) -> dict[str, Any]:
    details: dict[str, Any] | None = None
    if status != "in_progress":
        details = {"type": status}
        if reason:
            details["reason"] = reason
        if error:
            details["error"] = {"type": "server_error", "message": error}
    return {
        "id": reply.id,
        "object": "realtime.response",
        "status": status,
        "status_details": details,
        "output": [item] if item else [],
        "output_modalities": ["audio"],
        "conversation_id": "conv_1",
    }

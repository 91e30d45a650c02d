"""The agent's half of `openai-realtime`: a server of the Realtime API, in either form."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from turngap.caller.dialects.encoding import Encoding, Kind
from turngap.caller.dialects.json_events import event_of, inside
from turngap.caller.said import Message
from turngap.testing.dialects.half import Begun, FromCaller, Spoken, Truncated

PCM_RATE = 24_000

# What the beta calls the events that have another name today.
_BETA_EVENTS = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}
_KINDS: dict[str, Kind] = {
    **{"audio/pcm": "pcm", "audio/pcmu": "pcmu", "audio/pcma": "pcma"},
    **{"pcm16": "pcm", "g711_ulaw": "pcmu", "g711_alaw": "pcma"},
}


class OpenAIRealtimeHalf:
    """A server that hears the person's turns by itself, one reply at a time.

    Args:
        beta: speak the beta's names and fields.
    """

    def __init__(self, *, beta: bool = False) -> None:
        self._beta = beta
        self._format: Any = "pcm16" if beta else {"type": "audio/pcm", "rate": PCM_RATE}
        self._audio = Encoding.of("pcm", PCM_RATE)
        self.in_rate = self.out_rate = PCM_RATE
        self._events = self._replies = self._turns = 0
        self._samples: dict[str, int] = {}  # of each item's audio
        self._open = False
        self._texts: list[str] = []

    def opens(self) -> list[Message]:
        return [self._event("session.created", session=self._session())]

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = event_of(message)
        match event["type"]:
            case "session.update":
                return self._configured(inside(event, "session"))
            case "input_audio_buffer.append":
                pcm = np.frombuffer(self._audio.decode(event["audio"]), dtype="<i2")
                return [Spoken(pcm)], []
            case "conversation.item.truncate":
                return self._truncated(event)
            case _:
                return [], [self._error(event, f"unknown event type {event['type']!r}")]

    def ready(self) -> list[Message]:
        return [self._event("session.updated", session=self._session())]

    def audio(self, pcm: bytes) -> list[Message]:
        begun = self._begin()
        self._samples[self._item] += len(pcm) // 2
        delta = self._audio.encode(pcm)
        return [*begun, self._event("response.output_audio.delta", **self._part(), delta=delta)]

    def flush(self) -> list[Message]:
        """Say that the person speaks, which cancels the reply that is being made."""
        started = self._event(
            "input_audio_buffer.speech_started", audio_start_ms=0, item_id=self._person
        )
        return [started, *(self._over("cancelled") if self._open else [])]

    def turn_over(self, transcript: str) -> list[Message]:
        person = self._person
        self._turns += 1
        completed = "conversation.item.input_audio_transcription.completed"
        text = {"transcript": transcript, "usage": {"type": "duration", "seconds": 0}}
        return [
            self._event("input_audio_buffer.speech_stopped", audio_end_ms=0, item_id=person),
            self._event("input_audio_buffer.committed", previous_item_id=None, item_id=person),
            self._event(completed, item_id=person, content_index=0, **text),
        ]

    def reply_text(self, text: str) -> list[Message]:
        begun = self._begin()
        self._texts.append(text)
        kind = "response.output_audio_transcript.delta"
        return [*begun, self._event(kind, **self._part(), delta=text)]

    def reply_done(self) -> list[Message]:
        """Say so, unless the reply was cancelled, which has been said."""
        if not self._open:
            return []
        transcript = "".join(self._texts)
        return [
            self._event("response.output_audio.done", **self._part()),
            self._event(
                "response.output_audio_transcript.done", **self._part(), transcript=transcript
            ),
            *self._over("completed"),
        ]

    def told(self, data: dict[str, Any]) -> list[Message]:
        """Say nothing: the protocol carries no messages of others."""
        return []

    # Replies

    @property
    def _item(self) -> str:
        return f"item_reply_{self._replies}"

    @property
    def _person(self) -> str:
        return f"item_person_{self._turns + 1}"

    @property
    def _reply(self) -> str:
        return f"resp_{self._replies}"

    def _part(self) -> dict[str, Any]:
        where = {"output_index": 0, "content_index": 0}
        return {"response_id": self._reply, "item_id": self._item, **where}

    def _begin(self) -> list[Message]:
        if self._open:
            return []
        self._open, self._texts = True, []
        self._replies += 1
        self._samples[self._item] = 0
        item = {"id": self._item, "type": "message", "role": "assistant", "content": []}
        return [
            self._event("response.created", response=self._response("in_progress")),
            self._event(
                "response.output_item.added", response_id=self._reply, output_index=0, item=item
            ),
            self._event("conversation.item.added", previous_item_id=None, item=item),
        ]

    def _over(self, status: str) -> list[Message]:
        self._open = False
        return [self._event("response.done", response=self._response(status))]

    def _response(self, status: str) -> dict[str, Any]:
        details = {"type": "cancelled", "reason": "turn_detected"}
        about = {"object": "realtime.response", "id": self._reply, "status": status, "output": []}
        return {**about, "status_details": details if status == "cancelled" else None}

    # The session

    def _configured(self, asked: Mapping[str, Any]) -> tuple[list[FromCaller], list[Message]]:
        told = asked.get("input_audio_format") or inside(asked, "audio", "input").get("format")
        if told:
            self._format = told
            kind = _KINDS[told if isinstance(told, str) else told["type"]]
            self._audio = Encoding.of(kind, inside({"of": told}, "of").get("rate", PCM_RATE))
            self.in_rate = self.out_rate = self._audio.rate
        return [Begun()], []

    def _truncated(self, event: Mapping[str, Any]) -> tuple[list[FromCaller], list[Message]]:
        item, heard_ms = event["item_id"], event["audio_end_ms"]
        if item not in self._samples:
            return [], [self._error(event, f"no item {item!r}")]
        if heard_ms > self._samples[item] * 1000 / self._audio.rate:
            return [], [self._error(event, f"audio of {item!r} is shorter than {heard_ms} ms")]
        about = {"item_id": item, "content_index": 0, "audio_end_ms": heard_ms}
        return [Truncated(heard_ms)], [self._event("conversation.item.truncated", **about)]

    def _session(self) -> dict[str, Any]:
        detection = {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 500}
        detection |= {"create_response": True, "interrupt_response": True}
        if self._beta:
            formats = {"input_audio_format": self._format, "output_audio_format": self._format}
            flat = {"object": "realtime.session", "modalities": ["audio", "text"]}
            return {"id": "sess_1", **flat, **formats, "turn_detection": detection}
        source = {"format": self._format, "transcription": None, "turn_detection": detection}
        audio = {"input": source, "output": {"format": self._format, "voice": "tone"}}
        about = {"type": "realtime", "object": "realtime.session", "id": "sess_1"}
        return {**about, "output_modalities": ["audio"], "audio": audio}

    def _error(self, event: Mapping[str, Any], message: str) -> Message:
        kind = "invalid_request_error"
        about = {"type": kind, "message": message, "event_id": event.get("event_id")}
        return self._event("error", error=about)

    def _event(self, kind: str, **about: Any) -> Message:
        self._events += 1
        kind = _BETA_EVENTS.get(kind, kind) if self._beta else kind
        return json.dumps({"type": kind, "event_id": f"event_{self._events}", **about})

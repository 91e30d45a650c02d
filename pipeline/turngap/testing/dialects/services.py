"""The agent's halves of the dialects of hosted services, which speak JSON."""

import json
from collections.abc import Mapping
from typing import Any

from turngap.caller.dialects import deepgram_agent, gemini_live
from turngap.caller.dialects.encoding import Encoding, Kind, event_of, inside
from turngap.caller.said import Message
from turngap.testing.dialects import AgentHalf, Begun, FromCaller, HungUp, Spoken, Truncated


def _event(kind: str, **values: Any) -> Message:
    return json.dumps({"type": kind, **values})


class DeepgramAgentHalf(AgentHalf):
    """Speaks as Deepgram's Voice Agent does, in linear16 at the rates that the caller asks for."""

    in_rate = deepgram_agent.RATE_UP
    out_rate = deepgram_agent.RATE_DOWN

    def opens(self) -> list[Message]:
        return [_event("Welcome", request_id="00000000-0000-0000-0000-000000000000")]

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        if isinstance(message, bytes):
            return [Spoken.of(message)], []
        event = json.loads(message)
        if event.get("type") != "Settings":
            return [], []
        audio = event["audio"]
        self.in_rate = audio["input"]["sample_rate"]
        self.out_rate = audio["output"]["sample_rate"]
        return [Begun()], []

    def ready(self) -> list[Message]:
        return [_event("SettingsApplied")]

    def audio(self, pcm: bytes) -> list[Message]:
        return [pcm]

    def flush(self) -> list[Message]:
        return [_event("UserStartedSpeaking")]

    def turn_over(self, transcript: str) -> list[Message]:
        return [_event("ConversationText", role="user", content=transcript)]

    def reply_text(self, text: str) -> list[Message]:
        return [_event("ConversationText", role="assistant", content=text)]

    def reply_done(self) -> list[Message]:
        return [_event("AgentAudioDone")]


_PCM = Encoding("pcm", 16_000)


class ElevenLabsHalf(AgentHalf):
    """Speaks as an agent of ElevenLabs does, in PCM16 at 16 kHz both ways."""

    in_rate = 16_000
    out_rate = 16_000

    def __init__(self) -> None:
        self._number = 0  # of the latest audio or interruption

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = json.loads(message)
        if "user_audio_chunk" in event:
            pcm = _PCM.decode(event["user_audio_chunk"])
            return [Spoken.of(pcm)], []
        if event.get("type") == "conversation_initiation_client_data":
            return [Begun()], []
        return [], []

    def ready(self) -> list[Message]:
        formats = dict.fromkeys(
            ("agent_output_audio_format", "user_input_audio_format"), "pcm_16000"
        )
        about = {"conversation_id": "conv_0", **formats}
        kind = "conversation_initiation_metadata"
        return [
            _event(kind, conversation_initiation_metadata_event=about),
            _event("ping", ping_event={"event_id": self._next(), "ping_ms": None}),
        ]

    def audio(self, pcm: bytes) -> list[Message]:
        chunk = {"audio_base_64": _PCM.encode(pcm), "event_id": self._next()}
        return [_event("audio", audio_event=chunk)]

    def flush(self) -> list[Message]:
        return [_event("interruption", interruption_event={"event_id": self._number})]

    def turn_over(self, transcript: str) -> list[Message]:
        return [_event("user_transcript", user_transcription_event={"user_transcript": transcript})]

    def reply_text(self, text: str) -> list[Message]:
        return [_event("agent_response", agent_response_event={"agent_response": text})]

    def reply_done(self) -> list[Message]:
        return [_event("agent_response_complete")]

    def _next(self) -> int:
        self._number += 1
        return self._number


class GeminiLiveHalf(AgentHalf):
    """Speaks as Gemini's Live API does: JSON in binary messages."""

    in_rate = gemini_live.RATE_UP
    out_rate = gemini_live.RATE_DOWN

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = json.loads(message)
        if "setup" in event:
            return [Begun()], []
        # Google's own SDK writes it the second way, as JSON of protobuf may.
        if spoken := event.get("realtimeInput") or event.get("realtime_input"):
            return [Spoken.of(gemini_live.audio_of(spoken["audio"], gemini_live.RATE_UP))], []
        return [], []

    def ready(self) -> list[Message]:
        return [_message({"setupComplete": {}})]

    def audio(self, pcm: bytes) -> list[Message]:
        blob = {
            "mimeType": f"audio/pcm;rate={self.out_rate}",
            "data": Encoding("pcm", self.out_rate).encode(pcm),
        }
        return [_content(modelTurn={"parts": [{"inlineData": blob}]})]

    def flush(self) -> list[Message]:
        return [_content(interrupted=True)]

    def turn_over(self, transcript: str) -> list[Message]:
        # In two pieces, as the real ones come.
        half = len(transcript) // 2
        pieces = (transcript[:half], transcript[half:])
        return [_content(inputTranscription={"text": piece}) for piece in pieces]

    def reply_text(self, text: str) -> list[Message]:
        return [_content(outputTranscription={"text": text})]

    def reply_done(self) -> list[Message]:
        return [_content(generationComplete=True), _content(turnComplete=True)]


def _content(**values: Any) -> Message:
    return _message({"serverContent": values})


def _message(value: dict[str, Any]) -> Message:
    return json.dumps(value).encode()


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


class _NumberedEvents(AgentHalf):
    """A server of OpenAI's, which numbers its events."""

    def __init__(self) -> None:
        self._encoding = Encoding.of("pcm", PCM_RATE)
        self.in_rate = self.out_rate = PCM_RATE
        self._events = 0

    def _encode_as(self, kind: str, rate: int) -> None:
        self._encoding = Encoding.of(_KINDS[kind], rate)
        self.in_rate = self.out_rate = self._encoding.rate

    def _event(self, kind: str, **about: Any) -> Message:
        self._events += 1
        return json.dumps({"type": kind, "event_id": f"event_{self._events}", **about})


class GptLiveHalf(_NumberedEvents):
    """A server that sends audio and pieces of transcripts, but no messages about turns."""

    def __init__(self) -> None:
        super().__init__()
        self._session: dict[str, Any] = {}
        self._spoken = self._said = 0  # in samples

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = event_of(message)
        match event["type"]:
            case "session.start":
                asked = inside(event, "session")
                encoding = inside(asked, "audio", "format")
                self._encode_as(encoding.get("type", "audio/pcm"), encoding.get("rate", PCM_RATE))
                self._session = {**asked, "id": "live_1", "expires_at": 0, "status": "active"}
                return [Begun()], []
            case "session.input_audio.append":
                spoken = Spoken.of(self._encoding.decode(event["audio"]))
                self._spoken += len(spoken.pcm)
                return [spoken], []
            case "session.close":
                usage = {"seconds": self._spoken / self.in_rate}
                about = {"reason": "close_requested", "session": self._session, "usage": usage}
                return [HungUp()], [self._event("session.closed", **about)]
            case other:
                said = f"unknown event type {other!r}"
                error = {"type": "invalid_request_error", "code": "unknown_event", "message": said}
                return [], [self._event("error", error=error)]

    def ready(self) -> list[Message]:
        return [self._event("session.started", session=self._session)]

    def audio(self, pcm: bytes) -> list[Message]:
        self._said += len(pcm) // 2
        delta = {"type": "session.output_audio.delta", "delta": self._encoding.encode(pcm)}
        return [json.dumps(delta)]  # the only event without an id

    def turn_over(self, transcript: str) -> list[Message]:
        """Send the transcript; the protocol has no message for the end of a turn."""
        return [self._transcript("session.input_transcript.delta", transcript, self._spoken)]

    def reply_text(self, text: str) -> list[Message]:
        return [self._transcript("session.output_transcript.delta", text, self._said)]

    def _transcript(self, kind: str, text: str, samples: int) -> Message:
        at_ms = samples * 1000 // self.in_rate
        return self._event(kind, delta=text, start_ms=at_ms, end_ms=at_ms)


class OpenAIRealtimeHalf(_NumberedEvents):
    """A server that hears the person's turns by itself, one reply at a time.

    Args:
        beta: speak the beta's names and fields.
    """

    def __init__(self, *, beta: bool = False) -> None:
        super().__init__()
        self._beta = beta
        self._format: Any = "pcm16" if beta else {"type": "audio/pcm", "rate": PCM_RATE}
        self._replies = self._turns = 0
        self._samples: dict[str, int] = {}  # of each item's audio
        self._open = False
        self._texts: list[str] = []

    def opens(self) -> list[Message]:
        return [self._event("session.created", session=self._session())]

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = event_of(message)
        match event["type"]:
            case "session.update":
                self._configure(inside(event, "session"))
                return [Begun()], []
            case "input_audio_buffer.append":
                return [Spoken.of(self._encoding.decode(event["audio"]))], []
            case "conversation.item.truncate":
                return self._truncated(event)
            case _:
                return [], [self._error(event, f"unknown event type {event['type']!r}")]

    def ready(self) -> list[Message]:
        return [self._event("session.updated", session=self._session())]

    def audio(self, pcm: bytes) -> list[Message]:
        begun = self._begin()
        self._samples[self._item] += len(pcm) // 2
        delta = self._encoding.encode(pcm)
        return [*begun, self._event("response.output_audio.delta", **self._part(), delta=delta)]

    def flush(self) -> list[Message]:
        """Report that the person speaks, which cancels the reply in progress."""
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
        """Report the end of the reply, unless it was already reported as cancelled."""
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

    def _configure(self, asked: Mapping[str, Any]) -> None:
        form = asked.get("input_audio_format") or inside(asked, "audio", "input").get("format")
        if form:
            self._format = form
            kind = form if isinstance(form, str) else form["type"]
            self._encode_as(kind, inside({"of": form}, "of").get("rate", PCM_RATE))

    def _truncated(self, event: Mapping[str, Any]) -> tuple[list[FromCaller], list[Message]]:
        item, heard_ms = event["item_id"], event["audio_end_ms"]
        if item not in self._samples:
            return [], [self._error(event, f"no item {item!r}")]
        if heard_ms > self._samples[item] * 1000 / self._encoding.rate:
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
        return super()._event(_BETA_EVENTS.get(kind, kind) if self._beta else kind, **about)

"""The agent's half of `gpt-live`: a server of the Live API."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from turngap.caller.dialects.encoding import Encoding, Kind
from turngap.caller.dialects.json_events import event_of, inside
from turngap.caller.said import Message
from turngap.testing.dialects.half import Begun, FromCaller, HungUp, Spoken

PCM_RATE = 24_000

_KINDS: dict[str, Kind] = {"audio/pcm": "pcm", "audio/pcmu": "pcmu", "audio/pcma": "pcma"}


class GptLiveHalf:
    """A server that sends audio and pieces of transcripts, and no word about turns."""

    def __init__(self) -> None:
        self._encoding = Encoding.of("pcm", PCM_RATE)
        self.in_rate = self.out_rate = PCM_RATE
        self._session: dict[str, Any] = {}
        self._events = self._spoken = self._said = 0  # the latter two in samples

    def opens(self) -> list[Message]:
        """Say nothing: the caller begins."""
        return []

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = event_of(message)
        match event["type"]:
            case "session.start":
                return self._started(inside(event, "session"))
            case "session.input_audio.append":
                pcm = np.frombuffer(self._encoding.decode(event["audio"]), dtype="<i2")
                self._spoken += len(pcm)
                return [Spoken(pcm)], []
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

    def flush(self) -> list[Message]:
        """Say nothing: what was sent is played."""
        return []

    def turn_over(self, transcript: str) -> list[Message]:
        """Say what was understood; of turns the protocol knows nothing."""
        return [self._transcript("session.input_transcript.delta", transcript, self._spoken)]

    def reply_text(self, text: str) -> list[Message]:
        return [self._transcript("session.output_transcript.delta", text, self._said)]

    def reply_done(self) -> list[Message]:
        """Say nothing: of replies the protocol knows nothing."""
        return []

    def told(self, data: dict[str, Any]) -> list[Message]:
        """Say nothing: the protocol carries no messages of others."""
        return []

    def _started(self, asked: Mapping[str, Any]) -> tuple[list[FromCaller], list[Message]]:
        told = inside(asked, "audio", "format")
        kind = _KINDS[told.get("type", "audio/pcm")]
        self._encoding = Encoding.of(kind, told.get("rate", PCM_RATE))
        self.in_rate = self.out_rate = self._encoding.rate
        self._session = {**asked, "id": "live_1", "expires_at": 0, "status": "active"}
        return [Begun()], []

    def _transcript(self, kind: str, text: str, samples: int) -> Message:
        at_ms = samples * 1000 // self.in_rate
        return self._event(kind, delta=text, start_ms=at_ms, end_ms=at_ms)

    def _event(self, kind: str, **about: Any) -> Message:
        self._events += 1
        return json.dumps({"type": kind, "event_id": f"event_{self._events}", **about})

"""The agent's halves of the phone companies' dialects: they queue audio, put marks and clear."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from turngap.caller.dialects import exotel, plivo, telnyx, twilio
from turngap.caller.dialects.telephony import LINEAR, Codec, Names
from turngap.caller.said import Message
from turngap.core.wire import MU_LAW, RATE
from turngap.testing.dialects import AgentHalf, Begun, FromCaller, HungUp, Played, Spoken


class PhoneHalf(AgentHalf):
    """An agent on a media stream in JSON, as Twilio has it; it marks the end of each reply.

    A phone company and an agent exchange only audio and marks. The caller's opening sets the codec
    and the rate.
    """

    names: Names = twilio.NAMES
    codec: Codec = MU_LAW

    def __init__(self) -> None:
        self.in_rate = self.out_rate = RATE
        self._stream = ""
        self._replies = 0

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        said: dict[str, Any] = json.loads(message)
        return self._on_event(said["event"], said), []

    def audio(self, pcm: bytes) -> list[Message]:
        data = self.codec.encode(np.frombuffer(pcm, np.int16))
        media = {**self._format(), "payload": base64.b64encode(data).decode()}
        return self._say(self.names.media, media=media)

    def flush(self) -> list[Message]:
        return self._say(self.names.clear)

    def reply_done(self) -> list[Message]:
        self._replies += 1
        return self._say(self.names.mark, **self._marked(f"reply {self._replies}"))

    # What differs

    def _begin(self, start: Mapping[str, Any]) -> None:
        """Read the audio format from the stream's beginning."""

    def _on_event(self, event: str, said: Mapping[str, Any]) -> list[FromCaller]:
        match event:
            case "start":
                self._stream = said[self.names.stream]
                self._begin(said["start"])
                return [Begun()]
            case "media":
                data = base64.b64decode(said["media"]["payload"])
                return [Spoken(self.codec.decode(data))]
            case "mark":
                return [Played(said["mark"]["name"])]
            case "stop":
                return [HungUp()]
            case _:  # connected, dtmf
                return []

    def _format(self) -> dict[str, Any]:
        return {}

    def _marked(self, name: str) -> dict[str, Any]:
        return {"mark": {"name": name}}

    def _say(self, event: str, **body: Any) -> list[Message]:
        return [json.dumps({"event": event, self.names.stream: self._stream, **body})]


class TelnyxHalf(PhoneHalf):
    """An agent on a stream of Telnyx."""

    names = telnyx.NAMES

    def _begin(self, start: Mapping[str, Any]) -> None:
        self.codec = telnyx.CODECS[start["media_format"]["encoding"]]


class ExotelHalf(PhoneHalf):
    """An agent on a stream of Exotel."""

    names = exotel.NAMES
    codec = LINEAR

    def _begin(self, start: Mapping[str, Any]) -> None:
        self.in_rate = self.out_rate = int(start["media_format"]["sample_rate"])


class PlivoHalf(PhoneHalf):
    """An agent on a stream of Plivo, to which it sends µ-law."""

    names = plivo.NAMES

    def _on_event(self, event: str, said: Mapping[str, Any]) -> list[FromCaller]:
        if event == "playedStream":
            return [Played(said["name"])]
        return super()._on_event(event, said)

    def _format(self) -> dict[str, Any]:
        return {"contentType": plivo.ENCODING, "sampleRate": RATE}

    def _marked(self, name: str) -> dict[str, Any]:
        return {"name": name}


class VonageHalf(PhoneHalf):
    """An agent on a WebSocket of Vonage, where audio is binary."""

    codec = LINEAR

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        if isinstance(message, bytes):
            return [Spoken(LINEAR.decode(message))], []
        return super().receive_data(message)

    def audio(self, pcm: bytes) -> list[Message]:
        return [pcm]

    def flush(self) -> list[Message]:
        return [json.dumps({"action": "clear"})]

    def reply_done(self) -> list[Message]:
        self._replies += 1
        notify = {"action": "notify", "payload": {"name": f"reply {self._replies}"}}
        return [json.dumps(notify)]

    def _on_event(self, event: str, said: Mapping[str, Any]) -> list[FromCaller]:
        match event:
            case "websocket:connected":
                self.in_rate = self.out_rate = int(said["content-type"].partition("rate=")[2])
                return [Begun()]
            case "websocket:notify":
                return [Played(said["payload"]["name"])]
            case _:
                return []

"""The `vonage` dialect: WebSockets of Vonage's Voice API, and its Audio Connector, which is alike.

It follows https://developer.vonage.com/en/voice/voice-api/guides/websockets: audio is binary, and
messages about it are JSON. The document does not say what happens to a `notify` that was cleared;
here it comes back at once.
"""

from collections.abc import Mapping
from typing import Any, Literal

from turngap.caller.dialects.registry import DialectSpec
from turngap.caller.dialects.telephony import PhoneSession, PhoneSettings, parse, part
from turngap.caller.said import Flush, Incoming, Message, Ready
from turngap.core.untrusted import shown


class VonageSettings(PhoneSettings):
    """The rate, and the `headers` of the endpoint, which are sent with it in the first message."""

    rate: Literal[8000, 16000, 24000] = 16_000
    """rate of the audio in both directions, Hz"""


class VonageSession(PhoneSession):
    """A call on a WebSocket of Vonage."""

    def __init__(self, settings: VonageSettings) -> None:
        super().__init__("vonage", settings.rate)
        self._settings = settings

    def open(self) -> list[Incoming]:
        kind = f"audio/l16;rate={self.rate}"
        self._say("connected", {"content-type": kind, **self._settings.parameters})
        return [Ready()]

    def receive_data(self, message: Message) -> list[Incoming]:
        if isinstance(message, bytes):
            return self._hear(message, self.rate)
        said = parse(message, "action")
        match said["action"]:
            case "clear":
                self._say("cleared", {})
                return [Flush()]
            case "notify":
                self._mark(part(said, "payload"))
                return []
            case action:
                raise ValueError(f"the action {shown(action)}, which vonage does not take")

    def send_audio(self, pcm: bytes) -> None:
        self._waiting.append(pcm)

    def _passed(self, mark: Any, *, heard: bool) -> None:
        self._say("notify", {"payload": mark})

    def _say(self, event: str, body: Mapping[str, Any]) -> None:
        self._send({**body, "event": f"websocket:{event}"})


SPEC = DialectSpec(
    name="vonage",
    about="WebSockets of Vonage's Voice API (binary PCM16, 16 kHz)",
    create=VonageSession,
    settings_type=VonageSettings,
)

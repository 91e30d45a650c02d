"""The `twilio` dialect: Twilio's Media Streams, in both directions (`<Connect><Stream>`).

It follows https://www.twilio.com/docs/voice/media-streams/websocket-messages. Marks come back when
their audio has been played, or at once when it is cleared.
"""

from pydantic import Field

from turngap.caller.dialects.registry import DialectSpec
from turngap.caller.dialects.telephony import JsonPhoneSession, Names, PhoneSettings, new_id
from turngap.core.wire import MU_LAW, RATE

NAMES = Names(stream="streamSid", sequence="sequenceNumber")
# In the form of Twilio's ids. An agent needs its own account's to hang up, and has it.
ACCOUNT_SID = "AC" + "0" * 32


class TwilioSettings(PhoneSettings):
    """The id that is sent to the agent."""

    call_sid: str = Field(default_factory=lambda: f"CA{new_id()}")
    """id of the call; a new one for each by default"""


class TwilioSession(JsonPhoneSession):
    """A call on a Media Stream."""

    def __init__(self, settings: TwilioSettings) -> None:
        super().__init__("twilio", NAMES, f"MZ{new_id()}", MU_LAW)
        self._settings = settings
        self._call = {"accountSid": ACCOUNT_SID, "callSid": settings.call_sid}

    def close(self) -> None:
        self._say("stop", stop=self._call)

    def _begin(self) -> None:
        self._send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        about = {
            **self._call,
            "streamSid": self._stream,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": RATE, "channels": 1},
            "customParameters": self._settings.parameters,
        }
        self._say("start", start=about)


SPEC = DialectSpec(
    name="twilio",
    about="Twilio's Media Streams, as a phone call brings them (µ-law, 8 kHz)",
    create=TwilioSession,
    settings_type=TwilioSettings,
    tried=4,
)

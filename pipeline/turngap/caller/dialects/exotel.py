"""The `exotel` dialect: Exotel's AgentStream, as its Voicebot applet opens it.

It follows https://developer.exotel.com/docs/agentstream/websocket-protocol. Exotel itself sends
100 ms at a time; here a message holds 20 ms as elsewhere, so its own delay is no part of the gap.
"""

from typing import Literal

from pydantic import Field

from turngap.caller.dialects.registry import DialectSpec
from turngap.caller.dialects.telephony import (
    FROM_NUMBER,
    TO_NUMBER,
    JsonPhoneSession,
    Names,
    PhoneSettings,
    new_id,
)
from turngap.core.wire import RATE

NAMES = Names(stream="stream_sid", sequence="sequence_number")
# Exotel's are names that its customers choose.
ACCOUNT_SID = "turngap"


class ExotelSettings(PhoneSettings):
    """The id and the rate that are sent to the agent."""

    call_sid: str = Field(default_factory=new_id)
    """id of the call; a new one for each by default"""
    rate: Literal[8000, 16000, 24000] = RATE
    """rate of the audio in both directions, Hz"""


class ExotelSession(JsonPhoneSession):
    """A call on a stream of Exotel."""

    def __init__(self, settings: ExotelSettings) -> None:
        super().__init__("exotel", NAMES, new_id(), None, settings.rate)
        self._settings = settings
        self._call = {"call_sid": settings.call_sid, "account_sid": ACCOUNT_SID}

    def close(self) -> None:
        self._say("stop", stop={**self._call, "reason": "callended"})

    def _begin(self) -> None:
        settings = self._settings
        self._send({"event": "connected"})
        media_format = {
            "encoding": "audio/x-raw",
            "sample_rate": str(self.rate),
            "bit_rate": "16",
        }
        about = {
            "stream_sid": self._stream,
            **self._call,
            "from": FROM_NUMBER,
            "to": TO_NUMBER,
            "custom_parameters": settings.parameters,
            "media_format": media_format,
        }
        self._say("start", start=about)


SPEC = DialectSpec(
    name="exotel",
    about="Exotel's AgentStream, as its Voicebot applet opens it (PCM16 in base64, 8 kHz)",
    create=ExotelSession,
    settings_type=ExotelSettings,
)

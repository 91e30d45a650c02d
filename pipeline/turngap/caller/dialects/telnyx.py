"""The `telnyx` dialect: Telnyx's media streaming, bidirectional in its mode `rtp`.

It follows https://developers.telnyx.com/api-reference/websockets/stream-call-media-over-websocket.
Marks come back when their audio has been played, or at once when it is cleared.
"""

import uuid
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
from turngap.core.wire import A_LAW, MU_LAW, RATE

NAMES = Names(stream="stream_id", sequence="sequence_number")
CODECS = {"PCMU": MU_LAW, "PCMA": A_LAW, "L16": None}


class TelnyxSettings(PhoneSettings):
    """The id and the codec that are sent to the agent, and the codec of its replies."""

    call_control_id: str = Field(default_factory=lambda: f"v3:{new_id()}")
    """id of the call; a new one for each by default"""
    encoding: Literal["PCMU", "PCMA"] = "PCMU"
    """codec of the person's audio: µ-law or A-law"""
    reply_encoding: Literal["PCMU", "PCMA", "L16"] | None = None
    """codec of the replies (`stream_bidirectional_codec`), where it differs"""
    reply_rate: Literal[8000, 16000, 24000] = RATE
    """rate of replies in L16, Hz (`stream_bidirectional_sampling_rate`)"""


class TelnyxSession(JsonPhoneSession):
    """A call on a media stream of Telnyx."""

    def __init__(self, settings: TelnyxSettings) -> None:
        super().__init__("telnyx", NAMES, str(uuid.uuid4()), CODECS[settings.encoding])
        replies = settings.reply_encoding or settings.encoding
        self._reply_law = CODECS[replies]
        self._reply_rate = settings.reply_rate if replies == "L16" else RATE
        self._settings = settings
        self._call = {"user_id": str(uuid.UUID(int=0)), "call_control_id": settings.call_control_id}

    def close(self) -> None:
        self._say("stop", stop=self._call)

    def _begin(self) -> None:
        settings = self._settings
        self._send({"event": "connected", "version": "1.0.0"})
        about = {
            **self._call,
            "call_session_id": str(uuid.uuid4()),
            "from": FROM_NUMBER,
            "to": TO_NUMBER,
            "client_state": None,
            "custom_parameters": settings.parameters,
            "media_format": {"encoding": settings.encoding, "sample_rate": RATE, "channels": 1},
        }
        self._say("start", start=about)


SPEC = DialectSpec(
    name="telnyx",
    about="Telnyx's media streaming, bidirectional by RTP payloads (µ-law or A-law, 8 kHz)",
    create=TelnyxSession,
    settings_type=TelnyxSettings,
)

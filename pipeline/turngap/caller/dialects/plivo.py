"""The `plivo` dialect: Plivo's audio streams, bidirectional.

It follows https://www.plivo.com/docs/voice/audio-streaming/audio-streaming. A checkpoint comes back
only if all audio before it was played; `clearAudio` is answered, and the checkpoints before it
never come back.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from turngap.caller.dialects.registry import DialectSpec
from turngap.caller.dialects.telephony import (
    JsonPhoneSession,
    Names,
    PhoneSettings,
    name_of,
    payload,
)
from turngap.caller.said import Incoming
from turngap.core.errors import InputError
from turngap.core.untrusted import shown, text_of
from turngap.core.wire import MU_LAW, RATE

NAMES = Names(
    stream="streamId",
    sequence="sequenceNumber",
    number=int,
    media="playAudio",
    mark="checkpoint",
    clear="clearAudio",
)
ENCODING: Literal["audio/x-mulaw"] = "audio/x-mulaw"
# In the form of Plivo's ids. An agent needs its own account's to hang up, and has it.
ACCOUNT_ID = "MA" + "0" * 18
# The agent may choose another format for its own audio, in each message.
FORMATS = {
    (ENCODING, "8000"): MU_LAW,
    ("audio/x-l16", "8000"): None,
    ("audio/x-l16", "16000"): None,
}


class PlivoSettings(PhoneSettings):
    """The id that is sent to the agent."""

    call_id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    """id of the call; a new one for each by default"""
    encoding: Literal["audio/x-mulaw", "audio/x-l16"] = ENCODING
    """codec of the person's audio; the agent names its own in each message"""
    rate: Literal[8000, 16000] = RATE
    """rate of the person's audio as PCM16, Hz"""


class PlivoSession(JsonPhoneSession):
    """A call on an audio stream of Plivo."""

    def __init__(self, settings: PlivoSettings) -> None:
        up = (settings.encoding, str(settings.rate))
        if up not in FORMATS:
            raise InputError("dialect.settings", "dialect 'plivo': µ-law has 8000 Hz")
        law = FORMATS[up]
        super().__init__("plivo", NAMES, str(uuid.uuid4()), law, settings.rate)
        self._settings = settings

    def _begin(self) -> None:
        settings = self._settings
        about = {
            "callId": settings.call_id,
            "streamId": self._stream,
            "accountId": ACCOUNT_ID,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": settings.encoding, "sampleRate": self.rate},
        }
        extra = ";".join(f"{name}={value}" for name, value in settings.parameters.items())
        self._say("start", start=about, extra_headers=extra)

    def _on_media(self, media: Mapping[str, Any]) -> list[Incoming]:
        kind, rate = text_of(media.get("contentType")), text_of(media.get("sampleRate"))
        if (kind, rate) not in FORMATS:
            raise ValueError(
                f"audio as {shown(kind)} at {shown(rate)} Hz, which plivo does not play"
            )
        return self._hear(payload(media), int(rate), FORMATS[kind, rate])

    def _mark_of(self, said: Mapping[str, Any]) -> str:
        return name_of(said)

    def _on_clear(self) -> None:
        self._say("clearedAudio")

    def _passed(self, mark: Any, *, heard: bool) -> None:
        if heard:
            self._say("playedStream", name=mark)


SPEC = DialectSpec(
    name="plivo",
    about="Plivo's audio streams, bidirectional (µ-law, 8 kHz; the agent may send PCM16)",
    create=PlivoSession,
    settings_type=PlivoSettings,
)

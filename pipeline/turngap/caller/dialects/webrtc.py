"""The dialects `webrtc` and `webrtc-openai`: audio in RTP, and messages over a data channel.

`webrtc` is pipecat's `SmallWebRTCTransport`, whose data channel has RTVI; `webrtc-openai` has the
events of OpenAI's Realtime API there. `turngap.caller.rtc` has the transport.
"""

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationInfo, field_validator

from turngap.caller.dialects.encoding import event_of, object_of
from turngap.caller.dialects.openai_realtime import (
    OpenAIRealtimeSession,
    OpenAIRealtimeSettings,
    OpenAISettings,
    Part,
    Setup,
)
from turngap.caller.dialects.registry import DialectSettings, DialectSpec, Key
from turngap.caller.dialects.rtvi import RTVI_LABEL, RtviReader, client_ready, ping
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import Flush, Incoming, LeftOut, Message, Ready, ReplyDone

if TYPE_CHECKING:
    from turngap.caller.rtc.rtp import Datagram

NEEDS = ("aiortc",)
MOST_BUFFER_MS = 1000

_HOST_PORT = r"[^\s?:]+(:(?P<port>[0-9]{1,5}))?"
_SERVER = {
    "stun": f"stun:{_HOST_PORT}",
    "turn": rf"(?!turns.*udp$)turns?:{_HOST_PORT}(\?transport=(udp|tcp))?",
}
# A note of a turn.
READ = "RTP packets timed when they were read, and not by the kernel's clock"


def _buffer(value: Any) -> Any:
    if value != "adaptive" and not (str(value).isdecimal() and int(value) <= MOST_BUFFER_MS):
        raise ValueError(f"expected a number of ms up to {MOST_BUFFER_MS}, or adaptive")
    return value


class WebRtcSettings(DialectSettings):
    """Settings of every call over WebRTC."""

    buffer: Annotated[int | Literal["adaptive"], BeforeValidator(_buffer)] = 60
    """Playout buffer behind which the gap is stated too, in ms (40, 60, 80); or `adaptive`."""
    stun: str = ""
    """STUN server, `stun:HOST:PORT`, which finds out this side's public address."""
    turn: str = ""
    """TURN server, `turn:HOST:PORT` or `turn:HOST:PORT?transport=tcp`, which relays the call.
    Relayed packets arrive when they are read, and not by the kernel's clock."""
    turn_username: str = ""
    """Name for the TURN server."""
    turn_password: str = ""
    """Password for the TURN server; `${NAME}` takes it from the environment."""

    @field_validator("stun", "turn")
    @classmethod
    def _check_server(cls, value: str, about: ValidationInfo) -> str:
        form = _SERVER[about.field_name or ""]
        found = re.fullmatch(form, value)
        if value and not (found and 0 < int(found["port"] or 1) < 2**16):
            raise ValueError(f"write it as {about.field_name}:HOST:PORT, with a port below 65536")
        return value


class SmallWebRtcSettings(WebRtcSettings):
    """Settings of the `webrtc` dialect."""

    rtvi: bool = True
    """Whether the bot speaks RTVI. Without it, a bot is measured by ear alone."""


class OpenAIRtcSettings(WebRtcSettings, OpenAISettings):
    """Settings of the `webrtc-openai` dialect; the server keeps its own values for the rest."""


class RtpAudio:
    """The audio of a call: the person's in packets, and what is heard of the agent's."""

    def __init__(self, settings: WebRtcSettings) -> None:
        # Here, because PyAV is in an extra.
        from turngap.caller.rtc.audio import RtpHearing, RtpMouth
        from turngap.caller.rtc.opus import LOOKAHEAD
        from turngap.caller.rtc.playout import buffer_named

        self.lead = LOOKAHEAD
        self.pack = RtpMouth().pack
        self._hearing = RtpHearing(buffer_named(str(settings.buffer)))

    def read(self, datagram: Any) -> list[Incoming]:
        packet: Datagram = datagram
        heard = self._hearing.read(packet)
        return heard if packet.is_stamped else [*heard, LeftOut(READ)]


class SmallWebRtcSession(PlainSession):
    """Speaks to a pipecat bot as pipecat's `SmallWebRTCTransport` for browsers does."""

    name = "webrtc"
    rate = 48_000

    def __init__(self, settings: SmallWebRtcSettings) -> None:
        super().__init__()
        self._has_rtvi, self._rtvi = settings.rtvi, RtviReader()
        self.tells_flushes = settings.rtvi
        self._audio = RtpAudio(settings)
        self.lead, self.prepare = self._audio.lead, self._audio.pack

    def open(self) -> list[Incoming]:
        if not self._has_rtvi:
            return [Ready()]
        self._send(client_ready())
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        if isinstance(message, bytes):
            return self._audio.read(message)
        payload = object_of(message)
        # What is not RTVI is the transport's own (`signalling`): the call is to be offered anew,
        # for video, which this side does not take, or the bot leaves, and then the call ends.
        if payload.get("label") == RTVI_LABEL and payload.get("type") == "bot-interrupted":
            self._rtvi.flush_told = True
            return [Flush()]
        return self._rtvi.read(payload)

    def send_audio(self, pcm: bytes) -> None:
        self._waiting.append(pcm)

    def ping(self, number: int) -> bool:
        if self._has_rtvi:
            self._send(ping(number))
        return self._has_rtvi


class OpenAIRtcSession(OpenAIRealtimeSession):
    """Speaks to a server of OpenAI's Realtime API over WebRTC.

    The server plays its replies itself, so it knows what was heard. OpenAI's says when it begins,
    ends and drops them; another may say no more than that it hears the person, and drop them then.
    """

    name = "webrtc-openai"
    tells_flushes = False  # not every server says that it was interrupted

    def __init__(self, settings: OpenAIRtcSettings) -> None:
        common = settings.model_dump(include=set(OpenAISettings.model_fields))
        super().__init__(OpenAIRealtimeSettings.model_validate(common))
        self.rate = 48_000
        self._audio = RtpAudio(settings)
        self.lead, self.prepare = self._audio.lead, self._audio.pack
        self._tells = False  # it has said that it plays
        self._plays = self._made = False  # it plays a reply, and has made the whole of it

    def receive_data(self, message: Message) -> list[Incoming]:
        if isinstance(message, bytes):
            return self._audio.read(message)
        match event_of(message)["type"]:
            case "output_audio_buffer.started":
                self._tells = self._plays = True
            case "output_audio_buffer.stopped":
                whole, self._plays, self._made = self._made, False, False
                return [ReplyDone(whole=whole)]
            case "output_audio_buffer.cleared":
                self._plays = self._made = False
                return [Flush()]
            case _:
                return self._while_playing(super().receive_data(message))
        return []

    def _while_playing(self, said: list[Incoming]) -> list[Incoming]:
        """Hold back that the reply is done until it has been played."""
        if not self._plays:
            return said
        self._made |= any(isinstance(each, ReplyDone) for each in said)
        return [each for each in said if not isinstance(each, ReplyDone)]

    def _interrupt(self, replies: list[str], *, flush: bool) -> list[Incoming]:
        return super()._interrupt(replies, flush=flush or not self._tells)

    def _update(self, told: Setup) -> dict[str, Any]:
        update = super()._update(told)
        audio = update.get("audio") or {}
        for side in ("input", "output"):
            audio.get(side, {}).pop("format", None)
        return update

    def _differs(self, told: Setup) -> str:
        return ""  # the call itself has agreed on Opus

    def _audio_in(self, part: Part, event: Any) -> list[Incoming]:
        return []  # it comes as RTP

    def send_audio(self, pcm: bytes) -> None:
        self._waiting.append(pcm)
        self._count(self.rate // 50)


SPEC = DialectSpec(
    name="webrtc",
    about="pipecat's SmallWebRTCTransport (POST /api/offer), and RTVI over the data channel",
    create=SmallWebRtcSession,
    settings_type=SmallWebRtcSettings,
    transport="webrtc",
    needs=NEEDS,
    unready="a bot with RTVI off never says that it is ready; measure it by ear alone: "
    "--dialect webrtc,rtvi=false",
)
OPENAI = DialectSpec(
    name="webrtc-openai",
    about="OpenAI's Realtime API over WebRTC (POST /v1/realtime/calls)",
    create=OpenAIRtcSession,
    settings_type=OpenAIRtcSettings,
    transport="webrtc",
    hosts=("api.openai.com",),
    key=Key("OPENAI_API_KEY", "header", "Authorization", "Bearer "),
    needs=NEEDS,
)

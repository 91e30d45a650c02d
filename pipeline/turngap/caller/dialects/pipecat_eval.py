"""The `pipecat-eval` dialect: RTVI and audio as JSON, as pipecat's own `pipecat eval` speaks.

The development runner of pipecat 1.13 and later serves it at `/ws` to any bot whose
`transport_params` have an `eval` entry; before, a bot's `EvalTransport` has a port of its own and
takes what `eval-connect` says from the URL (`?capture_bot_audio=true`). From pipecat 1.14's
`pipecat.evals.serializer` and `pipecat.serializers.rtvi_client`.
"""

from turngap.caller.dialects.encoding import Encoding, event_of, inside
from turngap.caller.dialects.registry import DialectSpec
from turngap.caller.dialects.rtvi import RTVI_LABEL, RtviReader, client_ready, ping, rtvi
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import Flush, Incoming, Message, NotSpokenError
from turngap.core.untrusted import shown, whole

CONNECT = "eval-connect"
AUDIO_UP = "raw-audio"
AUDIO_DOWN = "eval-bot-audio"
# What to send of the bot: its voice, as it sends it to anybody, and no pictures.
_FLAGS = {"skip_tts": False, "capture_bot_audio": True, "capture_bot_images": False}


class PipecatEvalSession(PlainSession):
    """Speaks to a pipecat bot as its eval harness does."""

    name = "pipecat-eval"
    rate = 16_000

    def __init__(self) -> None:
        super().__init__()
        self._rtvi = RtviReader()

    def open(self) -> list[Incoming]:
        # The runner recognises an eval by this first message.
        connect = rtvi("client-message", {"t": CONNECT, "d": _FLAGS})
        self._send({**connect, "id": CONNECT})
        self._send(client_ready())
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        payload = event_of(message)
        if payload.get("label") != RTVI_LABEL:
            raise NotSpokenError(f"JSON that is no RTVI message ({shown(payload['type'])})")
        match payload["type"]:
            case "eval-bot-audio":
                audio = inside(payload, "data")
                return [Encoding("pcm", whole(audio.get("sampleRate"))).audio(audio.get("audio"))]
            case "bot-interrupted":
                self._rtvi.flush_told = True
                return [Flush()]
            case _:
                return self._rtvi.read(payload)

    def send_audio(self, pcm: bytes) -> None:
        audio = {
            "base64Audio": Encoding("pcm", self.rate).encode(pcm),
            "sampleRate": self.rate,
            "numChannels": 1,
        }
        self._send(rtvi(AUDIO_UP, audio))

    def ping(self, number: int) -> bool:
        self._send(ping(number))
        return True


SPEC = DialectSpec(
    name="pipecat-eval",
    about="pipecat's development runner at /ws, for a bot with an eval entry in transport_params",
    create=lambda _: PipecatEvalSession(),
    tried=3,
)

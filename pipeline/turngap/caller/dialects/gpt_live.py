"""The `gpt-live` dialect: OpenAI's Live API, in which both sides send audio all the time.

It has no turns, no replies and no interruptions: the model speaks, listens and falls silent as it
likes, and only its audio shows when. Sent messages have the types of the `openai` library.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from turngap.caller.dialects.encoding import Encoding, Kind, event_of, inside, read_format
from turngap.caller.dialects.registry import DialectSettings, DialectSpec, Key
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import Fault, Incoming, Message, Ready, ReplyText, Transcript
from turngap.core.untrusted import MOST_TEXT, text_of

if TYPE_CHECKING:  # the library takes over a second to import, and only its types are needed
    from openai.types.live.audio_format_param import AudioFormatParam
    from openai.types.live.input_audio_append_event_param import InputAudioAppendEventParam
    from openai.types.live.session_close_event_param import SessionCloseEventParam
    from openai.types.live.session_config_param import SessionConfigParam
    from openai.types.live.session_start_event_param import SessionStartEventParam


class GptLiveSettings(DialectSettings):
    """The settings to send; the server keeps its own values for the rest."""

    model: str = "gpt-live-1"
    """Model, which this protocol takes in the session and not in the URL."""
    voice: str | None = None
    """Voice of the model."""
    instructions: str | None = None
    """Instructions of the session."""
    format: Kind = "pcm"
    """Audio in both directions: pcm, pcmu or pcma (the telephone's, at 8,000 Hz)."""
    rate: Literal[16_000, 24_000] = 24_000
    """Rate of PCM in both directions, Hz."""


class GptLiveSession(PlainSession):
    """Speaks to a server of the Live API on its primary WebSocket."""

    name = "gpt-live"
    tells_flushes = False

    def __init__(self, settings: GptLiveSettings) -> None:
        super().__init__()
        self._settings = settings
        self._encoding = Encoding.of(settings.format, settings.rate)
        self.rate = self._encoding.rate
        self._ready = False
        self._heard = ""  # of a word that may continue

    # The agent's messages

    def open(self) -> list[Incoming]:
        start: SessionStartEventParam = {"type": "session.start", "session": self._session()}
        self._send(start)
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        event = event_of(message)
        match event["type"]:
            case "session.started" if not self._ready:
                return self._started(inside(event, "session", "audio").get("format"))
            case "session.output_audio.delta":
                return [self._encoding.audio(event.get("delta"))]
            case "session.input_transcript.delta":
                return self._understood(text_of(event.get("delta", "")))
            case "session.output_transcript.delta":
                return [*self._understood(" "), ReplyText(event.get("delta", ""))]
            case "session.closed":
                why = f"the server ended the session: {event.get('reason', 'unspecified')}"
                return [*self._understood(" "), Fault(why, fatal=not self._ready)]
            case "error":
                return [self._fault(inside(event, "error"))]
            case _:
                return []

    def _started(self, told: Any) -> list[Incoming]:
        """Take the format that the server has settled on, which holds for the whole session."""
        if why := read_format(told).differs(self._encoding):
            return [Fault(f"it uses {why}", fatal=True)]
        self._ready = True
        return [Ready()]

    def _understood(self, piece: str) -> list[Incoming]:
        """Take a piece of the transcript, and return the words that are complete.

        Pieces end anywhere, and nothing says which is the last: a word is complete with the blank
        after it, or when the reply's text begins.
        """
        words, _, rest = (self._heard + piece).rpartition(" ")
        self._heard = rest[:MOST_TEXT]
        return [Transcript(words.strip())] if words.strip() else []

    def _fault(self, error: Mapping[str, Any]) -> Fault:
        text = error.get("message") or error.get("code") or "unspecified"
        refuses = self._ready and error.get("type") == "invalid_request_error"
        return Fault(str(text), fatal=not self._ready, refuses=refuses)

    # The person

    def send_audio(self, pcm: bytes) -> None:
        append: InputAudioAppendEventParam = {
            "type": "session.input_audio.append",
            "audio": self._encoding.encode(pcm),
        }
        self._send(append)

    # What goes to the agent

    def close(self) -> None:
        close: SessionCloseEventParam = {"type": "session.close"}
        self._send(close)

    def _session(self) -> "SessionConfigParam":
        settings, kind = self._settings, f"audio/{self._encoding.kind}"
        audio_format = cast("AudioFormatParam", {"type": kind, "rate": self.rate})
        session: SessionConfigParam = {
            "model": settings.model,
            "audio": {"format": audio_format},
            # What a session without it has: tasks that the model hands on stay undone.
            "delegation": {"type": "client"},
        }
        if settings.voice:
            session["audio"]["output"] = {"voice": settings.voice}
        if settings.instructions:
            session["instructions"] = settings.instructions
        return session


SPEC = DialectSpec(
    name="gpt-live",
    about="OpenAI's Live API over a WebSocket: full duplex, without turns",
    create=GptLiveSession,
    settings_type=GptLiveSettings,
    hosts=("api.openai.com/v1/live",),
    key=Key("OPENAI_API_KEY", "header", "Authorization", "Bearer "),
)

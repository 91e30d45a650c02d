"""The session of OpenAI's Realtime API: the server's report of it, and the requested one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from turngap.caller.dialects.encoding import UNTOLD, Encoding, Kind, ToldFormat, read_format
from turngap.caller.dialects.json_events import inside
from turngap.caller.dialects.registry import DialectSettings

if TYPE_CHECKING:
    from openai.types.beta.realtime.session_update_event_param import Session as BetaSession
    from openai.types.realtime.realtime_audio_formats_param import RealtimeAudioFormatsParam
    from openai.types.realtime.realtime_session_create_request_param import (
        RealtimeSessionCreateRequestParam,
    )

_BETA_NAMES: dict[Kind, Any] = {"pcmu": "g711_ulaw", "pcma": "g711_alaw"}


class OpenAIRealtimeSettings(DialectSettings):
    """The settings to send; the server keeps its own values for the rest."""

    model: str | None = None
    """Model to ask for in the session, where a server does not take it from the URL."""
    voice: str | None = None
    """Voice of the replies."""
    instructions: str | None = None
    """System instructions of the session."""
    transcription: str | None = None
    """Model that transcribes the person, where the server does not do it by itself."""
    format: Kind = "pcm"
    """Audio in both directions: pcm, pcmu or pcma (the telephone's, at 8,000 Hz)."""
    reply_format: Kind | None = None
    """Audio of the replies, where it differs from the person's."""
    rate: int = Field(24_000, ge=8_000, le=48_000)
    """Rate of the person's PCM, Hz; a few servers take 16000."""
    reply_rate: int = Field(24_000, ge=8_000, le=48_000)
    """Rate of the replies' PCM where the server does not name it, Hz."""
    beta: bool = False
    """Speak the API's beta form even if the server does not show that it speaks it."""
    commit_ms: float | None = Field(None, ge=0, le=60_000)
    """For a server that finds no turns itself: the caller commits the person's audio and asks for a
    reply this long after the person's last word."""
    threshold: float | None = None
    """Loudness from 0 to 1 that the server's VAD takes for speech."""
    prefix_padding_ms: int | None = None
    """Audio before speech that the server's VAD keeps."""
    silence_duration_ms: int | None = None
    """Silence after which the server's VAD takes the turn to be over."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The contents of `session.created` or `session.updated`; servers may leave out any of it.

    Attributes:
        beta: whether it has the flat fields of the beta.
        voiced: whether voice and turn detection are in the session itself, as with xAI, whose first
            event is `conversation.created`.
        listens: whether the server finds the ends of turns by itself.
        manual: whether the server reports that it finds none.
        interrupts: whether the person's speech interrupts its replies.
        input: the format of the person's audio.
        output: the format of the replies' audio.
    """

    beta: bool = False
    voiced: bool = False
    listens: bool = False
    manual: bool = False
    interrupts: bool = True
    input: ToldFormat = UNTOLD
    output: ToldFormat = UNTOLD

    def update(
        self, settings: OpenAIRealtimeSettings, up: Encoding, down: Encoding
    ) -> Mapping[str, Any]:
        """Return the session to ask for, in the form that the server speaks."""
        detection = self._detection(settings)
        if self.beta or settings.beta:
            return _beta_update(settings, up, detection)
        session: Any = _update(settings, up, down)
        where = (session, session) if self.voiced else _audio_of(session)
        if detection != {}:
            where[0]["turn_detection"] = detection
        if settings.voice:
            where[1]["voice"] = settings.voice
        return session

    def _detection(self, settings: OpenAIRealtimeSettings) -> dict[str, Any] | None:
        """Return the turn detection to ask for; empty if the server's own may stay."""
        if settings.commit_ms is not None:
            return None
        given = {
            name: value
            for name in ("threshold", "prefix_padding_ms", "silence_duration_ms")
            if (value := getattr(settings, name)) is not None
        }
        return {"type": "server_vad", **given} if given or not self.listens else {}


def read_setup(event: Mapping[str, Any]) -> Setup:
    """Read the session in an event; leave out missing and malformed parts."""
    session = inside(event, "session")
    flat = "modalities" in session or "input_audio_format" in session
    beta = flat and "audio" not in session and session.get("type") != "realtime"
    source, audio = inside(session, "audio", "input"), inside(session, "audio")
    detection = inside(source, "turn_detection") or inside(session, "turn_detection")
    formats = (source.get("format"), inside(audio, "output").get("format"))
    if beta:
        formats = (session.get("input_audio_format"), session.get("output_audio_format"))
    return Setup(
        beta=beta,
        voiced=event.get("type") == "conversation.created",
        listens=bool(detection.get("type")),
        manual=any(place.get("turn_detection", ...) is None for place in (source, session)),
        interrupts=detection.get("interrupt_response") is not False,
        input=read_format(formats[0]),
        output=read_format(formats[1]),
    )


def _update(
    settings: OpenAIRealtimeSettings, up: Encoding, down: Encoding
) -> "RealtimeSessionCreateRequestParam":
    session: RealtimeSessionCreateRequestParam = {
        "type": "realtime",
        "audio": {"input": {"format": _format(up)}, "output": {"format": _format(down)}},
    }
    if settings.transcription:
        session["audio"]["input"]["transcription"] = {"model": settings.transcription}
    if settings.instructions:
        session["instructions"] = settings.instructions
    if settings.model:
        session["model"] = settings.model
    return session


def _audio_of(session: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a session that describe the person's audio and the replies' audio."""
    return session["audio"]["input"], session["audio"]["output"]


def _beta_update(
    settings: OpenAIRealtimeSettings, up: Encoding, detection: dict[str, Any] | None
) -> Mapping[str, Any]:
    session: BetaSession = {}
    if up.kind != "pcm":  # the default of every such server, by one of two names
        session["input_audio_format"] = session["output_audio_format"] = _BETA_NAMES[up.kind]
    if detection != {}:
        session["turn_detection"] = cast("Any", detection)
    if settings.transcription:
        session["input_audio_transcription"] = {"model": settings.transcription}
    if settings.voice:
        session["voice"] = settings.voice
    if settings.instructions:
        session["instructions"] = settings.instructions
    if settings.model:
        session["model"] = cast("Any", settings.model)
    return session


def _format(encoding: Encoding) -> "RealtimeAudioFormatsParam":
    match encoding.kind:
        case "pcmu":
            return {"type": "audio/pcmu"}
        case "pcma":
            return {"type": "audio/pcma"}
        case _:
            return {"type": "audio/pcm", "rate": cast("Any", encoding.rate)}

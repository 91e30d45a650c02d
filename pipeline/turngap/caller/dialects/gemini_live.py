"""The `gemini-live` dialect: Google's Live API, BidiGenerateContent over a WebSocket.

From "Live API - WebSockets API reference" (ai.google.dev/api/live) and "Get started with Gemini
Live API using WebSockets". Each message is a JSON object with one of a few keys, and the server
sends it as bytes. The model's audio comes as fast as it is made; `interrupted` means that what has
not been played is dropped. Texts come in pieces, in no order relative to the audio.
"""

import re
from collections.abc import Mapping
from typing import Any

from turngap.caller.dialects.encoding import Encoding, inside, object_of
from turngap.caller.dialects.registry import DialectSettings, DialectSpec, Key
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import (
    AudioBytes,
    Flush,
    Incoming,
    Message,
    NotSpokenError,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
    UnplayableError,
)
from turngap.core.untrusted import MOST_TEXT, shown, text_of

RATE_UP = 16_000
RATE_DOWN = 24_000  # where the audio's type names none
_FROM_URLS = str.maketrans("-_", "+/")
_MIME = re.compile(r"audio/pcm(;\s*rate=(?P<rate>[0-9]{1,6}))?", re.IGNORECASE)


class GeminiSettings(DialectSettings):
    """The model that answers, and its settings. Quote values with commas."""

    model: str = "gemini-2.5-flash-native-audio-preview-09-2025"
    "The model; models/ before it may be left out."
    prompt: str = "Answer in one short spoken sentence."
    "Instructions to the model."


class GeminiLiveSession(PlainSession):
    """A session with Gemini's Live API, or a compatible server."""

    name = "gemini-live"
    rate = RATE_UP

    def __init__(self, settings: GeminiSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or GeminiSettings()
        self._set_up = False
        self._heard = ""  # of the transcript, so far
        self._generated = False  # the reply has been called done before its turn was complete

    def open(self) -> list[Incoming]:
        model = self._settings.model
        setup = {
            "model": model if "/" in model else f"models/{model}",
            "generationConfig": {"responseModalities": ["AUDIO"]},
            "systemInstruction": {"parts": [{"text": self._settings.prompt}]},
            "inputAudioTranscription": {},
            "outputAudioTranscription": {},
        }
        self._send({"setup": setup})
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        event = object_of(message)
        if "setupComplete" in event:
            self._set_up = True
            return [Ready()]
        if not self._set_up:
            raise NotSpokenError(f"JSON with the keys {shown(', '.join(event))}, before any setup")
        due: list[Incoming] = [ReplyDue()] if "toolCall" in event else []
        return [*due, *self._content(inside(event, "serverContent"))]

    def send_audio(self, pcm: bytes) -> None:
        audio = {
            "mimeType": f"audio/pcm;rate={RATE_UP}",
            "data": Encoding("pcm", RATE_UP).encode(pcm),
        }
        self._send({"realtimeInput": {"audio": audio}})

    def _content(self, content: Mapping[str, Any]) -> list[Incoming]:
        said: list[Incoming] = [Flush()] if content.get("interrupted") else []
        heard = inside(content, "inputTranscription")
        self._heard = (self._heard + text_of(heard.get("text")))[:MOST_TEXT]
        audio, spoken = _audio(content), inside(content, "outputTranscription").get("text")
        done = bool(content.get("generationComplete") or content.get("turnComplete"))
        # The pieces of the transcript end where the reply begins, if nothing says so before.
        if self._heard and (heard.get("finished") or audio or spoken or done):
            said.append(Transcript(self._heard))
            self._heard = ""
        said += audio
        if spoken:
            said.append(ReplyText(spoken))
        return said + self._done(content)

    def _done(self, content: Mapping[str, Any]) -> list[Incoming]:
        """Note that the reply is complete.

        The whole reply has been sent when it is generated; `turnComplete` may wait until the reply
        would have been played, and comes alone where the reply was interrupted.
        """
        said: list[Incoming] = []
        if content.get("generationComplete"):
            self._generated = True
            said.append(ReplyDone())
        if content.get("turnComplete"):
            said += [] if self._generated else [ReplyDone()]
            said.append(ReplyText(" "))  # what follows is another reply
            self._generated = False
        return said


def _audio(content: Mapping[str, Any]) -> list[Incoming]:
    parts = inside(content, "modelTurn").get("parts")
    if not isinstance(parts, list):
        return []
    blobs = [inside(one, "inlineData") for one in parts if isinstance(one, dict)]
    return [_played(blob) for blob in blobs if blob]


def _played(blob: Mapping[str, Any]) -> AudioBytes:
    rate = _rate(blob.get("mimeType"))
    return AudioBytes(audio_of(blob, rate), rate)


def audio_of(blob: Mapping[str, Any], rate: int) -> bytes:
    """Return the PCM16 of a blob.

    JSON of protobuf may hold bytes in either alphabet of base64; Google's own SDK uses the one for
    URLs.

    Raises: as `Encoding.decode`.
    """
    data = blob.get("data")
    plain = data.translate(_FROM_URLS) if isinstance(data, str) else data
    return Encoding("pcm", rate).decode(plain)


def _rate(mime: Any) -> int:
    """Return the rate of `audio/pcm;rate=24000`.

    Raises:
        UnplayableError: the type is another one.
    """
    found = _MIME.fullmatch(str(mime or "audio/pcm"))
    if found is None:
        raise UnplayableError(f"audio of the type {shown(mime)}")
    return int(found["rate"] or RATE_DOWN)


SPEC = DialectSpec(
    name="gemini-live",
    about="Google's Gemini Live API (BidiGenerateContent)",
    create=GeminiLiveSession,
    settings_type=GeminiSettings,
    hosts=("generativelanguage.googleapis.com",),
    key=Key("GEMINI_API_KEY", "query", "key"),
)

"""JSON events, mostly objects with a `type`, and the audio that they carry in base64.

The audio is mono, PCM16 or in the telephone's codecs.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from turngap.caller.intake import MOST_MESSAGE_BYTES
from turngap.caller.said import AudioBytes, Message, NotSpokenError, UnplayableError
from turngap.core.untrusted import MOST_JSON, parse_json, printable, shown, text_of
from turngap.core.wire import A_LAW, MU_LAW
from turngap.core.wire import RATE as G711_RATE

# A message beyond `MOST_JSON` is a whole reply's audio, which is one long text among few values.
# Only many values cost much memory.
MOST_VALUES_OF_LONG = 1_000
# OpenAI's have about 30 characters.
MOST_ID = 200


def object_of(message: Message) -> Mapping[str, Any]:
    """Read a JSON object; some servers send it as bytes.

    Raises:
        NotSpokenError: the message is not a JSON object.
    """
    comma = "," if isinstance(message, str) else b","
    many = len(message) > MOST_JSON and message.count(comma) > MOST_VALUES_OF_LONG  # pyright: ignore[reportArgumentType]
    try:
        found = parse_json(message, MOST_JSON if many else MOST_MESSAGE_BYTES)
    except ValueError as e:
        raise NotSpokenError(f"a message that is not JSON: {printable(str(e), 80)}") from e
    if not isinstance(found, Mapping):
        raise NotSpokenError(f"JSON that is no event: {shown(found)}")
    return cast("Mapping[str, Any]", found)


def event_of(message: Message) -> Mapping[str, Any]:
    """Read an event, which is an object with a type.

    Raises:
        NotSpokenError: the message is not such an object.
    """
    found = object_of(message)
    if not isinstance(found.get("type"), str):
        raise NotSpokenError("a JSON object without a type")
    return found


def inside(event: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return the object that lies at a path in an event; empty if there is none."""
    for name in path:
        found = event.get(name)
        if not isinstance(found, Mapping):
            return {}
        event = cast("Mapping[str, Any]", found)
    return event


def name_in(event: Mapping[str, Any], key: str) -> str:
    """Return an id or a name in an event; empty if there is none."""
    value = event.get(key)
    return text_of(value, MOST_ID) if isinstance(value, str | int) else ""


Kind = Literal["pcm", "pcmu", "pcma"]

_LAWS = {"pcmu": MU_LAW, "pcma": A_LAW}
# Names of formats at OpenAI, in the present form and in the beta's.
_KINDS: dict[str, Kind] = {
    "audio/pcm": "pcm",
    "pcm16": "pcm",
    "pcm": "pcm",
    "audio/pcmu": "pcmu",
    "g711_ulaw": "pcmu",
    "audio/pcma": "pcma",
    "g711_alaw": "pcma",
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """A way to write audio: `pcm` is PCM16 little-endian, `pcmu` µ-law and `pcma` A-law."""

    kind: Kind
    rate: int

    @staticmethod
    def of(kind: Kind, pcm_rate: int) -> "Encoding":
        """Return the encoding of this kind; only PCM has a choice of rates."""
        return Encoding(kind, pcm_rate if kind == "pcm" else G711_RATE)

    def encode(self, pcm: bytes) -> str:
        """Write PCM16 samples at `rate`."""
        if law := _LAWS.get(self.kind):
            pcm = law.encode(np.frombuffer(pcm, dtype="<i2"))
        return base64.b64encode(pcm).decode("ascii")

    def decode(self, text: Any) -> bytes:
        """Read PCM16 samples at `rate`; raises as `audio`."""
        audio = self.audio(text)
        return audio.data if audio.law is None else audio.law.decode(audio.data).tobytes()

    def audio(self, text: Any) -> AudioBytes:
        """Read audio as it is coded.

        Raises:
            ValueError: there is no audio.
            UnplayableError: the audio is not base64.
        """
        if not isinstance(text, str):
            raise ValueError(f"expected audio in base64, got {shown(text)}")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as e:
            raise UnplayableError(f"audio that is no base64 ({shown(text)})") from e
        return AudioBytes(data, self.rate, law=_LAWS.get(self.kind))


@dataclass(frozen=True, slots=True)
class ToldFormat:
    """The audio format that an OpenAI server names; None where it names none.

    `kind`: a `Kind`, or the server's name for another one. `rate`: Hz.
    """

    kind: str | None = None
    rate: int | None = None

    def differs(self, asked: Encoding) -> str:
        """Describe the difference from the requested format; empty if there is none."""
        kind, rate = self.kind or asked.kind, self.rate or asked.rate
        if (kind, rate) == (asked.kind, asked.rate):
            return ""
        told = f"{kind} at {self.rate} Hz" if self.rate else kind
        return f"{told}, and was asked for {asked.kind} at {asked.rate} Hz"


UNTOLD = ToldFormat()


def read_format(told: Any) -> ToldFormat:
    """Read a format: an object with a type and a rate, or the beta's name, which has no rate."""
    about = told if isinstance(told, Mapping) else {"type": told}
    name, rate = about.get("type"), about.get("rate")
    kind = _KINDS.get(name, shown(name)) if isinstance(name, str) else None
    if kind in _LAWS:
        return ToldFormat(kind, G711_RATE)
    return ToldFormat(kind, rate if isinstance(rate, int) else None)

"""Audio in base64, as JSON protocols carry it: PCM16 or the telephone's codecs, mono."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from turngap.caller.said import AudioBytes, UnplayableError
from turngap.core.untrusted import shown
from turngap.core.wire import A_LAW, MU_LAW
from turngap.core.wire import RATE as G711_RATE

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
            ValueError: there is none.
            UnplayableError: it is not base64.
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

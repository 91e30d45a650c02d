"""Base of the phone companies' dialects: the agent queues audio, and the caller plays it.

Between two chunks an agent may put a mark, which it gets back when the playhead passes it, and it
may clear the queue. The company plays the queue, so here the caller does.
"""

import base64
import json
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from turngap.caller.dialects.registry import DialectSettings
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import AudioBytes, Flush, Incoming, Message, NotSpokenError, Ready
from turngap.caller.wav import WavReader
from turngap.core.audio import Pcm
from turngap.core.untrusted import MOST_JSON, parse_json, shown
from turngap.core.wire import RATE, Law

# Marks that wait to be passed: an agent that marks each chunk of 20 ms may be 20 s ahead.
MOST_MARKS = 1_000
# Characters of one mark as JSON: agents put an id, a time or a short text there.
MOST_MARK = 1_000
# Who calls and who is called: numbers that are given to no one. An agent that goes by the caller's
# own number can get one among the `parameters`.
FROM_NUMBER = "+15550100000"
TO_NUMBER = "+15550100001"


class PhoneSettings(DialectSettings):
    """Facts of a call that an agent gets when it begins."""

    parameters: dict[str, str] = Field(default_factory=dict[str, str])
    """parameters of the call by name, for example `parameters={lang="en"}`"""


class Codec(Protocol):
    """The coding of samples in a message's bytes; `turngap.core.wire` has the telephone's."""

    def encode(self, pcm: Pcm) -> bytes: ...

    def decode(self, data: bytes) -> Pcm: ...


class Linear:
    """PCM16, little-endian."""

    def encode(self, pcm: Pcm) -> bytes:
        return pcm.astype("<i2").tobytes()

    def decode(self, data: bytes) -> Pcm:
        """Return the samples.

        Raises:
            ValueError: there is half a sample.
        """
        require_whole(data)
        return np.frombuffer(data, "<i2").astype(np.int16)


LINEAR = Linear()


def require_whole(data: bytes) -> None:
    """Check that PCM16 has no half sample.

    Raises:
        ValueError: there is half a sample.
    """
    if len(data) % 2:
        raise ValueError(f"audio of {len(data)} bytes, which are no whole samples of 16 bits")


def new_id() -> str:
    """Make the 32 hexadecimal digits of an id that no other call has.

    Agents store a call's data under its id, so two calls must not share one.
    """
    return uuid.uuid4().hex


class PhoneSession(PlainSession):
    """A call as the phone company holds it; each dialect adds its messages.

    `_hear` and `_mark` take the agent's audio and marks; `_passed` must answer a mark.
    """

    def __init__(self, name: str, rate: int = RATE) -> None:
        super().__init__()
        self.name = name
        self.rate = rate
        self._queued = self._played = self._dropped = 0  # samples since the call began
        self._marks: deque[tuple[int, Any]] = deque()  # how many samples come before each
        self._wav = WavReader()

    # What every phone company does alike

    def audio_played(self, samples: int) -> None:
        heard, self._dropped = samples - self._dropped, 0
        self._played = samples
        while self._marks and self._marks[0][0] <= samples:
            before, mark = self._marks.popleft()
            self._passed(mark, heard=before <= heard)

    def audio_dropped(self, samples: int) -> None:
        self._dropped = samples

    # What the agent queues

    def _hear(self, data: bytes, rate: int, law: Law | None = None) -> list[Incoming]:
        """Queue audio in one of the telephone's codecs, or in PCM16.

        Raises:
            ValueError: there is no audio, or half a sample.
            UnplayableError: the audio is coded in another way.
        """
        if not data:
            raise ValueError("media without audio")
        if law is None:
            require_whole(data)
        chunk = self._wav.read(AudioBytes(data, rate, law=law))
        self._queued += len(chunk.pcm)
        return [chunk]

    def _mark(self, mark: Any) -> None:
        """Take a mark; it is due at once if nothing waits to be played.

        Raises:
            ValueError: the mark cannot be sent back or is too long, or too many wait.
        """
        try:
            length = len(json.dumps(mark, allow_nan=False))
        except RecursionError as e:
            raise ValueError("a mark that is nested too deep") from e
        if length > MOST_MARK:
            raise ValueError(f"a mark of {length} characters, expected at most {MOST_MARK}")
        if self._queued <= self._played:
            self._passed(mark, heard=True)
        elif len(self._marks) == MOST_MARKS:
            raise ValueError(f"more than {MOST_MARKS} marks that wait to be passed")
        else:
            self._marks.append((self._queued, mark))

    def _passed(self, mark: Any, *, heard: bool) -> None:
        """Answer a mark; `heard` is False if audio before it was dropped."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Names:
    """A company's own names for the JSON fields that all companies send.

    `number`: the type of its numbers, text or number.
    """

    stream: str
    sequence: str
    number: type[str] | type[int] = str
    media: str = "media"
    mark: str = "mark"
    clear: str = "clear"


class JsonPhoneSession(PhoneSession):
    """A call in JSON texts with an `event` each and base64 audio in `media.payload`."""

    def __init__(
        self, name: str, names: Names, stream: str, law: Law | None, rate: int = RATE
    ) -> None:
        super().__init__(name, rate)
        self._names = names
        self._stream = stream
        self._codec: Codec = law or LINEAR
        self._reply_law, self._reply_rate = law, rate
        self._sequence = self._chunks = self._sent = 0  # messages, chunks, samples

    def open(self) -> list[Incoming]:
        self._begin()
        return [Ready()]

    def receive_data(self, message: Message) -> list[Incoming]:
        said, names = parse(message, "event"), self._names
        stream = said.get(names.stream)
        if stream is not None and stream != self._stream:
            raise ValueError(f"a message for another stream ({shown(stream)})")
        match said["event"]:
            case names.media:
                return self._on_media(part(said, "media"))
            case names.mark:
                self._mark(self._mark_of(said))
                return []
            case names.clear:
                self._on_clear()
                return [Flush()]
            case event:
                raise ValueError(f"the event {shown(event)}, which {self.name} does not take")

    def send_audio(self, pcm: bytes) -> None:
        samples = np.frombuffer(pcm, np.int16)
        self._chunks += 1
        media = {
            "track": "inbound",
            "chunk": self._names.number(self._chunks),
            "timestamp": str(self._sent * 1000 // self.rate),
            "payload": base64.b64encode(self._codec.encode(samples)).decode(),
        }
        self._say("media", media=media)
        self._sent += len(samples)

    # What differs

    def _begin(self) -> None:
        """Send the messages that begin the call."""
        raise NotImplementedError

    def _on_media(self, media: Mapping[str, Any]) -> list[Incoming]:
        return self._hear(payload(media), self._reply_rate, self._reply_law)

    def _mark_of(self, said: Mapping[str, Any]) -> Any:
        return name_of(part(said, "mark"))

    def _on_clear(self) -> None:
        """Do nothing: the marks come back once the queue has been dropped."""

    def _passed(self, mark: Any, *, heard: bool) -> None:
        self._say("mark", mark={"name": mark})

    # Helpers

    def _say(self, event: str, **body: Any) -> None:
        """Queue a message with its sequence number and the stream's id."""
        self._sequence += 1
        names = self._names
        order = {names.sequence: names.number(self._sequence)}
        self._send({"event": event, **order, names.stream: self._stream, **body})


def parse(message: Message, key: str) -> dict[str, Any]:
    """Parse a JSON object that names its kind under `key`.

    Raises:
        NotSpokenError: the message is no such object.
        ValueError: the message is too long to be read.
    """
    if isinstance(message, bytes):
        raise NotSpokenError(f"a binary message of {len(message)} bytes")
    if len(message) > MOST_JSON:
        raise ValueError(f"a text of {len(message):,} characters, expected at most {MOST_JSON:,}")
    try:
        said = parse_json(message)
    except ValueError as e:
        raise NotSpokenError(f"a text that is no JSON ({shown(message)})") from e
    if not isinstance(said, dict) or not isinstance(said.get(key), str):
        raise NotSpokenError(f"JSON without a text under {key!r} ({shown(message)})")
    return said


def part(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within a message.

    Raises:
        ValueError: the part is missing or no object.
    """
    found = said.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"a message without the object {name!r}")
    return found


def name_of(said: Mapping[str, Any]) -> str:
    """Return the name of a mark.

    Raises:
        ValueError: the mark has no name.
    """
    name = said.get("name")
    if not isinstance(name, str):
        raise ValueError("a mark without a name")
    return name


def payload(media: Mapping[str, Any]) -> bytes:
    """Return the bytes of audio in a message.

    Raises:
        ValueError: the payload is missing or not base64.
    """
    text = media.get("payload")
    if not isinstance(text, str):
        raise ValueError("media without a payload")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as e:
        raise ValueError("media whose payload is no base64") from e

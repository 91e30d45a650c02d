"""What the guard and the pipeline of one conversation need to know of its wire protocol. No I/O."""

from abc import ABC, abstractmethod
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.types import Message

from turngap.agent import limits as of
from turngap.agent.limits import HangUpError
from turngap.core.audio import Pcm
from turngap.core.untrusted import parse_json

if TYPE_CHECKING:
    from pipecat.serializers.base_serializer import FrameSerializer


@dataclass(frozen=True, slots=True)
class Taken:
    """What a client's message comes to.

    Attributes:
        passes: whether the agent's pipeline gets it.
        audio_s: how many seconds of audio it has.
        pcm: that audio at the pipeline's rate, where somebody records the conversation.
        asks: a text that makes the agent work, empty for other work; None if it does not.
        asked: an RTVI client message: what is asked for, and with what.
        answers: what is sent to the client at once.
    """

    passes: bool = False
    audio_s: float = 0.0
    pcm: Pcm | None = None
    asks: str | None = None
    asked: tuple[str, Any] | None = None
    answers: Sequence[str | bytes] = ()


class WireProtocol(ABC):
    """One conversation in one protocol.

    Attributes:
        serializer: pipecat's translator between frames and messages.
        out_rate: the rate of the agent's audio on the wire, Hz; None: the stack's own.
        written: returns when audio was handed to the socket, as `MarksObserver` wants it, for
            clients that are told the marks of each turn; None for those that are not.
    """

    serializer: "FrameSerializer"
    out_rate: int | None = None
    written: Callable[[int], int] | None = None

    def opening(self) -> Sequence[str | bytes]:
        """Return what the client is sent as soon as it is connected."""
        return ()

    @abstractmethod
    async def take(self, message: Message) -> Taken:
        """Check a client's message, and return what it comes to.

        Raises:
            HangUpError: it is none of the protocol's.
        """

    def due(self, now_ns: int) -> Sequence[str | bytes]:
        """Return what the client is sent because time has passed; asked for twice a second."""
        return ()

    def messages(self, data: str | bytes) -> Sequence[str | bytes]:
        """Return the messages that the serializer made of one frame."""
        return (data,)

    @abstractmethod
    def is_speech(self, data: str | bytes) -> bool:
        """Return whether a message for the client is speech, or says that somebody speaks."""


def text_of(message: Message, expected: str) -> str:
    """Return the text of a client's message.

    Raises:
        HangUpError: it is binary.
    """
    text = message.get("text")
    if text is None:
        raise HangUpError(of.CODE_NO_TEXT, f"expected {expected} in text messages, got bytes")
    return text


def object_of(text: str, expected: str) -> dict[str, Any]:
    """Return a message's JSON object.

    Raises:
        HangUpError: there is none.
    """
    try:
        payload = parse_json(text)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise HangUpError(of.CODE_MALFORMED, f"expected {expected}, got no JSON object")
    return payload


def decoded(text: object) -> bytes | None:
    """Return the bytes of a text in base64; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return None

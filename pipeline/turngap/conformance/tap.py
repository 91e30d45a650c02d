"""A wrapper around a dialect's session that notes what passes through it, and when."""

from dataclasses import dataclass, field, replace
from typing import Literal

from turngap.caller.dialects.session import Session
from turngap.caller.said import Incoming, Message, NotSpokenError
from turngap.core.clock import Clock
from turngap.core.untrusted import printable

# Of a message that could not be read, so much is shown.
MOST_SHOWN = 100
# What is kept of all messages together: four minutes of PCM at 48 kHz in base64, and twice that.
# Of each later one this much of its beginning is kept, and nothing of what it said.
MOST_KEPT_BYTES = 64 * 1024 * 1024

Trouble = Literal["", "malformed", "not_spoken"]


@dataclass(frozen=True, slots=True)
class Came:
    """A message of the agent, and what it said.

    `trouble`: why it said nothing: its part is `malformed`, or it is `not_spoken`, of another
    protocol. `why` is the dialect's word for that.
    """

    at_ns: int
    message: Message
    said: tuple[Incoming, ...] = ()
    trouble: Trouble = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Went:
    """A message of the caller that was handed to the line."""

    at_ns: int
    message: Message


@dataclass(slots=True)
class Log:
    """Everything that passed, in order. Instants are ns of the caller's clock.

    Attributes:
        opened_ns: when the WebSocket was open.
        closed_ns: when the caller said goodbye, in the dialect's word for it; None: it has none.
        kept: how much of the agent's messages is kept, as bytes or characters.
        cut: of how many messages only the beginning is kept, and `cut_size` is their size.
    """

    passed: list[Came | Went] = field(default_factory=list["Came | Went"])
    opened_ns: int = 0
    closed_ns: int | None = None
    kept: int = 0
    cut: int = 0
    cut_size: int = 0

    def note(self, came: Came) -> None:
        """Keep a message, or its beginning where there are too many."""
        size = len(came.message)
        if self.kept + size > MOST_KEPT_BYTES:
            self.cut += 1
            self.cut_size += size
            came = replace(came, message=came.message[:MOST_SHOWN], said=())
        self.kept += len(came.message)
        self.passed.append(came)

    @property
    def came(self) -> list[Came]:
        return [each for each in self.passed if isinstance(each, Came)]

    @property
    def went(self) -> list[Went]:
        return [each for each in self.passed if isinstance(each, Went)]


class Tap:
    """A `Session` that is another one, with a log.

    It holds the messages in memory (`MOST_KEPT_BYTES`), so it is for one short conversation.
    """

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._closed = False
        self.name, self.rate, self.log = session.name, session.rate, Log()

    def open(self) -> list[Incoming]:
        self.log.opened_ns = self._clock.now_ns()
        return self._session.open()

    def receive_data(self, message: Message) -> list[Incoming]:
        at_ns = self._clock.now_ns()
        try:
            said = self._session.receive_data(message)
        except (NotSpokenError, ValueError) as e:
            trouble = "not_spoken" if isinstance(e, NotSpokenError) else "malformed"
            why = printable(str(e), MOST_SHOWN)
            self.log.note(Came(at_ns, message, trouble=trouble, why=why))
            raise
        self.rate = self._session.rate  # which a server may choose in its opening
        self.log.note(Came(at_ns, message, tuple(said)))
        return said

    def send_audio(self, pcm: bytes) -> None:
        self._session.send_audio(pcm)

    def ping(self, number: int) -> bool:
        return self._session.ping(number)

    def audio_played(self, samples: int) -> None:
        self._session.audio_played(samples)

    def audio_dropped(self, samples: int) -> None:
        self._session.audio_dropped(samples)

    def data_to_send(self) -> list[Message]:
        waiting = self._session.data_to_send()
        at_ns = self._clock.now_ns()
        self.log.passed += [Went(at_ns, message) for message in waiting]
        if waiting and self._closed and self.log.closed_ns is None:
            self.log.closed_ns = at_ns
        return waiting

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._session.close()

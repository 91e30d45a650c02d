"""The contract of a dialect: a conversation as a state machine, without sockets or clocks."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from turngap.caller.said import Incoming, Message


class Session(Protocol):
    """One conversation in a dialect, as the caller holds it. Make a new one for each line.

    It takes messages of the agent, the person's audio and what the loudspeaker did, and returns
    events for the caller and messages for the agent. After each call of a method that takes
    something, send what `data_to_send` returns, in order.

    Attributes:
        name: of the dialect.
        rate: of the person's audio as `send_audio` takes it, Hz. It is the rate of the wire, so
            that recordings are resampled once, beforehand, and nothing delays a packet.
    """

    name: str
    rate: int

    # The agent's messages

    def open(self) -> list[Incoming]:
        """Begin the conversation, once the WebSocket is open.

        Return the events that hold at once: `Ready`, where the agent says nothing to wait for. In
        other dialects `Ready` comes from `receive_data`.
        """
        ...

    def receive_data(self, message: Message) -> list[Incoming]:
        """Take a message of the agent; return its events for the caller, in order.

        Raises:
            NotSpokenError: the message is not of this dialect. The turn is an `error`.
            ValueError: it is, but a part that it needs is missing or of another kind. It is left
                out, and the turn says so.
        """
        ...

    # The person

    def send_audio(self, pcm: bytes) -> None:
        """Send one packet of the person's audio, PCM16 mono at `rate`."""
        ...

    def user_ends(self, sample: int) -> None:
        """Take at which sample, of all that `send_audio` gets, the person's turn ends."""
        ...

    def ping(self, number: int) -> bool:
        """Ask for the agent's clock; return False if the dialect cannot. `Pong` is the answer."""
        ...

    # The loudspeaker

    def audio_played(self, samples: int) -> None:
        """Take how far the agent's audio has been played.

        `samples`: how many samples, of all `AudioChunk`s and `AudioBytes` that were returned and
        could be played, have sounded since the conversation began, dropped ones counted as well.
        It never falls. After the playhead has passed the last sample before a mark (Twilio), the
        mark is due.
        """
        ...

    def audio_dropped(self, samples: int) -> None:
        """Take that the last `samples` of the audio up to now will never be played.

        It comes after a `Flush` has been carried out, or after audio was lost, and before the
        `audio_played` that counts them. With `audio_played` it tells to the sample what was heard
        (OpenAI's truncation).
        """
        ...

    # What goes to the agent

    def data_to_send(self) -> list[Message]:
        """Return the messages that wait to be sent, and forget them."""
        ...

    def close(self) -> None:
        """Say goodbye, where the dialect has a word for it, before the WebSocket is closed."""
        ...


class PlainSession:
    """Base of sessions in which the agent has no clock and hears nothing of the loudspeaker.

    Attributes:
        tells_flushes: the agent has a word for audio that is to be dropped.
    """

    tells_flushes = True

    def __init__(self) -> None:
        self._waiting: list[Message] = []

    def user_ends(self, sample: int) -> None:
        """Do nothing: the agent finds it out."""

    def ping(self, number: int) -> bool:
        """Return False: the protocol has no clock."""
        return False

    def audio_played(self, samples: int) -> None:
        """Do nothing: nothing of it is sent to the agent."""

    def audio_dropped(self, samples: int) -> None:
        """Do nothing: nothing of it is sent to the agent."""

    def data_to_send(self) -> list[Message]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def close(self) -> None:
        """Do nothing: hanging up is enough."""

    def _send(self, event: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps(event))

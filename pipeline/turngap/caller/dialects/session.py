"""The contract of a dialect: a conversation as a state machine, without sockets or clocks."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from turngap.caller.said import Incoming, Message


class Session(Protocol):
    """One conversation in a dialect, as the caller holds it. Make a new one for each line.

    It takes the agent's messages, the person's audio and the loudspeaker's progress, and returns
    events for the caller and messages for the agent. After each call of a method, send the messages
    of `data_to_send`, in order.

    A session whose audio is coded has two more parts: `prepare(pcm) -> bytes` codes a packet before
    it is due, and `send_audio` takes the result; `lead` is the encoder's delay in samples, by which
    the audio is taken ahead.

    Attributes:
        name: the name of the dialect.
        rate: the rate of the person's audio for `send_audio`, Hz. It is the rate of the wire, so
            that recordings are resampled once, beforehand, and nothing delays a packet.
    """

    name: str
    rate: int

    # The agent's messages

    def open(self) -> list[Incoming]:
        """Begin the conversation, once the WebSocket is open.

        Return the immediate events: `Ready`, if the agent sends no message to wait for. In other
        dialects `Ready` comes from `receive_data`.
        """
        ...

    def receive_data(self, message: Message) -> list[Incoming]:
        """Take a message of the agent; return its events for the caller, in order.

        Raises:
            NotSpokenError: the message is not of this dialect. The turn is an `error`.
            ValueError: a needed part of the message is missing or of another kind. The message is
                left out, and the turn says so.
        """
        ...

    # The person

    def send_audio(self, pcm: bytes) -> None:
        """Send one packet of the person's audio, PCM16 mono at `rate`."""
        ...

    def user_ends(self, sample: int) -> None:
        """Take the sample, of all that `send_audio` gets, at which the person's turn ends."""
        ...

    def ping(self, number: int) -> bool:
        """Ask for the agent's clock, which comes as `Pong`; return False if the dialect cannot."""
        ...

    # The loudspeaker

    def audio_played(self, samples: int) -> None:
        """Note how far the agent's audio has been played.

        `samples` counts the samples since the conversation began, of all returned `AudioChunk`s and
        playable `AudioBytes`, that have sounded or were dropped. It never falls. Once the playhead
        has passed the last sample before a mark (Twilio), the mark is due.
        """
        ...

    def audio_dropped(self, samples: int) -> None:
        """Note that the last `samples` of the audio up to now will never be played.

        The call follows a `Flush` or a loss of audio, and precedes the `audio_played` that counts
        these samples. The two calls show to the sample what was heard (OpenAI's truncation).
        """
        ...

    # What goes to the agent

    def data_to_send(self) -> list[Message]:
        """Return the messages that wait to be sent, and forget them."""
        ...

    def close(self) -> None:
        """Say goodbye before the WebSocket is closed, if the dialect has a message for it."""
        ...


class PlainSession:
    """Base of sessions whose agent has no clock and gets no news of the loudspeaker.

    Attributes:
        tells_flushes: whether the agent has a message that drops audio.
    """

    tells_flushes = True

    def __init__(self) -> None:
        self._waiting: list[Message] = []

    def user_ends(self, sample: int) -> None:
        """Do nothing: the agent detects the end itself."""

    def ping(self, number: int) -> bool:
        """Return False: the protocol has no clock."""
        return False

    def audio_played(self, samples: int) -> None:
        """Do nothing: the agent gets no news of the loudspeaker."""

    def audio_dropped(self, samples: int) -> None:
        """Do nothing: the agent gets no news of dropped audio."""

    def data_to_send(self) -> list[Message]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def close(self) -> None:
        """Do nothing: hanging up is enough."""

    def _send(self, event: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps(event))

"""How much an agent may send: beyond these limits a message is left out, and the turn says so.

Each is several times what the most talkative of real agents sends, and small enough that a caller
holds a conversation of any agent in a few hundred megabytes and keeps up with it.
"""

from turngap.caller import said

# One WebSocket message: a reply of three minutes at 48 kHz, sent at once.
MOST_MESSAGE_BYTES = 2**24

# Messages that the socket holds before it stops reading, and at which it reads again. The caller
# takes each as it comes, so it holds more than a few only while the caller itself is held up. TCP
# then makes the agent wait; instants of arrival are the kernel's and stay right.
MOST_QUEUED, QUEUED_AGAIN = 64, 16

# Before the agent is ready and its clock compared, in messages and in bytes of audio.
MOST_EARLY = 10_000

# Audio that waits to be played, in bytes: ten minutes at 48 kHz. What was played is stored with
# its turn, and no turn lasts longer than its reply may.
MOST_WAITING_BYTES = 2**26
# Rates of a conversation's audio; each is resampled by itself for the recording.
MOST_RATES = 8

# Messages of one turn: ten minutes in chunks of 20 ms are 30,000.
MOST_MESSAGES = 50_000
# Characters of one turn's transcript and reply together: people say 15 a second.
MOST_CHARACTERS = 200_000
# Characters of one turn's reports: thirty steps with tools, told anew after each, are 300,000.
MOST_REPORTED = 2**19
# What a mark counts beside its name and instant: stored, it has other names and another instant.
MARK_CHARACTERS = 80
# Messages of one turn that are rare: a reply has one of each, an attempt that was withdrawn too.
MOST_OF = {
    said.Flush: 200,
    said.TurnOver: 1_000,
    said.ReplyDone: 1_000,
    said.Transcript: 1_000,
    said.Marks: 500,
    said.Fault: 100,
    said.ReplyText: 10_000,
    said.Unreadable: 1_000,
}
# Different remarks on one turn; there is no end to what can be wrong.
MOST_NOTES = 20

# A whole conversation: messages of the WebSocket with their bytes, and what they say with the bytes
# of its samples, everything that was left out included. It ends there, because reading even what is
# left out would keep the caller from its own audio.
MOST_CONVERSATION_MESSAGES = 1_000_000
MOST_CONVERSATION_BYTES = 2**29
# In base64, samples are a third longer.
MOST_LINE_BYTES = 2**30


class Volume:
    """Counts what comes over a line, whatever a dialect makes of it."""

    def __init__(self) -> None:
        self._messages = self._bytes = 0

    def is_over(self, message: said.Message) -> str | None:
        """Count a message; return why the conversation must end, or None."""
        self._messages += 1
        self._bytes += len(message)
        if self._messages > MOST_CONVERSATION_MESSAGES:
            return f"more than {MOST_CONVERSATION_MESSAGES:,} messages"
        if self._bytes > MOST_LINE_BYTES:
            return f"more than {MOST_LINE_BYTES // 2**20} MiB"
        return None


class Intake:
    """Counts what an agent sends. `begin_turn` starts a turn's counts again.

    Args:
        endless: whether audio is no message of a turn, since nobody may speak for hours while an
            agent sends on; its bytes and rates are bounded all the same.
    """

    def __init__(self, *, endless: bool = False) -> None:
        self._endless = endless
        self._messages = self._bytes = 0
        self._rates: set[int] = set()
        self.begin_turn()

    def begin_turn(self) -> None:
        self._of: dict[type, int] = {}
        self._in_turn = self._characters = self._reported = 0

    def refuses(self, incoming: said.Incoming, waiting_bytes: int) -> str | None:
        """Count a message; return why it is left out, or None. `waiting_bytes`: unplayed audio."""
        kind = type(incoming)
        self._messages += 1
        if not (self._endless and isinstance(incoming, said.AudioChunk)):
            self._in_turn += 1
            self._of[kind] = self._of.get(kind, 0) + 1
        if self._in_turn > MOST_MESSAGES:
            return f"it sent more than {MOST_MESSAGES:,} messages in one turn"
        if self._of.get(kind, 0) > (most := MOST_OF.get(kind, MOST_MESSAGES)):
            return f"it sent {kind.__name__} more than {most:,} times in one turn"
        if isinstance(incoming, said.AudioChunk):
            return self._refuses_audio(incoming, waiting_bytes)
        if isinstance(incoming, said.Transcript | said.ReplyText):
            self._characters += len(incoming.text)
            if self._characters > MOST_CHARACTERS:
                return f"it sent more than {MOST_CHARACTERS:,} characters of text in one turn"
        elif isinstance(incoming, said.Marks | said.Fault):
            self._reported += len(ascii(incoming))
            if isinstance(incoming, said.Marks):
                self._reported += MARK_CHARACTERS * len(incoming.marks)
            if self._reported > MOST_REPORTED:
                return f"it sent reports of more than {MOST_REPORTED:,} characters in one turn"
        return None

    def is_over(self) -> str | None:
        """Return why the conversation must end; None if it may go on."""
        if self._messages > MOST_CONVERSATION_MESSAGES:
            return f"more than {MOST_CONVERSATION_MESSAGES:,} messages"
        if self._bytes > MOST_CONVERSATION_BYTES:
            return f"more than {MOST_CONVERSATION_BYTES // 2**20} MiB of audio"
        return None

    def _refuses_audio(self, chunk: said.AudioChunk, waiting_bytes: int) -> str | None:
        self._bytes += chunk.pcm.nbytes
        if waiting_bytes + chunk.pcm.nbytes > MOST_WAITING_BYTES:
            return f"it sent over {MOST_WAITING_BYTES // 2**20} MiB of audio ahead of its playing"
        if chunk.rate not in self._rates and len(self._rates) == MOST_RATES:
            return f"it sent audio at more than {MOST_RATES} rates"
        self._rates.add(chunk.rate)
        return None

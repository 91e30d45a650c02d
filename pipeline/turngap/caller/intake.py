"""Limits of the data that an agent may send; more than that is left out, and the turn says so.

Each limit is several times what the most talkative real agent sends. With these limits, a caller
holds a conversation with any agent in a few hundred megabytes and keeps up with it.
"""

from collections import Counter

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
# Characters of one turn's reports: thirty steps with tools, repeated after each, are 300,000.
MOST_REPORTED = 2**19
# What a mark counts besides its name and instant: stored, it has other names and another instant.
MARK_CHARACTERS = 80
# Messages of one turn that are rare: a reply has one of each, an attempt that was withdrawn too.
MOST_OF = {
    said.Flush: 200,
    said.TurnOver: 1_000,
    said.ReplyDone: 1_000,
    said.Transcript: 1_000,
    said.Marks: 500,
    said.NoReply: 500,
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
    """Count of the data that comes over a line, in whatever dialect."""

    def __init__(self, most_bytes: int = 0, of: str = "") -> None:
        self._messages = self._bytes = 0
        self._most_bytes, self._of = most_bytes or MOST_LINE_BYTES, of

    def count(self, size: int) -> None:
        """Count a message of this many bytes."""
        self._messages += 1
        self._bytes += size

    def is_over(self) -> str | None:
        """Return why the conversation must end; None if it may continue."""
        if self._messages > MOST_CONVERSATION_MESSAGES:
            return f"more than {MOST_CONVERSATION_MESSAGES:,} messages"
        if self._bytes > self._most_bytes:
            return f"more than {self._most_bytes // 2**20} MiB{self._of}"
        return None


class Intake(Volume):
    """Counter of an agent's messages. `begin_turn` restarts the counts of a turn.

    Args:
        endless: do not count audio among a turn's messages, because the person may be silent for
            hours while an agent keeps sending; the limits on bytes and rates still apply.
    """

    def __init__(self, *, endless: bool = False) -> None:
        super().__init__(MOST_CONVERSATION_BYTES, " of audio")
        self._endless = endless
        self._rates: set[int] = set()
        self.begin_turn()

    def begin_turn(self) -> None:
        self._spent: Counter[str] = Counter()

    def refuses(self, incoming: said.Incoming, waiting_bytes: int) -> str | None:
        """Count a message; return why it is left out, or None. `waiting_bytes`: unplayed audio."""
        kind = type(incoming)
        is_audio = isinstance(incoming, said.AudioChunk)
        # Of a real-time stream, the line counts what came.
        self.count(incoming.pcm.nbytes if is_audio and incoming.packet is None else 0)
        spends = [("messages", 1, MOST_MESSAGES)]
        spends += [(f"messages of {kind.__name__}", 1, MOST_OF.get(kind, MOST_MESSAGES))]
        if isinstance(incoming, said.Transcript | said.ReplyText):
            spends += [("characters of text", len(incoming.text), MOST_CHARACTERS)]
        elif isinstance(incoming, said.Marks | said.Fault | said.NoReply):
            marks = MARK_CHARACTERS * len(getattr(incoming, "marks", ()))
            spends += [("characters of reports", len(ascii(incoming)) + marks, MOST_REPORTED)]
        for what, n, most in () if is_audio and self._endless else spends:
            self._spent[what] += n
            if self._spent[what] > most:
                return f"it sent more than {most:,} {what} in one turn"
        return self._refuses_audio(incoming, waiting_bytes) if is_audio else None

    def _refuses_audio(self, chunk: said.AudioChunk, waiting_bytes: int) -> str | None:
        if waiting_bytes + chunk.pcm.nbytes > MOST_WAITING_BYTES:
            return f"it sent over {MOST_WAITING_BYTES // 2**20} MiB of audio ahead of playback"
        if chunk.rate not in self._rates and len(self._rates) == MOST_RATES:
            return f"it sent audio at more than {MOST_RATES} rates"
        self._rates.add(chunk.rate)
        return None

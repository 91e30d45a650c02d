"""What to read of a session's audio, and when. Audio and the VAD's verdicts in, pieces out.

Sans I/O: `due` says what to read next, `read` takes the result, `concluded` gives the text of an
utterance that is over. One piece is read at a time, in the order in which it was said.

A streaming model reads a chunk at a time and looks ahead, so the last words of a sentence would be
read with the silence after it. In a pause that silence is made up, and the words are there while
the turn-taking still waits. If the pause is the end, nothing is left to do.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from turngap.core.audio import Pcm
from turngap_services.stt.sound import RATE, VAD_LATE_MS, Voice, samples

# Audio that is handed over at once while the person speaks: handing over costs, and nothing is read
# of less than a model's chunk anyway (160 ms and more).
STEP_MS = 40.0
# From here on, what waits to be read is told: an answer will come that much later.
LATE_MS = 2000.0
# More than this does not wait, of all utterances together: the words would come when they are no
# use, and memory is bounded.
MOST_MS = 20_000.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Audio to be read.

    Attributes:
        pcm: the samples, perhaps none.
        rests: the person has paused: what was said until now is wanted.
        is_last: the utterance ends with them.
    """

    pcm: Pcm
    rests: bool = False
    is_last: bool = False


class Waiting:
    """Packets, and how many samples they have."""

    def __init__(self) -> None:
        self._packets: deque[Pcm] = deque()
        self.samples = 0

    def append(self, pcm: Pcm) -> None:
        self._packets.append(pcm)
        self.samples += len(pcm)

    def shorten(self, most: int) -> None:
        """Forget the oldest packets that are not needed for `most` samples."""
        while self._packets and self.samples - len(self._packets[0]) >= most:
            self.samples -= len(self._packets.popleft())

    def take(self) -> Pcm:
        """Return all of them, and forget them."""
        taken = np.concatenate([np.empty(0, np.int16), *self._packets])
        self._packets.clear()
        self.samples = 0
        return taken


class Utterance:
    """What a person says between the VAD's start and its stop.

    Args:
        known: audio of it that was there when it began; it waits to be read like the rest.
        pause_ms: silence that counts as a pause.
        ahead: samples of earlier utterances that wait to be read.

    Attributes:
        known: as given; nothing if too much was waiting.
        text: what was read so far.
        behind_ms: most audio that waited for a reading to end.
        lost_ms: audio that was not read, as too much was waiting.
    """

    def __init__(self, known: Pcm, pause_ms: float, ahead: int = 0) -> None:
        self.text = ""
        self.behind_ms = self.lost_ms = 0.0
        self._pause = samples(pause_ms)
        self._sound = Voice()
        self._waiting = Waiting()
        self._rested = 0  # all that is said until there was read in a pause
        self._voice_until = 0  # as the VAD judged at its stop
        self._stopped = self._under_way = self._ended = False
        self.audio(known, ahead)
        self.known = known[: self.waiting]

    @property
    def waiting(self) -> int:
        """Number of samples that wait to be read."""
        return self._waiting.samples

    @property
    def over(self) -> bool:
        return not self._under_way and (self._ended or self._nothing_left)

    def audio(self, pcm: Pcm, ahead: int = 0) -> None:
        if ahead + self.waiting + len(pcm) > samples(MOST_MS):
            self.lost_ms += len(pcm) * 1000 / RATE
            return
        self._sound.feed(pcm)
        self._waiting.append(pcm)
        if self._under_way or ahead:
            self.behind_ms = max(self.behind_ms, (ahead + self.waiting) * 1000 / RATE)

    def stop(self, silence_ms: float) -> None:
        """End the utterance, which the VAD did after `silence_ms` of silence."""
        self._stopped = True
        self._voice_until = self._sound.heard - samples(silence_ms + VAD_LATE_MS)

    def due(self) -> Piece | None:
        """Return what to read now, if anything; it is under way from here on."""
        if self._under_way or self._ended or self._nothing_left:
            return None
        rests = self._pauses and not self._resting
        enough = self._waiting.samples >= samples(STEP_MS) and not self._resting
        if not (self._stopped or rests or enough):
            return None
        self._under_way, self._ended = True, self._stopped
        if rests:
            self._rested = self._sound.heard
        return Piece(self._waiting.take(), rests=rests, is_last=self._stopped)

    def read(self, text: str) -> None:
        """Take what was read until now."""
        self._under_way = False
        self.text = text

    @property
    def _nothing_left(self) -> bool:
        """Whether there was nothing but silence since what was read in the last pause."""
        return self._stopped and self._resting and self._voice_until <= self._rested

    @property
    def _pauses(self) -> bool:
        """Whether the person is silent now, after a sound."""
        audible = self._sound.last_audible
        return audible is not None and self._sound.heard - audible >= self._pause

    @property
    def _resting(self) -> bool:
        """Whether everything said until now was read, in the pause that still lasts."""
        return self._pauses and self._rested >= (self._sound.last_audible or 0) + self._pause


class Utterances:
    """The utterances of one session, in order.

    Args:
        pre_roll_ms: audio before the VAD's start that belongs to an utterance.
        pause_ms: silence that counts as a pause.
    """

    def __init__(self, pre_roll_ms: float, pause_ms: float) -> None:
        self._pre_roll = Waiting()
        self._most = samples(pre_roll_ms)
        self._pause_ms = pause_ms
        self._open: Utterance | None = None
        self._waiting: deque[Utterance] = deque()  # not concluded yet, the open one included

    @property
    def settled(self) -> bool:
        return not self._waiting or self._waiting[0] is self._open

    @property
    def open(self) -> Utterance | None:
        """The utterance that is being spoken."""
        return self._open

    def audio(self, pcm: bytes) -> None:
        """Take samples: mono int16, 16 kHz."""
        new = np.frombuffer(pcm, np.int16)
        if self._open is not None:
            self._open.audio(new, self._ahead())
        else:
            self._pre_roll.append(new)
            self._pre_roll.shorten(self._most)

    def start(self) -> None:
        """Begin an utterance with the pre-roll, as the VAD finds speech late."""
        if self._open is None:
            self._open = Utterance(self._pre_roll.take(), self._pause_ms, self._ahead())
            self._waiting.append(self._open)

    def stop(self, silence_ms: float) -> None:
        """End the open utterance, which the VAD did after `silence_ms` of silence."""
        if self._open is not None:
            self._open.stop(silence_ms)
            self._open = None

    def _ahead(self) -> int:
        return sum(each.waiting for each in self._waiting if each is not self._open)

    def due(self) -> tuple[Utterance, Piece] | None:
        """Return what to read next; None while something is read, or if there is nothing."""
        utterance = self._waiting[0] if self._waiting else None
        piece = utterance.due() if utterance else None
        return (utterance, piece) if utterance and piece else None

    def concluded(self) -> Utterance | None:
        """Return the oldest utterance that is over, once; None if there is none."""
        if self._waiting and self._waiting[0].over:
            return self._waiting.popleft()
        return None

"""The plan of a session's readings: audio and the VAD's verdicts in, parts to read out.

Sans I/O: `due` says what to read next, `read` takes the result, `concluded` gives the text of an
utterance that is over. There is one reading at a time.

Whisper cannot continue an earlier reading: each reading begins with the utterance, so it must come
at the right moment. In every pause everything said so far is read: if the pause proves to be the
end, little or nothing is left to do. An utterance that is read only after its end is cut at the
same places, so both ways read the same samples.

In a long utterance the words before a pause are settled once two readings agree on them, the one in
that pause and a later one. The next reading begins after them, and the one after the end has little
to hear and little to write.
"""

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turngap.core.audio import Pcm
from turngap_services.sound import FRAME, RATE, VAD_LATE_MS, Sound, samples
from turngap_services.stt import WhisperSettings

# The next reading outside a pause waits this many times as long as the last one took, as a pause
# that comes meanwhile has to wait for the reading under way.
_REST = 2.0
# A pause is read once it has lasted this share of a reading's time, at most this many ms: a closure
# within a word is a pause too, and the last pause would have to wait for its reading. With a tiny
# model's whole window (0.6 s), reading in every closure gave the text no sooner than reading after
# the end: after 726 ms instead of 685 (p50 of 10 recordings, on a busy machine).
_PATIENCE, _MOST_PATIENCE_MS = 0.25, 150.0
# From here on words are settled. A shorter utterance is read from its beginning, in its context:
# the encoder reads some seconds anyhow (`model`), and its words are soon written. To tell it
# settled words instead saves nothing: CTranslate2 4.8 writes given words as slowly as others.
_LONG_MS = 5_000.0
# The sound of all utterances that were not concluded yet is kept up to here, about 10 MB; what
# comes after it is lost.
MOST_MS = 300_000.0
# The rest of the window is for audio that comes while a reading is waited for.
_WINDOW_SHARE = 0.9


def begins_with(words: Sequence[str], first: Sequence[str]) -> bool:
    """Return whether a reading begins with these words, ignoring case and marks."""
    return [bare(word) for word in words[: len(first)]] == [bare(word) for word in first]


@dataclass(frozen=True, slots=True)
class Reading:
    """A part of an utterance to be read.

    Attributes:
        pcm: the samples.
        last: the sample of the utterance at which they end.
        keeps: the text is final and the next reading begins after it, because the utterance is too
            long.
        in_pause: the samples end in a pause.
    """

    pcm: Pcm
    last: int
    keeps: bool = False
    in_pause: bool = False


class Utterance:
    """The words of a person between the VAD's start and its stop.

    Args:
        settings: see `WhisperSettings`.
        window_s: how much audio the model can read at once.
        takes_ms: how long a reading takes, 0 if unknown.
    """

    def __init__(self, settings: WhisperSettings, window_s: float, takes_ms: float = 0.0) -> None:
        self._settings = settings
        self._takes_ms = takes_ms
        self._sound = Sound()
        self._window = int(window_s * _WINDOW_SHARE * RATE)
        self._first = 0  # the text of what lies before it is final
        self._kept: list[str] = []
        self._words: list[str] = []  # of the latest reading
        self._pauses: list[tuple[int, list[str]]] = []  # the sample, and the words read before it
        self._until = 0  # how far `_words` go
        self._under_way = False
        self._stopped = False
        self._voice_until = 0  # as the VAD judged at its stop
        self._paused_from: int | None = None  # as what finds the turn's end judged
        self._next = 0  # samples to hear before the next reading outside a pause

    @property
    def text(self) -> str:
        return " ".join(part for part in (*self._kept, *self._words) if part)

    @property
    def heard(self) -> int:
        """Return the number of samples, all of which are kept."""
        return self._sound.heard

    @property
    def over(self) -> bool:
        return self._stopped and not self._under_way and self._wanted() is None

    def audio(self, pcm: Pcm) -> None:
        self._sound.feed(pcm)

    def pause(self, silence_ms: float) -> None:
        """Note a silence of this length; from here on, only silences that are noted count."""
        self._paused_from = self._sound.heard - samples(silence_ms)

    def stop(self, silence_ms: float) -> None:
        """End the utterance; the VAD stopped after `silence_ms` of silence."""
        self._stopped = True
        self._voice_until = self._sound.heard - samples(silence_ms + VAD_LATE_MS)

    def due(self) -> Reading | None:
        """Return what to read now, or None; the reading counts as begun."""
        wanted = None if self._under_way else self._wanted()
        self._under_way = self._under_way or wanted is not None
        return wanted

    def read(self, reading: Reading, text: str, took_ms: float) -> None:
        self._under_way = False
        self._takes_ms = took_ms
        self._next = self._sound.heard + samples(_REST * took_ms)
        self._until = reading.last
        self._words = text.split()
        if reading.keeps:
            self._keep(len(self._words), reading.last)
        elif reading.last - self._first > samples(_LONG_MS):
            for last, words in reversed(self._pauses):
                if words and begins_with(self._words, words):
                    self._keep(len(words), last)
                    break
        if reading.in_pause:
            self._pauses.append((reading.last, self._words))

    def _keep(self, count: int, last: int) -> None:
        """Settle the first words, which lie before sample `last`."""
        self._kept += self._words[:count]
        self._first, self._words, self._pauses = last, self._words[count:], []

    def _wanted(self) -> Reading | None:
        sound, settings = self._sound, self._settings
        if not (self._stopped or settings.while_speaking):
            return None
        if sound.heard - self._first > self._window:
            half = self._first + self._window // 2
            return self._reading(sound.quietest(half, self._first + self._window), keeps=True)
        end, is_pause = self._end()
        if end <= self._until or end - self._first < FRAME:
            return None  # nothing new
        if self._stopped or is_pause:
            return self._reading(end, in_pause=True)
        if settings.partial_every_ms is None or sound.heard < self._next:
            return None
        if sound.heard - self._until < samples(settings.partial_every_ms):
            return None
        return self._reading(sound.heard)

    def _end(self) -> tuple[int, bool]:
        """Return where the voice ends so far, with some silence, and whether that is a pause."""
        heard, audible = self._sound.heard, self._sound.last_audible or 0
        silence = samples(self._settings.pause_ms)
        if self._paused_from is not None:
            audible = self._paused_from
            if audible <= self._until:
                audible = self._until - silence  # what was read reaches into this silence
        if self._stopped and self._voice_until > audible + silence:
            return heard, True
        patience = samples(min(_PATIENCE * self._takes_ms, _MOST_PATIENCE_MS))
        is_pause = audible > 0 and heard >= audible + max(silence, patience)
        return (min(heard, audible + silence) if audible else 0), is_pause

    def _reading(self, last: int, *, keeps: bool = False, in_pause: bool = False) -> Reading:
        return Reading(self._sound.between(self._first, last), last, keeps, in_pause)


class Readings:
    """The readings of one session's utterances, in order. For the arguments see `Utterance`.

    Attributes:
        lost_ms: audio of utterances that was not kept, because there was too much.
    """

    def __init__(self, settings: WhisperSettings, window_s: float, takes_ms: float = 0.0) -> None:
        self._settings = settings
        self._takes_ms = takes_ms
        self._window_s = window_s
        self.lost_ms = 0.0
        self._pre_roll: deque[Pcm] = deque()
        self._pre_roll_samples = 0
        self._open: Utterance | None = None
        self._waiting: deque[Utterance] = deque()  # not concluded yet, the open one included

    @property
    def settled(self) -> bool:
        return not self._waiting or self._waiting[0] is self._open

    def audio(self, pcm: bytes) -> None:
        """Take samples: mono int16, 16 kHz."""
        new = np.frombuffer(pcm, np.int16)
        if self._open is not None:
            self._keep(self._open, new)
            return
        self._pre_roll.append(new)
        self._pre_roll_samples += len(new)
        most = samples(self._settings.pre_roll_ms)
        while self._pre_roll_samples - len(self._pre_roll[0]) >= most:
            self._pre_roll_samples -= len(self._pre_roll.popleft())

    def start(self) -> None:
        """Begin an utterance with the pre-roll, because the VAD finds speech late."""
        if self._open is not None:
            return
        self._open = Utterance(self._settings, self._window_s, self._takes_ms)
        self._waiting.append(self._open)
        for pcm in self._pre_roll:
            self._keep(self._open, pcm)
        self._pre_roll.clear()
        self._pre_roll_samples = 0

    def _keep(self, utterance: Utterance, pcm: Pcm) -> None:
        if sum(each.heard for each in self._waiting) + len(pcm) > samples(MOST_MS):
            self.lost_ms += len(pcm) * 1000 / RATE
        else:
            utterance.audio(pcm)

    def pause(self, silence_ms: float) -> None:
        """Note a pause of this length in the open utterance."""
        if self._open is not None:
            self._open.pause(silence_ms)

    def stop(self, silence_ms: float) -> None:
        """End the open utterance; the VAD stopped after `silence_ms` of silence."""
        if self._open is not None:
            self._open.stop(silence_ms)
            self._open = None

    def due(self) -> tuple[Utterance, Reading] | None:
        """Return what to read next; None during a reading, or if there is nothing to read."""
        utterance = self._waiting[0] if self._waiting else None
        reading = utterance.due() if utterance else None
        return (utterance, reading) if utterance and reading else None

    def concluded(self) -> str | None:
        """Return the text of the oldest utterance that is over, once; None if there is none."""
        if self._waiting and self._waiting[0].over:
            return self._waiting.popleft().text
        return None


# Where Whisper's encoder reads less than the 30 s that it was trained on, the decoder may not find
# the end: it repeats itself, or writes more than anybody can say. A text that looks like that is
# read again with the whole window, so a doubt too many costs time and no words.
# Length of a text divided by that of its compressed form, above which it repeats itself, and the
# mean log probability of its tokens, below which the model did not know: OpenAI's bounds.
_MOST_COMPRESSED = 2.4
_LEAST_LOGPROB = -1.0
# This many words that repeat what came just before them: "no no no no", "the cat the cat the
# cat", a sentence of three words twice.
_REPEATED_WORDS = 3
# People hardly say more words in a second; the first words need no time in so short a text.
_WORDS_PER_S, _FIRST_WORDS = 5.0, 3


_MARKS = ".,;:?!…\"'()-–—"


def bare(word: str) -> str:
    """Return the word in lower case without the marks around it, in which readings often differ."""
    return word.strip(_MARKS).casefold()


def doubt(text: str, seconds: float, logprob: float = 0.0) -> str | None:
    """Return why the text is doubtful, or None.

    Args:
        text: the text that was read.
        seconds: length of the audio that it was read from, silence included.
        logprob: mean log probability of its tokens.
    """
    words = [bare(word) for word in text.split()]
    if _repeated(words) >= _REPEATED_WORDS:
        return "it repeats its last words"
    raw = text.encode()
    if raw and len(raw) / len(zlib.compress(raw)) > _MOST_COMPRESSED:
        return "it repeats itself"
    if len(words) > _FIRST_WORDS + _WORDS_PER_S * seconds:
        return "it has more words than fit the time"
    return "the model was unsure" if logprob < _LEAST_LOGPROB else None


def _repeated(words: list[str]) -> int:
    """Return the most words in a row that repeat the words just before."""
    most = 0
    for length in range(1, len(words) // 2 + 1):
        run = 0
        for here, before in zip(words[length:], words, strict=False):
            run = run + 1 if here == before else 0
            # A phrase that only begins again does not count: "to the left and to the right".
            most = max(most, run - run % length)
    return most

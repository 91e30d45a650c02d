"""From text to speech: where to cut text, how fast the engines are, and which silence to cut."""

import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np

from turngap.core.audio import Pcm, audible_onset, window_samples

# Short of this a clause is choppy to hear.
MIN_WORDS = 2

ABBREVIATIONS = frozenset({"dr.", "mr.", "mrs.", "ms.", "st.", "no.", "vs."})

# Words after which no one pauses: a piece that ends with one sounds torn.
_LEADING = re.compile(
    "an?|the|this|that|these|those|my|your|our|their|its|his|her|and|or|but|nor|if|as|of|to|in|on|"
    "at|by|for|from|with|into|than|is|are|was|were|be|been|am|will|would|can|could|should|may|do|"
    "does|did|has|have|had|not|no|very|so|too|about|i|you|he|she|it|we|they"
)

_CLOSERS = "\"'”’)\\]"
ENDING = re.compile(rf"[.!?;:,…]+[{_CLOSERS}]*(?=\s|$)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")  # p.m., e.g., U.S.; and their first half, "p."
# What is left of an ending that came in several tokens, as "..." does.
_LEFTOVER = re.compile(rf"^[.!?;:,…{_CLOSERS}]+(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where waiting text may be split.

    Attributes:
        end: index behind its last character.
        words: whole words before it.
        clause: whether a clause ends there.
        dangling: whether the word before leads on to the next ("the", "to").
        ends_reply: whether it is the end of the whole reply.
    """

    end: int
    words: int
    clause: bool
    dangling: bool
    ends_reply: bool


def cuts(text: str, *, ended: bool) -> list[Cut]:
    """List the cuts of `text`, one behind each whole word.

    The last word is whole once a space, a mark or the end of the reply (`ended`) follows it.
    """
    found: list[Cut] = []
    for number, word in enumerate(re.finditer(r"\S+", text), start=1):
        last = word.end() == len(text)
        spelled = word.group()
        closed = ENDING.search(spelled) is not None
        clause = closed and not is_abbreviation(spelled)
        if last and not ended and (not clause or may_be_in_a_number(spelled)):
            break
        dangling = _LEADING.fullmatch(spelled.lower()) is not None
        found.append(Cut(word.end(), number, clause, dangling, ends_reply=last and ended))
    return found


def parted(text: str) -> list[str]:
    """Split a whole `text` into clauses; one shorter than MIN_WORDS is joined to the next."""
    text = text.strip()  # or the space behind the last word would be the end, and not the word
    pieces: list[str] = []
    begun = words = 0
    for cut in cuts(text, ended=True):
        if cut.ends_reply or (cut.clause and cut.words - words >= MIN_WORDS):
            pieces.append(text[begun : cut.end].strip())
            begun, words = cut.end, cut.words
    return pieces


def ends_clause(text: str) -> bool:
    """Return whether `text` ends where people pause."""
    ending = re.search(rf"[.!?;:,…]+[{_CLOSERS}]*$", text.strip())
    return ending is not None and not is_abbreviation(text.rsplit(maxsplit=1)[-1])


def without_leftover(text: str) -> str:
    """Strip the marks from the start of a text that belong to the piece before it."""
    return _LEFTOVER.sub("", text)


def may_be_in_a_number(word: str) -> bool:
    """Return whether the mark that ends `word` may be part of a number: "3." may become "3.5"."""
    return len(word) > 1 and word[-1] in ".,:" and word[-2].isdigit()


def is_abbreviation(word: str) -> bool:
    """Return whether the full stop at the end of `word` belongs to it: "Dr.", "p.m."."""
    lower = word.lower()
    return lower in ABBREVIATIONS or (lower != "i." and _INITIALS.fullmatch(lower) is not None)


# As much as says something of now: about a conversation's last four replies.
_REQUESTS, _TOKENS = 16, 64

# Before anything was measured: slower than most engines that keep a conversation going, the LLM
# at 12 tokens a second.
_UNKNOWN_REQUEST_MS, _UNKNOWN_FACTOR, _UNKNOWN_CHAR_MS = 200.0, 0.4, 20.0

# How long text sounds: so much a character, so much a piece (its end is drawn out), and how far it
# may be from that, which hardly depends on its length. espeak-ng at 200 words a minute, 318 pieces
# of 2 to 14 words of the library's replies: the residual's standard deviation is 90 to 150 ms.
_CHAR_MS, _PIECE_MS, _SPREAD_MS = 49.0, 128.0, 180.0

# By how much what comes may take longer than the only one there was; of n, by a root of n less.
_UNSURE = 0.5
# Less text than this says little.
_FEW_CHARS = 20

# A first chunk below this share of the request's audio came before the rest was made; shorter
# speech than this may be one chunk of an engine that streams.
_STREAMED_SHARE, _TELLING_MS = 0.7, 500.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the TTS as it went; all times in ms.

    Attributes:
        chars: length of its text.
        audio_ms: length of the speech that it made.
        made_ms: time from the request to its last audio.
        first_ms: time to its first audio.
        chunk_ms: length of the first audio.
    """

    chars: int
    audio_ms: float
    made_ms: float
    first_ms: float
    chunk_ms: float


class VoiceSpeed:
    """The time that a TTS takes: a fixed part a request, and a part for each ms of speech."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque(maxlen=_REQUESTS)
        self._request_ms, self._factor = _UNKNOWN_REQUEST_MS, _UNKNOWN_FACTOR
        self._late_ms = 0.0
        self._unsure = 1 + _UNSURE
        self._scale = 1.0
        self._streams_after_ms: float | None = None

    @property
    def known(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Learn from a request; a request without audio changes nothing."""
        if request.audio_ms <= 0 or request.chars <= 0:
            return
        self._requests.append(request)
        of_late = self._requests
        self._request_ms, self._factor = _line([(r.audio_ms, r.made_ms) for r in of_late])
        expected = [self._request_ms + self._factor * r.audio_ms for r in of_late]
        late = (r.made_ms - e for r, e in zip(of_late, expected, strict=True))
        self._late_ms = max(0.0, *late)
        self._unsure = 1 + _UNSURE / len(of_late) ** 0.5
        usual_ms = sum(_usual_ms(r.chars) for r in of_late)
        self._scale = sum(r.audio_ms for r in of_late) / usual_ms
        telling = [r for r in of_late if r.audio_ms > _TELLING_MS]
        streams = telling and all(r.chunk_ms < _STREAMED_SHARE * r.audio_ms for r in telling)
        first_ms = max(r.first_ms for r in of_late)
        self._streams_after_ms = first_ms + self._late_ms if streams else None

    def make_ms(self, audio_ms: float) -> float:
        """Estimate the time from the request to the last audio, with the recent lateness."""
        return (self._request_ms + self._factor * audio_ms) * self._unsure + self._late_ms

    def first_ms(self, audio_ms: float) -> float:
        """Estimate the time from the request to the first audio."""
        whole = self.make_ms(audio_ms)
        return whole if self._streams_after_ms is None else min(whole, self._streams_after_ms)

    def speech_ms(self, chars: int) -> tuple[float, float]:
        """Estimate the least and the greatest duration of speech with this many characters."""
        middle = _usual_ms(chars)
        spread = min(_SPREAD_MS, middle / 2)
        return self._scale * (middle - spread), self._scale * (middle + spread)


def _usual_ms(chars: int) -> float:
    return _PIECE_MS + _CHAR_MS * chars


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Fit y over x by least squares: return the value at 0 and the slope, neither below 0."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    # Of points at one place the slope is not known; then all is laid on the speech's length.
    if spread <= (0.1 * mean_x) ** 2 * n:
        return 0.0, mean_y / mean_x
    slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)
    start = mean_y - slope * mean_x
    if start < 0:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return start, slope


class TextSpeed:
    """The speed at which the LLM's text comes.

    Attributes:
        char_ms: average time between two characters, recently or in this reply, whichever is
            slower.
        late_ms: how much longer than that a piece of text has taken.
    """

    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque(maxlen=_TOKENS)
        self._of_reply = 0
        self._last_ms: float | None = None
        self.char_ms, self.late_ms = _UNKNOWN_CHAR_MS, 0.0

    def reply_started(self) -> None:
        """Begin another reply; the time to its first text is not a wait between two texts."""
        self._of_reply, self._last_ms = 0, None

    def text(self, at_ms: float, chars: int) -> None:
        """Record that this many characters arrived at once."""
        if self._last_ms is not None and chars > 0:
            self._came.append((at_ms - self._last_ms, chars))
            self._of_reply += 1
            own = list(islice(reversed(self._came), self._of_reply))
            self.char_ms = max(_slowest(self._came), _slowest(own))
            self.late_ms = max(0.0, *(ms - chars * self.char_ms for ms, chars in self._came))
        self._last_ms = at_ms


def _slowest(came: Collection[tuple[float, int]]) -> float:
    """Return the longest likely time per character, in ms; more pieces of text lower the doubt."""
    chars = sum(c for _, c in came)
    known = sum(ms for ms, _ in came) / chars * (1 + _UNSURE / len(came) ** 0.5)
    return known if chars >= _FEW_CHARS else max(known, _UNKNOWN_CHAR_MS)


# Softer than this nothing is speech: 10 dB under what counts as audible at the caller, so that the
# soft beginning of an f or an h stays; over the noise of synthesisers that are never quite silent.
LEAD_DBFS = -50.0

# Kept before the first sound, for the attack that led up to it.
KEEP_MS = 5.0

# What is longer is meant, as a break in the text is.
MOST_MS = 1000.0


class LeadCut:
    """Cutter that takes speech as it is made and passes it on from its first sound.

    Args:
        rate: of the samples (mono int16), Hz.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._waiting: Pcm = np.empty(0, dtype=np.int16)
        self._cut = 0
        self._sounds = False

    @property
    def sounds(self) -> bool:
        return self._sounds

    @property
    def cut_ms(self) -> float:
        return self._cut * 1000 / self._rate

    def feed(self, pcm: Pcm) -> Pcm:
        """Take more speech; return the part to be heard, which may be empty."""
        if self._sounds:
            return pcm
        self._waiting = np.concatenate((self._waiting, pcm))
        keep = round(KEEP_MS * self._rate / 1000)
        onset = audible_onset(self._waiting, self._rate, LEAD_DBFS)
        too_long = self._cut + len(self._waiting) > MOST_MS * self._rate / 1000
        self._sounds = onset is not None or too_long
        if onset is not None:
            silent = onset - keep
        else:
            # A sound may have begun within the last window.
            silent = len(self._waiting) - window_samples(self._rate) - keep
        silent = 0 if too_long and onset is None else max(0, silent)
        self._cut += silent
        rest = self._waiting[silent:]
        self._waiting = np.empty(0, dtype=np.int16) if self._sounds else rest
        return rest if self._sounds else self._waiting[:0]


# How long a letter takes, where the voice's own pace is not known (espeak-ng, 175 words a minute).
LETTER_MS = 65.0
# A word counts as heard from here on: what is left of it, people complete.
HEARD_PART = 0.5
# A pause at a mark, in letters.
MARK_LETTERS = 3.0


def words_heard(text: str, played_ms: float, whole_ms: float) -> str:
    """Estimate which words of `text` were spoken in `played_ms` of its `whole_ms`.

    A word takes time by its letters, and a little more before a mark that asks for a pause.
    """
    words = text.split()
    weights = [letters(word) for word in words]
    left = played_ms / whole_ms * sum(weights) if whole_ms > 0 else 0.0
    heard = 0
    for weight in weights:
        if left < weight * HEARD_PART:
            break
        left -= weight
        heard += 1
    return " ".join(words[:heard])


def letters(text: str) -> float:
    """Estimate how long a text takes to say, in letters."""
    pauses = sum(text.count(mark) for mark in ",.;:!?")
    return sum(c.isalnum() for c in text) + len(text.split()) + MARK_LETTERS * pauses

"""Expected speeds of the engines, from what they did: the slower of two estimates. Pure."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

# As much as tells of now: about a conversation's last four replies.
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
# Less text than this tells little.
_FEW_CHARS = 20

# A first chunk below this share of the request's audio came before the rest was made; shorter
# speech than this may be one chunk of an engine that streams.
_STREAMED_SHARE, _TELLING_MS = 0.7, 500.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the TTS as it went; all in ms.

    Attributes:
        chars: length of its text.
        audio_ms: of speech that it made.
        made_ms: from the request to its last audio.
        first_ms: to its first audio.
        chunk_ms: of speech in the first audio.
    """

    chars: int
    audio_ms: float
    made_ms: float
    first_ms: float
    chunk_ms: float


class VoiceSpeed:
    """The time that a TTS takes: a part a request, and a part a millisecond of speech."""

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
        """Learn from a request; one without audio teaches nothing."""
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
    """Least squares of y over x: (at 0, slope), neither below 0."""
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
        char_ms: between two characters on the average, of late or in this reply, whichever is
            slower.
        late_ms: how much more than that a piece of text has taken.
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
    """Return the milliseconds that a character may take; more pieces of text make it surer."""
    chars = sum(c for _, c in came)
    known = sum(ms for ms, _ in came) / chars * (1 + _UNSURE / len(came) ** 0.5)
    return known if chars >= _FEW_CHARS else max(known, _UNKNOWN_CHAR_MS)

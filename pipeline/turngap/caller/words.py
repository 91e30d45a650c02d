"""Find words in what an agent plays, among clicks, breaths, hum and ambience.

Sound is split by its level; a speech detector says which of it is speech, and runs only where that
is not known; the sound around its windows places the first word to the sample. What is found does
not depend on how the stream is cut into pieces.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

import numpy as np

from turngap.caller.onset import CLICK_MS, HOLE_MS, OVER_BED_DB, PEAKS_DB, levels, loud_part, place
from turngap.core.audio import (
    AUDIBLE_DBFS,
    FULL_SCALE,
    Pcm,
    SpeechDetector,
    SpeechEnd,
    SpeechStart,
    audible_samples,
    dbfs_to_amplitude,
    is_loud,
    rms_dbfs,
    window_samples,
)
from turngap.silero import RATE, WINDOW, Silero

# The detector is asked about sound from here on. Voices 20 dB softer than most reach it, and noise
# of -55 dBFS does not.
CANDIDATE_DBFS = -48.0

# Sound that continues for this long without speech is a bed. Silero needs up to 210 ms for a voice.
BED_MS = 500.0
# So is sound of which the detector is not sure for so long: less than is kept of it.
UNSURE_MS = 1200.0
# A bed is over after this many windows of 10 ms that lie this much below it.
FALLEN_WINDOWS = 3
FALLEN_DB = 6.0
# A bed from here on may hide a voice.
HIDES_DBFS = -30.0

# Silero's probability from which sound may be speech; and of two windows in a row with which it is.
# Of speech, one of the first five is over the last (p90, n = 97); tones and tunes stay below.
# One window from which speech began, if the detector is sure later in the same sound: the short
# vowel of "It's" is over this, and windows of tones from 300 Hz on below it (0.68, n = 84).
VOWEL = 0.7
LIKELY = 0.5
ALMOST_SURE = 0.9
SURE = 0.97
# Silero was made with voices of a usual level: where nothing continues underneath, a softer one is
# raised to this level for it.
USUAL_DBFS = -20.0
MOST_GAIN_DB = 25.0

# This many windows of what continues show Silero that it is no speech: a tune is, note by note.
BED_WINDOWS = 3

# A voice is audible down to this far below its loud parts; no voice of a usual level gets another
# threshold by it.
BELOW_VOICE_DB = 22.0
FAINTEST_DBFS = -60.0
# Of a voice whose loud parts lie below, too much cannot be heard for its first word to be placed.
FAINTEST_VOICE_DBFS = -44.0
LEVEL_MS = 300.0

# In speech, the detector is asked again after a pause of this length, and where there is none. Of
# sound that goes on, it has to be almost sure within 450 ms, or take most windows for speech: it
# does of speech (94 % in its middle, 99 % after pauses, n = 2400), and of 3 % of notes.
PAUSE_MS = 150.0
ASK_AGAIN_MS = 1000.0
ANSWER_MS = 450.0
LIKELY_WINDOWS = 8
# A voice rises by 8 dB at most after its first 300 ms (n = 72): this much more is another's.
LOUDER_DB = 12.0
# The peaks of a voice in the background lie this much over most of it.
OVER_VOICE_DB = 5.0

# Nothing is looked for below such peaks: speech lies 10 dB and more below its own.
CREST_DB = 6.0

# What is kept of the stream.
KEPT_MS = 1600.0


@dataclass(frozen=True, slots=True)
class Word:
    """Speech that began at stream position `sample`, not at `instead_of` as reported before.

    `spread` is the position's possible error in samples; `dbfs` the level at which it began.
    """

    sample: int
    spread: int | None = None
    instead_of: int | None = None
    dbfs: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Sound:
    """Sound, not speech, from position `sample` on; `dbfs` is the level of its loudest 10 ms."""

    sample: int
    dbfs: float


@dataclass(frozen=True, slots=True)
class Bed:
    """Sound at `dbfs` that continues from stream position `sample` on; None: the bed ends there."""

    sample: int
    dbfs: float | None


Found = Word | SpeechEnd | Sound | Bed


@dataclass(slots=True)
class _Candidate:
    """Sound from `start` on that may be speech, and the detector's windows over it."""

    start: int
    first: int  # where the windows begin
    window: int = 1  # the next to be judged; the first one is room
    heard: int = -1  # the last one that the detector heard
    chances: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class _Speech:
    """Speech in progress, and the basis of its onset."""

    onset: int
    at: int  # where the detector was sure
    since: int  # nothing before belongs to it
    audible_dbfs: float
    dbfs: float | None = None  # of its loud parts, once there is enough of it
    asked: int = 0
    silent_since: int | None = None


class WordFinder:
    """Finder of words, other sound and the bed in a stream that arrives in pieces."""

    def __init__(self, rate: int, *, gap_ms: float, in_numpy: bool = False) -> None:
        self.rate = rate
        self.bed_dbfs: float | None = None
        self._judge = Silero(in_numpy=in_numpy)
        self._gap = self._samples(gap_ms)
        self._hop = window_samples(rate)
        self._inbox: deque[Pcm] = deque()
        self._waiting = 0
        self._past: deque[Pcm] = deque()
        self._past_at = 0
        self._upto = 0  # what was taken from the inbox
        self._ended = 0  # of the speech before
        self._fallen: list[float] = []
        self._cutting = False
        self._soft: tuple[int, int] | None = None  # speech too soft to be heard by itself
        self._before = 0, -inf  # where other speech ended, and its level
        self._candidate: _Candidate | None = None
        self._speech: _Speech | None = None
        self._sounds: SpeechDetector | None = None  # while nothing is loud, none is needed
        self._sounds_at = 0
        self._level = CANDIDATE_DBFS

    @property
    def speaking(self) -> bool:
        return self._speech is not None

    @property
    def unsure(self) -> bool:
        """Return whether sound that was played may turn out to be speech."""
        return self._candidate is not None

    @property
    def behind(self) -> bool:
        """Return whether there is more to find in what has arrived."""
        return self._candidate is not None or self._waiting >= self._hop

    @property
    def audible_dbfs(self) -> float:
        """Return the level of a sample that may be speech."""
        return max(AUDIBLE_DBFS, self._bed + PEAKS_DB)

    @property
    def longest_silence(self) -> int:
        """Return how much silence may change the result."""
        return max(self._gap, self._samples(BED_MS)) + 4 * self._hop

    @property
    def settled(self) -> int:
        """Return the stream position before which nothing more can be found."""
        return self._past_at

    def feed(self, pcm: Pcm, windows: float = 1) -> list[Found]:
        """Take the stream's next samples; ask the detector about this many windows at most."""
        self._inbox.append(pcm)
        self._waiting += len(pcm)
        return self._go_on(windows)

    def cut(self) -> list[Found]:
        """End any speech here, because the stream was cut. Positions continue to count."""
        self._cutting = True
        found = self._go_on(inf)
        if self._waiting:
            found += self._hear(self._take(self._waiting))
        while (candidate := self._candidate) and self._window(candidate)[0] < self._upto:
            self._ask(candidate)
            found += self._decide(candidate)
        if self._sounds is not None:
            found += self._on_sounds(self._sounds.cut())
        if self._candidate is not None:
            found += self._reject(self._candidate)
        if self._speech is not None:
            found += self._end(self._speech)
        self._cutting = False
        self._past.clear()
        self._past_at = self._ended = self._upto
        return found

    # --- the course of the stream -----------------------------------------------------------------

    def _go_on(self, windows: float) -> list[Found]:
        """Take the samples that have arrived, in steps whose ends depend on the stream alone."""
        found: list[Found] = []
        while True:
            candidate = self._candidate
            if candidate and self._window(candidate)[1] <= self._upto:
                if windows <= 0:
                    break
                windows -= self._ask(candidate)
                found += self._decide(candidate)
                continue
            step = self._step()
            if self._waiting < step:
                break
            found += self._hear(self._take(step))
            found += self._look_after()
        return found

    def _step(self) -> int:
        """Return how many samples to take at once: many where nothing can be found."""
        speech = self._speech
        if speech is not None and speech.silent_since is not None:
            left = self._over(speech.silent_since) - self._upto
            return min(self._hop, left) if left > 0 else self._hop
        whole = len(self._inbox[0]) // self._hop if self._inbox else 0
        if whole < 2 or self._sounds or self.bed_dbfs is not None or self._is_loud(self._inbox[0]):
            return self._hop
        return whole * self._hop

    def _hear(self, pcm: Pcm) -> list[Found]:
        """Search the latest samples for sound, if there can be any."""
        if self._sounds is None:
            if not self._is_loud(pcm):
                return []
            before = min(self._hop, self._upto - len(pcm))
            sounds = self._listen(self._upto - len(pcm) - before)
            pcm = self._slice(self._sounds_at, self._upto)
        else:
            sounds = self._sounds
        found = self._on_sounds(sounds.feed(pcm))
        if not (self._candidate or self._speech or sounds.speaking or self._is_loud(pcm)):
            self._sounds = None
        return found

    def _is_loud(self, pcm: Pcm) -> bool:
        return is_loud(pcm, dbfs_to_amplitude(self._level + CREST_DB))

    def _take(self, samples: int) -> Pcm:
        """Take samples out of the inbox, and keep them as the past."""
        taken: list[Pcm] = []
        left = samples
        while left > 0:
            piece = self._inbox.popleft()
            if len(piece) > left:
                self._inbox.appendleft(piece[left:])
                piece = piece[:left]
            taken.append(piece)
            left -= len(piece)
        self._waiting -= samples
        self._upto += samples
        pcm = taken[0] if len(taken) == 1 else np.concatenate([np.empty(0, np.int16), *taken])
        self._past.append(pcm)
        keep_from = self._upto - self._samples(KEPT_MS)
        while self._past_at + len(self._past[0]) <= keep_from:
            self._past_at += len(self._past.popleft())
        return pcm

    def _slice(self, first: int, last: int) -> Pcm:
        """Return the samples from stream position `first` to `last`, zeros where there are none."""
        pieces: list[Pcm] = []
        at = self._upto
        for piece in reversed(self._past):
            at -= len(piece)
            if at < last:
                pieces.append(piece[max(0, first - at) : last - at])
            if at <= first:
                break
        pcm = np.concatenate([np.empty(0, np.int16), *reversed(pieces)])
        missing = max(0, at - first), max(0, last - max(first, self._upto))
        return np.pad(pcm, missing) if any(missing) else pcm

    # --- sound ------------------------------------------------------------------------------------

    @property
    def _bed(self) -> float:
        return -inf if self.bed_dbfs is None else self.bed_dbfs

    def _latest_dbfs(self) -> float:
        return rms_dbfs(self._slice(self._upto - self._hop, self._upto))

    def _samples(self, ms: float) -> int:
        return round(self.rate * ms / 1000)

    def _rest(self) -> None:
        """Listen for what is loud enough for a candidate."""
        self._sounds = None
        self._level = max(CANDIDATE_DBFS, self._bed + OVER_BED_DB)

    def _listen(self, since: int) -> SpeechDetector:
        """Search for sound from a stream position on."""
        gap_ms = HOLE_MS if self._speech is None else PAUSE_MS
        gap_ms = min(gap_ms, self._gap * 1000 / self.rate)
        self._sounds_at = since
        self._sounds = SpeechDetector(self.rate, gap_ms=gap_ms, dbfs=self._level)
        return self._sounds

    def _on_sounds(self, events: list[SpeechStart | SpeechEnd]) -> list[Found]:
        found: list[Found] = []
        sounds = self._sounds
        for event in events:
            if self._sounds is not sounds:  # what follows was searched again
                break
            at = self._sounds_at + event.sample
            if isinstance(event, SpeechStart):
                if self._candidate is None and (
                    self._speech is None or self._speech.silent_since is not None
                ):
                    self._candidate = self._new_candidate(at)
            elif self._candidate is not None:
                speech, likely = self._speech, max(self._candidate.chances, default=0) > LIKELY
                found += self._reject(self._candidate)
                if speech is not None and (likely or speech.silent_since is None):
                    speech.silent_since = at
            elif self._speech is not None:
                self._speech.silent_since = at
        return found

    def _new_candidate(self, start: int) -> _Candidate:
        return _Candidate(start, start - self._window_samples(1))

    def _look_after(self) -> list[Found]:
        """Handle what time alone decides: the end of speech, its level, the end of a bed."""
        if (speech := self._speech) is None:
            if self._candidate is None and self.bed_dbfs is not None:
                return self._watch_bed(self.bed_dbfs)
            return []
        found: list[Found] = []
        if speech.dbfs is None and self._upto - speech.onset >= self._samples(LEVEL_MS):
            found += self._settle(speech)
        if speech.dbfs is not None and self._latest_dbfs() >= speech.dbfs + LOUDER_DB:
            return found + self._end_in_bed(speech)
        if self._candidate is not None:
            return found
        if speech.silent_since is None:
            if self._upto - speech.asked >= self._samples(ASK_AGAIN_MS):
                self._candidate = self._new_candidate(self._upto)
        elif self._upto >= self._over(speech.silent_since):
            found += self._end(speech)
        return found

    def _watch_bed(self, bed_dbfs: float) -> list[Found]:
        level = self._latest_dbfs()
        self._fallen = [*self._fallen, level] if level < bed_dbfs - FALLEN_DB else []
        if len(self._fallen) < FALLEN_WINDOWS:
            return []
        lower = max(self._fallen)
        judged = bed_dbfs > HIDES_DBFS  # what is left may be a voice
        return self._set_bed(lower if lower > FAINTEST_DBFS and not judged else None)

    def _set_bed(self, dbfs: float | None) -> list[Found]:
        before, self.bed_dbfs = self.bed_dbfs, dbfs
        self._fallen = []
        if self._speech is None:
            self._rest()
        audible = [b is not None and b >= AUDIBLE_DBFS for b in (before, dbfs)]
        if not any(audible):
            return []
        return [Bed(self._upto, dbfs if audible[1] else None)]

    def _over(self, silent_since: int) -> int:
        """Return where speech has certainly ended if nothing more is audible."""
        return silent_since + self._gap + self._hop

    # --- speech -----------------------------------------------------------------------------------

    def _window_samples(self, number: int) -> int:
        return round(number * WINDOW * self.rate / RATE)

    def _window(self, candidate: _Candidate, before: int = 0) -> tuple[int, int]:
        """Return the bounds of a candidate's next window, or of one `before` windows earlier."""
        first = candidate.first + self._window_samples(candidate.window - before)
        return first, first + self._window_samples(1)

    def _ask(self, candidate: _Candidate) -> int:
        """Judge the next window of a candidate; return how often the detector was asked."""
        pcm = self._slice(*self._window(candidate))
        asked = 0
        chance = 0.0
        loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) >= dbfs_to_amplitude(self._level))
        going_on = bool(candidate.chances) and candidate.chances[-1] > LIKELY
        if going_on or (len(loud) and loud[-1] - loud[0] >= self._samples(CLICK_MS)):
            if candidate.heard < candidate.window - 1:
                self._judge.reset()
                new = self.bed_dbfs is not None and self._speech is None
                for before in range(BED_WINDOWS if new else 1, 0, -1):
                    window = self._slice(*self._window(candidate, before))
                    self._judge.probability(window, self.rate)
                    asked += 1
            chance = self._judge.probability(self._raised(pcm, candidate), self.rate)
            candidate.heard = candidate.window
            asked += 1
        candidate.chances.append(chance)
        candidate.window += 1
        return asked

    def _raised(self, pcm: Pcm, candidate: _Candidate) -> Pcm:
        """Amplify the sound of a soft voice, by its level so far."""
        if self.bed_dbfs is not None:
            return pcm
        so_far = self._slice(candidate.start, self._window(candidate)[1])
        gain_db = min(MOST_GAIN_DB, USUAL_DBFS - float(levels(so_far, self._hop).max()))
        if gain_db <= 0:
            return pcm
        raised = pcm * dbfs_to_amplitude(gain_db) / FULL_SCALE
        return np.rint(np.clip(raised, -32768, 32767)).astype(np.int16)

    def _decide(self, candidate: _Candidate) -> list[Found]:
        last = candidate.chances[-1]
        if self._speech is not None:
            likely = sum(chance > LIKELY for chance in candidate.chances)
            if last > ALMOST_SURE or likely >= LIKELY_WINDOWS:
                self._speech.silent_since = None
                self._speech.asked = self._upto
                self._leave()
            elif self._upto - candidate.start >= self._samples(ANSWER_MS):
                return self._turned_into_bed(self._speech)
            return []
        likely = len(list(takewhile(lambda chance: chance > LIKELY, reversed(candidate.chances))))
        before = candidate.chances[-2] if candidate.window > 2 else 0.0
        sure = last >= SURE and before >= ALMOST_SURE
        if sure and self._level_of(candidate) >= FAINTEST_VOICE_DBFS:
            return self._begin(candidate, self._first_speech(candidate, likely))
        if self._upto - candidate.start < self._samples(UNSURE_MS if likely else BED_MS):
            return []
        if likely and sum(chance > ALMOST_SURE for chance in candidate.chances) > 1:
            return self._reject(candidate)
        return self._becomes_bed(candidate)

    def _first_speech(self, candidate: _Candidate, likely: int) -> int:
        """Return where speech began: at its last `likely` windows, or at a vowel before these."""
        chances = candidate.chances
        vowels = [n for n, chance in enumerate(chances) if chance > VOWEL]
        first = vowels[0] if self.bed_dbfs is None else len(chances) - likely
        while first > 0 and chances[first - 1] > LIKELY:
            first -= 1
        return self._window(candidate, len(chances) - first)[0]

    def _level_of(self, candidate: _Candidate) -> float:
        return loud_part(self._slice(candidate.start, self._upto), self._hop, 0.9)

    def _since_soft(self, candidate: _Candidate, at: int) -> int:
        """Return where the speech of a candidate began, even if its first words were softer."""
        if self._soft is None or candidate.start - self._soft[1] > self._gap:
            return at
        return self._soft[0]

    def _since_loud(self, at: int) -> int:
        """Return where the voice at `at` began: after a long stretch of far softer sound."""
        each = levels(self._slice(at, self._upto), self._hop)
        soft = int(np.argmax(each >= each.max() - LOUDER_DB)) * self._hop
        return at + soft if soft > self._samples(LEVEL_MS) else at

    def _leave(self) -> None:
        self._candidate = None
        self._judge.reset()

    def _reject(self, candidate: _Candidate) -> list[Found]:
        """Take a candidate that has ended for sound, unless the detector was nearly sure."""
        least, windows = (LIKELY, 1) if self._cutting else (ALMOST_SURE, 2)
        sure = sum(chance > least for chance in candidate.chances) >= windows
        if self._speech is None and sure:
            first = next(n for n, chance in enumerate(candidate.chances, 1) if chance > LIKELY)
            at = self._window(candidate, candidate.window - first)[0]
            if (level := self._level_of(candidate)) >= FAINTEST_VOICE_DBFS:
                return self._begin(candidate, at)
            self._leave()
            self._soft = self._since_soft(candidate, at), self._upto
            self._before = self._upto, level
            return self._sound(candidate.start, self._upto) or [Sound(candidate.start, level)]
        self._leave()
        if self._speech is not None:
            return []
        found = self._sound(candidate.start, self._upto)
        likely = max(candidate.chances, default=0.0) > LIKELY
        return found if likely or self._cutting else [*found, *self._learn_bed()]

    def _learn_bed(self) -> list[Found]:
        """Raise the level of a bed that swells."""
        first = max(self._ended, self._past_at)
        if self.bed_dbfs is None or self._upto - first < self._samples(BED_MS):
            return []
        level = loud_part(self._slice(first, self._upto), self._hop, 0.75)
        return self._set_bed(level) if level > self.bed_dbfs + 1 else []

    def _sound(self, first: int, last: int) -> list[Found]:
        """Report sound that is audible in a part of the stream, if any is."""
        pcm = self._slice(first, last)
        audible = audible_samples(pcm, self._hop, dbfs_to_amplitude(max(AUDIBLE_DBFS, self._bed)))
        if not len(audible):
            return []
        return [Sound(first + int(audible[0]), float(levels(pcm, self._hop).max()))]

    def _becomes_bed(self, candidate: _Candidate) -> list[Found]:
        level = loud_part(self._slice(candidate.start, self._upto), self._hop, 0.75)
        self._leave()
        return self._sound(candidate.start, self._upto) + self._set_bed(level)

    def _begin(self, candidate: _Candidate, at: int) -> list[Found]:
        """Begin speech, of which the detector is sure from `at` on."""
        self._leave()
        since, at, self._soft = self._ended, self._since_soft(candidate, at), None
        at = self._since_loud(at)
        onset, spread, level = self._place(at, since, AUDIBLE_DBFS)
        self._speech = _Speech(onset, at, since, level, asked=self._upto)
        found = self._sound(candidate.start, onset) if candidate.start < onset else []
        loud = loud_part(self._slice(onset, self._upto), self._hop, 0.9)
        return [*found, Word(onset, spread, dbfs=loud), *self._hear_again(onset, level)]

    def _hear_again(self, since: int, dbfs: float) -> list[Found]:
        self._level = max(dbfs, self._bed + OVER_BED_DB)
        return self._on_sounds(self._listen(since).feed(self._slice(since, self._upto)))

    def _settle(self, speech: _Speech) -> list[Found]:
        """Place the onset of a soft voice by its own level, once that is known."""
        speech.dbfs = loud = loud_part(self._slice(speech.onset, self._upto), self._hop, 0.9)
        level = max(FAINTEST_DBFS, loud - BELOW_VOICE_DB)
        if level >= AUDIBLE_DBFS:
            return []
        before = speech.onset
        speech.onset, spread, speech.audible_dbfs = self._place(speech.at, speech.since, level)
        speech.silent_since = None
        found = self._hear_again(speech.onset, speech.audible_dbfs)
        if speech.onset == before:
            return found
        return [Word(speech.onset, spread, before, speech.dbfs), *found]

    def _end(self, speech: _Speech, ended: int | None = None) -> list[Found]:
        """End speech at a stream position, or else where it was last audible."""
        if ended is None:
            ended = self._upto if speech.silent_since is None else speech.silent_since
        self._speech, self._ended = None, ended + 1
        self._before = ended, -inf if speech.dbfs is None else speech.dbfs
        self._rest()
        return [SpeechEnd(ended, speech.dbfs)]

    def _end_in_bed(self, speech: _Speech) -> list[Found]:
        """End a voice in the background before a louder one begins, for which it is a bed."""
        self._leave()
        ended = self._upto - 2 * self._hop
        first = max(speech.onset, ended - self._samples(BED_MS))
        found = self._end(speech, first + 1)
        found += self._set_bed(loud_part(self._slice(first, ended), self._hop, 0.75))
        return found + self._hear_again(ended, self._level)

    def _turned_into_bed(self, speech: _Speech) -> list[Found]:
        """End speech that other sound followed without a pause."""
        self._leave()
        pcm = self._slice(self._upto - self._samples(ANSWER_MS), self._upto)
        level = loud_part(pcm, self._hop, 0.75)
        first = max(speech.asked, speech.onset, self._past_at)
        above = dbfs_to_amplitude(max(speech.audible_dbfs, level + OVER_BED_DB))
        audible = audible_samples(self._slice(first, self._upto), self._hop, above)
        ended = first + (int(audible[-1]) if len(audible) else 0)
        if speech.silent_since is not None:
            ended = speech.silent_since
        return [*self._end(speech, ended), *self._set_bed(level)]

    def _place(self, at: int, since: int, dbfs: float) -> tuple[int, int, float]:
        heard, (ended, under) = self._slice, self._before
        loud = loud_part(heard(at, self._upto), self._hop, 0.9)
        if at - ended > self._samples(KEPT_MS) or loud < under + LOUDER_DB:
            under = -inf
        return place(
            heard, at, since, self._upto, dbfs, rate=self.rate, under=under + OVER_VOICE_DB
        )

"""The schedule of text for the TTS and of its speech, which keeps speech from running dry.

The first piece has as few words as the engines' measured speeds allow. Whole clauses follow while
there is time, and any waiting text when time runs out. No I/O, no clock: each call passes the time.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.voice import Cut, Request, TextSpeed, VoiceSpeed, cuts, without_leftover

# Speech runs dry when everything made so far has been played before more is made. More is made from
# words that the LLM has sent, by a TTS that takes one piece after another. `Pace.lasts` plays that
# forward with the speeds measured so far and the largest pieces that are made in time: if that runs
# dry, so does everything else.

# Letters and the space of a word; the library's replies have 5.6.
CHARS_PER_WORD = 5.6

# A reply whose end is not known yet may have this many words: the system prompt asks for one or two
# short sentences, and the library's longest reply has 26.
LONGEST_REPLY_WORDS = 60
AT_LEAST_TO_COME = 10

# What the framework and a busy event loop may add between a decision and the sound.
SAFETY_MS = 60.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """The present state of speech; all times in ms from now.

    Attributes:
        dry_ms: when the text handed to the TTS has been played, if it plays without a break.
        free_ms: when the TTS has synthesised that text. spare_ms: the least time between a piece
        being made and its turn to play. words: whole words that wait to be handed over. to_come:
        words that the LLM may still send.
    """

    dry_ms: float = 0.0
    free_ms: float = 0.0
    spare_ms: float = math.inf
    words: float = 0.0
    to_come: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The engines' speeds as measured so far, at their slower end."""

    voice: VoiceSpeed
    llm: TextSpeed

    def after(self, chars: int, outlook: Outlook) -> Outlook:
        """Return the outlook once another piece of `chars` characters has been handed over."""
        least_ms, most_ms = self.voice.speech_ms(chars)
        dry_ms = outlook.dry_ms + least_ms
        free_ms = max(0.0, outlook.free_ms) + self.voice.make_ms(most_ms)
        spare_ms = min(outlook.dry_ms - self.audio_in_ms(chars, outlook), dry_ms - free_ms)
        return replace(
            outlook, dry_ms=dry_ms, free_ms=free_ms, spare_ms=min(outlook.spare_ms, spare_ms)
        )

    def begun(self, chars: int, outlook: Outlook) -> Outlook:
        """Return the outlook after the first piece: nothing is due before its first audio."""
        first_ms = self.voice.first_ms(self.voice.speech_ms(chars)[1])
        return self.after(chars, replace(outlook, dry_ms=first_ms))

    def audio_in_ms(self, chars: int, outlook: Outlook) -> float:
        """Return when the first audio arrives of a piece that is handed over now."""
        most_ms = self.voice.speech_ms(chars)[1]
        return max(0.0, outlook.free_ms) + self.voice.first_ms(most_ms)

    def lasts(self, now: Outlook, safety_ms: float = SAFETY_MS) -> bool:
        """Return whether speech that continues from here never runs dry."""
        dry_ms, free_ms = now.dry_ms, max(0.0, now.free_ms)
        if now.spare_ms < 0:
            return False
        left = math.ceil(now.words + now.to_come)
        sent = 0
        while left > 0:
            latest_ms = dry_ms - safety_ms
            words = self._most_words(now.words - sent, free_ms, latest_ms, left)
            if words == 0:
                return False
            sent, left = sent + words, left - words
            least_ms, most_ms = self.voice.speech_ms(round(words * CHARS_PER_WORD))
            begun_ms = max(free_ms, self._sent_ms(sent - now.words))
            free_ms = begun_ms + self.voice.make_ms(most_ms)
            dry_ms += least_ms
            if free_ms > dry_ms - safety_ms / 2:
                return False
        return True

    def _sent_ms(self, words: float) -> float:
        """Return when the LLM will have sent this many more words."""
        if words <= 0:
            return 0.0
        return words * CHARS_PER_WORD * self.llm.char_ms + self.llm.late_ms

    def _most_words(self, waiting: float, free_ms: float, latest_ms: float, left: int) -> int:
        """Return the size of the largest piece whose audio comes in time; 0 if there is none."""

        def in_time(words: int) -> bool:
            most_ms = self.voice.speech_ms(round(words * CHARS_PER_WORD))[1]
            begun_ms = max(free_ms, self._sent_ms(words - waiting))
            return begun_ms + self.voice.first_ms(most_ms) <= latest_ms

        if not in_time(1):
            return 0
        low, high = 1, left + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if in_time(middle) else (low, middle)
        return low


# One word alone is choppy.
FIRST_MIN_WORDS = 2
# A first piece that would not last is not made longer than this: more text does not help then, and
# the speech is held until it lasts.
FIRST_MAX_WORDS = 12
# The first piece for a voice whose speed is unknown: a clause, or this many words.
UNKNOWN_WORDS = 6
# While speech is held there is time for longer pieces than two words.
HELD_MIN_WORDS = 6
# How many times as long as expected a piece may take if more pieces follow.
SPARED = 1.4
# Two pieces that are heard this soon after one another count as simultaneous.
AS_SOON_MS = 10.0


@dataclass(slots=True)
class _Making:
    """The piece that the TTS is making."""

    chars: int
    asked_ns: int
    audio_ms: float = 0.0
    first_ns: int = 0
    last_ns: int = 0
    chunk_ms: float = 0.0


class SpeechFeed:
    """One reply after another, from the LLM's tokens to the TTS's audio.

    It receives tokens, requests and audio as they happen. It returns which pieces go next (`take`),
    when to ask again (`due_ns`), and whether finished speech may begin (`may_begin`). The engines'
    measured speeds are kept from reply to reply.
    """

    def __init__(self, voice: VoiceSpeed | None = None, llm: TextSpeed | None = None) -> None:
        self._pace = Pace(voice or VoiceSpeed(), llm or TextSpeed())
        self._making: _Making | None = None
        self.reset()

    @property
    def voice(self) -> VoiceSpeed:
        return self._pace.voice

    def reset(self) -> None:
        """Forget the reply, because it was interrupted."""
        self._text = ""
        self._ended = False
        self._words = 0
        self._handed: deque[int] = deque()
        self._making = None
        self._begun = False
        self._over = False
        self._held_ms = 0.0
        self._dry_ns = 0
        self._pace.llm.reply_started()

    def start(self, at_ns: int) -> None:
        """Begin another reply; it continues the previous reply's speech if that still sounds."""
        self._goes_on(at_ns)
        self._text, self._ended, self._words = "", False, 0
        self._pace.llm.reply_started()

    def over(self) -> None:
        self._over = True

    def _goes_on(self, at_ns: int) -> None:
        idle = self._over or not (self._making or self._handed)
        if idle and at_ns >= self._dry_ns:
            self._begun, self._held_ms = False, 0.0
        self._over = False

    @property
    def waiting(self) -> str:
        return self._text.strip()

    # --- the LLM's side ---------------------------------------------------------------------------

    def text(self, at_ns: int, token: str) -> None:
        self._text += token
        self._pace.llm.text(ns_to_ms(at_ns), len(token))
        if self._words:
            self._text = without_leftover(self._text)

    def end(self) -> None:
        self._ended = True
        if not any(c.isalnum() for c in self._text):
            self._text = ""

    def take(self, at_ns: int) -> list[str]:
        pieces: list[str] = []
        while (cut := self._next_cut(at_ns)) is not None:
            piece, self._text = self._text[: cut.end].strip(), self._text[cut.end :]
            self._words += cut.words
            if any(c.isalnum() for c in piece):
                self._handed.append(len(piece))
                pieces.append(piece)
        return pieces

    def due_ns(self, at_ns: int) -> int | None:
        """Return when waiting text must be handed over even if no more comes; None without text."""
        waiting = cuts(self._text, ended=self._ended)
        if not waiting or not self._begun:
            return None
        chars = waiting[-1].end
        outlook = self._outlook(at_ns)
        must_ms = outlook.dry_ms - SAFETY_MS - self._pace.audio_in_ms(chars, outlook)
        return at_ns + ms_to_ns(max(0.0, must_ms - AS_SOON_MS, outlook.free_ms))

    # --- the TTS's side ---------------------------------------------------------------------------

    def asked(self, at_ns: int, chars: int) -> None:
        self._goes_on(at_ns)
        if self._handed:
            self._handed.popleft()
        if self._making is not None and self._making.audio_ms == 0:
            # Pieces that the TTS gets before it has spoken the first count as one.
            self._making.chars += chars
            return
        self.made()
        self._making = _Making(chars, at_ns)

    def audio(self, at_ns: int, audio_ms: float) -> float:
        """Take speech from the TTS. Returns how long (ms) there had been no speech to play."""
        dry_ms = 0.0
        if self._begun:
            dry_ms = max(0.0, ns_to_ms(at_ns - self._dry_ns))
            self._dry_ns = max(self._dry_ns, at_ns) + ms_to_ns(audio_ms)
        else:
            self._held_ms += audio_ms
        if (making := self._making) is not None:
            if making.audio_ms == 0:
                making.first_ns, making.chunk_ms = at_ns, audio_ms
            making.audio_ms += audio_ms
            making.last_ns = at_ns
        return dry_ms

    def made(self) -> None:
        making, self._making = self._making, None
        if making is not None and making.audio_ms > 0:
            self._pace.voice.add(
                Request(
                    chars=making.chars,
                    audio_ms=making.audio_ms,
                    made_ms=ns_to_ms(making.last_ns - making.asked_ns),
                    first_ms=ns_to_ms(making.first_ns - making.asked_ns),
                    chunk_ms=making.chunk_ms,
                )
            )

    # --- the caller's side ------------------------------------------------------------------------

    def may_begin(self, at_ns: int) -> bool:
        """Return whether speech that begins now lasts to the end of the reply."""
        if self._begun or not self._pace.voice.known:
            return True
        return self._held_ms > 0 and self._pace.lasts(self._outlook(at_ns), SAFETY_MS / 2)

    def begin(self, at_ns: int) -> bool:
        """Let the caller hear the speech made so far, and further speech as it is made.

        Returns False if the caller could hear it already.
        """
        if self._begun:
            return False
        self._begun, self._held_ms, held_ms = True, 0.0, self._held_ms
        self._dry_ns = at_ns + ms_to_ns(held_ms)
        return True

    # --- what goes next ---------------------------------------------------------------------------

    def _next_cut(self, at_ns: int) -> Cut | None:
        waiting = cuts(self._text, ended=self._ended)
        if not waiting:
            return None
        if not (self._words or self._begun):
            return self._first_cut(waiting)
        outlook = self._outlook(at_ns)
        if self._held_ms and not self.may_begin(at_ns):
            return self._held_cut(waiting, outlook)
        return self._hurried_cut(waiting, outlook) or self._timely_cut(waiting, outlook)

    def _first_cut(self, waiting: list[Cut]) -> Cut | None:
        """Return the fewest words whose speech lasts; until the speed is known, a usual number."""
        if not self._pace.voice.known:
            enough = self._ended or waiting[-1].words >= UNKNOWN_WORDS
            clauses = (c for c in waiting if c.clause and c.words >= FIRST_MIN_WORDS)
            return next(clauses, waiting[-1] if enough else None)
        for cut in waiting:
            if cut.words >= FIRST_MIN_WORDS and (cut.clause or not cut.dangling):
                rest = Outlook(words=waiting[-1].words - cut.words, to_come=self._to_come())
                if self._pace.lasts(self._pace.begun(cut.end, rest), 2 * SAFETY_MS):
                    return cut
        if self._ended or waiting[-1].words >= FIRST_MAX_WORDS:
            return next((c for c in waiting if c.clause), waiting[-1])
        return None

    def _held_cut(self, waiting: list[Cut], outlook: Outlook) -> Cut | None:
        """Return text that keeps the TTS busy while speech is held, in clauses if possible."""
        clauses = [c for c in waiting if c.clause and c.words >= FIRST_MIN_WORDS]
        if clauses:
            return clauses[0]
        idle = outlook.free_ms <= 0
        enough = waiting[-1].words >= HELD_MIN_WORDS
        return waiting[-1] if self._ended or (idle and enough) else None

    def _hurried_cut(self, waiting: list[Cut], outlook: Outlook) -> Cut | None:
        """If speech would run dry, return as much text as the TTS makes in time, or the least."""
        if outlook.free_ms > 0:
            return None  # while the TTS is busy, text is not made any sooner
        latest_ms = outlook.dry_ms - SAFETY_MS - AS_SOON_MS
        heard_ms = [self._pace.audio_in_ms(cut.end, outlook) for cut in waiting]
        if heard_ms[-1] < latest_ms:
            return None
        # A shorter piece is made sooner. Prefer one with time to spare; if all would be late, one
        # that is heard as soon as any.
        within = (latest_ms / SPARED, latest_ms, min(heard_ms) + AS_SOON_MS)
        for limit_ms in within:
            in_time = [c for c, ms in zip(waiting, heard_ms, strict=True) if ms <= limit_ms]
            if in_time and (limit_ms != within[0] or in_time[-1].words >= FIRST_MIN_WORDS):
                return _best_ending(in_time)
        return None

    def _timely_cut(self, waiting: list[Cut], outlook: Outlook) -> Cut | None:
        """Return a clause, if there is time for another request after it."""
        for cut in waiting:
            if not (cut.ends_reply or (cut.clause and cut.words >= FIRST_MIN_WORDS)):
                continue
            if self._pace.audio_in_ms(cut.end, outlook) > outlook.dry_ms - SAFETY_MS:
                return None
            after = self._pace.after(cut.end, outlook)
            more = self._pace.audio_in_ms(12, after) <= after.dry_ms - SAFETY_MS
            if cut.ends_reply or more:
                return cut
        return None

    def _outlook(self, at_ns: int) -> Outlook:
        """Return the outlook from now on, from the text handed over, made and played."""
        voice, making = self._pace.voice, self._making
        on_line_ms = max(0.0, ns_to_ms(self._dry_ns - at_ns)) if self._begun else 0.0
        sounds = self._begun or self._held_ms > 0
        dry_ms, free_ms, spare_ms = on_line_ms + self._held_ms, 0.0, math.inf
        spent_ms = ns_to_ms(at_ns - making.asked_ns) if making else 0.0
        for number, chars in enumerate(([making.chars] if making else []) + list(self._handed)):
            least_ms, most_ms = voice.speech_ms(chars)
            first_ms, made_ms, unmade_ms = voice.first_ms(most_ms), voice.make_ms(most_ms), least_ms
            if making is not None and number == 0:
                made_ms = voice.make_ms(max(most_ms, making.audio_ms)) - spent_ms
                first_ms = 0.0 if making.audio_ms else first_ms - spent_ms
                unmade_ms = max(0.0, least_ms - making.audio_ms)
            heard_ms = free_ms + max(0.0, first_ms)
            if not sounds:
                sounds, dry_ms = True, heard_ms
            spare_ms = min(spare_ms, dry_ms - heard_ms)
            free_ms += max(0.0, made_ms)
            dry_ms += unmade_ms
            spare_ms = min(spare_ms, dry_ms - free_ms)
        waiting = len(cuts(self._text, ended=self._ended))
        return Outlook(dry_ms, free_ms, spare_ms, waiting, self._to_come())

    def _to_come(self) -> int:
        seen = self._words + len(self._text.split())
        return 0 if self._ended else max(LONGEST_REPLY_WORDS - seen, AT_LEAST_TO_COME)


def _best_ending(found: list[Cut]) -> Cut:
    """Return the last cut that ends a clause; if none does, the last that can end a piece."""
    clauses = [c for c in found if c.clause and c.words >= FIRST_MIN_WORDS]
    return (clauses or [c for c in found if not c.dangling] or found)[-1]

"""Whether speech that begins now would run dry before the reply ends. Pure arithmetic.

Speech runs dry when what was made has been played before more is made. More is made of words that
the LLM has sent, by a TTS that takes one piece after another. `lasts` plays that forward with the
speeds measured so far and the largest pieces that are made in time: if that runs dry, so does
everything else.
"""

import math
from dataclasses import dataclass, replace

from turngap.core.speeds import TextSpeed, VoiceSpeed

# Letters and the space of a word; the library's replies have 5.6.
CHARS_PER_WORD = 5.6

# A reply whose end is not known yet may have so many words: the system prompt asks for one or two
# short sentences, the library's longest reply has 26.
LONGEST_REPLY_WORDS = 60
AT_LEAST_TO_COME = 10

# What the framework and a busy event loop may add between a decision and the sound.
SAFETY_MS = 60.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """How things stand; all in ms from now.

    Attributes:
        dry_ms: what was handed to the TTS has been played by then, if it plays without a break.
        free_ms: by then the TTS has made it.
        spare_ms: by how much each piece of it is made before what precedes it has been played, at
            the least.
        words: whole words that wait to be handed over.
        to_come: words that the LLM may still send.
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
        """What stands once a piece of so many characters has been handed over besides."""
        least_ms, most_ms = self.voice.speech_ms(chars)
        dry_ms = outlook.dry_ms + least_ms
        free_ms = max(0.0, outlook.free_ms) + self.voice.make_ms(most_ms)
        spare_ms = min(outlook.dry_ms - self.audio_in_ms(chars, outlook), dry_ms - free_ms)
        return replace(
            outlook, dry_ms=dry_ms, free_ms=free_ms, spare_ms=min(outlook.spare_ms, spare_ms)
        )

    def begun(self, chars: int, outlook: Outlook) -> Outlook:
        """The same for the piece that speech begins with: until its first audio nothing is due."""
        first_ms = self.voice.first_ms(self.voice.speech_ms(chars)[1])
        return self.after(chars, replace(outlook, dry_ms=first_ms))

    def audio_in_ms(self, chars: int, outlook: Outlook) -> float:
        """When a piece of so many characters that is handed over now is first heard of."""
        most_ms = self.voice.speech_ms(chars)[1]
        return max(0.0, outlook.free_ms) + self.voice.first_ms(most_ms)

    def lasts(self, now: Outlook, safety_ms: float = SAFETY_MS) -> bool:
        """Whether speech that goes on from here never runs dry."""
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
        """When the LLM will have sent so many more words."""
        if words <= 0:
            return 0.0
        return words * CHARS_PER_WORD * self.llm.char_ms + self.llm.late_ms

    def _most_words(self, waiting: float, free_ms: float, latest_ms: float, left: int) -> int:
        """The largest piece whose audio is there in time; 0 if none is."""

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

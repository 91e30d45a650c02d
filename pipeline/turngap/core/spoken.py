"""Spoken text: how much of it by a moment, and the mark for unknown words."""

# The transcript of speech that a closed-domain recogniser takes for nothing of its own, and the
# count of a turn that was answered without the LLM for that.
OUT_OF_DOMAIN = "[out of domain]"
OUTSIDE = "out_of_domain"

# How long a letter takes, where the voice's own pace is not known (espeak-ng, 175 words a minute).
LETTER_MS = 65.0
# A word counts as heard from here on: what is left of it, people complete.
HEARD_PART = 0.5
# A pause at a mark, in letters.
MARK_LETTERS = 3.0


def words_heard(text: str, played_ms: float, whole_ms: float) -> str:
    """Estimate the words of `text` that were spoken in `played_ms` of its `whole_ms`.

    Words take time by their letters, and a little more before a mark at which one pauses.
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

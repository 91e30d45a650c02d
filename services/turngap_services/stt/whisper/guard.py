"""Whether a text can be what was said in so much audio. Pure.

Where Whisper's encoder reads less than the 30 s that it was trained on, the decoder may not find
the end: it repeats itself, or writes more than anybody can say. A text that looks like that is read
again with the whole window, so a doubt too many costs time and no words.
"""

import zlib

# Length of a text divided by that of its compressed form, above which it repeats itself, and the
# mean log probability of its tokens, below which the model did not know: OpenAI's bounds.
_MOST_COMPRESSED = 2.4
_LEAST_LOGPROB = -1.0
# So many words that say once more what came just before them: "no no no no", "the cat the cat the
# cat", a sentence of three words twice.
_REPEATED_WORDS = 3
# Hardly anybody says more words in a second; the first words need no time in so short a text.
_WORDS_PER_S, _FIRST_WORDS = 5.0, 3


_MARKS = ".,;:?!…\"'()-–—"


def bare(word: str) -> str:
    """Return the word without case and the marks around it, in which readings often differ."""
    return word.strip(_MARKS).casefold()


def doubt(text: str, seconds: float, logprob: float = 0.0) -> str | None:
    """Return why the text is doubtful, or None.

    Args:
        text: what was read.
        seconds: how much audio it was read in, silence included.
        logprob: mean log probability of its tokens.
    """
    words = [bare(word) for word in text.split()]
    if _repeated(words) >= _REPEATED_WORDS:
        return "it repeats its last words"
    raw = text.encode()
    if raw and len(raw) / len(zlib.compress(raw)) > _MOST_COMPRESSED:
        return "it repeats itself"
    if len(words) > _FIRST_WORDS + _WORDS_PER_S * seconds:
        return "nobody speaks so fast"
    return "the model was unsure" if logprob < _LEAST_LOGPROB else None


def _repeated(words: list[str]) -> int:
    """Return how many words in a row say what was said just before, at most."""
    most = 0
    for length in range(1, len(words) // 2 + 1):
        run = 0
        for here, before in zip(words[length:], words, strict=False):
            run = run + 1 if here == before else 0
            # A phrase that only begins again is none: "to the left and to the right".
            most = max(most, run - run % length)
    return most

"""Judge whether a reply is right: word for word, or by its meaning."""

import re

from training.grammar.turn import Turn

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


def exact(turn: Turn, reply: str) -> bool:
    """Return whether the words are the grammar's own, whatever their case, marks and spaces."""
    return _words(reply) == _words(turn.reply)


def right(turn: Turn, reply: str) -> bool:
    """Return whether the reply has a phrase of every group in `must` and none of `forbid`.

    Phrases match as whole words: `six` is not in `sixteen`. A turn without `must` is right only
    word for word.
    """
    if not turn.must:
        return exact(turn, reply)
    said = _words(reply)
    return all(any(_has(said, phrase) for phrase in group) for group in turn.must) and not any(
        _has(said, phrase) for phrase in turn.forbid
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _has(said: list[str], phrase: str) -> bool:
    wanted = _words(phrase)
    return any(said[i : i + len(wanted)] == wanted for i in range(len(said) - len(wanted) + 1))

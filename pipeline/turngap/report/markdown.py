"""Markdown for CI summaries and pull requests: text that cannot become a link, tag or table."""

import re
from collections.abc import Iterable, Sequence

from turngap.report import words

# Whatever could start a tag, link, mention, table cell or emphasis, as in CommonMark and GFM.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": "&#58;//"}


def escaped(text: str) -> str:
    """`text` as plain words wherever it stands, also in a table's cell."""
    text = _SPECIAL.sub(r"\\\1", words.clean(text))
    for raw, entity in _ENTITIES.items():
        text = text.replace(raw, entity)
    return text


def bullets(texts: Iterable[str]) -> str:
    """A list, each text escaped."""
    return "\n".join(f"- {escaped(text)}" for text in texts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its head; the cells of `rows` are escaped."""
    lines = [head, ["---"] * len(head), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

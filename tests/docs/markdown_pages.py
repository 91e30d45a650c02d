"""The documentation as it is read in the repository: its pages, their blocks, links and anchors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


@dataclass(frozen=True)
class Block:
    """A block of code: the language that it names, its text, and the line in its page."""

    language: str
    text: str
    line: int


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> Iterator[Block]:
    """Every block of code; one without a language has an empty one."""
    for token in tokens(page):
        if token.type in {"fence", "code_block"}:
            line = token.map[0] + 1 if token.map else 0
            yield Block(token.info.strip(), token.content, line)


def spans(page: Path) -> Iterator[str]:
    """Every piece of code within a sentence."""
    for token in _inline(page):
        if token.type == "code_inline":
            yield token.content.replace("\n", " ")


def links(page: Path) -> Iterator[str]:
    """Return the targets of its links and pictures."""
    for token in _inline(page):
        target = token.attrGet("href") or token.attrGet("src")
        if target is not None:
            yield str(target)


def headings(page: Path) -> list[str]:
    found = tokens(page)
    return [
        "".join(part.content for part in found[n + 1].children or ())
        for n, token in enumerate(found)
        if token.type == "heading_open"
    ]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as a repository's own view makes them."""
    made: dict[str, int] = {}
    for heading in headings(page):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made[anchor] = made.get(anchor, -1) + 1
        if number := made[anchor]:
            made[f"{anchor}-{number}"] = 0
    return set(made)


def _inline(page: Path) -> Iterator[Token]:
    for token in tokens(page):
        yield from token.children or ()

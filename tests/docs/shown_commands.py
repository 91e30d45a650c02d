"""The commands that the documentation shows: found, and told apart."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from markdown_pages import PAGES, blocks, name_of, spans

# What stands between two commands of a line.
BETWEEN = {"|", "||", "&&", ";"}
# A shell script in a page, and in the words of a page what begins as one of its commands does.
SHELL = {"sh"}


@dataclass(frozen=True)
class Command:
    """One command: its words, what it sets for itself alone, and its pages.

    Attributes:
        within: whether it stands within a sentence, where it may be only the beginning of one.
    """

    words: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    page: str
    within: bool = False

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    @property
    def ours(self) -> tuple[str, ...] | None:
        """Its arguments, if it is turngap's."""
        name, *arguments = self.words
        own = name == "turngap" or (name == "./run" and arguments[:1] not in (["test"], ["setup"]))
        return tuple(arguments) if own else None


def commands_of(script: str, page: str, *, within: bool = False) -> Iterator[Command]:
    """Every command of a shell script.

    Raises:
        ValueError: a quotation is not closed.
    """
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        for ends, words in groupby(lexer, BETWEEN.__contains__):
            if not ends and (command := _command(list(words), page, within=within)):
                yield command


def _command(words: list[str], page: str, *, within: bool) -> Command | None:
    settings: list[tuple[str, str]] = []
    while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings.append((name, value))
    return Command(tuple(words), tuple(settings), page, within) if words else None


def shown_commands(pages: list[Path] = PAGES) -> list[Command]:
    """Every command in a block of the pages, and every one of turngap's within their sentences.

    One that several pages show is there once; of those within sentences, what no block shows.
    """
    told = [page for page in pages if page.name != "CHANGELOG.md"]  # that says what was true then
    scripts = [(b.text, page, False) for page in told for b in blocks(page) if b.language in SHELL]
    scripts += [(text, page, True) for page in told for text in spans(page) if _is_ours(text)]
    found: dict[tuple[object, ...], Command] = {}
    for script, page, within in scripts:
        for command in commands_of(script, name_of(page), within=within):
            found.setdefault((command.words, command.settings), command)
    return list(found.values())


def _is_ours(text: str) -> bool:
    return text.startswith(("turngap ", "./run "))

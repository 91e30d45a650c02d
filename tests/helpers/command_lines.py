"""Command lines of turngap in files that nothing here runs: found, and read as turngap would."""

import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import typer

from turngap.cli import app

# Whatever follows one of these is another command.
SHELL = {"|", "||", "&&", ";"}


def turngap_commands(text: str) -> Iterator[list[str]]:
    """Each `turngap …` and `./run …` of a shell script, as the arguments of turngap."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if line.count('"') % 2 == 0 else []
        if words[:1] in (["turngap"], ["./run"]) and words[1:2] not in (["setup"], ["test"]):
            command = takewhile(lambda word: word not in SHELL, words[1:])
            yield [word for word in command if word != "…"]


def parse(arguments: list[str]) -> dict[str, Any]:
    """What the command line makes of them, without running anything."""
    command = typer.main.get_command(app)
    with command.make_context("turngap", list(arguments)) as context:
        name, sub, rest = command.resolve_command(context, arguments)  # type: ignore[attr-defined]
        return sub.make_context(name, rest, parent=context).params

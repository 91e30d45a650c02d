"""Command lines of turngap in files that nothing here runs: found, and read as turngap would."""

from typing import Any

import typer

from turngap.cli import app

# Whatever follows one of these is another command.
SHELL = {"|", "||", "&&", ";"}


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse the arguments as the command line does, without running anything."""
    command = typer.main.get_command(app)
    with command.make_context("turngap", list(arguments)) as context:
        name, sub, rest = command.resolve_command(context, arguments)  # type: ignore[attr-defined]
        return sub.make_context(name, rest, parent=context).params

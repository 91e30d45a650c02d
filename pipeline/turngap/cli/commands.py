"""What all commands have in common: how they show their help, and whose defaults hold."""

from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from turngap.cli.repository import FromTheFile, refused

OUTPUT = "Output"


class _PlainHelp:
    """A help for people, without Python's names of types.

    A paragraph of it is one line, which is broken where the terminal is. `--help` itself stands
    with the other options on output, not in a group of one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        paragraphs = cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split("\n")) for each in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # typer would write <bool>, as if the flag took a value
            if param.param_type_name == "argument":
                param.display_type = lambda _: ""  # its name and its text say enough
        return params

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)  # type: ignore[misc]
        option.rich_help_panel = OUTPUT
        return option


class Group(_PlainHelp, TyperGroup):
    """A command with commands below it."""


class Command(_PlainHelp, TyperCommand):
    """A command that takes from the repository's file what its flags leave open."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the flags; what they leave open, the repository's file may say.

        Raises:
            InputError: the file cannot be used, or holds a value that its option does not take.
        """
        name = ctx.command_path.split(" ", 1)[-1]
        ctx.default_map = FromTheFile(name, ctx)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as e:
            raise refused(e, ctx) or e from e

    def invoke(self, ctx: Any) -> Any:
        if isinstance(ctx.default_map, FromTheFile):
            ctx.default_map.tell()
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the options with turngap's own defaults, also beside a file that is broken."""
        ctx.default_map = None
        super().format_help(ctx, formatter)

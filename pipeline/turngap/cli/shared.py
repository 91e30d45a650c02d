"""What the flags of several commands mean, and how all commands speak."""

import codecs
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from turngap.core.errors import ExitCode, InputError, TurngapError
from turngap.core.secrets import shown_without_secrets, without_known_secrets
from turngap.core.untrusted import harmless, inert

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from turngap.telemetry import Telemetry

# What stands for a glyph that an encoding lacks: as wide, and another one for each stage of a turn.
# Where there is none, it is a `?`.
_GLYPHS = "…·–—−━─╌│┴’“”×✗✓≠±≤∅»→▶▸«◀◂↓╱╲┼▚█▇▆▅▄▃▂▁▓▒░"
_INSTEAD = dict(zip(_GLYPHS, r"""..------|^'""xxv!+<0>>>><<<v/\+%##==--__@~,""", strict=True))


def take_any_encoding() -> None:
    """Have stdout and stderr replace what their encoding lacks, so that no glyph ends a command."""
    codecs.register_error("turngap", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="turngap")


def _replaced(e: UnicodeError) -> tuple[str, int]:
    if not isinstance(e, UnicodeEncodeError):
        raise e
    return "".join(_INSTEAD.get(c, "?") for c in e.object[e.start : e.end]), e.end


def show_error(error: TurngapError) -> None:
    """Show an error that ended the command; with `--json` it is the document."""
    if "--json" in sys.argv:
        print_json({"error": {"kind": error.kind, "message": error.message, "hint": error.hint}})
    show_failure(error)


def show_failure(error: TurngapError) -> None:
    """Write what happened and what to do to stderr."""
    say(f"error: {error.message}")
    if error.hint:
        say(f"  {error.hint}")


def leave(failure: TurngapError | None, code: ExitCode) -> NoReturn:
    """End the command: with what failed and its exit code, or else with this one."""
    if failure is not None:
        show_failure(failure)
    raise typer.Exit(code if failure is None else failure.exit_code)


def say(text: str) -> None:
    """Show people a line or a few, on stderr, so that stdout can be piped.

    They may quote what an agent said, which is not for the terminal to obey.
    """
    lines = map(harmless, without_known_secrets(text).split("\n"))
    sys.stderr.write(inert("\n".join(lines)) + "\n")
    sys.stderr.flush()


def telemetry_of(ctx: typer.Context, otlp: str | None) -> "Telemetry":
    """Return telemetry that is sent and reported when the command is over.

    Raises:
        InputError: the URL is not one of a collector.
    """
    from turngap.telemetry import telemetry_to

    telemetry = telemetry_to(otlp)

    def close() -> None:
        if words := telemetry.close():
            say(words)

    ctx.call_on_close(close)
    return telemetry


def print_json(document: Any) -> None:
    """Write the document to stdout; what is not printable, or begins a command, is escaped."""
    document = shown_without_secrets(document)
    whole = (sys.stdout.encoding or "").lower().startswith("utf")  # others lack characters
    text = json.dumps(document, indent=2, ensure_ascii=not whole).replace("##", "#\\u0023")
    escaped = {c: json.dumps(c)[1:-1] for c in {*text} - {"\n"} if not c.isprintable()}
    _write(text.translate(str.maketrans(escaped)))


def print_text(text: str) -> None:
    """Write lines to stdout; none of them is a command to a CI server."""
    _write(inert(without_known_secrets(text)))


def _write(text: str) -> None:
    with _stdout():
        sys.stdout.write(text + "\n")


def print_block(block: "Callable[[int], RenderableType]") -> None:
    """Print what `block` makes for the terminal's width."""
    from rich.console import Console

    console = Console(highlight=False)
    with _stdout():
        console.print(block(console.width))


@contextmanager
def _stdout() -> Iterator[None]:
    """Write to stdout, or to nobody where its reader has gone.

    Raises:
        InputError: it leads to a disk that is full or fails.
    """
    try:
        yield
        sys.stdout.flush()
    except (OSError, SystemExit) as e:  # rich's word for a closed pipe is to exit with 1
        _write_to_nobody()
        if isinstance(e, OSError) and not isinstance(e, BrokenPipeError):
            message = f"stdout cannot be written to: {e.strerror or e}"
            raise InputError("stdout.unwritable", message, hint="send it elsewhere") from e


def _write_to_nobody() -> None:
    """Have what is left of stdout go nowhere: Python flushes it when it exits, and would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def table(rows: Sequence[dict[str, Any]]) -> "Table":
    """Rows of equal keys as a table; empty columns are left out."""
    from rich.markup import escape
    from rich.table import Table

    out = Table(box=None, header_style="bold", pad_edge=False)
    keys = [k for k in rows[0] if any(r[k] not in ([], "") for r in rows)] if rows else []
    for key in keys:
        out.add_column(key, overflow="fold")  # a path that is cut short cannot be used
    for row in rows:
        # Whatever a cell says in brackets, as `turngap[piper]`, is no markup.
        out.add_row(*(escape(_cell(row[k])) for k in keys))
    return out


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

"""`turngap history`."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.commands import Group
from turngap.cli.shared import print_block, print_json, say
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from turngap.history.kinds import Entry

# A list of fewer folders is there before a progress bar is.
_LONG = 100

app = typer.Typer(cls=Group, no_args_is_help=False)

Since = Annotated[
    str | None,
    options.for_output(
        metavar="DAY|AGO",
        help="Only those that began then or later: 2026-11-20, 2026-11-20T15:00 (UTC), or 7d.",
    ),
]
Valid = Annotated[
    bool,
    options.for_output(
        "--valid", help="Only those whose figures can be used: finished, and measured well."
    ),
]
Last = Annotated[
    int | None, options.for_output(min=1, help="Keep this many of the newest of those.")
]


@app.callback(invoke_without_command=True)
def history(
    ctx: typer.Context,
    roots: options.RunsFolders = None,
    since: Since = None,
    valid: Valid = False,
    last: Last = None,
    csv: Annotated[
        Path | None, options.for_output(help="Also write the list to this file, as CSV.")
    ] = None,
    html: Annotated[
        Path | None,
        options.for_output(help="Also write the list to this page."),
    ] = None,
    json_: options.Json = False,
) -> None:
    """List what was measured before: runs, checks, comparisons, curves, simulations, load tests.

    The newest is last. Failed, unfinished and unreadable ones are listed as such, with the reason.
    Exit: 0 listed, 2 bad input.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx, ctx.invoked_subcommand)
        return
    from turngap.history.listing import entries_table, list_block, list_json, list_report
    from turngap.history.reading import chosen
    from turngap.report import page
    from turngap.store.tables import csv_text, write_file

    stored = entries_in(roots)
    shown = chosen(stored, since=since, valid=valid, last=last)
    if csv is not None:
        content = csv_text(entries_table(shown)).encode()
        say(f"written: {write_file(csv, content, 'csv')}")
    if html is not None:
        say(f"written: {page.write(html, page.render(list_report(shown, html.parent)))}")
    if json_:
        print_json(list_json(shown))
        return
    if shown:
        print_block(lambda width: list_block(shown, width))
        return
    say_none(len(stored), roots)


def say_none(stored: int, roots: Sequence[Path] | None, what: str = "") -> None:
    """Say that none of the stored folders is as wanted, where they are, and what to do."""
    from turngap.store.documents import DEFAULT_ROOT

    folders = ", ".join(map(str, roots or [f"./{DEFAULT_ROOT}"]))
    if stored:
        say(f"none of the {stored} stored in {folders} is {what or 'as wanted'}")
        return
    say(f"nothing is stored in {folders}" + ("" if roots else "; --runs DIR looks elsewhere"))
    say("  measure your agent: turngap replay --agent ws://HOST:PORT/PATH")


def _refuse_options(ctx: typer.Context, command: str) -> None:
    """Refuse options before a subcommand, which nothing would read.

    Raises:
        InputError: there is one.
    """
    if any(ctx.params.values()):
        raise InputError(
            "history.options",
            f"options of `turngap history` stand before `{command}`, which does not see them",
            hint=f"give them after `{command}`: turngap history {command} --runs DIR",
        )


def entries_in(roots: Sequence[Path] | None) -> "list[Entry]":
    """Return everything that is stored in these folders (`./runs`), with progress if slow.

    Raises:
        InputError: a folder that was given cannot be listed.
    """
    from turngap.cli.progress import Display
    from turngap.history.reading import entries

    shown: Display | None = None
    with ExitStack() as stack:

        def on_read(done: int, of: int) -> None:
            nonlocal shown
            if of < _LONG:
                return
            if shown is None:
                shown = stack.enter_context(Display(of, "folders"))
            shown.reach(done)

        return entries(roots or (), on_read)

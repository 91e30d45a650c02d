"""`turngap history`, with `trend` and `diff`."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turngap.cli.commands import Group
from turngap.cli.options import with_options
from turngap.cli.shared import Display, leave, print_block, print_json, say
from turngap.core.errors import InputError
from turngap.core.untrusted import harmless
from turngap.play.options import Asked

if TYPE_CHECKING:
    from turngap.history.kinds import Entry
    from turngap.store.runs import Run

# A list of fewer folders is there before a progress bar is.
_LONG = 100

app = typer.Typer(cls=Group, no_args_is_help=False)


def history(ctx: typer.Context, asked: Asked) -> None:
    """List earlier measurements: runs, checks, comparisons, curves, simulations, load tests.

    The newest is last. Failed, unfinished and unreadable ones are listed as such, with the reason.
    Exit: 0 listed, 2 bad input.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx, ctx.invoked_subcommand)
        return
    from turngap.history.listing import chosen, entries_table, list_block, list_json, list_report
    from turngap.report import page
    from turngap.store.runs import csv_text, write_file

    stored = entries_in(asked.roots)
    shown = chosen(stored, since=asked.since, valid=asked.valid, last=asked.last)
    if asked.csv is not None:
        content = csv_text(entries_table(shown)).encode()
        say(f"written: {write_file(asked.csv, content, 'csv')}")
    if (html := asked.html) is not None:
        say(f"written: {page.write(html, page.render(list_report(shown, html.parent)))}")
    if asked.json_:
        print_json(list_json(shown))
        return
    if shown:
        print_block(lambda width: list_block(shown, width))
        return
    say_none(len(stored), asked.roots)


app.callback(invoke_without_command=True)(with_options("history", history))


def say_none(stored: int, roots: Sequence[Path] | None, what: str = "") -> None:
    """Say that no stored folder matches, where they are, and what to do."""
    from turngap.store.documents import DEFAULT_ROOT

    folders = ", ".join(map(str, roots or [f"./{DEFAULT_ROOT}"]))
    if stored:
        say(f"none of the {stored} stored in {folders} {what or 'matches these options'}")
        return
    say(f"nothing is stored in {folders}" + ("" if roots else "; --runs DIR looks elsewhere"))
    say("  measure your agent: turngap replay --agent ws://HOST:PORT/PATH")


def _refuse_options(ctx: typer.Context, command: str) -> None:
    """Refuse options before a subcommand, which nothing would read.

    Raises:
        InputError: such an option was given.
    """
    if any(ctx.params.values()):
        raise InputError(
            "history.options",
            f"options before `{command}` do not apply to it",
            hint=f"give them after `{command}`: turngap history {command} --runs DIR",
        )


def entries_in(roots: Sequence[Path] | None) -> "list[Entry]":
    """Return everything that is stored in these folders (`./runs`), with progress if slow.

    Raises:
        InputError: a folder that was given cannot be listed.
    """
    from turngap.history.listing import entries

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


def trend(_: typer.Context, asked: Asked) -> None:
    """Show where the gap changed, at which commit, and how sure that is.

    A series holds replays of one agent, played the same scenarios on the same machine.

    Exit: 0 whether or not there is a change, 2 bad input.
    """
    from turngap.history.listing import chosen
    from turngap.history.trend import trend_lines, trends, trends_json
    from turngap.report import terminal

    stored = entries_in(asked.roots)
    series = trends(chosen(stored, since=asked.since))
    if asked.json_:
        print_json(trends_json(series))
        return
    if not series:
        say_none(len(stored), asked.roots, "is a replay of these options that reached its agent")
        return
    for one in series:
        print_block(
            lambda width, one=one: terminal.joined(terminal.lines_of(trend_lines(one), width))
        )
    changed = [(one, one.changes[-1].at) for one in series if one.changes]
    if changed:
        one, at = changed[-1]
        before, after = (shlex.quote(one.points[i].entry.path) for i in (at - 1, at))
        say(f"next: see what moved: turngap history diff {before} {after}")


def diff(_: typer.Context, asked: Asked) -> None:
    """Show what differs between two stored runs, over the turns that both took.

    They are judged as `turngap check` judges two agents; nothing is played. What cannot be compared
    is refused with the reasons: two machines, changed recordings, another metrics version.

    Exit: 0 pass, 1 regressed, 2 bad input, 3 undecided or not comparable.
    """
    from turngap.check.stored import compare_stored, diff_json, diff_report
    from turngap.cli.checking import exit_code
    from turngap.core.paired import Limits
    from turngap.report import page, terminal

    before, after, root, html = asked.before, asked.after, asked.root, asked.html
    if before is None or after is None:
        raise _two_wanted(before, root)
    reference, candidate = _run(before, root), _run(after, root)
    if reference.path.resolve() == candidate.path.resolve():
        raise InputError(
            "history.same_run", f"{before} and {after} are the same run", hint="give another"
        )
    record = compare_stored(reference, candidate, Limits(asked.limit_p50_ms, asked.limit_p95_ms))
    folder = Path() if html is None else html.parent
    shown = diff_report(record, reference, candidate, folder)
    if html is not None:
        say(f"written: {page.write(html, page.render(shown))}")
    if asked.json_:
        print_json(diff_json(record, reference, candidate))
    else:
        print_block(lambda width: terminal.block(shown, width))
    leave(None, exit_code(record))


def _two_wanted(before: str | None, root: Path | None) -> InputError:
    """Build the error that asks for two runs, and suggests two that can be compared."""
    from turngap.history.trend import latest_two

    given = "none was given" if before is None else f"only {harmless(before)} was given"
    flags = "" if root is None else f" --runs {shlex.quote(str(root))}"
    if (two := latest_two(entries_in(None if root is None else [root]))) is None:
        return InputError(
            "history.two_runs",
            f"expected two runs to compare, the older one first; {given}",
            hint="two runs can be compared if one agent was played the same scenarios on one "
            f"machine. So far there are no two such runs; turngap history{flags} lists what there "
            "is",
        )
    names = " ".join(shlex.quote(entry.path) for entry in two)
    return InputError(
        "history.two_runs",
        f"expected two runs to compare, the older one first; {given}",
        hint=f"the two latest that can be compared: turngap history diff {names}\n  "
        f"turngap history{flags} lists all",
    )


def _run(name: str, root: Path | None) -> "Run":
    """Return the stored run of that name.

    Raises:
        InputError: no run has that name, or it names a check or another folder that holds several
            runs.
    """
    from turngap.store.folders import RUN_FILE, find_run
    from turngap.store.runs import read_run

    folder = find_run(name, root)
    inner = sorted(path.parent.name for path in folder.glob(f"*/{RUN_FILE}"))
    if inner and not (folder / RUN_FILE).exists():
        raise InputError(
            "history.not_a_run",
            f"{name} is not a single run: it holds {', '.join(inner)}",
            hint=f"name one of these runs: {folder / inner[0]}",
        )
    return read_run(folder)

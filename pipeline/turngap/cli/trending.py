"""`turngap history trend` and `turngap history diff`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.remembering import Since, entries_in, say_none
from turngap.cli.shared import leave, print_block, print_json, say
from turngap.core.errors import InputError
from turngap.core.untrusted import harmless

if TYPE_CHECKING:
    from turngap.store.runs import Run


def trend(
    roots: options.RunsFolders = None,
    since: Since = None,
    json_: options.Json = False,
) -> None:
    """Show where the gap changed, at which commit, and how sure that is.

    A series holds replays of one agent, played the same scenarios on the same machine.

    Exit: 0 whether or not there is a change, 2 bad input.
    """
    from turngap.history.reading import chosen
    from turngap.history.trend import trend_lines, trends, trends_json
    from turngap.report import terminal

    stored = entries_in(roots)
    series = trends(chosen(stored, since=since))
    if json_:
        print_json(trends_json(series))
        return
    if not series:
        say_none(len(stored), roots, "a replay that reached its agent and is as wanted")
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


def diff(
    before: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            help="The older run: its folder, name or label.",
            autocompletion=options.run_names,
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            help="The newer run, or `latest`.",
            autocompletion=options.run_names,
            show_default=False,
        ),
    ] = None,
    root: options.RunsFolder = None,
    limit_p50_ms: Annotated[
        float,
        options.for_limits(min=1, help="Regressed if the gap's p50 is this much slower, or more."),
    ] = 30.0,
    limit_p95_ms: Annotated[
        float,
        options.for_limits(min=1, help="Regressed if the gap's p95 is this much slower, or more."),
    ] = 100.0,
    html: Annotated[
        Path | None,
        options.for_output(
            help="Also write a page with the waterfalls of the worst pairs to this file."
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """Show what differs between two stored runs, over the turns that both took.

    They are judged as `turngap check` judges two agents; nothing is played. What cannot be compared
    is refused with the reasons: two machines, changed recordings, another metrics version.

    Exit: 0 pass, 1 regressed, 2 bad input, 3 undecided or not comparable.
    """
    from turngap.check.stored import compare_stored, diff_json, diff_report
    from turngap.cli.checking import exit_code
    from turngap.core.paired import Limits
    from turngap.report import page, terminal

    if before is None or after is None:
        raise _two_wanted(before, root)
    reference, candidate = _run(before, root), _run(after, root)
    if reference.path.resolve() == candidate.path.resolve():
        raise InputError(
            "history.same_run", f"{before} and {after} are the same run", hint="give two runs"
        )
    record = compare_stored(reference, candidate, Limits(limit_p50_ms, limit_p95_ms))
    folder = Path() if html is None else html.parent
    shown = diff_report(record, reference, candidate, folder)
    if html is not None:
        say(f"written: {page.write(html, page.render(shown))}")
    if json_:
        print_json(diff_json(record, reference, candidate))
    else:
        print_block(lambda width: terminal.block(shown, width))
    leave(None, exit_code(record))


def _two_wanted(before: str | None, root: Path | None) -> InputError:
    """Build the error that two runs have to be named, with two that can be compared."""
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
        InputError: there is none, or it is a check or another folder that holds several runs.
    """
    from turngap.store.folders import RUN_FILE, find_run
    from turngap.store.runs import read_run

    folder = find_run(name, root)
    inner = sorted(path.parent.name for path in folder.glob(f"*/{RUN_FILE}"))
    if inner and not (folder / RUN_FILE).exists():
        raise InputError(
            "history.not_a_run",
            f"{name} is no single run: it holds {', '.join(inner)}",
            hint=f"give one of those: {folder / inner[0]}",
        )
    return read_run(folder)

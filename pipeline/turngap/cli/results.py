"""`turngap report` and `verify`: how stored results are shown, and written for other programs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from turngap.cli.shared import Display, leave, print_block, print_json, print_text, say
from turngap.core.errors import ExitCode, InputError
from turngap.play.options import Asked

if TYPE_CHECKING:
    from rich.text import Text

    from turngap.report.sections import Report
    from turngap.store.checks import CheckRecord
    from turngap.store.comparisons import ComparisonRecord, TurnsRecord
    from turngap.store.loads import LoadRecord, SimulationRecord
    from turngap.store.runs import Run, Table


@dataclass(frozen=True, slots=True)
class Exports:
    """The forms in which a stored result can be written; None for each that it does not have."""

    table: "Callable[[], Table] | None" = None
    junit: Callable[[], bytes] | None = None


def runs_exports(
    runs: "Callable[[], Sequence[Run]]", junit: Callable[[], bytes] | None = None
) -> Exports:
    """Collect the export formats of a result that has runs."""

    def table() -> "Table":
        from turngap.store.runs import turns_table

        return turns_table(runs())

    return Exports(table, junit)


def run_exports(run: "Run") -> Exports:
    """Collect the export formats of one run."""

    def junit() -> bytes:
        from turngap.report.ci import run_junit

        return run_junit(run)

    return runs_exports(lambda: [run], junit)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored run, check, comparison, curve, simulation or load test, and how it is shown."""

    document: Callable[[], dict[str, Any]]
    blocks: "Callable[[int], Sequence[Text]]"
    svg: Callable[[], str]
    write_html: Callable[[], Path]
    exports: Exports = field(default_factory=Exports)

    @classmethod
    def of(
        cls, folder: Path, report: "Callable[[], Report]", svg_width: int, **other: Any
    ) -> "Stored":
        """Return the stored result in a folder, with its report for a terminal and as an image."""
        from turngap.report import terminal

        def blocks(width: int) -> "list[Text]":
            return [terminal.block(report(), width)]

        def svg() -> str:
            return terminal.svg(folder.name, blocks(svg_width), svg_width)

        return cls(blocks=blocks, svg=svg, **other)


def report(_: typer.Context, asked: Asked) -> None:
    """Show stored runs, checks, comparisons and load tests again, from their files alone.

    --csv, --parquet and --junit write a file instead of showing anything. The first two write all
    turns as one table, with the columns of docs/data.md; a label then names all runs that have it.

    Exit: 0 shown, 2 bad input.
    """
    from rich.console import Group

    from turngap.store.runs import write_file

    if asked.publish is not None:
        _publish(asked.runs, asked.root, asked.publish)
        return
    exported = any((asked.csv, asked.parquet, asked.junit))
    tables_alone = exported and not any((asked.junit, asked.html, asked.svg, asked.json_))
    stored = [
        one
        for name in asked.runs or ["latest"]
        for one in _stored(name, asked.root, verbose=asked.verbose, all_labelled=tables_alone)
    ]
    exports = [one.exports for one in stored]
    write_exports(exports, asked.csv, asked.parquet, asked.junit)
    for one in stored:
        if asked.html:
            say(f"written: {one.write_html()}")
        if asked.svg is not None:
            say(f"written: {write_file(asked.svg, one.svg().encode(), 'report')}")
    if asked.json_:
        documents = [one.document() for one in stored]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    if exported:
        return
    for one in stored:
        print_block(lambda width, one=one: Group(*one.blocks(width)))


def _publish(names: Sequence[str], root: Path | None, folder: Path) -> None:
    from turngap.report.publish import publish
    from turngap.store.folders import find_run
    from turngap.store.runs import read_run

    if len(names) > 1:
        message = f"--publish writes one run, and {len(names)} were given"
        raise InputError("publish.several", message, hint="publish each to a folder of its own")
    published = publish(read_run(find_run(names[0] if names else "latest", root)), folder)
    say(f"written: {published}")
    say(f"  others check it: cd {published} && sha256sum -c SHA256SUMS; turngap verify .")


def verify(_: typer.Context, asked: Asked) -> None:
    """Derive a stored run's gaps, outcomes and cut-ins again from its audio, by independent code.

    The digests of the audio and every figure's arithmetic are checked, too. What the audio cannot
    show is counted, with the reason.

    Exit: 0 no difference, 1 differences, 2 bad input, 3 the audio could confirm no turn.
    """
    from turngap.score.verify import verify as verify_run
    from turngap.store.folders import find_run, turns_in

    folder = find_run(asked.run, asked.root)
    with Display(turns_in(folder), "turns") as shown:
        verified = verify_run(folder, lambda done, _: shown.reach(done))
    if asked.json_:
        print_json(verified.as_json())
    else:
        print_text("\n".join(verified.lines()))
    confirmed = ExitCode.PASS if verified.derived else ExitCode.INCONCLUSIVE
    leave(None, ExitCode.OVER_BUDGET if verified.differ else confirmed)


def _stored(
    name: str, root: Path | None, *, all_labelled: bool, verbose: bool = False
) -> list[Stored]:
    """Find the result that has this name or folder; import a room only if it is shown.

    It is one result. A label with `all_labelled` stands for every run that has it.
    """
    from turngap.store.documents import find_folder
    from turngap.store.folders import find_run, find_runs
    from turngap.store.runs import read_run

    for file in ("check.json", "simulation.json", "compare.json", "turns.json", "load.json"):
        if (folder := find_folder(name, file, root)) is not None:
            return [_of_a_room(file, folder)]
    folders = find_runs(name, root) if all_labelled else [find_run(name, root)]
    return [stored_run(read_run(folder), verbose=verbose) for folder in folders]


def _of_a_room(file: str, folder: Path) -> Stored:
    if file == "check.json":
        from turngap.check.report import read_check

        return stored_check(folder, *read_check(folder))
    if file == "simulation.json":
        from turngap.fleet.report import read_simulation

        return stored_simulation(folder, read_simulation(folder))
    if file == "compare.json":
        from turngap.compare.report import read_comparison

        return stored_comparison(folder, read_comparison(folder))
    if file == "turns.json":
        from turngap.turns.report import read_turns

        return stored_turns(folder, *read_turns(folder))
    from turngap.load.report import read_load

    return stored_load(folder, read_load(folder))


def show(stored: Stored, *, json_: bool) -> None:
    """Show the result that has just been played, with its page."""
    from rich.console import Group

    page = stored.write_html()
    if json_:
        print_json(stored.document())
        return
    print_block(lambda width: Group(*stored.blocks(width)))
    say(f"stored in {page.parent}\npage: {page}")


def stored_run(run: "Run", *, verbose: bool = False) -> Stored:
    """Present a run, turn by turn."""
    from turngap.report.console import run_blocks, run_svg
    from turngap.report.run import run_json, write_html

    return Stored(
        document=lambda: run_json(run),
        blocks=lambda width: run_blocks(run, width, verbose=verbose),
        svg=lambda: run_svg(run),
        write_html=lambda: write_html(run),
        exports=run_exports(run),
    )


def stored_check(
    folder: Path, record: "CheckRecord", candidate: "Run", reference: "Run | None"
) -> Stored:
    """Present a check in its folder."""
    from turngap.check.report import (
        PAGE_FILE,
        check_json,
        check_report,
        check_text,
        junit,
        write_reports,
    )

    def write_html() -> Path:
        write_reports(record, folder, candidate, reference)
        return folder / PAGE_FILE

    return Stored.of(
        folder,
        lambda: check_report(record),
        96,
        document=lambda: check_json(record, folder),
        write_html=write_html,
        exports=runs_exports(
            lambda: [candidate, *([reference] if reference else [])],
            junit=lambda: junit(record, check_text(record)),
        ),
    )


def stored_comparison(folder: Path, record: "ComparisonRecord") -> Stored:
    """Present a comparison in its folder."""
    from turngap.compare.report import (
        SVG_WIDTH,
        comparison_json,
        comparison_report,
        read_runs,
        write_reports,
    )

    return Stored.of(
        folder,
        lambda: comparison_report(record),
        SVG_WIDTH,
        document=lambda: comparison_json(record, folder),
        write_html=lambda: write_reports(record, folder),
        exports=runs_exports(lambda: read_runs(record, folder)),
    )


def stored_simulation(folder: Path, record: "SimulationRecord") -> Stored:
    """Present a simulation in its folder."""
    from turngap.fleet.report import SVG_WIDTH, simulation_report, write_page

    return Stored.of(
        folder,
        lambda: simulation_report(record),
        SVG_WIDTH,
        document=lambda: {**record.model_dump(mode="json"), "path": str(folder)},
        write_html=lambda: write_page(record, folder),
    )


def stored_load(folder: Path, record: "LoadRecord") -> Stored:
    """Present a load test in its folder."""
    from turngap.load.export import load_json, turns_table, write_reports
    from turngap.load.report import SVG_WIDTH, load_report

    return Stored.of(
        folder,
        lambda: load_report(record),
        SVG_WIDTH,
        document=lambda: load_json(record, folder),
        write_html=lambda: write_reports(record, folder),
        exports=Exports(table=lambda: turns_table(record, folder)),
    )


def stored_turns(folder: Path, record: "TurnsRecord", runs: "Sequence[Run]") -> Stored:
    """Present a curve in its folder."""
    from turngap.turns.report import SVG_WIDTH, turns_json, turns_report, write_reports

    return Stored.of(
        folder,
        lambda: turns_report(record, runs),
        SVG_WIDTH,
        document=lambda: turns_json(record, folder),
        write_html=lambda: write_reports(record, runs, folder),
        exports=runs_exports(lambda: runs),
    )


def write_exports(
    stored: Sequence[Exports],
    csv: Path | None,
    parquet: Path | None,
    junit: Path | None,
) -> None:
    """Write the requested files, and name each; all are made before any is written.

    Raises:
        InputError: a result cannot be written in this form, or a file cannot be written.
    """
    from turngap.store.runs import csv_text, parquet_bytes, write_file

    made: list[tuple[Path, bytes, str]] = []
    if junit is not None:
        text = _only("--junit", "a run or a check", [one.junit for one in stored])
        made.append((junit, text, "junit"))
    if csv is not None:
        table = csv_text(_table("--csv", stored))
        made.append((csv, table.encode("utf-8"), "csv"))
    if parquet is not None:
        made.append((parquet, parquet_bytes(_table("--parquet", stored)), "parquet"))
    for file, content, what in made:
        say(f"written: {write_file(file, content, what)}")


def _only(flag: str, of: str, ways: Sequence[Callable[[], bytes] | None]) -> bytes:
    """Write the document of the single result that was given."""
    if len(ways) != 1:
        raise InputError(
            "report.one", f"{flag} writes {of}, and {len(ways)} are given", hint="give one of them"
        )
    way = ways[0]
    if way is None:
        nor = "neither" if " or " in of else "none"
        raise InputError("report.no_such_export", f"{flag} writes {of}, but this is {nor}")
    return way()


def _table(flag: str, stored: Sequence[Exports]) -> "Table":
    """Build one table of the turns of all given results, one after the other."""
    from turngap.store.runs import Table

    if any(one.table is None for one in stored):
        raise InputError(
            "report.no_such_export", f"{flag} writes turns, and a simulation stores none"
        )
    tables = [one.table() for one in stored if one.table is not None]
    if any(table.columns is not tables[0].columns for table in tables):
        raise InputError(
            "report.two_tables",
            f"{flag} writes one table, and the turns of load tests have other columns",
            hint="give load tests by themselves",
        )
    return Table(tables[0].columns, (row for table in tables for row in table.rows))

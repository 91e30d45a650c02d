"""What `turngap report` writes for other programs: CSV, Parquet and JUnit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turngap.cli import options
from turngap.cli.shared import say
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from turngap.store.runs import Run
    from turngap.store.tables import Table

Csv = Annotated[
    Path | None,
    options.for_output(metavar="FILE", help="Write all turns to this CSV file, a row each."),
]
Parquet = Annotated[
    Path | None,
    options.for_output(
        metavar="FILE", help="Write all turns to this Parquet file (with the extra `parquet`)."
    ),
]
Junit = Annotated[
    Path | None,
    options.for_output(
        metavar="FILE",
        help="Write JUnit XML: each turn of a run is a test, or each metric of a check.",
    ),
]


@dataclass(frozen=True, slots=True)
class Exports:
    """The forms in which something stored can be written; None where there is none."""

    table: "Callable[[], Table] | None" = None
    junit: Callable[[], bytes] | None = None


def runs_exports(
    runs: "Callable[[], Sequence[Run]]", junit: Callable[[], bytes] | None = None
) -> Exports:
    """Collect the export formats of a result that has runs."""

    def table() -> "Table":
        from turngap.store.tables import turns_table

        return turns_table(runs())

    return Exports(table, junit)


def run_exports(run: "Run") -> Exports:
    """Collect the export formats of one run."""

    def junit() -> bytes:
        from turngap.report.junit import run_junit

        return run_junit(run)

    return runs_exports(lambda: [run], junit)


def write_exports(
    stored: Sequence[Exports],
    csv: Path | None,
    parquet: Path | None,
    junit: Path | None,
) -> None:
    """Write the files that are asked for, and name each; all are made before any is written.

    Raises:
        InputError: something of what is stored cannot be written so, or a file cannot be written.
    """
    from turngap.store.tables import csv_text, parquet_bytes, write_file

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
    """Write the document of the single thing that was given."""
    if len(ways) != 1:
        raise InputError(
            "report.one", f"{flag} writes {of}, and {len(ways)} are given", hint="give one of them"
        )
    way = ways[0]
    if way is None:
        nor = "neither" if " or " in of else "none"
        raise InputError("report.no_such_export", f"{flag} writes {of}, and this is {nor}")
    return way()


def _table(flag: str, stored: Sequence[Exports]) -> "Table":
    """All turns of all that was given, one after the other."""
    from turngap.store.tables import Table

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

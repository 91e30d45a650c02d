"""Tables of turns as files: CSV and Parquet, from the columns of `turngap.core.columns`.

docs/data.md says what the columns hold; `tools/data_page.py` makes it from them.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from turngap.core.errors import InputError
from turngap.core.results import TURN_COLUMNS
from turngap.core.stored import Cell, Column, Row, row_of
from turngap.core.untrusted import is_loopback
from turngap.store.documents import writing

if TYPE_CHECKING:
    import pyarrow as pa

    from turngap.store.runs import Run

# What a spreadsheet takes for a formula when a cell begins with it, in its East Asian width, too
# (https://owasp.org/www-community/attacks/CSV_Injection). Spaces and quotes before it may be
# dropped, and a spreadsheet that separates cells by semicolons begins another cell after each.
_FORMULA = r"[\s\"']*[=+\-@＝＋－＠]"
_CELL_BEGINS = r"(?:\A|(?<=[;\t\r\n]))"
_UNSAFE = re.compile(f"{_CELL_BEGINS}(?={_FORMULA})")
# From here on, Linux gives ports to those who want any.
_SYSTEM_CHOOSES = 32_768
_MADE_SAFE = re.compile(f"{_CELL_BEGINS}'(?={_FORMULA})")


def agent_called(name: str, described: Mapping[str, Any]) -> str:
    """Return the agent's name for people: its URL, its stack's name, or else that of the run.

    Of a URL it is as `steady_name` has it, so that all runs of one agent have one.
    """
    if url := described.get("url"):
        return steady_name(str(url), str(described.get("start") or ""))
    return str(described.get("stack") or name)


def steady_name(url: str, start: str) -> str:
    """Return an agent's name without its port, where another run may have another.

    So it is on this machine, if the command `start` starts it, or the system chose the port.
    """
    try:
        parts = urlsplit(url)
        port, is_here = parts.port, is_loopback(parts.hostname or "")
    except ValueError:  # no URL
        return url
    if not is_here:
        return url
    if start:
        at = urlunsplit(("", "", *parts[2:]))
        command = re.sub(rf"(?<!\d){port}(?!\d)", "PORT", start)
        return f"{command} at {at}" if at.strip("/") else command
    if (port or 0) >= _SYSTEM_CHOOSES:
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition(":")[0]))
    return url


def agent_name(run: "Run") -> str:
    """Return the name of a run's agent, as `turngap history` lists it."""
    return agent_called(run.record.name, run.record.agent)


# What the column `commit` holds in every table.
COMMIT_IS = (
    "The commit of the checkout that turngap started the agent from; otherwise of the git "
    "repository around the folder in which turngap was called. It ends in `-dirty` where files "
    "differed."
)
# What each turn's row begins with, so that the rows of several runs fit into one table.
RUN_COLUMNS: "Sequence[Column[Run]]" = (
    Column("run", "text", "The name of the run's folder.", lambda run: run.path.name),
    Column("label", "text", "What `--label` gave.", lambda run: run.record.label, True),
    Column(
        "agent",
        "text",
        "The agent, as `turngap history` lists it: its URL without secrets, the command that "
        "starts it on this machine, or the name of its stack.",
        agent_name,
    ),
    Column("commit", "text", COMMIT_IS, lambda run: run.record.measured_commit, True),
    Column(
        "valid",
        "boolean",
        "Whether the run's figures can be used. Its report says why not.",
        lambda run: run.valid,
    ),
)
COLUMNS: Sequence[Column[Any]] = (*RUN_COLUMNS, *TURN_COLUMNS)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, which have a value for each of the columns; they can be read once."""

    columns: Sequence[Column[Any]]
    rows: Iterable[Mapping[str, Any]]


def run_rows(run: "Run") -> list[Row]:
    """Build a row for each turn of a run: the columns are `COLUMNS`."""
    of_run = row_of(RUN_COLUMNS, run)
    return [of_run | turn.row() for turn in run.turns]


def turns_table(runs: Iterable["Run"]) -> Table:
    """Build the table of these runs' turns, one run after the other."""
    return Table(COLUMNS, (row for run in runs for row in run_rows(run)))


# --- CSV ----------------------------------------------------------------------------------------


def csv_text(table: Table) -> str:
    """Write the line of names, then a line for each row.

    Numbers have as many digits as it takes to read the very same number again, booleans are `true`
    and `false`, and a missing value is an empty cell. No cell is a formula (`safe_cell`).
    """
    names = [column.name for column in table.columns]
    lines = (_line(_written(row[name]) for name in names) for row in table.rows)
    return "".join((_line(names), *lines))


def safe_cell(text: str) -> str:
    """Put an apostrophe before what a spreadsheet would run as a formula.

    What an agent said ends up in a spreadsheet, and `=HYPERLINK(…)` must stay a text there. No
    other text is changed, and `text_of_cell` gives back the very text.
    """
    return _UNSAFE.sub("'", text)


def text_of_cell(cell: str) -> str:
    """Give back the text that `safe_cell` wrote."""
    return _MADE_SAFE.sub("", cell)


def _written(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return safe_cell(value) if isinstance(value, str) else repr(value)


def _line(cells: Iterable[str]) -> str:
    # A writer whose lines end in a line feed alone would not quote a carriage return.
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n") + "\n"


# --- Parquet ------------------------------------------------------------------------------------


def parquet_bytes(table: Table) -> bytes:
    """Write the table as a Parquet file, whose schema describes each column.

    Raises:
        InputError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as e:
        raise InputError(
            "extra.missing",
            "Parquet files are written by pyarrow, which is not installed here",
            hint="pip install 'turngap[parquet]'",
        ) from e
    rows, schema = list(table.rows), arrow_schema(table.columns)
    cells = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_arrays(cells, schema=schema), sink)
    return sink.getvalue().to_pybytes()


def arrow_schema(columns: Sequence[Column[Any]]) -> "pa.Schema":
    """Build the schema: each column's type, whether it may be null, and its description."""
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
    }
    return pa.schema(
        pa.field(c.name, types[c.type], nullable=c.optional, metadata={"description": c.about})
        for c in columns
    )


# --- files --------------------------------------------------------------------------------------


def write_file(file: Path, content: bytes, what: str) -> Path:
    """Write to where the user says, which may be no file: not by way of one next to it.

    Raises:
        InputError: it cannot be written; the error is of the kind `{what}.unwritable`.
    """
    with writing(file, f"{what}.unwritable", ""):
        file.write_bytes(content)
    return file

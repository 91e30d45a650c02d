"""Stored runs: read whole, with their figures, and written as tables."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

from turngap.core.errors import InputError
from turngap.core.results import TURN_COLUMNS, Turn
from turngap.core.run_record import METRICS_CHANGED, METRICS_VERSION, RunRecord
from turngap.core.stored import Cell, Column, Row, row_of
from turngap.core.untrusted import harmless, is_loopback, printable
from turngap.store.documents import (
    encode,
    read_turns,
    write_atomically,
    writing,
)
from turngap.store.folders import (
    RUN_FILE,
    RUN_HINT,
    TURNS_FILE,
    beside,
    find_run,
    read_record,
    unfinished,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from turngap.core.cut_ins import CutIns
    from turngap.core.stats import Proportion
    from turngap.core.summary import GapFigures, Summary


@dataclass(frozen=True, repr=False)
class Run:
    """A stored run: its turns, its figures, and its folder.

        >>> run = turngap.Run.load("latest")
        >>> run.hit_rate.value
        1.0
        >>> run.cut_ins.hits
        0
        >>> run.gap_ms.p95.value is None, run.gap_ms.p95.why_none
        (True, 'n=3, needs 20')
        >>> [row["outcome"] for row in run.rows()]
        ['answered', 'answered', 'answered']

    `pandas.DataFrame(run.rows())` makes a table of it.

    Attributes:
        record: what `run.json` holds: the agent, the machine, the settings, the calibration.
        turns: every turn, in the order in which they were played.
        path: the run's folder, with the recordings and `report.html`.
        problems: the folder's faults, in words: cut short, older metrics.
    """

    record: RunRecord
    turns: tuple[Turn, ...]
    path: Path
    problems: tuple[str, ...] = ()

    @classmethod
    def load(cls, name: str | Path = "latest", root: str | Path | None = None) -> Self:
        """Read a stored run.

        Args:
            name: a run's folder, the name of a folder in `root`, or `latest`, the finished run that
                began last.
            root: the folder of runs; by default `./runs`.

        Raises:
            InputError: there is no such run, or it cannot be read.
        """
        run = read_run(find_run(str(name), None if root is None else Path(root)))
        return cls(run.record, run.turns, run.path, run.problems)

    @cached_property
    def summary(self) -> "Summary":
        """Return all figures of the run."""
        # Statistics take a second to import, and most commands that name a run need none.
        from turngap.core.summary import summarise

        return summarise(self.turns)

    @property
    def gap_ms(self) -> "GapFigures":
        """Return the turn gap in ms: `p50`, `p90`, `p95`, each `value`, `low` and `high`; `n`.

        A `value` is None if there are too few turns for the percentile; `why_none` says so.
        """
        from turngap.core.summary import GapFigures

        return GapFigures(self.summary.gap_n, self.summary.gap_recorded, **self.summary.gap_ms)

    @property
    def hit_rate(self) -> "Proportion":
        """Return the share of turns answered within the budget: `value`, `low`, `high`.

        It is `hits` divided by `n`; `low` and `high` are the ends of its 95 % interval.
        """
        return self.summary.hit_rate

    @property
    def cut_ins(self) -> "CutIns":
        """Return the share of turns in which the agent spoke before the person had finished.

        `value`, `low`, `high`, `hits` and `n` are as in `hit_rate`. `paused` counts the turns with
        a pause in which an agent could cut in. A short gap bought with cut-ins is not fast: state
        the two together.
        """
        return self.summary.cut_ins

    @property
    def valid(self) -> bool:
        """Return whether the figures can be used; `record.why_invalid` has the reasons if not."""
        return self.record.valid

    @property
    def complete(self) -> bool:
        """Return whether the run has ended and has every planned turn."""
        ended = self.record.finished_utc is not None
        return ended and len(self.turns) >= self.record.planned_turns

    def rows(self) -> list[dict[str, Any]]:
        """Build flat rows from the turns, for `pandas.DataFrame` or `polars.DataFrame`.

        The columns are the same in every run, and in CSV and Parquet. docs/data.md describes each
        of them.
        """
        return run_rows(self)

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows as a CSV file, with a line of column names; None is an empty cell.

        A text that a spreadsheet would read as a formula gets an apostrophe before it.

        Returns:
            The file's path.

        Raises:
            InputError: the run has no turns, or the file cannot be written.
        """
        return write_file(Path(path), csv_text(self._table()).encode(), "csv")

    def to_parquet(self, path: str | Path) -> Path:
        """Write the rows as a Parquet file, with the types and descriptions of the columns.

        Returns:
            The file's path.

        Raises:
            InputError: the run has no turns, the file cannot be written, or pyarrow, which the
                extra `parquet` brings, is not installed.
        """
        return write_file(Path(path), parquet_bytes(self._table()), "parquet")

    def _table(self) -> "Table":
        if not self.turns:
            raise InputError("run.empty", f"{self.path}: the run holds no turn to write")
        return turns_table([self])

    def __repr__(self) -> str:
        rate = self.hit_rate
        share = "" if rate.value is None else f", hit rate {rate.value:.0%}"
        gap = "" if (p50 := self.gap_ms.p50.value) is None else f", gap p50 {p50:.0f} ms"
        cut_ins = f", cut in on {self.cut_ins.hits} of {self.cut_ins.n}" if self.cut_ins.n else ""
        reasons = "; ".join(map(printable, self.record.why_invalid))
        valid = "" if self.valid else f", invalid: {reasons}" if reasons else ", invalid"
        return f"<Run {str(self.path)!r}: {len(self.turns)} turns{share}{gap}{cut_ins}{valid}>"

    def __str__(self) -> str:
        figures = self._rows_of_figures()
        width = max(map(len, figures))
        rows = [f"  {name.ljust(width)}  {figure}" for name, figure in figures.items()]
        return "\n".join(map(harmless, [self._head(), *self._notes(), *rows]))

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(str(figure))}</td></tr>"
            for name, figure in self._rows_of_figures().items()
        )
        notes = "".join(f"<p><b>{escape(note)}</b></p>" for note in self._notes())
        page = self.path / "report.html"
        link = f"<p><a href='{escape(quote(str(page)))}'>report</a></p>" if page.is_file() else ""
        head = f"<p><b>{escape(self._head())}</b></p>"
        return f"<div>{head}{notes}<table>{cells}</table>{link}</div>"

    def _head(self) -> str:
        return f"turngap: {self.record.name}, {len(self.turns)} turns, {self.record.started_utc}"

    def _notes(self) -> list[str]:
        """List why the run's figures cannot be used, and the faults in its files."""
        invalid = () if self.record.valid else ("INVALID", *self.record.why_invalid)
        return [*self.problems, *invalid]

    def _rows_of_figures(self) -> dict[str, object]:
        """Return the figures that consoles and notebooks show in tables, in their order."""
        gap = self.gap_ms
        return {
            **{f"gap {name}, ms": getattr(gap, name) for name in ("p50", "p90", "p95")},
            "hit rate": self.hit_rate,
            "cut-ins": self.cut_ins,
            "outcomes": ", ".join(f"{n} {name}" for name, n in self.summary.outcomes.items()),
            **{f"{s.name}, median ms": f"{s.p50_ms:.0f}" for s in self.summary.stages},
            "folder": self.path,
        }


def read_run(path: Path, *, empty: bool = False) -> Run:
    """Read a run's folder; it may hold no turn if it may be `empty`.

    A last line that was cut off in mid-write is left out and named in `problems`.

    Raises:
        InputError: not a run, no turn in it, damaged (with the line), or of another version.
    """
    record = read_record(path)
    problems: list[str] = []
    turns = [*read_turns(path / TURNS_FILE, Turn, problems)]
    played = "1 turn was played" if len(turns) == 1 else f"{len(turns)} turns were played"
    if planned := record.planned_turns:
        played = f"{len(turns)} of {planned} planned turns were played"
    record = unfinished(record, played)
    for what, found in (
        ("versions of turngap", {piece.turngap_version for piece in record.pieces}),
        ("commits", {piece.commit or "none" for piece in record.pieces}),
        ("machines", {piece.machine.fingerprint for piece in record.pieces}),
    ):
        if len(found) > 1:
            problems.append(f"its pieces were played with {len(found)} {what}: {sorted(found)}")
    if record.metrics_version != METRICS_VERSION:
        old = record.metrics_version < METRICS_VERSION
        changed = f", in which {METRICS_CHANGED}" if old else ""
        problems.append(
            f"figures of metrics version {record.metrics_version}, this turngap computes version "
            f"{METRICS_VERSION}{changed}: do not compare the two"
        )
    if not turns and not empty:
        why = f" ({record.failure})" if record.failure else ""
        raise InputError("run.empty", f"{path}: the run holds no finished turn{why}", hint=RUN_HINT)
    return Run(record, tuple(turns), path, tuple(problems))


def read_run_beside(file: Path, name: str) -> Run:
    """Read the run that a stored document names; raises as `beside` and `read_run` do."""
    return read_run(beside(file, name), empty=True)


def rewritten(run: Run, record: RunRecord, turns: tuple[Turn, ...]) -> Run:
    """Replace the stored record of a run with this one.

    Raises:
        InputError: its folder cannot be written to.
    """
    with writing(run.path, "run.unwritable"):
        write_atomically(run.path / TURNS_FILE, b"".join(map(encode, turns)))
        write_atomically(run.path / RUN_FILE, encode(record, indent=2))
    return Run(record, turns, run.path, run.problems)


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
    """Return the agent's name for reports: its URL, its stack's name, or else the run's name.

    A URL is formatted as in `steady_name`, so all runs of one agent have one name.
    """
    if url := described.get("url"):
        return steady_name(str(url), str(described.get("start") or ""))
    return str(described.get("stack") or name)


def steady_name(url: str, start: str) -> str:
    """Return an agent's name without its port if other runs may use another port.

    Other runs may do so on this machine if the command `start` starts the agent, or if the system
    chose the port.
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

    Numbers have as many digits as are needed to read the same number again, booleans are `true` and
    `false`, and a missing value is an empty cell. No cell is a formula (`safe_cell`).
    """
    names = [column.name for column in table.columns]
    lines = (_line(_written(row[name]) for name in names) for row in table.rows)
    return "".join((_line(names), *lines))


def safe_cell(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would run as a formula.

    An agent's words end up in a spreadsheet, and `=HYPERLINK(…)` must stay text there. No other
    text is changed, and `text_of_cell` restores the original.
    """
    return _UNSAFE.sub("'", text)


def text_of_cell(cell: str) -> str:
    """Restore the text that `safe_cell` wrote."""
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
    """Write to the user's path directly: it may be a device or a pipe, which cannot be replaced.

    Raises:
        InputError: it cannot be written; the error is of the kind `{what}.unwritable`.
    """
    with writing(file, f"{what}.unwritable", ""):
        file.write_bytes(content)
    return file

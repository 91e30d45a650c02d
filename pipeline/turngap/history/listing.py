"""The history as a list: read from folders, and shown on a terminal, as a page, JSON or CSV."""

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.cells import cell_len
from rich.text import Text

from turngap.core.clock import instant
from turngap.core.errors import InputError
from turngap.core.stored import Column, row_of
from turngap.core.untrusted import harmless, printable
from turngap.history.kinds import FILES, Entry, Kind, Status, read_entry
from turngap.report import sections, terminal, words
from turngap.report.looks import Style
from turngap.report.sections import Cell
from turngap.store.documents import DEFAULT_ROOT, is_file
from turngap.store.folders import RUN_FILE
from turngap.store.runs import COMMIT_IS, Table

# --- reading --------------------------------------------------------------------------------------

# As `store.folders.new_folder` names them: `20261120T152803Z-check`, `…-check-2`, `…-x-load`.
_OURS = re.compile(r"(?P<utc>\d{8}T\d{6}Z)-(?P<name>.+)", re.DOTALL)
_UNDONE: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"check(-\d+)?"), "check"),
    (re.compile(r"compare(-\d+)?"), "compare"),
    (re.compile(r"turns-.+", re.DOTALL), "turns"),
    (re.compile(r".*-load(-\d+)?", re.DOTALL), "load"),
)
_AGO = re.compile(r"(\d{1,5})([dhw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


OnRead = Callable[[int, int], None]


def entries(roots: Sequence[Path] = (), on_read: OnRead = lambda done, of: None) -> list[Entry]:
    """Read everything that is stored in these folders, in the order in which it began.

    A folder that cannot be read becomes an entry with its reason. A folder without anything of
    turngap is left out, and so is a second path to the same folder.

    Args:
        roots: folders of stored folders, or such folders themselves; by default `./runs`, which may
            be missing.
        on_read: receives how many have been read, and of how many.

    Raises:
        InputError: a folder that was given does not exist, or cannot be listed.
    """
    seen: set[tuple[int, int]] = set()  # each folder counts once, whatever links lead to it
    folders: list[Path] = []
    for root in roots or (DEFAULT_ROOT,):
        for path in _within(root, needed=bool(roots)):
            with suppress(OSError):  # a link to nothing, or it has just been deleted
                status = path.stat()
                place = (status.st_dev, status.st_ino)
                if stat.S_ISDIR(status.st_mode) and place not in seen:
                    seen.add(place)
                    folders.append(path)
    listed: list[Entry] = []
    for done, folder in enumerate(folders, start=1):
        entry = _entry(folder)
        if entry is not None:
            listed.append(entry)
        on_read(done, len(folders))
    return sorted(listed, key=lambda entry: (began(entry), entry.path))


def chosen(
    entries: Sequence[Entry],
    *,
    since: str | None = None,
    valid: bool = False,
    last: int | None = None,
    now: datetime | None = None,
) -> list[Entry]:
    """Return the `last` newest of the entries that began at `since` or later; if asked, valid ones.

    `since` is a day, an instant, or how long ago: `7d`.

    Raises:
        InputError: `since` is not one of these.
    """
    start = None if since is None else _instant(since, now or datetime.now(UTC))
    kept = [
        entry
        for entry in entries
        if (entry.valid or not valid) and (start is None or began(entry) >= start)
    ]
    return kept if last is None else kept[max(0, len(kept) - last) :]


def _instant(text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text.strip()):
        return now - timedelta(hours=int(ago[1]) * _HOURS[ago[2]])
    try:
        return instant(text.strip())
    except ValueError as e:
        raise InputError(
            "history.since",
            f"--since {printable(text, 100)!r}: expected a day, an instant in UTC, or how long ago",
            hint="for example: --since 2026-11-20, --since 2026-11-20T15:00, or --since 7d",
        ) from e


def began(entry: Entry) -> datetime:
    """Return when the entry began; an entry that does not say so comes first."""
    try:
        return instant(entry.started_utc)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _within(root: Path, *, needed: bool) -> list[Path]:
    """Return the contents of a folder, or the folder if it is a stored one itself."""
    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise NotADirectoryError(None, "it is no folder")
        if _kind(root) is not None:
            return [root]
        return sorted(path for path in root.iterdir() if path.name[0] != ".")
    except (OSError, ValueError) as e:
        if not needed and isinstance(e, FileNotFoundError):
            return []
        why = getattr(e, "strerror", None) or str(e)
        raise InputError(
            "history.no_folder",
            f"cannot list {harmless(str(root))}: {why}",
            hint="give a folder of stored runs: --runs DIR",
        ) from e


def _kind(folder: Path) -> Kind | None:
    """Return the kind of a stored folder, by the file that makes it one; None if there is none.

    Raises:
        OSError: the folder cannot be searched.
    """
    for name, kind in FILES:
        try:
            os.lstat(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return kind
    return None


def _entry(folder: Path) -> Entry | None:
    """Return the entry of a folder; None if it holds nothing of turngap.

    An unfinished folder of turngap is an entry, too: its own record comes last, or never came.
    """
    ours = _OURS.fullmatch(folder.name)
    name = folder.name if ours is None else ours["name"]
    kinds: list[Kind] = [kind for pattern, kind in _UNDONE if pattern.fullmatch(name)]
    kind = kinds[0] if kinds else "replay"
    status: Status = "unreadable"
    try:
        if (recorded := _kind(folder)) is not None:
            kind = recorded
            return read_entry(folder, kind)
        within = list(folder.iterdir()) if ours else []
        has_runs = any((path / RUN_FILE).is_file() for path in within)
        if ours is None or (within and not has_runs):
            return None
        status, why = "unfinished", "unfinished: nothing was stored"
        if has_runs:
            why = "unfinished: it was ended, or is being played, and is not judged"
    except InputError as e:
        why = str(e)
    except OSError as e:
        why = e.strerror or str(e)
    started_utc = _by_name(folder)
    return Entry(
        path=str(folder), kind=kind, status=status, started_utc=started_utc, why=(harmless(why),)
    )


def _by_name(folder: Path) -> str:
    """Return when a folder was made, by its name or else by the disk's time."""
    ours = _OURS.fullmatch(folder.name)
    try:
        if ours is not None:
            at = datetime.strptime(ours["utc"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        else:
            at = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        return at.isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


# --- showing --------------------------------------------------------------------------------------

# This many reasons are printed below the list, the newest ones; `--json` has all of them.
MOST_REASONS = 10
# On a terminal of fewer columns than these a label is cut shorter, so that other columns stay.
_NARROW = 100
_MOST_LABEL, _MOST_LABEL_NARROW, _MOST_LABEL_PAGE = 20, 10, 60
_NONE = "–"
_CAPTION = "n: turns that count. p50, p95: of the gap in ms; –: too few turns."
# Said only where there is such a row.
_FIGURES_OF: Mapping[Kind, str] = {
    "check": "The figures of a check are its candidate's.",
    "load": "The figures of a load test are those of the longest step at the level that it "
    "certifies.",
}
COLUMNS: Sequence[Column[Entry]] = (
    Column("path", "text", "Its folder.", lambda entry: entry.path),
    Column("kind", "text", "What made it.", lambda entry: entry.kind),
    Column("status", "text", "How it ended.", lambda entry: entry.status),
    Column("label", "text", "What `--label` gave.", lambda entry: entry.label, True),
    Column("agent", "text", "The agent.", lambda entry: entry.agent, True),
    Column("commit", "text", COMMIT_IS, lambda entry: entry.commit, True),
    Column(
        "line",
        "text",
        "The dialect and the rate in Hz in which an agent at a URL was spoken to, and `--line`.",
        lambda entry: entry.line,
        True,
    ),
    Column("started_utc", "text", "When it began.", lambda entry: entry.started_utc, True),
    Column("valid", "boolean", "Whether its figures can be used.", lambda entry: entry.valid),
    Column("verdict", "text", "Its verdict.", lambda entry: entry.verdict, True),
    Column("machine", "text", "The machine's fingerprint.", lambda entry: entry.machine, True),
    Column("played", "text", "A digest of what was played.", lambda entry: entry.played, True),
    Column("budget_ms", "number", "The budget.", lambda entry: entry.budget_ms, True),
    Column(
        "metrics_version",
        "integer",
        "The version of the rules that turn events into figures.",
        lambda entry: entry.metrics_version,
        True,
    ),
    Column(
        "starved_ms",
        "number",
        "How late the caller might be before a turn counted as starved.",
        lambda entry: entry.starved_ms,
        True,
    ),
    Column("n", "integer", "Turns that count.", lambda entry: entry.n),
    Column("gap_p50_ms", "number", "The gap's median.", lambda entry: entry.gap_ms["p50"], True),
    Column("gap_p95_ms", "number", "Its p95.", lambda entry: entry.gap_ms["p95"], True),
    Column("hits", "integer", "Turns within the budget.", lambda entry: entry.hits, True),
    Column("hit_rate", "number", "Their share.", lambda entry: entry.hit_rate, True),
    Column("cut_ins", "integer", "Turns cut into.", lambda entry: entry.cut_ins, True),
    Column(
        "why", "text", "Why its figures cannot be used.", lambda entry: "; ".join(entry.why), True
    ),
)


_FIGURES: Sequence[tuple[str, Callable[[Entry], str]]] = (
    ("p50", lambda entry: ms(entry.gap_ms["p50"])),
    ("p95", lambda entry: ms(entry.gap_ms["p95"])),
    ("hit rate", lambda e: _NONE if e.hit_rate is None else words.percent(e.hit_rate)),
    ("cut in", lambda e: _NONE if e.cut_ins is None or not e.n else f"{e.cut_ins:,}"),
    ("n", lambda entry: f"{entry.n:,}" if entry.n else _NONE),
)


def list_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what `--json` prints. Scripts rely on its keys: keys may be added, none removed."""
    # A file's name need not be text, and JSON must be.
    paths = (entry.path.encode("utf-8", "replace").decode() for entry in entries)
    rows = [
        asdict(entry) | {"hit_rate": entry.hit_rate, "why": list(entry.why), "path": path}
        for entry, path in zip(entries, paths, strict=True)
    ]
    return {"runs": rows}


def entries_table(entries: Sequence[Entry]) -> Table:
    """Return the list as a table for `store.tables.csv_text`, with a row for each entry."""
    return Table(COLUMNS, (row_of(COLUMNS, entry) for entry in entries))


def list_block(entries: Sequence[Entry], width: int) -> Text:
    """Render the list for a terminal, the newest entry last, and why some are not valid."""
    least = _MOST_LABEL if width >= _NARROW else _MOST_LABEL_NARROW
    table = terminal.item_lines(list_table(entries, least), width)
    taken = max((line.cell_len for line in table[-len(entries) - 1 :]), default=width)
    if taken < width:  # labels may have what the other columns leave
        table = terminal.item_lines(list_table(entries, least + width - taken), width)
    return terminal.joined([*table, *reasons(entries, width)])


def list_table(entries: Sequence[Entry], most_label: int = _MOST_LABEL) -> sections.Table:
    """Return a row for each entry, in their order; the facts that all share are above the table."""
    name = namer(entries)
    texts = [
        ("label", [printable(entry.label) for entry in entries]),
        ("kind", [entry.kind for entry in entries]),
        ("agent", [entry.agent for entry in entries]),
        ("commit", [words.commit(entry.commit) for entry in entries]),
    ]
    differing = [pair for pair in texts if len(entries) == 1 or len(set(pair[1])) > 1]
    differing = [
        (column, [terminal.cropped(v, most_label) for v in values] if column == "label" else values)
        for column, values in differing
        if any(values)
    ]
    figures = [(column, list(map(shown, entries))) for column, shown in _FIGURES]
    known = [(column, values) for column, values in figures if set(values) != {_NONE}]
    head = [
        sections.Column("folder"),
        sections.Column("result", left=True),
        *(sections.Column(column) for column, _ in known),
        *(sections.Column(column, left=True, spare=True) for column, _ in differing),
    ]
    rows = [
        [name(entry), result(entry), *(values[i] for _, values in [*known, *differing])]
        for i, entry in enumerate(entries)
    ]
    common = {name: values[0] for name, values in texts if len(set(values)) == 1 < len(values)}
    kinds = {entry.kind for entry in entries}
    words_of = [
        f"{name} {'unknown' if value in ('', _NONE) else printable(value)}"
        for name, value in common.items()
        if value or name != "label"
    ]
    notes = [f"All {len(entries)} have in common: {', '.join(words_of)}."] if words_of else []
    notes += [_CAPTION] if known else []
    notes += [note for kind, note in _FIGURES_OF.items() if kind in kinds]
    return sections.Table(head, rows, " ".join(notes))


def list_report(entries: Sequence[Entry], beside: Path) -> sections.Report:
    """Build the page, the newest first; rows lead to their pages, from the folder `beside`."""
    newest = list(reversed(entries))
    table = list_table(newest, _MOST_LABEL_PAGE)
    rows = [
        [Cell(str(first), link=_link(entry, beside)), *rest]
        for entry, (first, *rest) in zip(newest, table.rows, strict=True)
    ]
    name = namer(newest)
    why = [sections.Line(name(e), "; ".join(e.why)) for e in newest if not e.valid and e.why]
    folded = sections.Lines(why, folded=f"Why {len(why)} cannot be used", where=sections.PAGE)
    when = words.instant(newest[0].started_utc) if newest else ""
    return sections.Report(
        command="history",
        subject=f"{len(entries)} stored",
        when=f"the newest is of {when}" if when else "",
        sections=[sections.Section("", [replace(table, rows=rows), folded])],
    )


def _link(entry: Entry, beside: Path) -> str:
    """Return the relative address of an entry's own page; empty where it has none."""
    pages = (Path(entry.path) / name for name in ("report.html", "check.html", "simulation.html"))
    file = next(filter(is_file, pages), None)
    return "" if file is None else quote(os.fsencode(os.path.relpath(file, beside)))


def reasons(entries: Sequence[Entry], width: int) -> list[Text]:
    """Return why the figures of the newest invalid entries cannot be used, a line each."""
    name = namer(entries)
    invalid = [entry for entry in entries if not entry.valid and entry.why]
    if not invalid:
        return []
    shown = [(terminal.cropped(name(e), width // 2), e.why[0]) for e in invalid[-MOST_REASONS:]]
    room = max(cell_len(folder) for folder, _ in shown)
    more = len(invalid) - MOST_REASONS
    first = "Not usable" + (f", and {more} more" if more > 0 else "")
    return [
        Text(),
        Text(terminal.cropped(f"{first} (--json has the whole reasons):", width), style="dim"),
        *(
            Text(terminal.cropped(f"{folder}{' ' * (room - cell_len(folder))}  {why}", width))
            for folder, why in shown
        ),
    ]


def namer(entries: Sequence[Entry]) -> Callable[[Entry], str]:
    """Return a function that names entries: by their paths, without their common folder."""
    try:
        above = os.path.commonpath([Path(entry.path).parent for entry in entries])
    except ValueError:  # none, or some are absolute and some are not
        return lambda entry: printable(entry.path)
    return lambda entry: printable(str(Path(entry.path).relative_to(above)))


def ms(value: float | None) -> str:
    """Return milliseconds, or a dash."""
    return _NONE if value is None else words.ms(value)


def result(entry: Entry) -> Cell:
    """Return the outcome in a word or two."""
    if entry.status != "finished":
        style: Style = "bad" if entry.status == "failed" else "unsure"
        mark = "✗" if entry.status == "failed" else "?"
        return Cell(f"{mark} {entry.status}", style)
    if not entry.valid:
        return Cell(f"≠ {entry.verdict or 'invalid'}", "odd")
    if entry.verdict == "regressed":
        return Cell(f"✗ {entry.verdict}", "bad")
    return Cell(entry.verdict or "valid", "unsure" if entry.verdict == "undecided" else "")

"""Write a report on a terminal: names in the gutter, wrapped words next to them, tables."""

import io
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from turngap.core.untrusted import inert, printable, xml_text
from turngap.report.looks import Style
from turngap.report.sections import Cell, Column, Figures, Gauge, Item, Lines, Report, Table

# Holds the lines' names, and left of zero the reply of an agent that cut in.
GUTTER = 12
MIN_WIDTH = 40
GAP = "  "
# A bar in a table is so wide at most, and left out where it would be narrower than the second.
WIDEST_BAR, NARROWEST_BAR = 40, 9
MORE, LESS, ZERO = "█", "░", "│"

STYLES: dict[Style, str] = {
    "": "",
    "strong": "bold",
    "dim": "dim",
    "good": "bold green",
    "bad": "bold red",
    "odd": "bold magenta",
    "unsure": "bold yellow",
    "listen": "cyan",
    "think": "yellow",
    "speak": "green",
    "line": "blue",
    "unknown": "magenta",
}

# Text.wrap asks a console for its tab size only.
_PLAIN = Console(file=io.StringIO(), width=80)


def block(report: Report, width: int) -> Text:
    """Render the whole report; it is readable without colour and ends with an empty line."""
    width = max(width, MIN_WIDTH)
    found = _head(report, width)
    for warning in report.warnings:
        found += wrapped("!", printable(warning), width, "bold red")
    found += lines_of(Lines(report.lead), width)
    if report.stand_ins:
        found += wrapped("note", report.stand_ins, width, STYLES["unsure"])
    after_table = False
    for section in report.sections:
        for item in section.seen("terminal"):
            is_table = isinstance(item, Table)
            found += [Text()] if is_table or after_table else []
            found += item_lines(item, width)
            after_table = is_table
    return joined(found)


def svg(name: str, blocks: Iterable[Text], width: int) -> str:
    """Draw the terminal after `turngap report NAME` as an SVG image.

    It fetches nothing when it is shown: rich's template names a font on a web server, which is
    removed.
    """
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(
        f"$ turngap report {printable(name)}\n", style="bold", highlight=False, markup=False
    )
    console.print(*blocks, sep="\n", end="")
    svg = xml_text(console.export_svg(title="turngap", unique_id="turngap"))
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    # The first installed one is taken; each has the block characters in the width of a letter.
    fonts = "'Fira Code', 'DejaVu Sans Mono', Menlo, Consolas, monospace"
    return svg.replace("font-family: Fira Code, monospace", f"font-family: {fonts}")


def joined(lines: Iterable[Text]) -> Text:
    """Join the lines, without spaces at their ends, and add an empty line."""
    lines = [line if (safe := inert(line.plain)) == line.plain else Text(safe) for line in lines]
    for line in lines:
        line.rstrip()
    text = Text("\n", no_wrap=True, overflow="crop").join(lines)
    return text.append("\n")


def labelled(label: str) -> Text:
    """Begin a line that has its name in the gutter and no text yet."""
    text = Text()
    text.append(f"{cropped(printable(label), GUTTER - 1):>{GUTTER - 1}} ", style="dim")
    return text


def one_line(label: str, content: str, width: int, style: str = "") -> Text:
    """Return `content` in one line, cut if it does not fit."""
    return labelled(label).append(cropped(content, width - GUTTER), style=style)


def wrapped(label: str, content: str, width: int, style: str = "") -> list[Text]:
    """Wrap `content` into as many lines as it needs; a long word (a path) is folded."""
    lines = Text(content, style=style).wrap(_PLAIN, width - GUTTER, overflow="fold")
    return [labelled("" if n else label).append_text(line) for n, line in enumerate(lines)]


def flowed(label: str, pieces: Sequence[Text], width: int) -> list[Text]:
    """Lay `pieces` side by side in as many lines as they need."""
    lines = [labelled(label)]
    for piece in pieces:
        used = cell_len(lines[-1].plain)
        if used > GUTTER and used + 2 + cell_len(piece.plain) > width:
            lines.append(labelled(""))
            used = GUTTER
        if used > GUTTER:
            lines[-1].append("  ")
        lines[-1].append_text(piece)
    return lines


def cropped(content: str, room: int) -> str:
    """Crop `content` to `room` columns, with an ellipsis if it was cut."""
    text = Text(content)
    text.truncate(room, overflow="ellipsis")
    return text.plain


def _title(subject: str, width: int) -> list[Text]:
    """Draw the subject followed by a rule, broken between its parts if it is too long."""
    room, found = width - 5, list[str]()  # "━━ " before it, " ·" after what continues
    for part in printable(subject).split(" · "):
        if found and cell_len(f"{found[-1]} · {part}") <= room:
            found[-1] += f" · {part}"
        else:
            found[-1:] = [f"{found[-1]} ·"] if found else []
            found += [line.plain for line in Text(part).wrap(_PLAIN, room, overflow="fold")]
    lines = [f"{'   ' if n else '━━ '}{text}" for n, text in enumerate(found)]
    lines[-1] = f"{lines[-1]} ".ljust(width, "━")
    return [Text(line, style="bold") for line in lines]


def _head(report: Report, width: int) -> list[Text]:
    if report.verdict is None:
        return _title(report.subject, width)
    text = Text(report.verdict.text, style=STYLES[report.verdict.style])
    about = f"{GAP}{report.means}"
    if cell_len(text.plain) + cell_len(about) <= width:
        text.append(about)
    return [text]


def item_lines(item: Item, width: int) -> list[Text]:
    """Render a single item as lines."""
    match item:
        case Table():
            return _table(item, width)
        case Lines():
            return lines_of(item, width)
        case Figures():
            room = max(cell_len(figure.value) for figure in item.figures)
            return [
                line
                for n, figure in enumerate(item.figures)
                for line in wrapped(
                    figure.name,
                    f"{figure.value:>{room}}  {printable(figure.remark)}",
                    width,
                    "" if n else "bold",
                )
            ]
        case _:
            return []


def lines_of(item: Lines, width: int) -> list[Text]:
    """Render sentences, each with its name in the gutter unless the one above has the same."""
    found: list[Text] = []
    before = ""
    for line in item.seen("terminal"):
        label = "" if line.label == before else line.label
        before = line.label
        style = STYLES[line.style]
        if line.short:
            found.append(one_line(label, printable(line.text), width, style))
        else:
            found += wrapped(label, printable(line.text), width, style)
    return found


def _table(table: Table, width: int) -> list[Text]:
    """Draw a line for each row; if that is too wide, without spare columns, then without bars.

    The last spare column is dropped first, and the caption names those that were dropped. A table
    that is too wide even then is folded: parts below one another, each with its first column. A
    table of few rows and many figures is transposed first, so that the figures stay side by side.
    """
    columns, rows = table.seen("terminal")
    rows = [[_cleaned(cell) for cell in row] for row in rows]
    chosen = list(range(len(columns)))
    spare = [i for i in chosen if columns[i].spare]
    while spare and _room(columns, rows, chosen, width) < 0:
        chosen.remove(spare.pop())
    gone = ", ".join(column.name for i, column in enumerate(columns) if i not in chosen)
    said = filter(None, (table.caption, gone and f"A wider terminal also shows: {gone}"))
    caption = [
        line
        for text in said
        for line in Text(printable(text), style="dim").wrap(_PLAIN, width, overflow="fold")
    ]
    if (room := _room(columns, rows, chosen, width)) >= 0:
        return [*caption, *_rows(columns, rows, chosen, room)]
    chosen = [i for i in chosen if not _is_bar(rows, i)]
    if _room(columns, rows, chosen, width) >= 0:
        return [*caption, *_rows(columns, rows, chosen, 0)]
    head, rows = [columns[i] for i in chosen], [[row[i] for i in chosen] for row in rows]
    if len(head) > len(rows) + 1:
        turned = [
            [Cell(column.name, "strong"), *(row[i] for row in rows)]
            for i, column in enumerate(head)
        ]
        head, rows = [Column(cell.text) for cell in turned[0]], turned[1:]
    return [*caption, *_folded(head, rows, width)]


def _cleaned(cell: Cell) -> Cell:
    return Cell(printable(cell.text), cell.style, cell.gauge)


def _is_bar(rows: Sequence[Sequence[Cell]], column: int) -> bool:
    return any(row[column].gauge is not None for row in rows)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[int]:
    """Return the width of each column; a bar gets at least the room to differ from another."""
    return [
        max(
            cell_len(column.name),
            *(cell_len(row[i].text) for row in rows),
            NARROWEST_BAR if _is_bar(rows, i) else 0,
        )
        for i, column in enumerate(columns)
    ]


def _room(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], chosen: Sequence[int], width: int
) -> int:
    """Return how much width the chosen columns leave; below 0 if they do not fit."""
    widths = _widths(columns, rows)
    return width - sum(widths[i] + len(GAP) for i in chosen) + len(GAP)


def _rows(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], chosen: Sequence[int], room: int
) -> list[Text]:
    widths = _widths(columns, rows)
    for i in chosen:
        if _is_bar(rows, i):
            widths[i] = min(WIDEST_BAR, widths[i] + room)
    head = [Cell(column.name, "strong") for column in columns]
    return [_row(row, columns, widths, chosen) for row in [head, *rows]]


def _row(
    row: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], chosen: Sequence[int]
) -> Text:
    line = Text()
    for i in chosen:
        cell = row[i]
        if line.plain:
            line.append(GAP)
        if cell.gauge is not None:
            line.append_text(_gauge(cell.gauge, widths[i]))
            continue
        space = " " * (widths[i] - cell_len(cell.text))
        left = columns[i].left or i == 0
        line.append("" if left else space)
        line.append(cell.text, style=STYLES[cell.style])
        line.append(space if left else "")
    return line


def _gauge(gauge: Gauge, width: int) -> Text:
    style = STYLES[gauge.style]
    if not gauge.signed:
        return Text((MORE * round(gauge.share * width)).ljust(width), style=style)
    half = (width - 1) // 2
    cells = round(abs(gauge.share) * half)
    more = gauge.share > 0
    return Text.assemble(
        ((LESS * (0 if more else cells)).rjust(half), "cyan"),
        (ZERO, "dim"),
        ((MORE * (cells if more else 0)).ljust(half), style),
    )


def _folded(head: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """Fold a table into parts below one another, each with the first column and all that fit.

    A column that is too wide even alone is cut.
    """
    widths = _widths(head, rows)
    parts: list[list[int]] = []
    for column in range(1, len(head)):
        used = sum(widths[i] + len(GAP) for i in (0, *(parts[-1] if parts else ()), column))
        if parts and used - len(GAP) <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    shown: list[Text] = []
    names = [Cell(column.name, "strong") for column in head]
    for part in parts:
        shown += [Text()] if shown else []
        for row in [names, *rows]:
            line = _row(row, head, widths, [0, *part])
            line.truncate(width, overflow="ellipsis")
            shown.append(line)
    return shown

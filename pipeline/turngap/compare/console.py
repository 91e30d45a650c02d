"""A comparison of backends on the terminal."""

from collections.abc import Sequence

from rich.text import Text

from turngap.compare import words as text
from turngap.compare.record import ComparisonRecord
from turngap.report import layout, words

SVG_WIDTH = 150


def comparison_block(record: ComparisonRecord, width: int) -> Text:
    """The backends, what is missing, and a task of several turns. Ends with an empty line."""
    lines = [Text("━━ compare ".ljust(width, "━"), style="bold")]
    if record.failure:
        lines += layout.wrapped(
            "!", f"ended early: {words.clean(record.failure)}", width, "bold red"
        )
    lines += _backends(text.head(record), text.rows(record), width)
    for number, note in enumerate(text.missing(record)):
        lines += layout.wrapped("" if number else "note", note, width, "dim")
    for number, note in enumerate(text.judge_notes(record)):
        lines += layout.wrapped("" if number else "judge", note, width)
    for number, pair in enumerate(record.pairs):
        lines += layout.wrapped("" if number else "pairs", text.pair(pair), width)
    if record.chain:
        names = [words.clean(chain.name) for chain in record.chain]
        lines += [Text(), Text("a task of several turns", style="bold")]
        lines += layout.wrapped("", text.CHAIN_NOTE, width, "dim")
        lines += _folded((*text.CHAIN_HEAD, *names), text.chain_rows(record), width)
    for number, crossing in enumerate(record.crossings):
        lines += layout.wrapped("" if number else "overtaken", text.crossing(crossing), width)
    lines += layout.wrapped("compared", text.basis(record), width, "dim")
    return layout.block(lines)


def comparison_svg(record: ComparisonRecord, name: str) -> str:
    """A picture of the terminal after `turngap report NAME`."""
    return layout.svg(name, [comparison_block(record, SVG_WIDTH)], SVG_WIDTH)


def _backends(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """A row each; on a narrower terminal a column each, so that they stay beside each other."""
    if sum(_widths([head, *rows])) <= width:
        return _folded(head, rows, width)
    turned = [tuple(cells) for cells in zip(head, *rows, strict=True)]
    return _folded(turned[0], turned[1:], width)


def _folded(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """A table; below one another, each with its first column, as many columns as fit.

    What is too wide even alone is cut.
    """
    lines = [head, *rows]
    widths = _widths(lines)
    tables: list[list[int]] = []
    for column in range(1, len(head)):
        if tables and sum(widths[i] for i in (0, *tables[-1], column)) <= width:
            tables[-1].append(column)
        else:
            tables.append([column])
    shown: list[Text] = []
    for columns in tables:
        shown += [Text()] if shown else []
        for number, line in enumerate(lines):
            cells = layout.cropped(_line(line, widths, columns), width)
            shown.append(Text(cells, style="" if number else "bold"))
    return shown


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Of each column, with what parts it from the next."""
    return [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0] - 2)
    return "  ".join([first, *(cells[i].rjust(widths[i] - 2) for i in columns)])

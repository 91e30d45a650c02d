"""A comparison of backends on the terminal."""

from collections.abc import Sequence

from rich.text import Text

from turngap.core.comparison_record import ComparisonRecord
from turngap.report import compare_words as text
from turngap.report import layout, words

SVG_WIDTH = 150


def comparison_block(record: ComparisonRecord, width: int) -> Text:
    """The backends, what is missing, and a task of several turns. Ends with an empty line."""
    lines = [Text("━━ compare ".ljust(width, "━"), style="bold")]
    if record.failure:
        lines += layout.wrapped(
            "!", f"ended early: {words.clean(record.failure)}", width, "bold red"
        )
    lines += _table(text.head(record), text.rows(record), width)
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
        lines += _table((*text.CHAIN_HEAD, *names), text.chain_rows(record), width)
    for number, crossing in enumerate(record.crossings):
        lines += layout.wrapped("" if number else "overtaken", text.crossing(crossing), width)
    lines += layout.wrapped("compared", text.basis(record), width, "dim")
    return layout.block(lines)


def comparison_svg(record: ComparisonRecord, name: str) -> str:
    """A picture of the terminal after `turngap report NAME`."""
    return layout.svg(name, [comparison_block(record, SVG_WIDTH)], SVG_WIDTH)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """A table, or on a terminal too narrow for it each row as a list of its cells."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    if sum(widths) + 2 * len(widths) <= width:
        return [
            Text(_line(row, widths), style="" if number else "bold")
            for number, row in enumerate((head, *rows))
        ]
    lines: list[Text] = []
    for row in rows:
        title = row[0] if head[0] == text.HEAD[0] else f"{head[0]}: {row[0]}"
        lines.append(Text(layout.cropped(title, width), style="bold"))
        for name, cell in zip(head[1:], row[1:], strict=True):
            lines.append(Text(layout.cropped(f"  {name}: {cell}", width)))
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])

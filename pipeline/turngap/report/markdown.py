"""Write a report as Markdown for CI summaries and pull requests.

No text in it can become a link, a tag or a part of a table.
"""

import html
import re
from collections.abc import Iterable, Sequence

from turngap.core.untrusted import harmless, inert, printable
from turngap.report.sections import Code, Figures, Folded, Item, Line, Lines, Report, Table

# Whatever could start a tag, link, mention, table cell or emphasis, as in CommonMark and GFM.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": "&#58;//"}

_CAPITALS = {"llm", "stt", "tts"}


def markdown(report: Report) -> str:
    """Render the whole report without its drawings."""
    verdict = f": {report.verdict.text}" if report.verdict else ""
    blocks = [f"## turngap {report.command}{escaped(verdict)}", escaped(report.subject)]
    blocks += [f"**{escaped(warning)}**" for warning in report.warnings]
    blocks += [_lines(report.lead_seen("markdown")), escaped(report.stand_ins)]
    for section in report.sections:
        found = [_item(item) for item in section.seen("markdown")]
        if found and section.folded:
            blocks.append(_folded(section.title, found))
        elif found:
            blocks += [f"### {escaped(section.title)}", *found]
    return inert("\n\n".join(block for block in blocks if block)) + "\n"


def _item(item: Item) -> str:
    match item:
        case Table():
            columns, rows = item.seen("markdown")
            cells = ([cell.text for cell in row] for row in rows)
            caption = f"{escaped(item.caption)}\n\n" if item.caption else ""
            return caption + _table([column.name for column in columns], cells)
        case Lines():
            return _lines(item.seen("markdown"))
        case Figures():
            rows = ([f.name, f.value, f.remark] for f in item.figures)
            return _table(("figure", "", "it rests on"), rows)
        case Code():
            text = printable(item.text).replace("`", "")
            return f"{escaped(item.about)}\n\n```sh\n{text}\n```"
        case Folded():
            # Without a backtick no line can end the block.
            rows = [harmless(row, len(row)) for row in item.text.replace("`", "'").splitlines()]
            text = "\n".join(["```text", *rows, "```"])
            return _folded(item.title, [escaped(item.about), text], is_open=item.open)
        case _:
            return ""


def _folded(title: str, blocks: Iterable[str], *, is_open: bool = False) -> str:
    """Put blocks below a title that unfolds them. The title is HTML, where no backslash escapes."""
    opening = "<details open>" if is_open else "<details>"
    plain = html.escape(printable(title)).replace("@", "&#64;").replace("`", "&#96;")
    summary = f"<summary>{plain}</summary>"
    return "\n\n".join(filter(None, [f"{opening}{summary}", *blocks, "</details>"]))


def escaped(text: str) -> str:
    """Escape `text` to plain words in any place, also in a table's cell."""
    text = _SPECIAL.sub(r"\\\1", printable(text))
    for raw, entity in _ENTITIES.items():
        text = text.replace(raw, entity)
    return text


def _lines(lines: Iterable[Line]) -> str:
    named = (f"{_begun(line.label)}: {line.text}" for line in lines)
    return "\n".join(f"- {escaped(text)}" for text in named)


def _begun(label: str) -> str:
    """Capitalise a name for the start of a line; terms of the field keep their capitals."""
    first, space, rest = label.partition(" ")
    first = first.upper() if first in _CAPITALS else f"{first[:1].upper()}{first[1:]}"
    return f"{first}{space}{rest}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[escaped(name) for name in head], ["---"] * len(head)]
    lines += [[escaped(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

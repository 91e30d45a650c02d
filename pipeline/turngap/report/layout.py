"""Lines of a report on a terminal: a name in the gutter, words that wrap beside it."""

import io
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

# Holds the lines' names, and left of zero the reply of an agent that cut in.
GUTTER = 12
MIN_WIDTH = 40

# Text.wrap asks a console for its tab size only.
_PLAIN = Console(file=io.StringIO(), width=80)


def block(lines: Iterable[Text]) -> Text:
    """The lines one below the other, none with spaces at its end; closed by an empty line."""
    lines = list(lines)
    for line in lines:
        line.rstrip()
    text = Text("\n", no_wrap=True, overflow="crop").join(lines)
    return text.append("\n")


def labelled(label: str) -> Text:
    """A line with its name in the gutter and nothing beside it yet."""
    text = Text()
    text.append(f"{label:>{GUTTER - 1}} ", style="dim")
    return text


def one_line(label: str, content: str, width: int, style: str = "") -> Text:
    """`content` in one line, cut where it does not fit."""
    return labelled(label).append(cropped(content, width - GUTTER), style=style)


def wrapped(label: str, content: str, width: int, style: str = "") -> list[Text]:
    """Words of `content` in as many lines as they need; a long one (a path) is folded."""
    lines = Text(content, style=style).wrap(_PLAIN, width - GUTTER, overflow="fold")
    return [labelled("" if n else label).append_text(line) for n, line in enumerate(lines)]


def flowed(label: str, pieces: Sequence[Text], width: int) -> list[Text]:
    """`pieces` side by side in as many lines as they need."""
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
    """At most `room` columns of `content`, an ellipsis where it was cut."""
    text = Text(content)
    text.truncate(room, overflow="ellipsis")
    return text.plain


def svg(name: str, blocks: Iterable[Text], width: int) -> str:
    """A picture of the terminal after `turngap report NAME`.

    It fetches nothing when it is shown: rich's template names a font on a web server, which is
    taken out.
    """
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(f"$ turngap report {name}\n", style="bold", highlight=False, markup=False)
    console.print(*blocks, sep="\n", end="")
    svg = console.export_svg(title="turngap", unique_id="turngap")
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    # The first installed one is taken; each has the block characters in the width of a letter.
    fonts = "'Fira Code', 'DejaVu Sans Mono', Menlo, Consolas, monospace"
    return svg.replace("font-family: Fira Code, monospace", f"font-family: {fonts}")

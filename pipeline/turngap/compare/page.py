"""A comparison as one page that needs nothing but itself."""

from pathlib import Path

from turngap.compare import charts as compare_charts
from turngap.compare import words as text
from turngap.compare.record import ComparisonRecord
from turngap.report import pages

PAGE_FILE = "report.html"
# Of more backends than three, the sentences of each two would bury the figures: they are folded.
FEW = 3


def render(record: ComparisonRecord) -> str:
    """The page. Everything that a comparison holds is text here, whatever it looks like."""
    return pages.page(
        "compare",
        styles=("simulate", "compare"),
        record=record,
        text=text,
        breakable=breakable,
        few=FEW,
        chain_head=(*text.CHAIN_HEAD, *(chain.name for chain in record.chain)),
        charts=compare_charts.charts(record),
        height_px=compare_charts.HEIGHT_PX,
        box=compare_charts.BOX,
    )


def breakable(cell: str) -> str:
    """A cell that may be broken where a new figure begins, and nowhere else."""
    whole = cell.replace(" ", "\N{NO-BREAK SPACE}")
    for new in (",\N{NO-BREAK SPACE}", "\N{NO-BREAK SPACE}("):
        whole = whole.replace(new, new.replace("\N{NO-BREAK SPACE}", " "))
    return whole


def write_page(record: ComparisonRecord, folder: Path) -> Path:
    """Write the page into the comparison's folder; returns its path.

    Raises:
        InputError: the folder cannot be written to.
    """
    file = folder / PAGE_FILE
    pages.write(file, render(record).encode("utf-8", errors="replace"))
    return file

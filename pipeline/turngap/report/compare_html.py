"""A comparison as one page that needs nothing but itself."""

from pathlib import Path

from turngap.core.comparison_record import ComparisonRecord
from turngap.report import compare_charts, pages
from turngap.report import compare_words as text

PAGE_FILE = "report.html"


def render(record: ComparisonRecord) -> str:
    """The page. Everything that a comparison holds is text here, whatever it looks like."""
    return pages.page(
        "compare",
        styles=("simulate", "compare"),
        record=record,
        text=text,
        chain_head=(*text.CHAIN_HEAD, *(chain.name for chain in record.chain)),
        charts=compare_charts.charts(record),
        height_px=compare_charts.HEIGHT_PX,
        box=compare_charts.BOX,
    )


def write_page(record: ComparisonRecord, folder: Path) -> Path:
    """Write the page into the comparison's folder; returns its path.

    Raises:
        InputError: the folder cannot be written to.
    """
    file = folder / PAGE_FILE
    pages.write(file, render(record).encode("utf-8", errors="replace"))
    return file

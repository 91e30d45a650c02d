"""Tables of benchmarks in pages, between two marks."""

import sys
from pathlib import Path

END = "<!-- end -->"


def write(page: Path, begin: str, text: str) -> None:
    """Put a text between the marks `begin` and `END` of a page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end, after = rest.partition(END)
    if not (found and end):
        sys.exit(f"{page} has no {begin} … {END}: nothing was written")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{END}{after}", encoding="utf-8")

"""Write the tables of docs/data.md from the columns themselves.

    python tools/data_page.py           # write them
    python tools/data_page.py --check   # exit 1 if the page is not what would be written

Each table stands between a line `<!-- made by tools/data_page.py: NAME -->` and `<!-- end -->`; the
words around the tables are written by hand.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turngap.core.results import TURN_COLUMNS
from turngap.core.stored import Column
from turngap.history.listing import COLUMNS as HISTORY_COLUMNS
from turngap.load.export import STEP_COLUMNS
from turngap.load.export import TURN_COLUMNS as LOAD_TURN_COLUMNS
from turngap.store.runs import RUN_COLUMNS

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
_TABLE = re.compile(r"(<!-- made by tools/data_page\.py: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def columns_table(columns: Sequence[Column[Any]]) -> str:
    """Write the columns as Markdown, with those in one row that differ only by what they name."""
    rows: dict[tuple[str, str], list[str]] = {}
    for column in columns:
        named = re.search(r"`(\w+)`", column.about)
        alike = named is not None and named[1] in column.name
        about = column.about.replace(f"`{named[1]}`", "`NAME`") if named and alike else column.about
        kind = column.type + (" or missing" if column.optional else "")
        rows.setdefault((kind, about), []).append(f"`{column.name}`")
    return markdown(
        ("column", "type", "what it holds"),
        ((", ".join(names), kind, about) for (kind, about), names in rows.items()),
    )


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown, which ends with a newline."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in lines
    )


def tables() -> Mapping[str, str]:
    """Write each table of the page, by its name."""
    return {
        "run": columns_table(RUN_COLUMNS),
        "turns": columns_table(TURN_COLUMNS),
        "history": columns_table(HISTORY_COLUMNS),
        "load-turns": columns_table(LOAD_TURN_COLUMNS),
        "load-steps": columns_table(STEP_COLUMNS),
    }


def made(page: str) -> str:
    """Insert the current tables into the page.

    Raises:
        ValueError: it lacks a table, or has one that there is not.
    """
    now = tables()
    named = [name for _, name, _ in _TABLE.findall(page)]
    if sorted(named) != sorted(now):
        raise ValueError(f"the page has the tables {named}, expected {list(now)}")
    return _TABLE.sub(lambda found: f"{found[1]}\n{now[found[2]]}\n{found[3]}", page)


def main(arguments: Sequence[str]) -> int:
    """Write the page, or look whether it is up to date."""
    page = PAGE.read_text(encoding="utf-8")
    if (wanted := made(page)) == page:
        return 0
    if "--check" in arguments:
        sys.stderr.write("docs/data.md is out of date: run python tools/data_page.py\n")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write the table of docs/agents.md: `python tools/agents_page.py` (a minute, in virtual time)."""

from collections.abc import Iterable
from pathlib import Path

from turngap.play.calibrate import Reading, play_zoo, rows_of

PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
HEAD = (
    "| agent | what it does | right | turngap reads | verdict |\n| --- | --- | --- | --- | --- |\n"
)


def lines_of(readings: Iterable[Reading]) -> list[str]:
    """Return the table's lines of some agents."""
    return [f"| {' | '.join(row.values())} |" for row in rows_of(readings)]


def main() -> None:
    """Play all agents and write the page."""
    above, _, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    table = "\n".join(lines_of(play_zoo()))
    PAGE.write_text(f"{above}{HEAD}{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

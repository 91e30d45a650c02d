"""Write the table of profiles of docs/line.md: `python tools/line_page.py`."""

from pathlib import Path
from re import sub

from turngap.caller.line.spec import LineSpec, Way, profiles

PAGE = Path(__file__).parents[1] / "docs" / "line.md"
BEGIN, END = "<!-- made by tools/line_page.py -->", "<!-- end -->"
HEAD = ("profile", "what it is", "delay one way, ms", "up to so much more", "loss", "up", "down")


def _both(name: str, up: object, down: object) -> str:
    return name.format(up) if up == down else f"{name.format(up)} up, {name.format(down)} down"


def _rate(kbit: float | None) -> str:
    if kbit is None:
        return "–"
    return f"{kbit:g} kbit/s" if kbit < 1000 else f"{kbit / 1000:g} Mbit/s"


def _loss(way: Way) -> str:
    found = [f"{way.loss * 100:g} %"] if way.loss else []
    found += [f"in fades of {way.burst_ms:g} ms"] if way.burst_ms else []
    if way.outage_ms:
        found.append(f"outage of {way.outage_ms:g} ms each {way.every_s:g} s")
    return ", ".join(found) or "–"


def row_of(line: LineSpec) -> str:
    """Return a profile's row of the table."""
    up, down = line.up, line.down
    cells = (
        f"`{line.name}`",
        line.about,
        _both("{:g}", up.delay_ms, down.delay_ms),
        _both("{:g}", up.jitter_ms, down.jitter_ms),
        _both("{}", _loss(up), _loss(down)),
        _rate(up.kbit),
        _rate(down.kbit),
    )
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """Return the table, and below it the source of each profile's numbers."""
    lines = profiles().values()
    rows = [f"| {' | '.join(HEAD)} |", "| --- " * len(HEAD) + "|", *map(row_of, lines)]
    by_source: dict[str, list[str]] = {}
    for line in lines:
        # G.1050's differ in their letter, which their names have, too.
        source = sub("severity [A-H]", "severities", line.source)
        by_source.setdefault(source, []).append(f"`{line.name}`")
    sources = [f"- {', '.join(names)}: {source}" for source, names in by_source.items()]
    return "\n".join([*rows, "", "Where the numbers come from:", "", *sources])


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

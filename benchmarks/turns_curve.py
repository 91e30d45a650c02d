"""Draw the curves of several agents together, from the folders that `turngap turns` stored.

    turngap turns --scenarios judge --tag pause --agent stock --virtual
    turngap turns --scenarios judge --tag pause --agent embedded --llm sim --virtual
    python benchmarks/turns_curve.py stock=runs/A embedded=runs/B --write docs/turns.md

The table and the drawing's link go between the marks of the page, and the drawing beside it.
"""

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pages
from endings import errors_told

from turngap.core.errors import InputError
from turngap.turns import words
from turngap.turns.files import read_turns
from turngap.turns.record import CurveRecord, TurnsRecord

BEGIN = "<!-- made by benchmarks/turns_curve.py -->"
SVG = "turns.svg"

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 56, 24, 24, 56
COLOURS = ("#0b6e4f", "#9a5b00", "#30508c", "#7a2d6b")
WAITING, SILENCE = "7 4", "2 4"
MOST_MS = 2000.0
READ = ("gap at 5 % cut-ins", "cut-ins at 300 ms")


def named(text: str) -> tuple[str, TurnsRecord]:
    """An agent's name and curve from `NAME=FOLDER`.

    Raises:
        InputError: it is not of that form, or the folder holds no curve.
    """
    name, equals, folder = text.partition("=")
    if not equals:
        raise InputError("curve.name", f"{text!r}: expected NAME=FOLDER")
    return name, read_turns(Path(folder))[0]


def table(agents: Sequence[tuple[str, TurnsRecord]]) -> str:
    """The curves in figures: what was played, and where each agent lies."""
    lines = [
        _row("agent", "gap p50", "p95", "heard cut-ins", "false endpoints", *READ),
        _row(*["---"] * 7),
    ]
    for name, record in agents:
        for point in record.points:
            value = "" if point.value is None else f", `{record.setting} = {point.value}`"
            cells = [words.figure(point.gap_ms), words.figure(point.gap_p95_ms)]
            cells += [words.share(point.heard), words.share(point.decided)]
            lines.append(_row(name + value, *cells, "", ""))
        curves = [("as measured", record.measured)] if len(record.points) > 1 else []
        curves.append(("had it waited longer", record.waiting))
        lines += [_row(f"{name}, {what}", "", "", "", "", *_read(curve)) for what, curve in curves]
    lines.append(_row("silence alone", "", "", "", "", *_read(agents[0][1].silence)))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _read(curve: CurveRecord) -> tuple[str, str]:
    gap, share = curve.gap_at_share_ms, curve.cut_ins_at_gap
    return (
        words.at_share(gap) if gap.value is not None else f"– ({gap.why_none})",
        words.at_gap(share) if share.value is not None else f"– ({share.why_none})",
    )


def about(agents: Sequence[tuple[str, TurnsRecord]]) -> str:
    """What was played, and what was not real."""
    record = agents[0][1]
    stand_ins = dict.fromkeys(name for _, r in agents for name in r.stand_ins)
    time = "in virtual time (gaps are lower bounds)" if record.virtual else "in real time"
    counted = ", ".join(f"{name} {r.recorded}" for name, r in agents)
    return (
        f"Recorded turns: {counted}. Played {time}; "
        f"{', '.join(stand_ins)}. In brackets: 95 % intervals."
    )


def drawn(agents: Sequence[tuple[str, TurnsRecord]]) -> str:
    """The curves as SVG: the gap to the right, the share of turns cut in on upwards."""
    said = "; ".join(
        words.spoken(f"{name}, {what}", curve)
        for name, record in agents
        for what, curve in words.curves(record)[:2]
        if curve.points
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13">',
        "<title>Gap against cut-ins</title>",
        f"<desc>{escape(said)}</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_axes(agents[0][1]),
        *_line(agents[0][1].silence, "#666666", SILENCE),
        *_key(0, "silence alone", "#666666", SILENCE),
    ]
    for number, (name, record) in enumerate(agents):
        colour = COLOURS[number % len(COLOURS)]
        parts += _line(record.measured, colour, "none")
        parts += _line(record.waiting, colour, WAITING)
        parts += _dots(record, colour)
        parts += _key(number + 1, name, colour, WAITING)
    return "\n".join([*parts, "</svg>", ""])


def _at(gap_ms: float, share: float) -> tuple[float, float]:
    across = min(gap_ms, MOST_MS) / MOST_MS
    return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _axes(record: TurnsRecord) -> list[str]:
    parts: list[str] = []
    for step in range(5):
        (x, _), (_, y) = _at(MOST_MS * step / 4, 0), _at(0, step / 4)
        parts += [
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e0e0e0"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{step / 4:.0%}</text>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{MOST_MS * step / 4:.0f}</text>",
        ]
    x, y = _at(record.gap_ms, record.share)
    parts += [
        f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}M{LEFT} {y:.1f}H{WIDTH - RIGHT}" '
        'stroke="#b3261e" stroke-dasharray="5 4"/>',
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" '
        'text-anchor="middle">gap, ms (median); upwards: turns that the agent was heard to cut in '
        "on</text>",
    ]
    return parts


def _line(curve: CurveRecord, colour: str, dash: str) -> list[str]:
    places = [_at(p.gap_ms, p.cut_ins) for p in curve.points if p.gap_ms <= MOST_MS]
    if len(places) < 2:
        return []
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"/>'
    ]


def _dots(record: TurnsRecord, colour: str) -> list[str]:
    parts: list[str] = []
    for point, value in zip(record.measured.points, words.values_by_gap(record), strict=False):
        x, y = _at(point.gap_ms, point.cut_ins)
        if point.low is not None and point.high is not None:
            low, high = (_at(0, end)[1] for end in (point.low, point.high))
            parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
        parts.append(
            f'<text x="{x + 8:.1f}" y="{y - 7:.1f}" font-size="11" fill="{colour}">'
            f"{escape(value)}</text>"
        )
    return parts


def _key(number: int, name: str, colour: str, dash: str) -> list[str]:
    x, y = WIDTH - RIGHT - 250, TOP + 14 + 20 * number
    return [
        f'<path d="M{x} {y}h30" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>',
        f'<text x="{x + 38}" y="{y + 4}" fill="{colour}">{escape(name)}</text>',
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agents", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    arguments = parser.parse_args()
    with errors_told():
        agents = [named(text) for text in arguments.agents]
    text = f"{about(agents)}\n\n{table(agents)}"
    print(text)
    if arguments.write is not None:
        link = f"![Gap against cut-ins of {', '.join(name for name, _ in agents)}]({SVG})"
        pages.write(arguments.write, BEGIN, f"{text}\n\n{link}")
        (arguments.write.parent / SVG).write_text(drawn(agents), encoding="utf-8")


if __name__ == "__main__":
    main()

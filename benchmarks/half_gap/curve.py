"""Endpoint delay against cut-ins, for both agents: swept, and drawn."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from half_gap.contenders import Contender, full, stock
from turngap.caller.pipecat import PipecatDialect
from turngap.play.plan import Progress
from turngap.scenario.library import LoadedScenario, library_dir
from turngap.turns.play import TurnsPlan, turns
from turngap.turns.record import PointRecord

# What an agent's patience is set by: pipecat's is the VAD's, ours the hold after a whole sentence.
SETTINGS = {
    "stock": ("turn.stop_secs", ("0.1", "0.2", "0.4", "0.6", "0.8")),
    "full": ("turn.hold_ms", ("120", "250", "400", "600", "800")),
}

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 64, 24, 24, 56
COLOURS = {"stock": "#9a5b00", "full": "#0b6e4f"}
DASHES = {"stock": "6 4", "full": "none"}
BESIDE = {"stock": 16, "full": -7}  # where a point's setting is written, below or above it


@dataclass(frozen=True)
class Point:
    """One setting of one agent."""

    agent: str
    value: str
    delay_ms: float
    cut_ins: int
    turns: int

    @property
    def rate(self) -> float:
        """Share of the turns that the agent cut in on."""
        return self.cut_ins / self.turns


def contender_of(name: str) -> Contender:
    """The agent that is swept."""
    return full() if name == "full" else stock()


async def measure(
    name: str, scenarios: Sequence[LoadedScenario], out: Path, rounds: int
) -> list[Point]:
    """Sweep one agent's patience.

    Raises:
        TurngapError: an agent failed.
    """
    setting, values = SETTINGS[name]
    plan = TurnsPlan(
        choice=contender_of(name).choice(out / "stacks"),
        library=library_dir(),
        setting=setting,
        values=values,
        scenarios=scenarios,
        dialect=PipecatDialect(),
        rounds=rounds,
        phases=max(1, rounds),
        out=out,
    )
    record, _, failure = await turns(
        plan, Progress(on_step=lambda step: print(f"  curve: {step}", flush=True))
    )
    if failure is not None:
        raise failure
    return [
        Point(name, p.value or "", delay, p.heard.hits, p.heard.n)
        for p in record.points
        if (delay := _delay_ms(p)) is not None and p.heard.n
    ]


def _delay_ms(point: PointRecord) -> float | None:
    """From the person's end to the decision; of an agent that does not say, the whole gap."""
    return point.endpoint_ms.value or point.gap_ms.value


def store(points: Sequence[Point], out: Path) -> None:
    """Keep the points beside those that are there."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [asdict(point) for point in (*stored(out), *points)]
    (out / "curve.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")


def stored(out: Path) -> list[Point]:
    """What was kept."""
    file = out / "curve.json"
    if not file.is_file():
        return []
    return [Point(**row) for row in json.loads(file.read_text(encoding="utf-8"))]


def pooled(points: Sequence[Point]) -> list[Point]:
    """One point a setting: pieces of the same one are put together."""
    together: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        together.setdefault((point.agent, point.value), []).append(point)
    return [
        Point(
            name,
            value,
            sum(p.delay_ms * p.turns for p in found) / sum(p.turns for p in found),
            sum(p.cut_ins for p in found),
            sum(p.turns for p in found),
        )
        for (name, value), found in together.items()
    ]


def curve_table(points: Sequence[Point]) -> str:
    """The curve in figures."""
    lines = ["| agent | setting | endpoint delay p50 | cut-ins |", "| --- | --- | --- | --- |"]
    for p in points:
        setting = f"`{SETTINGS[p.agent][0]} = {p.value}`"
        lines.append(f"| {p.agent} | {setting} | {p.delay_ms:.0f} | {p.cut_ins} of {p.turns} |")
    return "\n".join(lines)


def drawn(points: Sequence[Point]) -> str:
    """The curve as SVG: the delay to the right, the share of cut-ins upwards."""
    widest = max((p.delay_ms for p in points), default=100.0)
    highest = max((p.rate for p in points), default=0.0) or 0.1
    right, top = _round_up(widest, 200), _round_up(highest * 100, 20) / 100

    def at(point: Point) -> tuple[float, float]:
        x = LEFT + point.delay_ms / right * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - point.rate / top * (HEIGHT - TOP - BOTTOM)

    said = "; ".join(f"{p.agent} at {p.delay_ms:.0f} ms: {p.rate:.0%}" for p in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13">',
        "<title>Endpoint delay against cut-ins</title>",
        f"<desc>{escape(said)}</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_axes(right, top),
    ]
    for number, name in enumerate(SETTINGS):
        parts += _legend(name, number)
        own = sorted((p for p in points if p.agent == name), key=lambda p: p.delay_ms)
        parts += _line(name, [(*at(p), p.value) for p in own])
    return "\n".join([*parts, "</svg>", ""])


def _axes(right: float, top: float) -> list[str]:
    parts: list[str] = []
    for step in range(5):
        y = HEIGHT - BOTTOM - step / 4 * (HEIGHT - TOP - BOTTOM)
        x = LEFT + step / 4 * (WIDTH - LEFT - RIGHT)
        parts += [
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e0e0e0"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * step / 4:.0%}</text>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{right * step / 4:.0f}</text>",
        ]
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">'
        "endpoint delay, ms (median); upwards: turns that the agent cut in on</text>"
    )
    return parts


def _line(name: str, places: Sequence[tuple[float, float, str]]) -> list[str]:
    if not places:
        return []
    colour = COLOURS[name]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
    parts = [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[name]}"/>'
    ]
    for x, y, value in places:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(
            f'<text x="{x + 6:.1f}" y="{y + BESIDE[name]:.1f}" font-size="11" fill="{colour}">'
            f"{escape(value)}</text>"
        )
    return parts


def _legend(name: str, number: int) -> list[str]:
    x, y = WIDTH - RIGHT - 190, TOP + 14 + 20 * number
    return [
        f'<path d="M{x} {y}h30" stroke="{COLOURS[name]}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[name]}"/>',
        f'<text x="{x + 38}" y="{y + 4}" fill="{COLOURS[name]}">'
        f"{name} ({SETTINGS[name][0]})</text>",
    ]


def _round_up(value: float, step: float) -> float:
    return max(step, -(-value // step) * step)

"""How much of stock pipecat's turn gap is left, step by step: the table of docs/half-the-gap.md.

The same engines and recordings for every agent, interleaved (A B C, C B A). Everything takes about
an hour on two cores; it can be played in pieces of a few minutes, and the table is of all pieces
that lie in `--out`:

    python benchmarks/half_the_gap.py                            # all of it, then the table
    python benchmarks/half_the_gap.py --part steps --scenario quick-questions
    python benchmarks/half_the_gap.py --part ratio --rounds 2 --phases 2
    python benchmarks/half_the_gap.py --table                    # the table of what there is
    python benchmarks/half_the_gap.py --table --write docs/half-the-gap.md

Parts: `ratio` (stock, stock without smart turn, and full, over the library), `steps` (each step
added, each left out), `patience` (stock and full on pauses and slow speech), `barge`
(interruptions and backchannels), `overhead` (engines of known speed, tracing on and off),
`callers`, `curve` (endpoint delay against cut-ins).
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import pages
from endings import errors_told
from half_gap import callers, curve, figures, table
from half_gap.contenders import (
    KNOWN_ENGINES,
    READING_ENGINES,
    STOCK,
    STOCK_VAD,
    Contender,
    cumulative,
    each_off,
    full,
    stock,
    stock_vad,
    untraced,
)
from half_gap.playing import play_piece

from turngap.scenario.library import (
    LoadedScenario,
    library_dir,
    library_paths,
    load_scenarios,
    read_scenario,
    scenario_paths,
)

STEPS_TOLD = (
    "Each step added to those above it, then each taken out of all of them; over two "
    "conversations, with a model that takes a second to read 2,000 tokens of its prompt:"
)

LEVELS = [2, 4, 6, 8, 10, 12, 16, 20]
SVG = "half-the-gap.svg"
BEGIN = "<!-- made by benchmarks/half_the_gap.py -->"

# Stock's VAD has to be silent so long; ours says itself what it held.
STOCK_HOLD_MS = 200.0

# The recordings that each part plays unless others are named.
RECORDINGS: dict[str, Sequence[str]] = {
    "steps": ("quick-questions", "coffee-order"),
    "barge": ("soup-recipe", "museum-visit", "cough"),
    "overhead": ("quick-questions", "smart-home"),
    "callers": ("quick-questions",),
}
PARTS = ("ratio", "steps", "patience", "barge", "overhead", "callers", "curve")


def contenders_of(part: str) -> list[Contender]:
    """Who plays it."""
    if part == "steps":
        reading = READING_ENGINES
        return [stock(reading), *cumulative(reading), *each_off(reading)]
    if part == "overhead":
        known = KNOWN_ENGINES
        return [stock(known), stock_vad(known), full(known), untraced(known)]
    return [stock(), stock_vad(), full()] if part == "ratio" else [stock(), full()]


def recordings_of(part: str, names: Sequence[str]) -> list[LoadedScenario]:
    """What it plays."""
    library = library_dir()
    if names or part in RECORDINGS:
        return load_scenarios(scenario_paths(library, names or RECORDINGS[part]))
    if part in ("patience", "curve"):
        tags = ("pause", "slow")
        found = {path: path for tag in tags for path in scenario_paths(library, tag=tag)}
        return load_scenarios(list(found))
    return load_scenarios(scenario_paths(library))


async def play(part: str, arguments: argparse.Namespace) -> None:
    """Play one part, or the piece of it that was asked for."""
    scenarios, out = recordings_of(part, arguments.scenario), arguments.out
    if part == "callers":
        (scenario, *_) = scenarios
        out.mkdir(parents=True, exist_ok=True)
        levels = await callers.measure(
            full().choice(out / "stacks"), scenario, LEVELS, out / "callers.log"
        )
        callers.store(levels, out)
    elif part == "curve":
        for name in arguments.agent or tuple(curve.SETTINGS):
            curve.store(await curve.measure(name, scenarios, out, arguments.rounds), out)
    else:
        await play_piece(
            part,
            contenders_of(part),
            scenarios,
            out,
            rounds=arguments.rounds,
            phases=arguments.phases,
        )


def tables(out: Path) -> str:
    """All tables, as Markdown."""
    scenarios = {s.name: s for s in map(read_scenario, library_paths(library_dir()))}
    found = figures.collect(out, scenarios)
    order = {c.name: number for number, c in enumerate(contenders_of("steps"))}
    rows, steps = (
        [
            figures.row(played, group, scenarios)
            for played in sorted(group, key=lambda played: order.get(played.name, 0))
        ]
        for group in (found.library, found.steps)
    )
    known = found.known
    overheads = [
        figures.overhead(played, STOCK_HOLD_MS if played.name in (STOCK, STOCK_VAD) else None)
        for played in known
        if any(turn.marks for turn in played.turns.values())
    ]
    overheads = [o for o in overheads if o.n]
    tracing, levels = figures.tracing_cost(known), callers.stored(out)
    points = curve.pooled(curve.stored(out))
    targets = table.targets(rows, overheads, tracing, levels)
    each = [STEPS_TOLD, table.steps_table(steps)] if steps else []
    blocks = [targets]
    blocks += [table.gap_table(rows), table.manners_table(rows)] if rows else []
    blocks += each
    blocks += [table.overhead_table(overheads, tracing)] if overheads else []
    blocks += [table.callers_table(levels)] if levels else []
    blocks += [curve.curve_table(points)] if points else []
    return "\n\n".join(blocks)


def write(page: Path, text: str, out: Path) -> None:
    """Put the tables between the marks of a page, and the curve, if it was played, beside it."""
    points = curve.pooled(curve.stored(out))
    if points:
        text += f"\n\n![Endpoint delay against cut-ins, stock and full]({SVG})"
    pages.write(page, BEGIN, text)
    if points:
        (page.parent / SVG).write_text(curve.drawn(points), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, default=[])
    parser.add_argument("--scenario", action="append", default=[], help="other recordings")
    parser.add_argument("--agent", action="append", choices=tuple(curve.SETTINGS), default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--phases", type=int, default=1, help="positions on the 32 ms grid")
    parser.add_argument("--out", type=Path, default=Path("runs/half-the-gap"))
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into a page")
    arguments = parser.parse_args()
    with errors_told():
        for part in () if arguments.table else arguments.part or PARTS:
            asyncio.run(play(part, arguments))
        text = tables(arguments.out)
    print(text)
    if arguments.write is not None:
        write(arguments.write, text, arguments.out)


if __name__ == "__main__":
    main()

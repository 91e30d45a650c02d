"""Measure how much of stock pipecat's gap is left, and how often people are cut into.

Both halves stand side by side in the tables of docs/half-the-gap.md, on the library's synthetic
voices and on people of whom you have recordings. The same engines and recordings for every agent.
It can be played in pieces, and the tables are of all pieces that lie in `--out`:

    python benchmarks/half_the_gap.py                                # all parts, then the tables
    python benchmarks/half_the_gap.py --part ratio --part patience
    python benchmarks/half_the_gap.py --part people --voices DIR --phases 4
    python benchmarks/half_the_gap.py --part people --voices DIR --condition original --real-time
    python benchmarks/half_the_gap.py --table                        # the tables of what there is
    python benchmarks/half_the_gap.py --table --write docs/half-the-gap.md

Parts: `ratio` (stock, stock without smart turn, and full, over the library), `patience` (stock and
full on pauses and slow speech), `barge` (interruptions and backchannels), `people` (the recordings
in `--voices`, as `half_gap/people.py` describes them, under each condition of the line), `steps`
(each step added, each left out), `overhead` (engines of known speed, tracing on and off).

They play in virtual time, in which nothing waits and no gap holds what the machine takes for it
(`turngap/play/virtual.py`). With `--real-time`, and always for `overhead`, agents are
played over sockets at the speed of speech, interleaved (A B C, C B A): about an hour on two cores.
Of a turn that was played in virtual time more than once the latest counts, so that an agent that
has changed can be played again alone (`--agent full`).
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pages
from endings import errors_told
from half_gap import figures, people, table
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
from half_gap.playing import Piece, play_at_once, play_in_real_time

from turngap.scenario.library import LoadedScenario, load_scenarios
from turngap.scenario.model import (
    Scenario,
    library_dir,
    library_paths,
    read_scenario,
    scenario_paths,
)

STEPS_TOLD = (
    "Each step is added to those above it, then each is taken out of all of them; over two "
    "conversations, with a model that takes a second to read 2,000 tokens of its prompt."
)

BEGIN = "<!-- made by benchmarks/half_the_gap.py -->"

# Stock's VAD has to be silent so long; ours says itself what it held.
STOCK_HOLD_MS = 200.0

# The recordings that each part plays unless others are named.
RECORDINGS: dict[str, Sequence[str]] = {
    "steps": ("quick-questions", "coffee-order"),
    "barge": ("soup-recipe", "museum-visit", "cough"),
    "overhead": ("quick-questions", "smart-home"),
}
PARTS = ("ratio", "patience", "barge", "people", "steps", "overhead")
# Those of `half_gap/people.py` that people are played under unless others are named.
CONDITIONS = ("original", "minus10", "noise20", "mulaw8k")
# What they measure is what virtual time leaves out.
ALWAYS_REAL = ("overhead",)


def contenders_of(part: str) -> list[Contender]:
    """Return the agents that play it."""
    if part == "steps":
        reading = READING_ENGINES
        return [stock(reading), *cumulative(reading), *each_off(reading)]
    if part == "overhead":
        known = KNOWN_ENGINES
        return [stock(known), stock_vad(known), full(known), untraced(known)]
    everybody = [stock(), stock_vad(), full()]
    return everybody if part in ("ratio", "people") else [stock(), full()]


def recordings_of(part: str, names: Sequence[str]) -> list[LoadedScenario]:
    """Return the scenarios of the library that it plays."""
    library = library_dir()
    if names or part in RECORDINGS:
        return load_scenarios(scenario_paths(library, names or RECORDINGS[part]))
    if part == "patience":
        tags = ("pause", "slow")
        found = {path: path for tag in tags for path in scenario_paths(library, tag=tag)}
        return load_scenarios(list(found))
    return load_scenarios(scenario_paths(library))


def pieces_of(part: str, arguments: argparse.Namespace, scratch: Path) -> Iterator[Piece]:
    """Return the pieces of a part: for people, one for each condition."""
    rounds = {"rounds": max(arguments.rounds, arguments.phases), "phases": arguments.phases}
    who = [c for c in contenders_of(part) if c.name in (arguments.agent or [c.name])]
    if part != "people":
        yield Piece(part, who, recordings_of(part, arguments.scenario), library_dir(), **rounds)
        return
    for condition in arguments.condition or CONDITIONS:
        library = scratch / condition
        people.make_library(arguments.voices, condition, library)
        recordings = load_scenarios(scenario_paths(library))
        yield Piece(part, who, recordings, library, condition, **rounds)


def play(part: str, arguments: argparse.Namespace) -> None:
    """Play one part, or the piece of it that was asked for.

    Raises:
        TurngapError: an agent failed, or a recording cannot be read.
    """
    out = arguments.out
    with TemporaryDirectory(prefix="half-the-gap-") as scratch:
        for piece in pieces_of(part, arguments, Path(scratch)):
            if arguments.real_time or part in ALWAYS_REAL:
                asyncio.run(play_in_real_time(piece, out))
            else:
                play_at_once(piece, out)


def tables(out: Path) -> str:
    """All tables, as Markdown."""
    scenarios = {s.name: s for s in map(read_scenario, library_paths(library_dir()))}
    blocks: list[str] = []
    halves: list[tuple[figures.Group, list[figures.Row]]] = []
    overheads: list[figures.Overhead] = []
    tracing = None
    for group, agents in figures.collect(out).items():
        if group.what == figures.OVERHEAD:
            overheads = [o for o in map(_overhead_of, agents) if o.n]
            tracing = figures.tracing_cost(agents)
            continue
        if group.what == figures.STEPS:
            order = {c.name: number for number, c in enumerate(contenders_of("steps"))}
            agents.sort(key=lambda played: order.get(played.name, 0))
            rows = [figures.row(played, agents) for played in agents]
            blocks += [STEPS_TOLD, table.steps_table(rows)]
            continue
        rows, manners = _rows_of(group, agents, scenarios)
        halves.append((group, rows))
        blocks += [table.manners_table(manners)] if manners else []
    blocks += [table.overhead_table(overheads, tracing)] if overheads else []
    return "\n\n".join([table.halves_table(halves), *blocks])


def _rows_of(
    group: figures.Group, agents: Sequence[figures.Played], scenarios: dict[str, Scenario]
) -> tuple[list[figures.Row], list[figures.Manners]]:
    """Both halves of every agent, and of the library its manners, too."""
    if group.what == figures.PEOPLE:
        return [figures.row(played, agents) for played in agents], []
    usual = [figures.usual(played, scenarios) for played in agents]
    usual = [played for played in usual if played.turns]
    manners = [figures.manners(played, scenarios) for played in agents]
    return [figures.row(played, usual) for played in usual], manners


def _overhead_of(played: figures.Played) -> figures.Overhead:
    hold_ms = STOCK_HOLD_MS if played.name in (STOCK, STOCK_VAD) else None
    return figures.overhead(played, hold_ms)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, default=[])
    parser.add_argument("--scenario", action="append", default=[], help="other recordings")
    parser.add_argument("--agent", action="append", default=[], help="by its name in the tables")
    parser.add_argument("--voices", type=Path, metavar="DIR", help="recordings of people")
    parser.add_argument(
        "--condition",
        action="append",
        choices=tuple(people.CONDITIONS),
        default=[],
        help=f"of the line to people; {', '.join(CONDITIONS)} by default",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--phases", type=int, default=1, help="positions on the 32 ms grid, a round each"
    )
    parser.add_argument("--real-time", action="store_true", help="play over sockets")
    parser.add_argument("--out", type=Path, default=Path("runs/half-the-gap"))
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into a page")
    arguments = parser.parse_args()
    parts = arguments.part or [part for part in PARTS if part != "people" or arguments.voices]
    if "people" in parts and arguments.voices is None:
        parser.error("--part people needs --voices DIR")
    with errors_told():
        for part in () if arguments.table else parts:
            play(part, arguments)
        text = tables(arguments.out)
    print(text)
    if arguments.write is not None:
        pages.write(arguments.write, BEGIN, text)


if __name__ == "__main__":
    main()

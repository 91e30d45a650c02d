"""Does `turngap history trend` name the run where an agent became slower or failed, and no other?

    python benchmarks/history_changes.py
    python benchmarks/history_changes.py --change 10 --seeds 50 --first-seed 5000
    python benchmarks/history_changes.py --shape half --seeds 60 --first-seed 40000
    python benchmarks/history_changes.py --slow 0.125 --again 0.6 --seeds 150 --first-seed 200000
    python benchmarks/history_changes.py --alpha 0.01 --shape busy --seeds 60 --first-seed 704000
    python benchmarks/history_changes.py --write docs/trend.md     # the table: some 7 minutes
    python benchmarks/history_changes.py --keep made --seeds 1
    turngap history trend --runs made/3000

Stores 30 runs a seed in a folder, each with a commit of its own, the agent slower by 25 ms from run
18 on; and as many again without a change. Then it reads them as the command does. What is tuned
was tuned on seeds below 3000 (the noise itself is of the same 14 runs in all seeds). The table
counts all sorts of changes, each in a thousand seeds of its own that nobody had looked at before.

`made_runs.py` says what the noise is of.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from made_runs import SHAPES, Busy, Floats, gaps_of, lose, store
from pages import write

from turngap.history import trend
from turngap.history.reading import entries


@dataclass(frozen=True, slots=True)
class Named:
    """The runs of one series that a trend named: for the gap, and for the hit rate.

    `aside`: so many runs were set aside.
    """

    seed: int
    numbers: tuple[int, ...]
    hits: tuple[int, ...]
    aside: int

    def near(self, at: int) -> bool:
        return _near(self.numbers, at)

    def hits_near(self, at: int) -> bool:
        return _near(self.hits, at)

    @property
    def any(self) -> bool:
        return bool(self.numbers or self.hits)


def _near(numbers: Sequence[int], at: int) -> bool:
    return any(abs(number - at) <= 1 for number in numbers)


def named(root: Path, seed: int, gaps: Floats) -> Named:
    """Store a series and read its trend."""
    store(root, gaps)
    (found,) = trend.trends(entries([root]))
    numbers, hits = ((tuple(m.number for m in moves)) for moves in (found.moves, found.hit_moves))
    return Named(seed, numbers, hits, len(found.uneven))


def _say(what: str, found: Sequence[Named]) -> None:
    told = ", ".join(f"{n.seed}: {_runs(n)}" for n in found)
    sys.stdout.write(f"{what} ({told})\n")


def _runs(of: Named) -> str:
    return "+".join([*map(str, of.numbers), *(f"{n} hits" for n in of.hits)]) or "none"


USUAL, FAR_MORE = Busy(), Busy(0.125, 0.6)
# Two turns of a run in which replies are lost correlate by this.
ALIKE = 0.05


@dataclass(frozen=True)
class Sort:
    """A sort of series: what changes in it, and how often replies are lost anyhow."""

    what: str
    seeds: int
    change_ms: float = 0.0
    shape: str | None = None
    lost: float = 0.0
    busy: Busy = USUAL
    runs: int | None = None  # where it is not as many as in the other sorts

    def gaps(self, seed: int, runs: int, at: int) -> Floats:
        planted = 0.0 if self.shape else self.change_ms
        gaps = gaps_of(seed, runs, planted, at, self.busy)
        if self.shape:
            gaps = SHAPES[self.shape](gaps, self.change_ms, at)
        return lose(gaps, self.lost, alike=ALIKE) if self.lost else gaps


# The rows of the table; 5 % of the replies are lost in all runs of some.
SORTS = (
    Sort("nothing", 200),
    Sort("all turns slower by 25 ms", 200, 25.0),
    Sort("every other turn slower by 50 ms", 60, 25.0, "half"),
    Sort("all later runs as slow as the slow ones", 60, 25.0, "busy"),
    Sort("one turn in four slower by 300 ms, another one each time", 60, 25.0, "quarter"),
    Sort("every other run slower, each turn by 75 ms on average", 60, 25.0, "runs"),
    Sort("one turn in twelve without a reply", 60, shape="twelfth"),
    Sort("one turn in six without a reply", 60, shape="sixth"),
    Sort("nothing; 5 % lost throughout", 200, lost=0.05),
    Sort("all turns slower by 25 ms; 5 % lost throughout", 60, 25.0, lost=0.05),
    Sort("one turn in six without a reply; 5 % lost throughout", 60, shape="sixth", lost=0.05),
    Sort("nothing; more and longer spells", 100, busy=FAR_MORE),
    Sort("all turns slower by 25 ms; more and longer spells", 60, 25.0, busy=FAR_MORE),
    Sort("nothing, in 14 runs", 100, runs=14),
    Sort("nothing, in 14 runs; more and longer spells", 100, busy=FAR_MORE, runs=14),
    Sort("nothing, in 20 runs", 100, runs=20),
    Sort("nothing, in 20 runs; more and longer spells", 100, busy=FAR_MORE, runs=20),
)
BEGIN = "<!-- made by benchmarks/history_changes.py -->"
# Nobody looked at these seeds before the table was made. Each row begins so many after the last:
# the same seed draws the same noise, and no series counts as evidence twice.
FRESH_SEED, APART = 701_000, 1000
# Without a table, series without a change are of seeds so far from those with one.
STILL = 500_000


def counted(sort: Sort, first_seed: int, runs: int, at: int) -> tuple[str, int]:
    """A row of the table, and how many runs of a series were set aside at most."""
    runs = sort.runs or runs
    with tempfile.TemporaryDirectory() as folder:
        found = [
            named(Path(folder) / str(seed), seed, sort.gaps(seed, runs, at))
            for seed in range(first_seed, first_seed + sort.seeds)
        ]
    near = sum(one.near(at) for one in found)
    hits = sum(one.hits_near(at) for one in found)
    row = f"| {sort.what} | {sort.seeds} | {near} | {hits} | {sum(one.any for one in found)} |"
    sys.stderr.write(f"{row}\n")
    return row, max(one.aside for one in found)


def table(first_seed: int, runs: int, at: int) -> str:
    """What was named in each sort of series."""
    with ProcessPoolExecutor() as pool:
        n = len(SORTS)
        seeds = range(first_seed, first_seed + n * APART, APART)
        found = list(pool.map(counted, SORTS, seeds, [runs] * n, [at] * n))
    return "\n".join(
        [
            f"| from run {at} on | series | gap moved at run {at} ± 1 | hit rate moved there | "
            "anything named |",
            "| --- | --- | --- | --- | --- |",
            *(row for row, _ in found),
            "",
            f"Where no other number is named, a series has {runs} runs. The seeds of the first row "
            f"are {first_seed} and up, and each row's begin {APART} after those of the row before. "
            f"At most {max(aside for _, aside in found)} runs of a series were set aside.",
        ]
    )


def main() -> int:
    """Print both counts; exit with 1 unless 19 of 20 are named, and at most 1 of 20 falsely."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=20, help="so many series of each sort")
    parser.add_argument("--first-seed", type=int, help=f"3000; of the table, {FRESH_SEED}")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--at", type=int, default=18, help="the first slower run, from 1")
    parser.add_argument("--change", type=float, default=25.0, help="ms")
    parser.add_argument("--shape", choices=SHAPES, help="not the same in each turn")
    parser.add_argument("--slow", type=float, default=Busy.first, help="so many runs are slow,")
    parser.add_argument("--again", type=float, default=Busy.again, help="and after a slow one")
    parser.add_argument("--lost", type=float, default=0.0, help="so many replies in all runs")
    parser.add_argument("--alpha", type=float, default=trend.ALPHA_EACH, help="of each test")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    parser.add_argument("--keep", type=Path, help="store the series in this folder, and keep them")
    args = parser.parse_args()
    trend.ALPHA_EACH = args.alpha
    if args.write is not None:
        write(args.write, BEGIN, table(args.first_seed or FRESH_SEED, args.runs, args.at))
        return 0
    busy, first = Busy(args.slow, args.again), args.first_seed or 3000
    moving = Sort("", args.seeds, args.change, args.shape, args.lost, busy)
    nothing = Sort("", args.seeds, lost=args.lost, busy=busy)
    with tempfile.TemporaryDirectory() as folder:
        root = args.keep or Path(folder)

        def read(name: str, sort: Sort, seed: int, of: int) -> Named:
            return named(root / name, seed, sort.gaps(of, args.runs, args.at))

        seeds = range(first, first + args.seeds)
        moved = [read(str(seed), moving, seed, seed) for seed in seeds]
        still = [read(f"{seed}-still", nothing, seed, seed + STILL) for seed in seeds]
    right = sum(one.near(args.at) for one in moved)
    alone = sum(one.near(args.at) and len(one.numbers) == 1 and not one.hits for one in moved)
    falsely = sum(one.any for one in still)
    _say(f"run {args.at} ± 1 named in {right} of {args.seeds}, and nothing else in {alone}", moved)
    _say(f"without a change, something named in {falsely} of {args.seeds}", still)
    return 0 if right >= 0.95 * args.seeds and falsely <= 0.05 * args.seeds else 1


if __name__ == "__main__":
    sys.exit(main())

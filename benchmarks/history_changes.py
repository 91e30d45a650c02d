"""Does `turngap history trend` name the run at which an agent became slower, and no other?

    python benchmarks/history_changes.py
    python benchmarks/history_changes.py --change 10 --seeds 50 --first-seed 5000
    python benchmarks/history_changes.py --shape half --seeds 60 --first-seed 40000
    python benchmarks/history_changes.py --slow 0.125 --again 0.6 --seeds 150 --first-seed 200000
    python benchmarks/history_changes.py --keep made --seeds 1
    turngap history trend --runs made/3000

Stores 30 runs a seed in a folder, each with a commit of its own, the agent slower by 25 ms from run
18 on; and as many again without a change. Then it reads them as the command does. What is tuned
was tuned on seeds below 3000 (the noise itself is of the same 14 runs in all seeds).

The noise was measured: 14 runs of 12 turns of four scenarios against the `embedded` stack (its
language model is simulated and its voices are synthetic) on a virtual machine with two cores. Four
were played while it had little else to do, and ten while seven other builds and test runs took it.
A made run is

- in one case of fifteen a slow one: it adds to each turn what one of the ten added to the same
  turn. After a slow run, the next one is slow in three cases of ten;
- or else a quiet one: it adds to each turn twice the deviation of some turn in some quiet run, and
  to all of them a level of its own, normal with a standard deviation of 5 ms. (The four quiet runs,
  a minute apart, differed by 1.3; from day to day more was seen.)

turngap marks nine of the ten slow runs invalid for its own lateness, and would leave them out of a
trend; here they count as valid, since not every machine that slows an agent slows the caller.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from made_turns import made_turn
from numpy.typing import NDArray

from turngap import __version__
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.run_record import RunRecord
from turngap.history.reading import entries
from turngap.history.trend import Trend, trends
from turngap.store.documents import encode, write_atomically
from turngap.store.folders import RUN_FILE, TURNS_FILE
from turngap.store.provenance import this_machine

Floats = NDArray[np.float64]

# The gaps in ms, one run a row: while the machine had little to do,
QUIET_MS = np.array(
    [
        [217, 209, 207, 385, 240, 290, 535, 591, 518, 235, 315, 210],
        [209, 215, 206, 391, 242, 294, 533, 591, 519, 250, 321, 213],
        [207, 205, 209, 387, 248, 293, 532, 589, 522, 238, 331, 218],
        [219, 212, 212, 385, 249, 290, 533, 593, 524, 238, 320, 216],
    ],
    dtype=np.float64,
)
# and while it had far too much.
SLOW_MS = np.array(
    [
        [238, 214, 205, 434, 247, 297, 551, 923, 1047, 237, 325, 206],
        [218, 233, 237, 419, 286, 351, 633, 639, 587, 388, 357, 278],
        [217, 210, 254, 394, 264, 295, 538, 609, 552, 535, 330, 250],
        [224, 273, 231, 415, 260, 315, 548, 622, 549, 250, 333, 212],
        [414, 243, 305, 407, 316, 309, 555, 615, 535, 285, 363, 276],
        [308, 249, 398, 428, 449, 314, 532, 624, 529, 297, 351, 303],
        [226, 236, 219, 394, 296, 300, 543, 604, 590, 388, 410, 278],
        [690, 218, 224, 422, 322, 540, 559, 622, 558, 253, 392, 279],
        [396, 967, 1152, 581, 966, 870, 1578, 846, 618, 459, 378, 324],
        [395, 234, 405, 420, 441, 314, 622, 657, 609, 264, 393, 235],
    ],
    dtype=np.float64,
)
TYPICAL_MS = np.median(QUIET_MS, axis=0)
DAY_MS, TIMES = 5.0, 2.0
SCENARIOS = ("order-status", "quick-questions", "smart-home", "table-booking")
BEGAN = datetime(2026, 9, 1, 3, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Busy:
    """How often a run is a slow one: the first, and one after a slow one."""

    first: float = 1 / 15
    again: float = 0.3


def gaps_of(seed: int, runs: int, change_ms: float, at: int, busy: Busy = Busy()) -> Floats:
    """Gaps in ms, one run a row; from run `at` on (counted from 1), all are longer."""
    rng = np.random.default_rng(seed)
    quiet = (QUIET_MS - np.median(QUIET_MS, axis=1, keepdims=True)) - (
        TYPICAL_MS - np.median(TYPICAL_MS)
    )
    slow, found = False, np.empty((runs, len(TYPICAL_MS)))
    for run in range(runs):
        slow = rng.random() < (busy.again if slow else busy.first)
        if slow:
            added = SLOW_MS[rng.integers(len(SLOW_MS))] - TYPICAL_MS
        else:
            added = rng.normal(0, DAY_MS) + TIMES * rng.choice(quiet.ravel(), len(TYPICAL_MS))
        found[run] = TYPICAL_MS + added + (change_ms if run + 1 >= at else 0.0)
    return found


def half_slower(still: Floats, change_ms: float, at: int) -> Floats:
    """Every other turn is slower by twice the change."""
    still[at - 1 :, ::2] += 2 * change_ms
    return still


def quarter_slower(still: Floats, change_ms: float, at: int) -> Floats:
    """A turn in four, another one each time, is slower by twelve times the change."""
    rng = np.random.default_rng(int(still.sum()))
    still[at - 1 :] += 12 * change_ms * (rng.random(still[at - 1 :].shape) < 0.25)
    return still


def busy_from(still: Floats, change_ms: float, at: int) -> Floats:
    """Each later run is one of the slow ones, whatever the change."""
    rng = np.random.default_rng(int(still.sum()))
    still[at - 1 :] += SLOW_MS[rng.integers(0, len(SLOW_MS), len(still) - at + 1)] - TYPICAL_MS
    return still


def runs_slower(still: Floats, change_ms: float, at: int) -> Floats:
    """Every other run, by chance, is slower, each turn by something around thrice the change."""
    rng = np.random.default_rng(int(still.sum()))
    slower = rng.random((len(still) - at + 1, 1)) < 0.5
    still[at - 1 :] += slower * rng.exponential(3 * change_ms, still[at - 1 :].shape)
    return still


# Changes that are not the same in each turn.
SHAPES = {"half": half_slower, "quarter": quarter_slower, "busy": busy_from, "runs": runs_slower}


def commit_of(number: int) -> str:
    """The made-up commit of a run."""
    return hashlib.sha1(f"run {number}".encode(), usedforsecurity=False).hexdigest()


def store(root: Path, gaps: Floats) -> None:
    """Store the runs as `turngap replay` does, a night apart."""
    machine = this_machine()
    for number, row in enumerate(gaps, start=1):
        began = BEGAN + timedelta(days=number)
        record = RunRecord(
            turngap_version=__version__,
            commit=commit_of(number),
            name="embedded",
            started_utc=began.isoformat(),
            finished_utc=(began + timedelta(minutes=1)).isoformat(),
            machine=machine,
            agent={"stack": "embedded"},
            settings={},
            scenario_hashes=dict.fromkeys(SCENARIOS, "made up"),
            planned_turns=len(row),
            budget_ms=DEFAULT_BUDGET_MS,
        )
        folder = root / f"{began:%Y%m%dT%H%M%SZ}-embedded"
        folder.mkdir(parents=True)
        turns = [
            made_turn(SCENARIOS[place // 3], place % 3 + 1, gap)
            for place, gap in enumerate(row.tolist())
        ]
        write_atomically(folder / TURNS_FILE, b"".join(map(encode, turns)))
        write_atomically(folder / RUN_FILE, encode(record, indent=2))


@dataclass(frozen=True, slots=True)
class Named:
    """The runs that a trend named, of one series."""

    seed: int
    numbers: tuple[int, ...]

    def near(self, at: int) -> bool:
        return any(abs(number - at) <= 1 for number in self.numbers)


def named(root: Path, seed: int, gaps: Floats) -> Named:
    """Store a series and read its trend."""
    store(root, gaps)
    (trend,) = trends(entries([root]))
    return Named(seed, _numbers(trend))


def _numbers(trend: Trend) -> tuple[int, ...]:
    return tuple(move.number for move in trend.moves)


def _say(what: str, found: Sequence[Named]) -> None:
    told = ", ".join(f"{n.seed}: {'+'.join(map(str, n.numbers)) or 'none'}" for n in found)
    sys.stdout.write(f"{what} ({told})\n")


def main() -> int:
    """Print both counts; exit with 1 unless 19 of 20 are named, and at most 1 of 20 falsely."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=20, help="so many series of each sort")
    parser.add_argument("--first-seed", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--at", type=int, default=18, help="the first slower run, from 1")
    parser.add_argument("--change", type=float, default=25.0, help="ms")
    parser.add_argument("--shape", choices=SHAPES, help="not the same in each turn")
    parser.add_argument("--slow", type=float, default=Busy.first, help="so many runs are slow,")
    parser.add_argument("--again", type=float, default=Busy.again, help="and after a slow one")
    parser.add_argument("--keep", type=Path, help="store the series in this folder, and keep them")
    args = parser.parse_args()
    busy = Busy(args.slow, args.again)

    def changed(seed: int) -> Floats:
        if args.shape is None:
            return gaps_of(seed, args.runs, args.change, args.at, busy)
        return SHAPES[args.shape](
            gaps_of(seed, args.runs, 0.0, args.at, busy), args.change, args.at
        )

    seeds = range(args.first_seed, args.first_seed + args.seeds)
    with tempfile.TemporaryDirectory() as folder:
        root = args.keep or Path(folder)
        moved = [named(root / str(seed), seed, changed(seed)) for seed in seeds]
        still = [
            named(
                root / f"{seed}-still", seed, gaps_of(seed + 500_000, args.runs, 0.0, args.at, busy)
            )
            for seed in seeds
        ]
    right = sum(one.near(args.at) for one in moved)
    alone = sum(one.near(args.at) and len(one.numbers) == 1 for one in moved)
    falsely = sum(bool(one.numbers) for one in still)
    _say(f"run {args.at} ± 1 named in {right} of {args.seeds}, and nothing else in {alone}", moved)
    _say(f"without a change, something named in {falsely} of {args.seeds}", still)
    return 0 if right >= 0.95 * args.seeds and falsely <= 0.05 * args.seeds else 1


if __name__ == "__main__":
    sys.exit(main())

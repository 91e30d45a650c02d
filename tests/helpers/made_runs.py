"""Series of stored runs that nobody played, with the noise of a real machine.

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

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path

import numpy as np
from made_records import make_turn
from numpy.typing import NDArray

from turngap.core import __version__
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.run_record import RunRecord
from turngap.store.documents import encode, this_machine, write_atomically
from turngap.store.folders import RUN_FILE, TURNS_FILE

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
    """The chances of a slow run: of the first, and of one after a slow one."""

    first: float = 1 / 15
    again: float = 0.3


def gaps_of(seed: int, runs: int, change_ms: float, at: int, busy: Busy = Busy()) -> Floats:
    """Return gaps in ms, one run a row; from run `at` on (counted from 1), all are longer."""
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


def commit_of(number: int) -> str:
    """Return the made-up commit of a run."""
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
            make_turn(
                scenario=SCENARIOS[place // 3],
                turn=place % 3 + 1,
                marks_ms={"agent_onset": gap} if isfinite(gap) else None,
                ended="reply_done" if isfinite(gap) else "timeout",
                audio=None,
            )
            for place, gap in enumerate(row.tolist())
        ]
        write_atomically(folder / TURNS_FILE, b"".join(map(encode, turns)))
        write_atomically(folder / RUN_FILE, encode(record, indent=2))

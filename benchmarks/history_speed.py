"""How long `turngap history` takes to list many stored runs, without its index and with it.

    python benchmarks/history_speed.py [RUNS] [TURNS]

Prints the seconds of the first listing, which reads everything, of the second, which reads nothing
but the index, and of one after a run was added. It plays nothing; all turns are made up.
"""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from history_runs import stored
from made_checks import make_turns

from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.history.index import Index
from turngap.history.reading import entries


def main(runs: int = 1_000, turns: int = 60) -> None:
    with tempfile.TemporaryDirectory() as made:
        root, clock = Path(made) / "runs", MonotonicClock()
        one = stored(root, make_turns(turns))
        for number in range(1, runs):
            shutil.copytree(one, root / f"{one.name}-{number}")
        index = Index(Path(made) / "history.sqlite")

        def listed(what: str) -> None:
            begun_ns = clock.now_ns()
            found = entries([root], index=index)
            seconds = (clock.now_ns() - begun_ns) / NS_PER_S
            print(f"{what}: {len(found)} runs of {turns} turns in {seconds:.2f} s")

        listed("everything read")
        listed("from the index")
        shutil.copytree(one, root / "new")
        listed("one new run")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

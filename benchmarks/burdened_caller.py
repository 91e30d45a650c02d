"""Compare a backend with itself while other processes take the processor beside one of the two.

The two are the same, so every difference would be the machine's. `turngap compare` has to bound it
or call it inconclusive (docs/compare.md, "A caller that was late"); this script ends with 1 if it
tells a difference. Without spinning processes (`--spinning 0`) it shows what a quiet machine does.

    python benchmarks/burdened_caller.py
    python benchmarks/burdened_caller.py --spinning 0
    python benchmarks/burdened_caller.py --spinning 16 --starved-ms 50 --rounds 12
"""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from turngap.compare import play as playing
from turngap.compare.files import write_reports
from turngap.compare.play import ComparePlan
from turngap.compare.record import PairRecord
from turngap.compare.report import comparison_block
from turngap.compare.side_by_side import told_apart
from turngap.core.budget import STARVED_MS
from turngap.core.results import Turn
from turngap.play.plan import Progress
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice
from turngap.store.runs import read_run

FREE, BURDENED = "free", "burdened"


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """Have so many processes use all of the processor that they get."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class BurdenedRun(RunInProgress):
    """A run beside which the processes spin, if it is the burdened one's."""

    processes = 0

    async def play(self, *where: Any, **how: Any) -> None:
        """Play one conversation, as any run does."""
        burdened = self.folder.name.endswith(BURDENED)
        with spinning(self.processes if burdened else 0):
            await super().play(*where, **how)


def lateness(turns: tuple[Turn, ...]) -> str:
    """What the caller may have added to a gap, ms, and what the gaps were."""
    added = sorted(turn.pacing.error_ms for turn in turns)
    gaps = sorted(turn.gap_ms for turn in turns if turn.gap_ms is not None)
    starved = sum(turn.pacing.starved for turn in turns)
    middle = f"p50 {added[len(added) // 2]:.1f}, max {added[-1]:.1f}"
    gap = f"{gaps[len(gaps) // 2]:.0f}" if gaps else "none"
    return f"added by the caller, ms: {middle}; starved {starved} of {len(turns)}; gap p50 {gap}"


def told(pair: PairRecord) -> list[str]:
    """The differences that the comparison states."""
    figures = {"gap": pair.gap_ms, "cut-ins": pair.cut_ins, "right answers": pair.right}
    return [name for name, figure in figures.items() if figure and told_apart(figure)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--llm", default="sim:distilled")
    parser.add_argument("--scenario", action="append", help="default: quick-questions")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--spinning", type=int, default=4 * (os.cpu_count() or 1), metavar="N")
    parser.add_argument("--starved-ms", type=float, default=STARVED_MS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    plan = ComparePlan.of(
        AgentChoice("embedded"),
        [f"{name}={arguments.llm}" for name in (FREE, BURDENED)],
        arguments.scenario or ["quick-questions"],
        None,
        None,
        rounds=arguments.rounds,
        starved_ms=arguments.starved_ms,
        out=arguments.out,
    )
    BurdenedRun.processes = arguments.spinning
    setattr(playing, "RunInProgress", BurdenedRun)  # noqa: B010 (it is not exported)
    record, folder, failure = asyncio.run(playing.compare(plan, Progress()))
    write_reports(record, folder)
    Console().print(comparison_block(record, Console().width))
    for backend in record.backends:
        print(f"{backend.name}: {lateness(read_run(folder / backend.run).turns)}")
    if failure is not None:
        print(failure)
        return 4
    differences = told(record.pairs[0])
    print(f"differences told of {arguments.llm} and itself: {', '.join(differences) or 'none'}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())

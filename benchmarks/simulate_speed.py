"""How fast `turngap simulate` is: virtual time by wall time and by processor time, on three fleets.

python benchmarks/simulate_speed.py [--calls 1000] [--minutes 5] [--rounds 3]

One process. Where the machine does something else too, wall time says nothing of the simulator.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from turngap.fleet.files import FleetFile, build_fleet
from turngap.fleet.run import SimulationPlan, run_simulation, source_of, workload_of

# A turn as the embedded agent's are on the shipped library, rounded.
TURN = {
    "speech_ms": 1700,
    "before_ms": 260,
    "after_ms": 100,
    "reply_ms": 1800,
    "user_tokens": 12,
    "reply_tokens": 12,
    "opening_tokens": 3,
}
CALL = {"system_tokens": 500, "turns": 6}
FLEETS: dict[str, dict[str, Any]] = {
    "h100, 8B at fp8": {"hardware": "h100", "model": "llama-3.1-8b", "weights": "fp8"},
    "8 x h200, 70B at fp8": {
        "hardware": "h200", "parts": 8, "model": "llama-3.3-70b", "weights": "fp8"
    },
    "wafer, 20B at fp16": {"hardware": "wafer", "model": "20b", "weights": "fp16"},
}  # fmt: skip


def plan_of(pool: dict[str, Any], calls: int, minutes: float, out: Path) -> SimulationPlan:
    """One load on one fleet."""
    described = FleetFile.model_validate({"pool": [pool], "turn": TURN, "call": CALL})
    source = source_of((), described.turn)
    work = workload_of(source, described.call)
    fleet = build_fleet(described, work.longest_tokens)
    return SimulationPlan(fleet, work, source, loads=(calls,), seconds=60 * minutes, out=out)


def measured(plan: SimulationPlan) -> tuple[int, float, float, float]:
    """Turns, and seconds: virtual, of wall time and of the processor's."""
    began_s = time.process_time()
    record, _ = run_simulation(plan)
    (only,) = record.loads
    return only.turns, record.virtual_s, record.wall_s, time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    print(f"{chosen.calls} calls at once, {chosen.minutes:g} minutes and what settles before;")
    print(f"medians of {chosen.rounds}, seconds and times real time")
    print("| fleet | turns | wall s | times | processor s | times |")
    print("| --- | --- | --- | --- | --- | --- |")
    found: dict[str, list[tuple[int, float, float, float]]] = {name: [] for name in FLEETS}
    with tempfile.TemporaryDirectory() as folder:
        first = measured(plan_of(next(iter(FLEETS.values())), 1, 0.1, Path(folder, "first")))
        for number in range(chosen.rounds):
            for name, pool in FLEETS.items():
                out = Path(folder, f"{number} {name}")
                found[name].append(measured(plan_of(pool, chosen.calls, chosen.minutes, out)))
    for name, rounds in found.items():
        turns, virtual_s, _, _ = rounds[0]
        wall_s, cpu_s = (median(taken[n] for taken in rounds) for n in (2, 3))
        print(
            f"| {name} | {turns:,} | {wall_s:.2f} | {virtual_s / wall_s:.0f} "
            f"| {cpu_s:.2f} | {virtual_s / cpu_s:.0f} |"
        )
    print(f"and once a process, to load or compile the steps: {first[2]:.2f} s, {first[3]:.2f} s")


if __name__ == "__main__":
    main()

"""How fast `turngap simulate` is: virtual time by wall time, one process, on several fleets.

python benchmarks/simulate_speed.py [--calls 1000] [--minutes 5]
"""

import argparse
import json
import subprocess
import sys
import tempfile

# A turn as the embedded agent's are on the shipped library, rounded.
TURN = {
    "speech-ms": 1700,
    "before-ms": 260,
    "after-ms": 100,
    "reply-ms": 1800,
    "user-tokens": 12,
    "reply-tokens": 12,
    "opening-tokens": 3,
    "system-tokens": 500,
    "turns-per-call": 6,
}
FLEETS: dict[str, list[str]] = {
    "h100, 8B at fp8": ["--hardware", "h100", "--model", "llama-3.1-8b", "--weights", "fp8"],
    "8 x h200, 70B at fp8": [
        *("--hardware", "h200", "--parts", "8", "--model", "llama-3.3-70b", "--weights", "fp8")
    ],
    "wafer, 20B at fp16": ["--hardware", "wafer", "--model", "20b", "--weights", "fp16"],
}


def measured(fleet: list[str], calls: int, minutes: float) -> dict[str, float]:
    """One simulation in a process of its own."""
    turn = [part for name, value in TURN.items() for part in (f"--{name}", str(value))]
    load = ["--calls", str(calls), "--minutes", str(minutes)]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "turngap", "simulate", *fleet, *turn, *load]
        done = subprocess.run(
            [*command, "--out", out, "--json"], check=True, capture_output=True, text=True
        )
    document = json.loads(done.stdout)
    (only,) = document["loads"]
    return {
        "turns": only["turns"],
        "wall_s": document["wall_s"],
        "ratio": document["virtual_s"] / document["wall_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5)
    arguments = parser.parse_args()
    print(f"{arguments.calls} calls at once, {arguments.minutes:g} minutes and what settles before")
    print("| fleet | turns | wall s | times real time |\n| --- | --- | --- | --- |")
    for name, fleet in FLEETS.items():
        found = measured(fleet, arguments.calls, arguments.minutes)
        print(f"| {name} | {found['turns']:,} | {found['wall_s']:.1f} | {found['ratio']:.0f} |")


if __name__ == "__main__":
    main()

"""Measure a stock bot with turngap's two lines in each version of pipecat.

    python benchmarks/pipecat_versions.py                       # 1.8 to 1.14
    python benchmarks/pipecat_versions.py 1.8 1.12

Each version gets an environment of its own, kept in ~/.cache/turngap/pipecat: pipecat and, with
`pip install --no-deps`, this checkout's turngap. In it runs `versions_bot.py`, which is measured
from here over a socket in real time. The table says whether the bot's stages came. Its engines are
made up, so how long they take says nothing about any agent.
"""

import argparse
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environments
from environments import environment, uv

from turngap.core.stages import UNATTRIBUTED, USUAL_MARKS

ROOT = Path(__file__).parents[1]
BOT = Path(__file__).with_name("versions_bot.py")
CACHE = environments.CACHE / "pipecat"
VERSIONS = tuple(f"1.{minor}" for minor in range(8, 15))


@dataclass(frozen=True)
class Row:
    """Result of a version: its turns, or why there are none."""

    pipecat: str
    turns: int = 0
    staged: int = 0  # turns whose stages leave nothing unattributed
    stages: tuple[str, ...] = ()
    error: str = ""

    def cells(self) -> tuple[str, ...]:
        if self.error:
            return self.pipecat, self.error, ""
        missing = [mark for mark in USUAL_MARKS[1:] if mark not in self.stages]
        seen = f"all but {', '.join(missing)}" if missing else f"all {len(self.stages)}"
        return self.pipecat, f"{self.staged} of {self.turns}", seen


def with_turngap(version: str) -> Path:
    """Install this checkout beside a version of pipecat; returns the interpreter."""
    python = environment(CACHE / version, f"pipecat-ai[websocket,silero]=={version}.*")
    pip = [uv(), "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*pip, "--no-deps", "--reinstall-package", "turngap", str(ROOT)], check=True)
    return python


def measured(version: str, repeat: int) -> Row:
    """Play the shipped questions against that version's bot."""
    try:
        python = with_turngap(version)
        said = "import importlib.metadata as m; print(m.version('pipecat-ai'))"
        full = subprocess.check_output([python, "-P", "-c", said], text=True).strip()
    except subprocess.CalledProcessError as e:
        return Row(version, error=str(e))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-P", "-m", "turngap", "replay", "quick-questions", "--json"]
    command += ["--start", shlex.join([str(python), "-P", str(BOT), str(port)])]
    command += ["--agent", f"ws://127.0.0.1:{port}", "--repeat", str(repeat), "--calibration", "0"]
    command += ["--out", str(CACHE / "runs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        turns = json.loads(done.stdout)["turns"]
    except (ValueError, KeyError):
        return Row(full, error=(done.stderr.strip().splitlines() or ["no turns"])[0])
    return row_of(full, turns)


def row_of(version: str, turns: Sequence[dict[str, Any]]) -> Row:
    named = [[stage["name"] for stage in turn["stages"]] for turn in turns]
    staged = [names for names in named if names and UNATTRIBUTED not in names]
    seen = {name for names in named for name in names}
    return Row(
        version,
        len(turns),
        len(staged),
        tuple(mark for mark in USUAL_MARKS if mark in seen),
    )


def table(rows: Sequence[Row]) -> str:
    head = "| pipecat | turns with stages | stages |\n| --- | --- | --- |\n"
    return head + "".join(f"| {' | '.join(row.cells())} |\n" for row in rows)


def main() -> None:
    """Measure each version in turn and print the table."""
    parser = argparse.ArgumentParser(description="Try the two lines in versions of pipecat.")
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--repeat", type=int, default=2, help="rounds of three questions")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for version in arguments.versions:
        rows.append(measured(version, arguments.repeat))
        print(" | ".join(rows[-1].cells()), flush=True)
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()

"""Draw the README's picture: `python tools/readme_picture.py [RUN]` (two minutes, in real time).

Without RUN it plays `quick-questions` seven times against the stock bot of the examples. It draws
the turn in the middle, the figures of the run, and the stages of 10 ms or more.
"""

import re
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

from rich.text import Text

import turngap
from turngap.report import terminal
from turngap.report.console import turn_block
from turngap.report.run import summary_block

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "waterfall.svg"
BOT = f"{sys.executable} {ROOT / 'examples/pipecat_bot.py'} --marks --port 8771"
WIDTH = 96
# The lines of a summary to show: its title, its main figures, and the head and rows of its stages.
FIGURES = re.compile(r"━━ |\s+(turn gap|gap p\d\d|hit rate|cut-ins) ")
STAGES = re.compile(r"stage +p50|.*\([a-z_]+\) +\S +\d\d")


def play(out: Path) -> turngap.Run:
    """Measure the stock bot."""
    address = "ws://127.0.0.1:8771/ws"
    return turngap.replay(address, start=BOT, scenarios=["quick-questions"], repeat=7, out=out)


def draw(run: turngap.Run) -> str:
    """Draw the run's typical turn and the main lines of its summary."""
    if not run.valid:
        raise SystemExit(f"{run.path}: the run is not valid: play it on a quiet machine")
    answered = sorted((turn for turn in run.turns if turn.replied), key=lambda t: t.gap_ms or 0.0)
    block = turn_block(answered[len(answered) // 2], WIDTH).split("\n")
    turn = takewhile(lambda line: "  heard " not in line.plain, block)
    summary = summary_block(run, WIDTH).split("\n")
    figures = [line.split(";")[0] for line in summary if FIGURES.match(line.plain)]
    stages = [line for line in summary if STAGES.match(line.plain)]
    shown = [*turn, Text(), *figures, Text(), *stages]
    return terminal.svg(run.path.name, [terminal.joined(shown)], WIDTH)


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as scratch:
        run = turngap.Run.load(sys.argv[1]) if sys.argv[1:] else play(Path(scratch))
        PICTURE.write_text(draw(run), encoding="utf-8")


if __name__ == "__main__":
    main()

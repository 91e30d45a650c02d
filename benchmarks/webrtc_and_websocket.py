"""Measure one bot over a WebSocket and over WebRTC in turns, and what the difference is made of.

    python benchmarks/webrtc_and_websocket.py --rounds 20 --write docs/webrtc.md   # 8 minutes

One process serves examples/pipecat_bot.py both ways, with engines that are made up and always take
the same time. Each question is asked over one and then over the other, in the opposite order in the
next round. The two gaps of a question in a round are a pair; its marks (`MarksObserver`, both ways)
say in which part of the gap they differ.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pages

from turngap.children import end_with_parent
from turngap.core.paired import Limits, exchanges, shift, shift_interval
from turngap.core.results import Turn
from turngap.core.stages import UNATTRIBUTED, USUAL_MARKS
from turngap.play.plan import PlayPlan, Progress
from turngap.play.process import running
from turngap.play.rounds import play_in_turns
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, resolve
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, scenario_paths

HERE = Path(__file__).parent
BEGIN = "<!-- made by benchmarks/webrtc_and_websocket.py -->"
LLM_MS = 120.0
# Half the chance that the true difference is outside the interval.
TAIL = 0.025
WAYS = {
    "WebSocket": ("pipecat,first_word=sound", "ws://127.0.0.1:{}/ws"),
    "WebRTC": ("webrtc,first_word=sound", "http://127.0.0.1:{}"),
}


@dataclass(frozen=True)
class Part:
    """A part of the gap: its stages, and why they differ by how much according to the source."""

    name: str
    stages: Sequence[str]
    expected_ms: float
    why: str


ENGINES = USUAL_MARKS[2 : USUAL_MARKS.index("sent")]
PARTS = (
    Part("until the bot has heard the end", ("endpoint",), 80.0, "aiortc's jitter buffer"),
    Part("in the bot", ENGINES, 0.0, "the same engines"),
    Part("until the track takes the sound", ("sent",), 5.0, "pieces of 10 ms"),
    Part("until it is heard", ("received", "agent_onset"), 26.5, "packets, resampler, Opus"),
)


def serve(port: int) -> None:
    """Serve the example both ways, its engines replaced; print a line once it can be reached."""
    import uvicorn
    from versions_bot import RATE, Answers, Hears, Speaks

    sys.path.insert(0, str(HERE.parent / "examples"))
    import pipecat_bot

    made = {
        "stt": lambda: Hears(ttfs_p99_latency=0.1),
        "llm": lambda: Answers(LLM_MS),
        "tts": lambda: Speaks(np.zeros(0, np.int16)),
    }
    pipecat_bot.engine = lambda kind, _: made[kind]()
    pipecat_bot.OUT_RATE = RATE
    pipecat_bot.app.state.marks, pipecat_bot.app.state.otlp = True, None
    with socket.create_server(("127.0.0.1", port)) as listening:
        port = listening.getsockname()[1]
        print(json.dumps({"ready": True, "url": f"http://127.0.0.1:{port}"}), flush=True)
        config = uvicorn.Config(pipecat_bot.app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])


async def play(rounds: int, scratch: Path) -> dict[str, Sequence[Turn]]:
    """Ask the questions over either way in turns; return the turns of each."""
    paths = scenario_paths(library_dir(), ["quick-questions"])
    plan = PlayPlan(scenarios=load_scenarios(paths), rounds=rounds, greeting_ms=0, out=scratch)
    steps = Progress(on_step=lambda step: print(f"  {step}", file=sys.stderr))
    async with running(["webrtc_and_websocket", "--serve", "0"], scratch / "bot.log") as url:
        port = url.rpartition(":")[2]
        runs: dict[str, RunInProgress] = {}
        for way, (dialect, at) in WAYS.items():
            choice = AgentChoice(at.format(port), dialect=dialect)
            runs[way] = RunInProgress(plan, resolve(choice, library_dir()), way.lower())
        failure = await play_in_turns(list(runs.values()), plan, steps)
        for run in runs.values():
            run.finish(str(failure) if failure else None)
    if failure is not None:
        raise failure
    return {way: run.turns for way, run in runs.items()}


def spent(turn: Turn, stages: Sequence[str]) -> float:
    """Return the time of some stages of a turn, ms."""
    return sum(turn.stage_ms.get(name, 0.0) for name in stages)


def row(name: str, differences: Sequence[float], conversations: Sequence[int], more: str) -> str:
    """Return a line of the table: a difference and its interval."""
    d, limit = np.array(differences), Limits().p50_ms
    pairs = exchanges(conversations, np.random.default_rng(0))
    interval = shift_interval(d, d, limit, pairs, TAIL)
    bounds = "too few" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"
    return f"| {name} | {shift(d, limit):+.1f} | {bounds} | {more} |"


def table(turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return what was measured, as Markdown."""
    sides = [{turn.key: turn for turn in turns[way]} for way in WAYS]
    usable = [
        key
        for key in sides[0]
        if key in sides[1]
        and all(s[key].gap_ms is not None and UNATTRIBUTED not in s[key].stage_ms for s in sides)
    ]
    pairs = [(sides[0][key], sides[1][key]) for key in usable]
    repeats = [first.repeat for first, _ in pairs]
    gaps = [median(turn.gap_ms or 0.0 for turn in side) for side in zip(*pairs, strict=True)]
    total = [(b.gap_ms or 0.0) - (a.gap_ms or 0.0) for a, b in pairs]
    behind = [b.playout_ms for _, b in pairs if b.playout_ms is not None]
    lines = [
        f"n = {len(pairs)} pairs of turns in {len(set(repeats))} rounds, of {len(turns['WebRTC'])} "
        f"played; the median gap is {gaps[0]:.0f} ms over the WebSocket and {gaps[1]:.0f} ms over "
        f"WebRTC at arrival, and {median(behind):.0f} ms more behind a buffer of 60 ms.",
        "",
        "| part of the gap | WebRTC less WebSocket, ms | 95 % | by the source, ms |",
        "| --- | --- | --- | --- |",
    ]
    for part in PARTS:
        differences = [spent(b, part.stages) - spent(a, part.stages) for a, b in pairs]
        more = f"{part.expected_ms:+.1f}: {part.why}"
        lines.append(row(part.name, differences, repeats, more))
    expected = sum(part.expected_ms for part in PARTS)
    return "\n".join([*lines, row("**the gap**", total, repeats, f"**{expected:+.1f}**")])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="of three questions each way")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        end_with_parent()
        serve(chosen.serve)
        return
    os.environ["PYTHONPATH"] = str(HERE)  # the bot is this module
    with TemporaryDirectory(prefix="turngap-webrtc-") as scratch:
        text = table(asyncio.run(play(chosen.rounds, Path(scratch))))
    print(text)
    if chosen.write is not None:
        pages.write(chosen.write, BEGIN, text)


if __name__ == "__main__":
    main()

"""Measure the errors of turngap and its peers, on agents whose delays are known.

    python benchmarks/peers.py                 # 25 turns with and without a lead-in: some 8 minutes
    python benchmarks/peers.py --condition noise --turns 10

In one run on this machine, in turns: turngap (over pipecat's protobuf and as Twilio), voicebench,
streamdouble, and pipecat's `UserBotLatencyObserver`. Everybody says the same utterance, whose end
is known to the sample. The agents are turngap's loopback agent and a stock pipecat bot with engines
that are made up, and the truth is what an agent says of itself beside the line. Peers from the
package registry get an environment of their own, kept in ~/.cache/turngap/peers, which takes uv.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from environments import CACHE, environment
from peer.callers import (
    VOICEBENCH,
    PeerError,
    Reports,
    by_streamdouble,
    by_turngap,
    by_voicebench,
)
from peer.errors import Measured, paired, table, together

from turngap.clocks import MonotonicClock
from turngap.core.clock import ns_to_ms
from turngap.core.errors import TurngapError
from turngap.play.process import running
from turngap.testing.agent import Reply, Script, script_to_json

HERE = Path(__file__).parent
PEERS = {"voicebench": "0.2.0", "streamdouble": "0.3.0"}
# Before the reply's first audible sample: its name, how long, and the level of the noise, if any.
CONDITIONS: dict[str, tuple[str, float, float | None]] = {
    "none": ("no lead-in", 0.0, None),
    "silence": ("150 ms of silence first", 150.0, None),
    "noise": ("150 ms of noise at -55 dBFS first", 150.0, -55.0),
}
USUAL = ["none", "silence"]
# The peers take turns after at most so many.
TURNS_A_ROUND = 9
# Off everybody's grid of packets. The agent must hear 100 ms of silence first.
DELAYS_MS = (120.0, 480.0)
HOLD_MS = 100.0
# Of the bot's LLM; its VAD, its end of turn and its TTS take some 400 ms more.
LLM_MS = (20.0, 200.0)

# Measures the agent at a URL; returns the turns of each of its figures.
Caller = Callable[[str], Awaitable[list[Reports]]]

LOOPBACK, BOT = "loopback", "pipecat bot"
NO_EVAL = (
    "a script prints no latency, and a simulation, which takes an LLM, only that of its slowest "
    "reply, from when the bot has noticed the end"
)


@dataclass(frozen=True)
class Round:
    """Some turns under one condition, of every peer in its turn."""

    condition: str
    turns: int
    number: int
    python: Path | None  # of the peers' environment
    why_no_python: str
    scratch: Path

    def direction(self) -> int:
        """Order them forwards in one round and backwards in the next."""
        return 1 if self.number % 2 == 0 else -1

    def delays(self, low: float, high: float) -> list[float]:
        """Return one for each turn, the same for every peer."""
        seed = (self.number, list(CONDITIONS).index(self.condition))
        return np.random.default_rng(seed).uniform(low, high, self.turns).tolist()

    def row(self, peer: str, agent: str, figure: str, **rest: Any) -> Measured:
        return Measured(named(peer), agent, figure, CONDITIONS[self.condition][0], **rest)


def named(peer: str) -> str:
    """Name a peer with its version."""
    if peer.startswith("pipecat"):
        return f"{peer} ({version('pipecat-ai')})"
    return f"{peer} {PEERS[peer] if peer in PEERS else version(peer)}"


def lines_of(file: Path, skip: int = 0) -> list[dict[str, Any]]:
    """Read the agent's account so far, but for the first lines."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[skip:]]


async def on_loopback(
    of: Round, dialect: str, callers: list[tuple[list[tuple[str, str]], Caller]]
) -> list[Measured]:
    """Have callers measure one loopback agent, one after the other."""
    _, pad_ms, pad_dbfs = CONDITIONS[of.condition]
    replies = [
        Reply(delay_ms=ms, speech_ms=200, pad_ms=pad_ms, pad_dbfs=pad_dbfs)
        for ms in of.delays(*DELAYS_MS)
    ]
    script = Script(
        replies=tuple(replies), dialect=dialect, hold_ms=HOLD_MS, yield_ms=None, marks=False
    )
    truths = of.scratch / f"{dialect}.jsonl"
    log = of.scratch / "agent.log"
    rows: list[Measured] = []
    async with running(["turngap.testing.agent", script_to_json(script, truths)], log) as url:
        for figures, call in callers[:: of.direction()]:
            before = len(lines_of(truths))
            why, reports = "", [Reports() for _ in figures]
            try:
                reports = await call(url)
            except (PeerError, TurngapError, OSError) as e:
                why = str(e)
            told = [ns_to_ms(line["gap_ns"]) for line in lines_of(truths, before)]
            why = why or unlike(of.turns, len(told))
            injected = {} if why else dict(enumerate(told, 1))
            for (peer, figure), reported in zip(figures, reports, strict=True):
                pairs = paired(injected, reported)
                rows.append(
                    of.row(peer, f"{LOOPBACK}, {dialect}", figure, pairs=pairs, why_none=why)
                )
    return rows


def unlike(turns: int, answered: int) -> str:
    """Explain why the agent's account does not fit the turns; empty: it does."""
    return "" if answered == turns else f"the agent answered {answered} times in {turns} turns"


async def on_pipecat(of: Round) -> list[Measured]:
    """Have voicebench and turngap call the loopback agent that speaks pipecat's protobuf."""

    async def turngap(url: str) -> list[Reports]:
        return [await by_turngap(url, "pipecat", of.turns)]

    async def voicebench(url: str) -> list[Reports]:
        if of.python is None:
            raise PeerError(of.why_no_python)
        reports = await by_voicebench(of.python, url, of.turns, of.scratch)
        return [reports[figure] for figure in VOICEBENCH]

    figures = [("voicebench", figure) for figure in VOICEBENCH]
    return await on_loopback(
        of, "pipecat", [([("turngap", "turn gap")], turngap), (figures, voicebench)]
    )


async def on_twilio(of: Round) -> list[Measured]:
    """Have streamdouble and turngap call the loopback agent that speaks Twilio's media streams."""

    async def turngap(url: str) -> list[Reports]:
        return [await by_turngap(url, "twilio", of.turns)]

    async def streamdouble(url: str) -> list[Reports]:
        if of.python is None:
            raise PeerError(of.why_no_python)
        return [await by_streamdouble(of.python, url, of.turns, of.scratch)]

    figure = "first audio, less the clip's speech"
    return await on_loopback(
        of,
        "twilio",
        [([("turngap", "turn gap")], turngap), ([("streamdouble", figure)], streamdouble)],
    )


async def on_bot(of: Round) -> list[Measured]:
    """Have turngap call the bot, in which pipecat's observer measures the same turns."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = of.scratch / "bot.jsonl"
    settings: dict[str, Any] = {"port": port, "told": str(told), "delays_ms": of.delays(*LLM_MS)}
    _, settings["pad_ms"], settings["pad_dbfs"] = CONDITIONS[of.condition]
    argv = ["peer.tapped_bot", json.dumps(settings)]
    why, reported = "", Reports()
    try:
        async with running(argv, of.scratch / "bot.log") as url:
            reported = await by_turngap(url, "pipecat", of.turns)
    except TurngapError as e:
        why = str(e)
    lines = lines_of(told)
    truths = {line["turn"]: line["truth_ms"] for line in lines if "truth_ms" in line}
    why = why or unlike(of.turns, len(truths))
    observed = {line["turn"]: line["observer_ms"] for line in lines if "observer_ms" in line}
    rows = [("turngap", "turn gap", reported), ("pipecat's observer", "latency", observed)]
    return [
        of.row(peer, BOT, figure, pairs=() if why else paired(truths, reports), why_none=why)
        for peer, figure, reports in rows
    ]


def peers_environment() -> tuple[Path | None, str]:
    """Find the interpreter that has the peers, or explain why there is none."""
    exact = [f"{name}=={release}" for name, release in PEERS.items()]
    try:
        # voicebench speaks protobuf by pipecat's own definitions.
        return environment(CACHE / "peers", *exact, f"pipecat-ai=={version('pipecat-ai')}"), ""
    except (subprocess.CalledProcessError, OSError) as e:
        return None, f"it could not be installed ({type(e).__name__})"


async def measure(turns: int, conditions: list[str]) -> list[Measured]:
    """Play all rounds and join them; tells how long is left on stderr."""
    python, why = peers_environment()
    rounds = -(-turns // TURNS_A_ROUND)
    planned = [(n, condition) for n in range(rounds) for condition in conditions]
    rows: list[Measured] = []
    clock = MonotonicClock()
    begun_ns = clock.now_ns()
    for done, (n, condition) in enumerate(planned):
        size = turns * (n + 1) // rounds - turns * n // rounds
        with TemporaryDirectory(prefix="turngap-peers-") as scratch:
            of = Round(condition, size, n, python, why, Path(scratch))
            for play in (on_pipecat, on_twilio, on_bot)[:: of.direction()]:
                played = await play(of)
                rows += played
                for row in played:
                    if row.why_none:
                        print(f"{row.peer}, {row.condition}: {row.why_none}", file=sys.stderr)
        took_s = (clock.now_ns() - begun_ns) / 1e9
        left_s = took_s / (done + 1) * (len(planned) - done - 1)
        print(f"round {done + 1} of {len(planned)}, {left_s:.0f} s left", file=sys.stderr)
    rows += [
        Measured(named("pipecat eval"), BOT, "none", CONDITIONS[condition][0], why_none=NO_EVAL)
        for condition in conditions
    ]
    order = [name for name, _, _ in CONDITIONS.values()]
    return sorted(together(rows), key=lambda row: order.index(row.condition))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=25, help="of each peer under each condition")
    told = "what comes before the reply can be heard; again for more (default: none, silence)"
    parser.add_argument("--condition", action="append", choices=list(CONDITIONS), help=told)
    chosen = parser.parse_args()
    if chosen.turns < 2:
        parser.error("--turns takes 2 or more")
    os.environ["PYTHONPATH"] = str(HERE)  # the bot is a module of this folder
    rows = asyncio.run(measure(chosen.turns, chosen.condition or USUAL))
    print(table(rows))


if __name__ == "__main__":
    main()

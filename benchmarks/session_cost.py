"""CPU and memory of the agent per conversation: one process, 0 to N callers at once.

python benchmarks/session_cost.py [--callers 1 2 4]
"""

import argparse
import asyncio
import json
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
from endings import errors_told

from turngap.caller.conversation import Conversation
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.line import open_line
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.results import OffsetRecord
from turngap.play.cues import cues_of
from turngap.play.process import running
from turngap.scenario.library import library_dir, load_scenario, scenario_paths

NO_OFFSET = OffsetRecord(offset_ns=None, bound_ns=None, n=0)


async def caller(url: str, scenario: Path) -> int:
    """One whole conversation; returns how many of its turns were answered."""
    clock = MonotonicClock()
    async with open_line(url, PipecatSession(), clock) as line:
        conversation = Conversation(line, cues_of(load_scenario(scenario)), clock, offset=NO_OFFSET)
        return sum([played.turn.gap_ns is not None async for played in conversation.play()])


async def one_level(url: str, agent: psutil.Process, scenario: Path, callers: int) -> None:
    started, before = asyncio.get_running_loop().time(), cpu_s(agent)
    answered = await asyncio.gather(*(caller(url, scenario) for _ in range(callers)))
    wall = asyncio.get_running_loop().time() - started
    cores = (cpu_s(agent) - before) / wall
    memory = agent.memory_info().rss / 2**20
    print(f"{callers:>7}{cores:>12.2f}{cores / callers:>14.3f}{memory:>12.0f}{sum(answered):>10}")


async def all_gone(url: str) -> None:
    """Wait for the last pipelines to end: a caller's seat is free a moment after it has left."""
    clock = MonotonicClock()
    for _ in range(100):
        if await asyncio.to_thread(sessions, url) == 0:
            return
        await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(100))
    raise TimeoutError("conversations that are over still have their seats after 10 s")


def sessions(url: str) -> int:
    """How many conversations the agent says that it has."""
    with urlopen(f"http://{urlsplit(url).netloc}/healthz") as health:
        return json.load(health)["sessions"]


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def serving_process() -> psutil.Process:
    children = psutil.Process().children(recursive=True)
    return next(c for c in children if "serve" in c.cmdline())


async def measure(levels: list[int]) -> None:
    (scenario,) = scenario_paths(library_dir(), ["quick-questions"])
    most = str(max(levels))
    arguments = ["turngap", "serve", "--port", "0", "--json", "--max-sessions", most]
    async with running(arguments, Path("/dev/null")) as url:
        agent = serving_process()
        print(f"idle: {agent.memory_info().rss / 2**20:.0f} MiB resident")
        print(f"{'callers':>7}{'cores':>12}{'cores/caller':>14}{'MiB':>12}{'answered':>10}")
        for callers in levels:
            await all_gone(url)
            await one_level(url, agent, scenario, callers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4])
    callers = parser.parse_args().callers
    with errors_told():
        asyncio.run(measure(callers))


if __name__ == "__main__":
    main()

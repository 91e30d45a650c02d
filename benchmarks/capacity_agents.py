"""Scripted agents in processes of their own, whose injected gaps are known to a few microseconds.

As a process, `python capacity_agents.py COUNT --dialect NAME --seed N` serves so many of them until
stdin has a line.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from turngap.clocks import undisturbed
from turngap.play.calibrate import loopback_script, plan
from turngap.testing.agent import Account, Reply, ScriptedAgent, Truth

REPLY_MS = 1500.0


async def be_agents(count: int, dialect: str, replies: Sequence[Reply]) -> None:
    """Serve so many scripted agents; print their URLs, and once stdin has a line, their truths."""
    accounts = [Account() for _ in range(count)]
    script = loopback_script(replies, dialect)
    async with AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(ScriptedAgent(script=script, account=account))
            for account in accounts
        ]
        print(json.dumps([agent.url for agent in agents]), flush=True)
        with undisturbed():
            await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps([[asdict(t) for t in a.truths] for a in accounts]), flush=True)


@dataclass(slots=True)
class Agents:
    """Processes with agents, of which each has a URL and its own account."""

    processes: list[asyncio.subprocess.Process]
    urls: list[str]

    def cpu_s(self) -> float:
        return sum(cpu_s(psutil.Process(p.pid)) for p in self.processes)

    async def truths(self) -> list[Mapping[int, Truth]]:
        """End the agents; return what each injected, by the number of the utterance."""
        said: list[list[dict[str, Any]]] = []
        for process in self.processes:
            out, _ = await process.communicate(b"\n")
            said += json.loads(out)
        return [{told["turn"]: Truth(**told) for told in account} for account in said]


@asynccontextmanager
async def serving(
    sessions: int, processes: int, dialect: str, cores: set[int], seed: int
) -> AsyncIterator[Agents]:
    """Start agents for so many sessions in so many processes at most."""
    started: list[asyncio.subprocess.Process] = []
    urls: list[str] = []
    shares = [len(range(i, sessions, processes)) for i in range(min(processes, sessions))]
    try:
        for number, share in enumerate(shares):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, str(share), "--dialect", dialect),
                *("--seed", str(seed + number)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**26,
            )
            started.append(process)
            pin(cores, process.pid)
            assert process.stdout is not None
            urls += json.loads(await process.stdout.readline())
        yield Agents(started, urls)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


def replies_of(seed: int) -> list[Reply]:
    """Return replies as `turngap calibrate` plays them, but as long as a short sentence."""
    return [replace(reply, speech_ms=REPLY_MS) for reply in plan(256, seed)]


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def pin(cores: set[int], pid: int = 0) -> None:
    """Keep a process on these cores, where the system can."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, cores)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--dialect", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(be_agents(arguments.count, arguments.dialect, replies_of(arguments.seed)))


if __name__ == "__main__":
    main()

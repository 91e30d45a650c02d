"""How many callers one agent holds: all of them talk at once, each in a conversation of its own."""

import asyncio
import json
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

import psutil

from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.line import open_line
from turngap.clocks import MonotonicClock
from turngap.core.budget import REPLIED, STARVED_MS
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.results import OffsetRecord
from turngap.core.stats import Percentile, Proportion, percentile, proportion
from turngap.play.cues import cues_of
from turngap.play.process import running
from turngap.play.quiet import undisturbed
from turngap.play.target import AgentChoice
from turngap.scenario.library import LoadedScenario

NO_OFFSET = OffsetRecord(offset_ns=None, bound_ns=None, n=0)

# Callers who begin at one instant would speak in step.
APART_MS = 370.0

ENOUGH = 0.95
# With fewer, 95 % of them would be all of them.
LEAST_TURNS = 60


@dataclass(frozen=True)
class Level:
    """So many callers, and what became of their turns."""

    callers: int
    hits: Proportion
    gap_p50: Percentile
    cores: float
    starved: int

    @property
    def held(self) -> bool:
        """Whether the agent held them."""
        return self.hits.value is not None and self.hits.value >= ENOUGH


async def measure(
    choice: AgentChoice, scenario: LoadedScenario, levels: list[int], log: Path
) -> list[Level]:
    """Each number of callers in turn, against one agent."""
    found: list[Level] = []
    async with running(_serve(choice, max(levels)), log) as url:
        agent = _serving_process()
        for callers in levels:
            with undisturbed():
                found.append(await _one_level(url, agent, scenario, callers))
            level = found[-1]
            print(f"  {callers} callers: {level.hits.hits} of {level.hits.n}", flush=True)
            if not level.held and callers > 1:
                break
    return found


def _serve(choice: AgentChoice, callers: int) -> list[str]:
    arguments = ["turngap", "serve", "--agent", choice.agent, "--port", "0", "--json"]
    # Who has hung up keeps the seat for a moment, and calls again.
    return [*arguments, "--max-sessions", str(2 * callers)]


async def _one_level(
    url: str, agent: psutil.Process, scenario: LoadedScenario, callers: int
) -> Level:
    clock = MonotonicClock()
    started_ns, before = clock.now_ns(), _cpu_s(agent)
    turns_of_one = len(scenario.scenario.turns)
    times = ceil(LEAST_TURNS / (callers * turns_of_one))
    played = await asyncio.gather(*(_caller(url, scenario, n, times) for n in range(callers)))
    turns = [turn for conversation in played for turn in conversation]
    wall_s = (clock.now_ns() - started_ns) / 1e9
    answered = [t.turn for t in turns if t.turn.outcome in REPLIED]
    silent = sum(t.turn.outcome in ("no_reply", "error") for t in turns)
    planned = callers * turns_of_one * times
    return Level(
        callers=callers,
        # What was never played, because a line was lost, is no hit either.
        hits=proportion(sum(t.turn.outcome == "answered" for t in turns), planned),
        gap_p50=percentile(
            [ns_to_ms(t.gap_ns) for t in answered if t.gap_ns is not None], 0.5, censored=silent
        ),
        cores=(_cpu_s(agent) - before) / wall_s,
        starved=sum(_starved(t) for t in turns),
    )


async def _caller(url: str, scenario: LoadedScenario, number: int, times: int) -> list[PlayedTurn]:
    """One who calls so many times, one call after the other."""
    clock = MonotonicClock()
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(APART_MS * number))
    turns: list[PlayedTurn] = []
    for _ in range(times):
        async with open_line(url, PipecatSession(), clock) as line:
            conversation = Conversation(line, cues_of(scenario), clock, offset=NO_OFFSET)
            turns += [played async for played in conversation.play()]
    return turns


def _starved(turn: PlayedTurn) -> bool:
    return max(*turn.late_ns, turn.lag_ns or 0, 0) > ms_to_ns(STARVED_MS)


def _serving_process() -> psutil.Process:
    children = psutil.Process().children(recursive=True)
    return next(c for c in children if "serve" in c.cmdline())


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def store(levels: list[Level], out: Path) -> None:
    """Keep what was found, for the table."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [asdict(level) for level in levels]
    (out / "callers.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")


def stored(out: Path) -> list[Level]:
    """What was kept; nothing where nothing was."""
    file = out / "callers.json"
    if not file.is_file():
        return []
    return [
        Level(
            callers=row["callers"],
            hits=Proportion(**row["hits"]),
            gap_p50=Percentile(**row["gap_p50"]),
            cores=row["cores"],
            starved=row["starved"],
        )
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]

"""What a further call costs the others in one agent process: the gap by stage, and the loop's lag.

python benchmarks/third_call.py [--callers 1 2 3 4 8] [--rounds 3] [--agent embedded]

Each caller plays `quick-questions` again and again against one process of `turngap serve`. They
begin one after the other over the length of a turn, so that their turns do not coincide. The stages
are those that the caller computes from the agent's marks; their medians need not sum to the gap's.
The agent's CPU and the lag of its event loop are read from its own `/metrics`, before and after.

Run it on a quiet machine: a caller that was late by more than 5 ms is said in its line, as its
figures are then not the agent's alone.
"""

import argparse
import asyncio
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
from endings import errors_told
from prometheus_client.parser import text_string_to_metric_families
from session_cost import all_gone

from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.line import open_line
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, ns_to_ms
from turngap.core.stages import STAGES
from turngap.play.cues import cues_of
from turngap.play.process import running
from turngap.scenario.library import LoadedScenario, library_dir, load_scenario, scenario_paths

# About as long as a turn of the scenario and its answer take.
TURN_S = 6.0
LATE_MS = 5.0
CPU = "process_cpu_seconds_total"
LAG = "turngap_event_loop_lag_seconds_bucket"

Figures = dict[tuple[str, str], float]


async def caller(
    url: str, scenario: LoadedScenario, begins_s: float, rounds: int
) -> list[PlayedTurn]:
    """So many conversations, one after the other."""
    clock = MonotonicClock(precise=True)
    await clock.sleep_until_ns(clock.now_ns() + round(begins_s * NS_PER_S))
    played: list[PlayedTurn] = []
    for _ in range(rounds):
        async with open_line(url, PipecatSession(), clock) as line:
            offset = await line.clock_offset()
            talk = Conversation(line, cues_of(scenario), clock, offset=offset)
            played += [turn async for turn in talk.play()]
    return played


def figures(url: str) -> Figures:
    """What the agent's page for Prometheus says, by name and by the labels' values."""
    with urlopen(f"http://{urlsplit(url).netloc}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
        return {(s.name, "".join(s.labels.values())): s.value for f in families for s in f.samples}


def lag(before: Figures, after: Figures, share: float) -> str:
    """The smallest bucket that holds this share of the loop's lags, ms."""
    bounds = [le for name, le in after if name == LAG]
    counts = [after[LAG, le] - before.get((LAG, le), 0) for le in bounds]
    found = next(le for le, n in zip(bounds, counts, strict=True) if n >= share * counts[-1])
    return f">{float(bounds[-2]) * 1000:g}" if found == "+Inf" else f"≤{float(found) * 1000:g}"


async def one_level(url: str, scenario: LoadedScenario, callers: int, rounds: int) -> None:
    before, clock = await asyncio.to_thread(figures, url), MonotonicClock()
    began_ns = clock.now_ns()
    each = (caller(url, scenario, n * TURN_S / callers, rounds) for n in range(callers))
    played = [turn for turns in await asyncio.gather(*each) for turn in turns]
    wall_s = (clock.now_ns() - began_ns) / NS_PER_S
    after = await asyncio.to_thread(figures, url)
    cpu_s = after[CPU, ""] - before[CPU, ""]
    # Each call lasts as long as the others; only the beginnings differ.
    calls_s = sum(wall_s - n * TURN_S / callers for n in range(callers))
    gaps = [ns_to_ms(p.turn.gap_ns) for p in played if p.turn.gap_ns is not None]
    late_ms = max((ns_to_ms(max(p.late_ns)) for p in played if p.late_ns), default=0.0)
    late = f"  a caller was {late_ms:.0f} ms late" if late_ms > LATE_MS else ""
    print(
        f"{callers:>7}{len(gaps):>6} of {len(played):<5}{_at(gaps, 50):>8}{_at(gaps, 95):>8}"
        f"{cpu_s / wall_s:>8.2f}{1000 * cpu_s / calls_s:>13.0f}"
        f"{lag(before, after, 0.5):>8}{lag(before, after, 0.99):>8}{late}"
    )
    _stages(played)


def _stages(played: list[PlayedTurn]) -> None:
    """Print the median and the 95th percentile of each stage."""
    ms: dict[str, list[float]] = defaultdict(list)
    for stage in (stage for p in played for stage in p.turn.stages):
        ms[stage.name].append(stage.ms)
    shown = (f"{name} {_at(ms[name], 50)}/{_at(ms[name], 95)}" for name in STAGES if ms[name])
    print("        " + "  ".join(shown))


def _at(values: list[float], q: float) -> str:
    return f"{np.percentile(values, q):.1f}" if values else "-"


async def measure(agent: str, levels: list[int], rounds: int) -> None:
    (path,) = scenario_paths(library_dir(), ["quick-questions"])
    scenario = load_scenario(path)
    most = str(max(levels))
    arguments = ["turngap", "serve", "--port", "0", "--json", "--no-keep"]
    arguments += ["--agent", agent, "--max-sessions", most]
    async with running(arguments, Path("/dev/null")) as url:
        await caller(url, scenario, 0, 1)  # the first one pays for what is loaded late
        print(
            f"{'callers':>7}{'answered':>14}{'gap p50':>8}{'p95':>8}{'cores':>8}"
            f"{'ms/call-s':>13}{'lag p50':>8}{'p99':>8}   (gap and lag in ms)"
        )
        for callers in levels:
            await all_gone(url)
            await one_level(url, scenario, callers, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    parser.add_argument("--rounds", type=int, default=3, help="conversations of each caller")
    parser.add_argument("--agent", default="embedded")
    arguments = parser.parse_args()
    with errors_told():
        asyncio.run(measure(arguments.agent, arguments.callers, arguments.rounds))


if __name__ == "__main__":
    main()

"""What the agent adds to its engines' own time, and what tracing costs.

Plays the same recordings, interleaved, against four agents that run the same engines:

  embedded        as it is shipped
  no marks        the same without turngap's observer: the difference is the cost of tracing
  stock           pipecat's defaults: smart turn, 40 ms chunks, whole sentences
  stock, no smart turn   the same with the VAD's verdict alone

The simulated model is set to a constant time to first token and a rate at which its tokens cost
nothing, so that every agent's engines need the same known time. Overhead is the turn gap less the
VAD's hold and that time. Agents run one after another, in an order that alternates from round to
round (A B C D, D C B A), so that a slow spell of the machine does not hit one of them alone.

    python benchmarks/overhead.py [--rounds 4] [--scenario quick-questions …] [--json FILE]
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from turngap.agent.stack import stack_files
from turngap.caller.pipecat import PipecatDialect
from turngap.core.results import TurnRecord
from turngap.core.stats import percentile
from turngap.harness.replay import Progress, ReplayPlan, replay
from turngap.harness.target import AgentChoice, resolve
from turngap.library import library_dir, load_scenarios, scenario_paths

TTFT_MS = 150.0
STOP_MS = 200.0
ENGINES = (
    f"llm.ttft_ms={TTFT_MS}",
    "llm.jitter=0.0",
    "llm.tokens_per_s=1000",
    "tts.speed_wpm=200",
)


@dataclass(frozen=True)
class Contender:
    """An agent in the comparison."""

    name: str
    choice: AgentChoice


def contenders(folder: Path) -> list[Contender]:
    stock_vad = folder / "stock-vad.toml"
    text = stack_files()["stock"].read_text(encoding="utf-8")
    stock_vad.write_text(
        text.replace('backend = "smart-turn"', 'backend = "vad"').replace(
            'name = "stock"', 'name = "stock-vad"'
        ),
        encoding="utf-8",
    )
    return [
        Contender("embedded", AgentChoice("embedded", sets=ENGINES)),
        Contender("no marks", AgentChoice("embedded", sets=ENGINES, traced=False)),
        Contender("stock", AgentChoice("stock", sets=ENGINES)),
        Contender("stock, no smart turn", AgentChoice(str(stock_vad), sets=ENGINES)),
    ]


async def play(choice: AgentChoice, names: Sequence[str], out: Path) -> list[TurnRecord]:
    folder = library_dir()
    plan = ReplayPlan(
        scenarios=load_scenarios(scenario_paths(folder, names)),
        target=resolve(choice, folder),
        dialect=PipecatDialect(),
        out=out,
    )
    run, failure = await replay(plan, Progress())
    if failure is not None:
        raise failure
    if not run.record.valid:
        print(f"  invalid, counted all the same: {'; '.join(run.record.why_invalid)}")
    return list(run.turns)


def figures(turns: Sequence[TurnRecord]) -> dict[str, float | int | None]:
    """Turns without a reply count as slower than any other; a cut-in has no overhead."""
    gaps = gaps_of(turns)
    failed = sum(t.outcome in ("no_reply", "error") for t in turns)
    over = [gap - STOP_MS - TTFT_MS for gap in gaps]
    return {
        "n": len(over) + failed,
        "gap_p50": percentile(gaps, 0.5, censored=failed).value,
        "overhead_p50": percentile(over, 0.5, censored=failed).value,
        "overhead_p95": percentile(over, 0.95, censored=failed).value,
    }


def gaps_of(turns: Sequence[TurnRecord]) -> list[float]:
    return [t.gap_ms for t in turns if t.outcome in ("answered", "late") and t.gap_ms is not None]


def tracing_cost(traced: Sequence[TurnRecord], plain: Sequence[TurnRecord]) -> float | None:
    """Median over the paired turns of the gap with marks less the gap without."""
    pairs = zip(traced, plain, strict=True)
    shifts = [
        a.gap_ms - b.gap_ms for a, b in pairs if a.gap_ms is not None and b.gap_ms is not None
    ]
    return median(shifts) if shifts else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.scenario or ["quick-questions", "smart-home"]
    turns: dict[str, list[TurnRecord]] = {}
    with tempfile.TemporaryDirectory() as folder:
        line_up = contenders(Path(folder))
        for round_ in range(arguments.rounds):
            for contender in line_up if round_ % 2 == 0 else reversed(line_up):
                print(f"round {round_ + 1} of {arguments.rounds}: {contender.name}", flush=True)
                played = asyncio.run(play(contender.choice, names, Path(folder) / "runs"))
                turns.setdefault(contender.name, []).extend(played)
    results = {name: figures(played) for name, played in turns.items()}
    print(f"\n{'agent':24}{'n':>5}{'gap p50':>10}{'overhead p50':>14}{'p95':>8}")
    for name, row in results.items():
        cells = (row["gap_p50"], row["overhead_p50"], row["overhead_p95"])
        shown = [f"{c:.0f}" if c is not None else "-" for c in cells]
        print(f"{name:24}{row['n']:>5}{shown[0]:>10}{shown[1]:>14}{shown[2]:>8}")
        outcomes = [t.outcome for t in turns[name]]
        print(f"{'':24}{ {o: outcomes.count(o) for o in sorted(set(outcomes))} }")
    cost = tracing_cost(turns["embedded"], turns["no marks"])
    print(f"\ntracing: {cost:+.2f} ms in the median of {len(turns['embedded'])} paired turns")
    if arguments.json:
        document = {"contenders": results, "tracing_cost_ms": cost}
        arguments.json.write_text(json.dumps(document, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()

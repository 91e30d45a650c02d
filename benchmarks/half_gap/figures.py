"""What came of the pieces, agent by agent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from half_gap.contenders import FULL, STOCK, TTFT_MS, UNTRACED
from half_gap.playing import AS
from turngap.core.pairs import Pair, Reading
from turngap.core.ratios import Ratio, gap_ratio
from turngap.core.results import TurnRecord
from turngap.core.scenario import Scenario
from turngap.core.stats import Percentile, Proportion, percentile, proportion
from turngap.library import EXTRA
from turngap.runs import StoredRun, read_run

# The recordings of turns that hold a pause to think.
PAUSED = ("table-booking", "slow-table-booking")
OVERHEAD = "overhead"

Key = tuple[str | int | float, ...]


@dataclass(frozen=True)
class Played:
    """All that one agent played, and what tells its turns apart: piece, scenario, turn, round."""

    name: str
    turns: dict[Key, TurnRecord]


@dataclass(frozen=True)
class Row:
    """An agent's line in the table; None where it did not play what the figure needs."""

    name: str
    n: int
    gap_p50: Percentile
    gap_p95: Percentile
    ratio_p50: Ratio | None
    ratio_p95: Ratio | None
    hits: Proportion
    pauses: Proportion
    slow: Proportion
    yields: Percentile
    barge_ins: int
    false_stops: Proportion
    outcomes: dict[str, int]


@dataclass(frozen=True)
class Overhead:
    """What an agent needs beyond the hold that it chose and its engines' known time."""

    name: str
    n: int
    p50: Percentile
    p95: Percentile


def collect(out: Path, scenarios: dict[str, Scenario]) -> tuple[list[Played], list[Played]]:
    """Every agent that played: with the engines' ordinary times, and with known ones."""
    found: dict[tuple[bool, str], dict[Key, TurnRecord]] = {}
    for run in runs(out):
        name, part = str(run.record.settings[AS]), str(run.record.settings["part"])
        turns = found.setdefault((part == OVERHEAD, name), {})
        piece = run.path.parent.name
        for turn in run.turns:
            if turn.scenario in scenarios:
                turns[(turn.scenario, turn.turn, piece, turn.repeat, turn.phase_ms)] = turn
    ordinary = [Played(name, turns) for (known, name), turns in found.items() if not known]
    return ordinary, [Played(name, turns) for (known, name), turns in found.items() if known]


def runs(out: Path) -> Iterable[StoredRun]:
    """Every run of every piece that is kept in a folder."""
    for record in sorted(out.glob("*/*/run.json")):
        run = read_run(record.parent)
        if AS in run.record.settings:
            yield run


def row(played: Played, stock: Played | None, scenarios: dict[str, Scenario]) -> Row:
    """One line of the table."""
    usual = [t for t in played.turns.values() if EXTRA not in scenarios[t.scenario].tags]
    everything = list(played.turns.values())
    paused = [t for t in everything if is_paused(t)]
    slow = [t for t in everything if "slow" in scenarios[t.scenario].tags and not is_paused(t)]
    yields = [t.yield_ms for t in everything if t.yield_ms is not None]
    backchannels = [b for t in everything for b in t.backchannels]
    gaps = gaps_of(usual)
    silent = sum(t.outcome in ("no_reply", "error") for t in usual)
    pairs = paired(stock, played, scenarios) if stock is not None and stock is not played else []
    return Row(
        name=played.name,
        n=len(usual),
        gap_p50=percentile(gaps, 0.5, censored=silent),
        gap_p95=percentile(gaps, 0.95, censored=silent),
        ratio_p50=gap_ratio(pairs, 0.5) if pairs else None,
        ratio_p95=gap_ratio(pairs, 0.95) if pairs else None,
        hits=proportion(sum(t.outcome == "answered" for t in usual), len(usual)),
        pauses=proportion(sum(t.outcome == "cut_in" for t in paused), len(paused)),
        slow=proportion(sum(t.outcome == "cut_in" for t in slow), len(slow)),
        yields=percentile(yields, 0.5),
        barge_ins=len(yields),
        false_stops=proportion(sum(b.reply_stopped for b in backchannels), len(backchannels)),
        outcomes={o: sum(t.outcome == o for t in usual) for o in {t.outcome for t in usual}},
    )


def is_paused(turn: TurnRecord) -> bool:
    """Whether the person stops to think in the middle of the turn."""
    return turn.scenario == "thinking-aloud" or (turn.scenario in PAUSED and turn.turn == 1)


def gaps_of(turns: Iterable[TurnRecord]) -> list[float]:
    """The gaps of the turns that were answered."""
    return [t.gap_ms for t in turns if t.outcome in ("answered", "late") and t.gap_ms is not None]


def paired(reference: Played, candidate: Played, scenarios: dict[str, Scenario]) -> list[Pair]:
    """The turns that both took in the same piece, of the scenarios that are played by default."""
    return [
        Pair(key, _reading(reference.turns[key]), _reading(turn))
        for key, turn in candidate.turns.items()
        if key in reference.turns and EXTRA not in scenarios[turn.scenario].tags
    ]


def _reading(turn: TurnRecord) -> Reading:
    return Reading(turn.outcome, turn.gap_ms, {s.name: s.ms for s in turn.stages})


def overhead(played: Played, hold_ms: float | None) -> Overhead:
    """Over the answered turns; `hold_ms` where the agent does not say what it held.

    A hold and the LLM's time to first token follow one another, unless the answer was asked for
    while the hold ran: then the longer of both counts from the person's last audible sample.
    """
    over: list[float] = []
    silent = 0
    for turn in played.turns.values():
        silent += turn.outcome in ("no_reply", "error")
        needed = needed_ms(turn, hold_ms)
        if turn.outcome in ("answered", "late") and turn.gap_ms is not None and needed is not None:
            over.append(turn.gap_ms - needed)
    return Overhead(
        played.name,
        len(over) + silent,
        percentile(over, 0.5, censored=silent),
        percentile(over, 0.95, censored=silent),
    )


def needed_ms(turn: TurnRecord, hold_ms: float | None) -> float | None:
    """The gap that the chosen hold and the engines' known time leave no way around."""
    held_ms = turn.counts.get("hold_ms", hold_ms)
    if held_ms is None:
        return None
    marks = {m.name: m.at_ns for m in turn.marks}
    asked_ns, ended_ns = marks.get("llm_request"), marks.get("user_end")
    if asked_ns is None or ended_ns is None:
        return held_ms + TTFT_MS
    asked_ms = (asked_ns - ended_ns) / 1e6
    ahead = asked_ms < held_ms
    return max(held_ms, asked_ms + TTFT_MS) if ahead else held_ms + TTFT_MS


def tracing_cost(known: Sequence[Played]) -> tuple[int, float] | None:
    """Pairs, and the median of the gap with marks less the gap without."""
    named = {played.name: played for played in known}
    if FULL not in named or UNTRACED not in named:
        return None
    traced, plain = named[FULL].turns, named[UNTRACED].turns
    both = [(traced[k].gap_ms, plain[k].gap_ms) for k in traced if k in plain]
    shifts = [a - b for a, b in both if a is not None and b is not None]
    return (len(shifts), median(shifts)) if shifts else None


def of_stock(played: Sequence[Played]) -> Played | None:
    """Stock's."""
    return next((p for p in played if p.name == STOCK), None)

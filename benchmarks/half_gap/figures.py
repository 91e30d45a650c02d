"""What came of the pieces, agent by agent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from half_gap.contenders import FULL, PAUSE_MS, STOCK, STOCK_VAD, TTFT_MS, UNTRACED
from half_gap.playing import AS
from turngap.core.paired import Pair, Ratio, Reading, gap_ratio
from turngap.core.results import Turn
from turngap.core.stats import Percentile, Proportion, percentile, proportion
from turngap.scenario.library import EXTRA
from turngap.scenario.model import Scenario
from turngap.store.runs import Run, read_run

# The recordings of turns that hold a pause to think; of the tables booked, the first turn.
PAUSED = ("second-thoughts", "thinking-aloud")
PAUSED_FIRST = ("table-booking", "slow-table-booking")
# Played with other engines than the rest, and the parts whose turns make a row's gaps.
OVERHEAD, STEPS = "overhead", "steps"
GAPS = ("ratio", STEPS)

# Scenario, turn, part, piece, round, phase.
Key = tuple[str, int, str, str, int, float]


@dataclass(frozen=True)
class Played:
    """All that one agent played with the same engines, by what tells its turns apart."""

    name: str
    turns: Mapping[Key, Turn]


@dataclass(frozen=True)
class Row:
    """An agent's line in the table; None where it did not play what the figure needs."""

    name: str
    n: int
    gap_p50: Percentile
    gap_p95: Percentile
    ratio_p50: Ratio | None
    ratio_p95: Ratio | None
    vad_p50: Ratio | None
    vad_p95: Ratio | None
    hits: Proportion
    pauses: Proportion
    slow: Proportion
    yields: Percentile
    barge_ins: int
    false_stops: Proportion
    ran_dry: Proportion
    starved: Proportion


@dataclass(frozen=True)
class Overhead:
    """What an agent needs beyond the hold that it chose and its engines' known time."""

    name: str
    n: int
    p50: Percentile
    p95: Percentile
    late_p95: Percentile


@dataclass(frozen=True)
class Collected:
    """Every agent that played, by the engines that it had."""

    library: list[Played]
    steps: list[Played]
    known: list[Played]


def collect(out: Path, scenarios: Mapping[str, Scenario]) -> Collected:
    """Read the pieces that are kept in a folder."""
    found: dict[str, dict[str, dict[Key, Turn]]] = {"": {}, STEPS: {}, OVERHEAD: {}}
    for run in runs(out):
        name, part = str(run.record.settings[AS]), str(run.record.settings["part"])
        turns = found[part if part in found else ""].setdefault(name, {})
        for t in run.turns:
            if t.scenario in scenarios:
                turns[t.scenario, t.turn, part, run.path.parent.name, t.repeat, t.phase_ms] = t
    groups = ([Played(*item) for item in group.items()] for group in found.values())
    return Collected(*groups)


def runs(out: Path) -> Iterable[Run]:
    """Every run of every piece that is kept in a folder."""
    for record in sorted(out.glob("*/*/run.json")):
        run = read_run(record.parent)
        if AS in run.record.settings:
            yield run


def row(played: Played, others: Sequence[Played], scenarios: Mapping[str, Scenario]) -> Row:
    """One line of the table; gaps are of the conversations that are played by default."""
    usual = [t for k, t in played.turns.items() if _is_usual(k, scenarios)]
    everything = list(played.turns.values())
    paused = [t for t in everything if is_paused(t)]
    slow = [t for t in everything if "slow" in scenarios[t.scenario].tags and not is_paused(t)]
    yields = [t.yield_ms for t in everything if t.yield_ms is not None]
    backchannels = [b for t in everything for b in t.backchannels]
    gaps = gaps_of(usual)
    silent = sum(t.outcome in ("no_reply", "error") for t in usual)

    def to(name: str, q: float) -> Ratio | None:
        reference = next((p for p in others if p.name == name and p is not played), None)
        pairs = [] if reference is None else paired(reference, played, scenarios)
        return gap_ratio(pairs, q) if pairs else None

    return Row(
        name=played.name,
        n=len(usual),
        gap_p50=percentile(gaps, 0.5, censored=silent),
        gap_p95=percentile(gaps, 0.95, censored=silent),
        ratio_p50=to(STOCK, 0.5),
        ratio_p95=to(STOCK, 0.95),
        vad_p50=to(STOCK_VAD, 0.5),
        vad_p95=to(STOCK_VAD, 0.95),
        hits=proportion(sum(t.outcome == "answered" for t in usual), len(usual)),
        pauses=proportion(sum(t.outcome == "cut_in" for t in paused), len(paused)),
        slow=proportion(sum(t.outcome == "cut_in" for t in slow), len(slow)),
        yields=percentile(yields, 0.5),
        barge_ins=len(yields),
        false_stops=proportion(sum(b.reply_stopped for b in backchannels), len(backchannels)),
        ran_dry=proportion(
            sum(t.counts.get("ran_dry", 0) > 0 for t in everything), len(everything)
        ),
        starved=proportion(sum(t.pacing.starved for t in everything), len(everything)),
    )


def _is_usual(key: Key, scenarios: Mapping[str, Scenario]) -> bool:
    scenario, _, part, *_ = key
    return part in GAPS and EXTRA not in scenarios[scenario].tags


def is_paused(turn: Turn) -> bool:
    """Whether the person stops to think in the middle of the turn."""
    return turn.scenario in PAUSED or (turn.scenario in PAUSED_FIRST and turn.turn == 1)


def gaps_of(turns: Iterable[Turn]) -> list[float]:
    """The gaps of the turns that were answered."""
    return [t.gap_ms for t in turns if t.replied and t.gap_ms is not None]


def paired(reference: Played, candidate: Played, scenarios: Mapping[str, Scenario]) -> list[Pair]:
    """The turns that both took in the same piece, of the scenarios that are played by default."""
    return [
        Pair(key, _reading(reference.turns[key]), _reading(turn))
        for key, turn in candidate.turns.items()
        if key in reference.turns and _is_usual(key, scenarios)
    ]


def _reading(turn: Turn) -> Reading:
    return Reading(turn.outcome, turn.gap_ms, {s.name: s.ms for s in turn.stages})


def overhead(played: Played, hold_ms: float | None) -> Overhead:
    """Over the answered turns; `hold_ms` where the agent does not say what it held.

    A hold and the LLM's time to first token follow one another, unless the answer was asked for
    while the hold ran: then the longer of both counts from the person's last audible sample.
    """
    over: list[float] = []
    late: list[float] = []
    silent = 0
    for turn in played.turns.values():
        silent += turn.outcome in ("no_reply", "error")
        needed = needed_ms(turn, hold_ms)
        if turn.replied and turn.gap_ms is not None and needed is not None:
            over.append(turn.gap_ms - needed)
            late.append(turn.gap_ms - min(needed, soonest_ms(turn, needed)))
    return Overhead(
        played.name,
        len(over) + silent,
        percentile(over, 0.5, censored=silent),
        percentile(over, 0.95, censored=silent),
        percentile(late, 0.95, censored=silent),
    )


def soonest_ms(turn: Turn, needed: float) -> float:
    """What would do if a guess were made at the first sign of silence, and never later."""
    held_ms = turn.counts.get("hold_ms")
    return needed if held_ms is None else max(held_ms, PAUSE_MS + TTFT_MS)


def needed_ms(turn: Turn, hold_ms: float | None) -> float | None:
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

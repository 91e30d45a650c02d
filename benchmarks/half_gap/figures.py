"""Figures of the pieces, agent by agent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from half_gap.contenders import FULL, PAUSE_MS, STOCK, STOCK_VAD, TTFT_MS, UNTRACED
from half_gap.playing import AS
from half_gap.ratios import Ratio, gap_ratio
from turngap.core.cut_ins import EarlyTurns, early_turns
from turngap.core.paired import Pair, Reading
from turngap.core.results import Turn
from turngap.core.stats import (
    Percentile,
    Proportion,
    percentile,
    percentile_of,
    proportion,
    proportion_of,
)
from turngap.scenario.model import EXTRA, Scenario
from turngap.store.runs import Run, read_run

# The recordings of turns that hold a pause to think; of the tables booked, the first turn.
PAUSED = ("second-thoughts", "thinking-aloud")
PAUSED_FIRST = ("table-booking", "slow-table-booking")
# So long smart turn waits after a turn that it calls incomplete (`turn.wait_secs`).
WAIT_MS = 3000.0

PEOPLE, OVERHEAD, STEPS, LIBRARY = "people", "overhead", "steps", "library"


class Key(NamedTuple):
    """Key of a turn among all others of its agent.

    `piece` is its folder; "" in virtual time, where turns are alike whenever they are played.
    """

    scenario: str
    turn: int
    part: str
    piece: str
    repeat: int
    phase_ms: float


class Group(NamedTuple):
    """Key of turns that compare: the same recordings and engines, in the same time.

    `what` is `people`, `steps`, `overhead`, or `library` for all other parts.
    """

    what: str
    condition: str
    virtual: bool


@dataclass(frozen=True)
class Played:
    """All that one agent played in a group, by what tells its turns apart."""

    name: str
    turns: Mapping[Key, Turn]

    def only(self, keys: Iterable[Key]) -> "Played":
        """Return part of it."""
        return Played(self.name, {key: self.turns[key] for key in keys})


@dataclass(frozen=True)
class Row:
    """Both halves of an agent: how soon it answers, and whether it lets people finish.

    Attributes:
        n: turns.
        unwaited_p95: the gap's p95 without the turns after which smart turn waited its 3 s.
        ratio_p50, ratio_p95: to stock; vad_p50, vad_p95: to stock without smart turn; None for an
            agent beside which that one did not play.
        early: turns with a heard cut-in, and with a false endpoint.
        wordless: turns of which the agent reported no word.
    """

    name: str
    n: int
    gap_p50: Percentile
    gap_p95: Percentile
    unwaited_p95: Percentile
    ratio_p50: Ratio | None
    ratio_p95: Ratio | None
    vad_p50: Ratio | None
    vad_p95: Ratio | None
    hits: Proportion
    early: EarlyTurns
    wordless: Proportion


@dataclass(frozen=True)
class Manners:
    """Behaviour where people pause, speak slowly, interrupt or say "mm-hmm"."""

    name: str
    pauses: Proportion
    slow: Proportion
    yields: Percentile
    barge_ins: int
    false_stops: Proportion
    ran_dry: Proportion
    starved: Proportion


@dataclass(frozen=True)
class Overhead:
    """Time beyond the hold that the agent chose and its engines' known time."""

    name: str
    n: int
    p50: Percentile
    p95: Percentile
    late_p95: Percentile


def collect(out: Path) -> dict[Group, list[Played]]:
    """Read the pieces that are kept in a folder; what was played later replaces its like."""
    found: dict[Group, dict[str, dict[Key, Turn]]] = {}
    for run in runs(out):
        settings = run.record.settings
        part, condition = str(settings["part"]), str(settings["condition"])
        what = part if part in (PEOPLE, STEPS, OVERHEAD) else LIBRARY
        virtual = bool(settings["virtual"])
        group = found.setdefault(Group(what, condition, virtual), {})
        turns = group.setdefault(str(settings[AS]), {})
        piece = "" if virtual else run.path.parent.name
        for t in run.turns:
            turns[Key(t.scenario, t.turn, part, piece, t.repeat, t.phase_ms)] = t
    return {
        group: [Played(name, turns) for name, turns in agents.items()]
        for group, agents in sorted(found.items())
    }


def runs(out: Path) -> Iterable[Run]:
    """Every run of every piece that is kept in a folder."""
    for record in sorted(out.glob("*/*/run.json")):
        run = read_run(record.parent)
        if AS in run.record.settings:
            yield run


def usual(played: Played, scenarios: Mapping[str, Scenario]) -> Played:
    """Return the conversations that are played by default, of the library's part."""
    return played.only(
        key
        for key in played.turns
        if key.part == "ratio"
        and key.scenario in scenarios
        and EXTRA not in scenarios[key.scenario].tags
    )


def row(played: Played, others: Sequence[Played]) -> Row:
    """One line of the table. Takes of one recording count as what they tell together."""
    turns = list(played.turns.values())
    takes = [t.take for t in turns]

    def to(name: str, q: float) -> Ratio | None:
        reference = next((p for p in others if p.name == name and p is not played), None)
        pairs = [] if reference is None else paired(reference, played)
        return gap_ratio(pairs, q) if pairs else None

    return Row(
        name=played.name,
        n=len(turns),
        gap_p50=_gap(turns, 0.5),
        gap_p95=_gap(turns, 0.95),
        unwaited_p95=_gap([t for t in turns if t.stage_ms.get("endpoint", 0.0) < WAIT_MS], 0.95),
        ratio_p50=to(STOCK, 0.5),
        ratio_p95=to(STOCK, 0.95),
        vad_p50=to(STOCK_VAD, 0.5),
        vad_p95=to(STOCK_VAD, 0.95),
        hits=proportion_of([t.outcome == "answered" for t in turns], takes),
        early=early_turns(turns),
        wordless=proportion_of([not t.transcript.strip() for t in turns], takes),
    )


def _gap(turns: Sequence[Turn], q: float) -> Percentile:
    """Return gaps of turns that were due a reply; one without counts as slower than any."""
    due = [t for t in turns if t.replied or t.outcome in ("no_reply", "error")]
    gaps = [inf if t.gap_ms is None or not t.replied else t.gap_ms for t in due]
    return percentile_of(gaps, [t.take for t in due], q)


def paired(reference: Played, candidate: Played) -> list[Pair]:
    """Return the turns that both took in the same piece.

    Rounds of a recording are played at other positions on the grid, and differ in little else. So
    it is the recordings that are resampled, with all their rounds.
    """
    return [
        Pair((key.scenario, key.turn), _reading(reference.turns[key]), _reading(turn))
        for key, turn in candidate.turns.items()
        if key in reference.turns
    ]


def _reading(turn: Turn) -> Reading:
    return Reading(turn.outcome, turn.gap_ms, turn.stage_ms)


def manners(played: Played, scenarios: Mapping[str, Scenario]) -> Manners:
    """Over everything that an agent played of the library."""
    everything = [t for t in played.turns.values() if t.scenario in scenarios]
    paused = [t for t in everything if is_paused(t)]
    slow = [t for t in everything if "slow" in scenarios[t.scenario].tags and not is_paused(t)]
    yields = [t.yield_ms for t in everything if t.yield_ms is not None]
    backchannels = [b for t in everything for b in t.backchannels]
    dry = sum(t.counts.get("ran_dry", 0) > 0 for t in everything)
    return Manners(
        name=played.name,
        pauses=early_turns(paused).heard,
        slow=early_turns(slow).heard,
        yields=percentile(yields, 0.5),
        barge_ins=len(yields),
        false_stops=proportion(sum(b.reply_stopped for b in backchannels), len(backchannels)),
        ran_dry=proportion(dry, len(everything)),
        starved=proportion(sum(t.pacing.starved for t in everything), len(everything)),
    )


def is_paused(turn: Turn) -> bool:
    """Check whether the person stops to think in the middle of the turn."""
    return turn.scenario in PAUSED or (turn.scenario in PAUSED_FIRST and turn.turn == 1)


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
    """Return the least time if a guess is made at the first sign of silence, and never later."""
    held_ms = turn.counts.get("hold_ms")
    return needed if held_ms is None else max(held_ms, PAUSE_MS + TTFT_MS)


def needed_ms(turn: Turn, hold_ms: float | None) -> float | None:
    """Return the gap that the chosen hold and the engines' known time make inevitable."""
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

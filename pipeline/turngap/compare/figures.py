"""Backends over the same recordings in figures: how quick, how often right, at what price."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Generic, Literal, TypeVar

import numpy as np

from turngap.compare.chain import (
    LogRatio,
    TurnFigures,
    crossing,
    expected_ms,
    expected_usd,
    success,
)
from turngap.compare.record import (
    BackendRecord,
    ChainRecord,
    CrossingRecord,
    PairRecord,
    PriceRecord,
)
from turngap.core.budget import SILENT
from turngap.core.results import Turn
from turngap.core.stats import (
    CONFIDENCE,
    Percentile,
    Proportion,
    Take,
    percentile_of,
    proportion_of_takes,
)
from turngap.core.summary import counted_turns, due_ms, summarise

# Lengths of a task that are shown.
LENGTHS = (1, 2, 3, 5, 10, 20)

NO_TOKENS = "the agent did not say how many tokens it used"
NO_PRICE = "the backend has no price (--price NAME=IN,OUT)"
PART_WITHOUT_PRICE = "a part of it has no price"
NONE_RIGHT = "no answer was right"
NONE_JUDGED = "no turn was judged with both"
NONE_PLAYED = "no turn was played with both"
NEITHER_RIGHT = "neither was ever right, and no task gets done with either"
BOTH_ALIKE = "they cost the same and are right as often"

# A turn's counts of tokens that an LLM has read and written.
READ = ("llm_prompt_tokens", "unreported_prompt_tokens", "warm_prompt_tokens")
SAID = ("llm_completion_tokens", "unreported_completion_tokens", "warm_requests")

# A turn's count of answers that another part of a combined backend gave, since one had failed.
FELL_BACK = "combined_fell_back"

# US dollars per million input and output tokens.
UsdPerMillion = tuple[float, float]


def backend_figures(
    name: str, turns: Sequence[Turn], price: UsdPerMillion | None, **about: str | bool
) -> BackendRecord:
    """What one backend did over its turns; `about` are the record's other fields."""
    summary = summarise(turns)
    counted = counted_turns(turns)
    gaps = summary.gap_ms
    llm = summary.llm
    errors = [t.error for t in turns if t.error is not None]
    took = [ms for t in counted if (ms := turn_ms(t)) is not None]
    return BackendRecord.model_validate(
        {
            "name": name,
            "turns": summary.turns,
            "outcomes": summary.outcomes,
            "failed": len(errors),
            "first_failure": errors[0] if errors else None,
            "fell_back": sum(t.counts.get(FELL_BACK, 0) > 0 for t in turns),
            "hit_rate": summary.hit_rate,
            "cut_ins": summary.cut_ins,
            "gap_n": summary.gap_n,
            "gap_ms": {q: gaps[q] for q in ("p50", "p95")},
            "first_answer_ms": first_answer(counted),
            "llm_n": llm.n if llm else 0,
            "ttft_ms": llm.ttft_ms if llm else None,
            "tokens_per_s": llm.per_s if llm else None,
            "window_tokens": llm.in_window if llm else None,
            "correct": summary.right,
            "not_judged": summary.not_judged,
            "turn_ms": fmean(took) if took else None,
            "price": price_of(counted, price),
            **about,
        }
    )


def turn_ms(turn: Turn) -> float | None:
    """From the person's first word to the agent's last; None without a reply that was heard out."""
    if not turn.replied:
        return None
    starts = [e["start_ns"] for e in turn.events if e.get("event") == "UserSpeech"]
    ends = [e["at_ns"] for e in turn.events if e.get("event") == "AgentSilence"]
    # A reply that the next turn broke off was still heard when its events end.
    return (max(ends) - starts[-1]) / 1e6 if starts and ends and max(ends) > starts[-1] else None


def first_answer_ms(turn: Turn) -> float | None:
    """To the first audio of the answer itself; endless and None as in the gap.

    It is the gap, plus what an opener took that was spoken before the answer (`opener_ms`).
    """
    due = due_ms(turn)
    return None if due is None else due + turn.counts.get("opener_ms", 0.0)


def first_answer(turns: Sequence[Turn]) -> Percentile:
    """The median of it, ms, over the turns that have it."""
    firsts = [(t.take, ms) for t in turns if (ms := first_answer_ms(t)) is not None]
    return percentile_of([ms for _, ms in firsts], [take for take, _ in firsts], 0.5)


def turn_usd(turn: Turn, price: UsdPerMillion | None) -> float | str:
    """What a turn's tokens cost, or why that is not known.

    All that was asked for it is paid for: answers that became void, those that the service never
    told the tokens of too (as estimated), and the prompts that were read ahead, for one token each.
    """
    if "combined_requests" in turn.counts:
        if turn.counts.get("combined_unpriced_tokens", 0):
            return PART_WITHOUT_PRICE
        return turn.counts.get("combined_usd", 0.0)
    if price is None:
        return NO_PRICE
    if "llm_prompt_tokens" not in turn.counts:
        return NO_TOKENS
    read, said = (sum(turn.counts.get(name, 0.0) for name in names) for names in (READ, SAID))
    return (read * price[0] + said * price[1]) / 1e6


def price_of(turns: Sequence[Turn], price: UsdPerMillion | None) -> PriceRecord:
    """The mean price of a turn, and of a right answer: what all turns cost by those judged right.

    A price that some of the turns lack is none.
    """
    # A turn in which the agent was never asked, as one that it slept through, used no tokens.
    asked = [t for t in turns if t.outcome not in SILENT or t.counts]
    each = [turn_usd(t, price) for t in asked]
    unknown = Counter(usd for usd in each if isinstance(usd, str))
    if unknown or not each:
        why = "; ".join(f"{why} ({n} of {len(each)} turns)" for why, n in unknown.items())
        return PriceRecord(usd_per_turn=None, usd_per_right=None, why_none=why or "no turns")
    usd = [float(u) for u in each]
    judged = [t for t in turns if t.answer.verdict != "not_judged"]
    right = sum(t.answer.verdict == "right" for t in judged)
    mean = sum(usd) / len(turns)
    return PriceRecord(
        usd_per_turn=mean,
        usd_per_right=mean * len(judged) / right if right else None,
        why_none=None if right else NONE_RIGHT,
    )


def chain_of(backends: Sequence[BackendRecord]) -> tuple[ChainRecord, ...]:
    """A task of several turns with each backend whose answers were judged."""
    return tuple(
        ChainRecord(
            name=backend.name,
            success={n: success(figures.right, n) for n in LENGTHS},
            success_low={n: success(backend.correct.low or 0.0, n) for n in LENGTHS},
            success_high={n: success(backend.correct.high or 0.0, n) for n in LENGTHS},
            ms={n: _finite(expected_ms(figures, n)) for n in LENGTHS},
            usd={n: _finite(expected_usd(figures, n)) for n in LENGTHS},
        )
        for backend in backends
        if (figures := chain_figures(backend)) is not None
    )


def chain_figures(backend: BackendRecord) -> TurnFigures | None:
    """One backend's turns as a chain sees them; None where they were not judged or not heard."""
    right, ms = backend.correct.value, backend.turn_ms
    if right is None or ms is None:
        return None
    return TurnFigures(right=right, ms=ms, usd=backend.price.usd_per_turn)


@dataclass(frozen=True, slots=True)
class Side:
    """One backend's turns, and its price per million tokens in and out, if it has one."""

    name: str
    turns: Sequence[Turn]
    price: UsdPerMillion | None


def pairs_of(sides: Sequence[Side]) -> tuple[PairRecord, ...]:
    """Each two backends beside each other, turn by turn."""
    return tuple(
        _pair(one.name, other.name, counted_turns(one.turns), counted_turns(other.turns))
        for one, other in combinations(sides, 2)
    )


def _pair(one: str, other: str, turns: Sequence[Turn], others: Sequence[Turn]) -> PairRecord:
    judged = paired(taken(turns, lambda t: t.right), taken(others, lambda t: t.right))
    gaps = paired(taken(turns, due_ms), taken(others, due_ms))
    cut_ins = paired(taken(turns, _cut_in), taken(others, _cut_in))
    both = list(zip(judged.one, judged.other, strict=True))
    # Two without a reply are neither of them slower.
    apart = [
        0.0 if mine == its else mine - its for mine, its in zip(gaps.one, gaps.other, strict=True)
    ]
    return PairRecord(
        one=one,
        other=other,
        right_n=len(judged),
        right_recorded=judged.recorded,
        only_one=both.count((True, False)),
        only_other=both.count((False, True)),
        right=_apart_by(judged, NONE_JUDGED),
        gap_n=len(gaps),
        gap_recorded=gaps.recorded,
        gap_ms=percentile_of(apart, gaps.takes, 0.5),
        cut_ins=_apart_by(cut_ins, NONE_PLAYED),
    )


def _cut_in(turn: Turn) -> bool:
    return turn.outcome == "cut_in"


def _apart_by(pairs: "Pairs[bool]", why_none: str) -> Percentile:
    """The difference of two shares with its interval; None without a pair, for this reason."""
    found = difference(pairs)
    return Percentile(None, why_none=why_none) if found is None else Percentile(*found)


def crossings(sides: Sequence[Side]) -> list[CrossingRecord]:
    """For each two backends, in time and in price: how long a task one overtakes the other at.

    The leader is who costs less for a single turn, wrong answers not counted; it may stay ahead.
    All figures are of the turns that both have; what one of them lacks is compared for neither.
    """
    return [
        found
        for one, other in combinations(sides, 2)
        for what in ("time", "price")
        if (found := _crossing(one, other, what)) is not None
    ]


def _crossing(one: Side, other: Side, what: Literal["time", "price"]) -> CrossingRecord | None:
    turns, others = counted_turns(one.turns), counted_turns(other.turns)
    judged = paired(taken(turns, lambda t: t.right), taken(others, lambda t: t.right))
    right = right_ratio(judged)
    if what == "time":
        cost = mean_ratio(paired(taken(turns, turn_ms), taken(others, turn_ms)))
    else:
        cost = _price_ratio(one, other)
    if right is None or cost is None:
        return None
    # Who costs as much and is more often right is ahead of the other from the first turn on.
    leads = cost.value < 0 or (cost.value == 0 and right.value >= 0)
    leader, follower = (one, other) if leads else (other, one)
    if leads:
        right, cost = inverse(right), inverse(cost)
    why = None
    if not any(judged.one) and not any(judged.other):
        why = NEITHER_RIGHT
    elif cost.value == 0 and right.value == 0:
        why = BOTH_ALIKE
    at = crossing(right, cost)
    return CrossingRecord(
        what=what,
        leader=leader.name,
        follower=follower.name,
        turns=None if why else at.turns,
        earliest=at.earliest,
        latest=at.latest,
        longest=at.longest,
        n=len(judged),
        why_none=why,
    )


def _price_ratio(one: Side, other: Side) -> LogRatio | None:
    """How many times as dear the one's turns are; None where the price of a turn is not known."""
    if any(price_of(counted_turns(s.turns), s.price).usd_per_turn is None for s in (one, other)):
        return None

    def usd(side: Side) -> dict[Take, float]:
        # Whose price is not known was never asked, and used nothing.
        return taken(
            counted_turns(side.turns),
            lambda turn: found if isinstance(found := turn_usd(turn, side.price), float) else 0.0,
        )

    return mean_ratio(paired(usd(one), usd(other)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# Two backends over the same turns: by how much they differ, and how many times as much one has.
#
# What both heard is as hard for the one as for the other. Taken turn by turn, that cancels out: the
# difference is known better than either figure.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Pairs(Generic[Value]):
    """A value of each of two backends in each take that has both."""

    takes: tuple[Take, ...]
    one: tuple[Value, ...]
    other: tuple[Value, ...]

    def __len__(self) -> int:
        return len(self.takes)

    @property
    def turns(self) -> tuple[Hashable, ...]:
        """Of each take, the recorded turn; rounds are takes of the same ones."""
        return tuple((scenario, turn) for scenario, turn, _ in self.takes)

    @property
    def recorded(self) -> int:
        return len(set(self.turns))


def taken(turns: Sequence[Turn], value: Callable[[Turn], Value | None]) -> dict[Take, Value]:
    """The value of each take that has one."""
    return {turn.take: found for turn in turns if (found := value(turn)) is not None}


def paired(one: Mapping[Take, Value], other: Mapping[Take, Value]) -> Pairs[Value]:
    """The takes of the same turn in the same round that both have."""
    both = [take for take in one if take in other]
    return Pairs(
        takes=tuple(both),
        one=tuple(one[take] for take in both),
        other=tuple(other[take] for take in both),
    )


def difference(pairs: Pairs[bool]) -> tuple[float, float, float] | None:
    """The one's share less the other's, with a 95 % interval; None without a pair.

    Wilson's limits of each share and how often the two are right together (Newcombe 1998, method
    10), which never makes an interval of no width of a few turns.
    """
    if not pairs:
        return None
    one, other = _share(pairs.turns, pairs.one), _share(pairs.turns, pairs.other)
    (p, low, high), (its, its_low, its_high), phi = one, other, _agreement(pairs)
    down = _apart(p - low, its_high - its, phi)
    up = _apart(high - p, its - its_low, phi)
    return p - its, max(-1.0, p - its - down), min(1.0, p - its + up)


def right_ratio(pairs: Pairs[bool]) -> LogRatio | None:
    """How many times as often the one is right as the other; None without a pair.

    The interval as in `difference`, of the logarithms. Where one of them was never right it is the
    one that takes both at the ends of their own.
    """
    if not pairs:
        return None
    one, other = _share(pairs.turns, pairs.one), _share(pairs.turns, pairs.other)
    (p, low, high), (its, its_low, its_high) = map(_logs, one), map(_logs, other)
    if not math.isfinite(p) or not math.isfinite(its):
        value = 0.0 if p == its else p - its
        return LogRatio(value, low - its_high, high - its_low)
    phi = _agreement(pairs)
    down, up = _apart(p - low, its_high - its, phi), _apart(high - p, its - its_low, phi)
    return LogRatio(p - its, p - its - down, p - its + up)


def mean_ratio(pairs: Pairs[float]) -> LogRatio | None:
    """The one's mean by the other's, of what is never less than 0; None without a pair.

    The interval is Student's, of the linearised ratio over the recorded turns (over the takes where
    all are of one turn); of a single one nothing is known.
    """
    if not pairs:
        return None
    groups = _groups(pairs.turns, tuple(zip(pairs.one, pairs.other, strict=True)))
    if len(groups) == 1:
        groups = [[pair] for pair in groups[0]]
    ours = np.array([fmean(mine for mine, _ in group) for group in groups])
    others = np.array([fmean(its for _, its in group) for group in groups])
    mine, its = float(ours.mean()), float(others.mean())
    if mine == 0 or its == 0:
        value = 0.0 if mine == its else -math.inf if mine == 0 else math.inf
        return LogRatio(value, value, value)
    value, n = math.log(mine / its), len(groups)
    if n == 1:
        return LogRatio(value, -math.inf, math.inf)
    from scipy.stats import t

    spread = float(np.std(ours / mine - others / its, ddof=1)) / math.sqrt(n)
    half = float(t.isf((1 - CONFIDENCE) / 2, n - 1)) * spread
    return LogRatio(value, value - half, value + half)


def inverse(ratio: LogRatio) -> LogRatio:
    """The other by the one."""
    return LogRatio(-ratio.value, -ratio.high, -ratio.low)


def _share(turns: Sequence[Hashable], right: Sequence[bool]) -> tuple[float, float, float]:
    p: Proportion = proportion_of_takes(_groups(turns, right))
    return p.value or 0.0, p.low or 0.0, 1.0 if p.high is None else p.high


def _groups(turns: Sequence[Hashable], values: Sequence[Value]) -> list[list[Value]]:
    groups: dict[Hashable, list[Value]] = {}
    for turn, value in zip(turns, values, strict=True):
        groups.setdefault(turn, []).append(value)
    return list(groups.values())


def _agreement(pairs: Pairs[bool]) -> float:
    """Phi, the correlation of being right, with Newcombe's correction for continuity.

    Of the recorded turns: repeating them shows no more agreement than there is.
    """
    weight = len(set(pairs.turns)) / len(pairs)
    both, mine, its, none = (
        weight * sum(pair == cell for pair in zip(pairs.one, pairs.other, strict=True))
        for cell in ((True, True), (True, False), (False, True), (False, False))
    )
    apart = math.sqrt((both + mine) * (its + none) * (both + its) * (mine + none))
    if apart == 0:
        return 0.0
    together = both * none - mine * its
    if together > 0:
        together = max(0.0, together - weight * len(pairs) / 2)
    return together / apart


def _apart(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))


def _logs(share: float) -> float:
    return math.log(share) if share > 0 else -math.inf

"""Figures of backends over the same recordings: how quick, how often right, at what price."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any, Literal

from turngap.compare.side_by_side import (
    CUT_IN,
    DUE,
    RIGHT,
    Doubt,
    LogRatio,
    Pairs,
    TurnFigures,
    crossing,
    difference,
    expected_ms,
    expected_usd,
    hull,
    inverse,
    mean_ratio,
    paired,
    ratio_hull,
    right_ratio,
    starvation_between,
    success,
    taken,
    told_apart,
)
from turngap.core.budget import SILENT
from turngap.core.clusters import Take
from turngap.core.counts import CACHE_READ, CACHE_READ_NET, CACHE_WRITTEN
from turngap.core.results import Turn
from turngap.core.stats import Percentile, percentile_of
from turngap.core.summary import counted_turns, due_ms, due_percentile, summarise
from turngap.store.comparisons import (
    INCONCLUSIVE,
    BackendRecord,
    ChainRecord,
    CrossingRecord,
    PairRecord,
    PriceRecord,
)

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

# US dollars per million input and output tokens, and per million input tokens from a cache.
UsdPerMillion = tuple[float, float] | tuple[float, float, float]
# What Anthropic's prices of tokens that are read from its cache, or written to it, are to the
# input's (its documentation, "Prompt caching", writes that last for five minutes).
CACHED_READ, CACHED_WRITE = 0.1, 1.25


def backend_figures(
    name: str, turns: Sequence[Turn], price: UsdPerMillion | None, **about: Any
) -> BackendRecord:
    """Summarise one backend over its turns; `about` holds the record's other fields."""
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
    """Return the time from the person's first word to the agent's last.

    Return None without a reply that was played to its end.
    """
    if not turn.replied:
        return None
    starts, ends = turn.instants("UserSpeech", "start_ns"), turn.instants("AgentSilence")
    # A reply that the next turn broke off was still heard when its events end.
    return (max(ends) - starts[-1]) / 1e6 if starts and ends and max(ends) > starts[-1] else None


TURN_MS = Doubt(
    turn_ms,
    lambda turn: None if (ms := turn_ms(turn)) is None else max(0.0, ms - turn.pacing.error_ms),
)


def first_answer_ms(turn: Turn) -> float | None:
    """Return the time to the first audio of the answer; infinite and None as in `due_ms`.

    It is the gap, plus the time of an opener that was spoken before the answer (`opener_ms`).
    """
    due = due_ms(turn)
    return None if due is None else due + turn.counts.get("opener_ms", 0.0)


def first_answer(turns: Sequence[Turn]) -> Percentile:
    """Return the median time to the first answer, in ms, over the turns that have one."""
    return due_percentile([(ms, t) for t in turns if (ms := first_answer_ms(t)) is not None], 0.5)


def turn_usd(turn: Turn, price: UsdPerMillion | None) -> float | str:
    """Return the price of a turn's tokens, or why it is not known.

    Every request counts: answers that became void, those for which the service never reported
    tokens (as estimated), and the prompts that were read ahead, for one token each.
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
    plain, cheap, written = (
        turn.counts.get(name, 0.0) for name in (CACHE_READ, CACHE_READ_NET, CACHE_WRITTEN)
    )
    # Without a price of their own, what others than Anthropic cache is paid in full.
    given = price[2] if len(price) > 2 else None
    read_usd = read * price[0] + plain * ((price[0] if given is None else given) - price[0])
    read_usd += cheap * ((CACHED_READ * price[0] if given is None else given) - price[0])
    read_usd += written * (CACHED_WRITE - 1) * price[0]
    return (read_usd + said * price[1]) / 1e6


def price_of(turns: Sequence[Turn], price: UsdPerMillion | None) -> PriceRecord:
    """Compute the mean price of a turn, and the price of all turns per right answer.

    If some of the turns have no price, neither price is known.
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
    """Estimate a task of several turns with each backend whose answers were judged."""
    return tuple(
        ChainRecord(
            name=backend.name,
            success={n: success(figures.right, n) for n in LENGTHS},
            success_low={n: success(backend.correct.low or 0.0, n) for n in LENGTHS},
            success_high={n: success(1.0 if high is None else high, n) for n in LENGTHS},
            ms={n: _finite(expected_ms(figures, n)) for n in LENGTHS},
            usd={n: _finite(expected_usd(figures, n)) for n in LENGTHS},
        )
        for backend, high in ((backend, backend.correct.high) for backend in backends)
        if (figures := chain_figures(backend)) is not None
    )


def chain_figures(backend: BackendRecord) -> TurnFigures | None:
    """Reduce a backend to its figures for a chain; None if its turns were not judged or heard."""
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
    """Compare every two backends, turn by turn."""
    return tuple(_pair(one, other) for one, other in combinations(sides, 2))


def _pair(one: Side, other: Side) -> PairRecord:
    turns, others = counted_turns(one.turns), counted_turns(other.turns)
    caller = starvation_between(turns, others)
    gaps, cut_ins = DUE.ends(turns, others), CUT_IN.ends(turns, others)
    judged = RIGHT.ends(turns, others)
    both = list(zip(judged[0].one, judged[0].other, strict=True))
    no_turns, none_judged = (Percentile(None, why_none=w) for w in (NONE_PLAYED, NONE_JUDGED))
    read = {
        "the gap": [_median_apart(pairs) for pairs in gaps],
        "cut-ins": [difference(pairs) or no_turns for pairs in cut_ins],
        "right answers": [difference(pairs) or none_judged for pairs in judged],
    }
    found = {name: hull(ends) for name, ends in read.items()}
    why = caller.why_not(other.name, one.name)
    if why is not None:
        found = {name: Percentile(None, why_none=INCONCLUSIVE) for name in found}
    elif doubted := [
        name for name, ends in read.items() if told_apart(ends[0]) and not told_apart(found[name])
    ]:
        why = f"the caller's own lateness may have made the difference in {' and '.join(doubted)}"
    return PairRecord(
        one=one.name,
        other=other.name,
        right_n=len(both),
        right_recorded=judged[0].recorded,
        only_one=both.count((True, False)),
        only_other=both.count((False, True)),
        right=found["right answers"],
        gap_n=len(gaps[0]),
        gap_recorded=gaps[0].recorded,
        gap_ms=found["the gap"],
        cut_ins=found["cut-ins"],
        caller=caller,
        inconclusive=why,
    )


def _median_apart(pairs: Pairs[float]) -> Percentile:
    # Two without a reply are neither of them slower.
    apart = [
        0.0 if mine == its else mine - its for mine, its in zip(pairs.one, pairs.other, strict=True)
    ]
    return percentile_of(apart, pairs.takes, 0.5)


def crossings(sides: Sequence[Side]) -> list[CrossingRecord]:
    """Find, for every two backends, the length of task at which one overtakes the other.

    This is done for time and for price. The leader is the one that costs less for a single turn,
    wrong answers not counted; it may stay ahead. All figures are over the turns that both have. If
    the caller was too late to compare two backends, they have no crossing.
    """
    return [
        found
        for one, other in combinations(sides, 2)
        if _refused(one, other) is None
        for what in ("time", "price")
        if (found := _crossing(one, other, what)) is not None
    ]


def _refused(one: Side, other: Side) -> str | None:
    """Return why two backends cannot be compared because the caller was late; None if they can."""
    turns, others = counted_turns(one.turns), counted_turns(other.turns)
    return starvation_between(turns, others).why_not(other.name, one.name)


def _crossing(one: Side, other: Side, what: Literal["time", "price"]) -> CrossingRecord | None:
    turns, others = counted_turns(one.turns), counted_turns(other.turns)
    judged, *in_doubt = RIGHT.ends(turns, others)
    right = ratio_hull([right_ratio(pairs) for pairs in (judged, *in_doubt)])
    if what == "time":
        cost = ratio_hull([mean_ratio(pairs) for pairs in TURN_MS.ends(turns, others)])
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
    """Return the ratio of the two prices of a turn; None if either is unknown."""
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

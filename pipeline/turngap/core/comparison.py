"""Backends over the same recordings in figures: how quick, how often right, at what price."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from turngap.core.chain import (
    RETRIES,
    Retry,
    TurnFigures,
    crossing,
    expected_ms,
    expected_usd,
    success,
)
from turngap.core.comparison_record import (
    BackendRecord,
    ChainRecord,
    CrossingRecord,
    FigureRecord,
    PriceRecord,
    ShareRecord,
)
from turngap.core.results import TurnRecord
from turngap.core.stats import Percentile, Proportion, percentile
from turngap.core.summary import counted_turns, summarise

# Lengths of a task that are shown.
LENGTHS = (1, 2, 3, 5, 10, 20)

NO_TOKENS = "the agent did not say how many tokens it used"
NO_PRICE = "the backend has no price (--price NAME=IN,OUT)"
PART_WITHOUT_PRICE = "a part of it has no price"
NONE_RIGHT = "no answer was right"

# US dollars per million input and output tokens.
UsdPerMillion = tuple[float, float]


def backend_figures(
    name: str, turns: Sequence[TurnRecord], price: UsdPerMillion | None, **about: str | bool
) -> BackendRecord:
    """What one backend did over its turns; `about` are the record's other fields."""
    summary = summarise(turns)
    counted = counted_turns(turns)
    gaps = summary.gap_ms
    # As in the gap: who never answers is slower than whoever does.
    unanswered = sum(t.outcome in ("no_reply", "error") for t in counted)
    llm = summary.llm
    took = [ms for t in counted if (ms := turn_ms(t)) is not None]
    return BackendRecord.model_validate(
        {
            "name": name,
            "turns": summary.turns,
            "outcomes": summary.outcomes,
            "hit_rate": share_record(summary.hit_rate),
            "gap_n": summary.gap_n,
            "gap_ms": {q: figure_record(gaps[q]) for q in ("p50", "p95")},
            "first_answer_ms": figure_record(
                percentile(first_answers_ms(counted), 0.5, censored=unanswered)
            ),
            "llm_n": llm.n if llm else 0,
            "ttft_ms": llm.ttft_ms if llm else None,
            "tokens_per_s": llm.per_s if llm else None,
            "window_tokens": llm.in_window if llm else None,
            "correct": share_record(summary.right),
            "not_judged": summary.not_judged,
            "turn_ms": fmean(took) if took else None,
            "price": price_of(counted, price),
            **about,
        }
    )


def turn_ms(turn: TurnRecord) -> float | None:
    """From the person's first word to the agent's last; None without a reply that was heard out."""
    if turn.outcome not in ("answered", "late"):
        return None
    starts = [e["start_ns"] for e in turn.events if e.get("event") == "UserSpeech"]
    ends = [e["at_ns"] for e in turn.events if e.get("event") == "AgentSilence"]
    # A reply that the next turn broke off was still heard when its events end.
    return (max(ends) - starts[-1]) / 1e6 if starts and ends and max(ends) > starts[-1] else None


def first_answers_ms(turns: Sequence[TurnRecord]) -> list[float]:
    """To the first audio of the answer itself, of each turn that was answered.

    It is the gap, plus what an opener took that was spoken before the answer (`opener_ms`).
    """
    return [
        t.gap_ms + t.counts.get("opener_ms", 0.0)
        for t in turns
        if t.gap_ms is not None and t.outcome in ("answered", "late")
    ]


def turn_usd(turn: TurnRecord, price: UsdPerMillion | None) -> float | str:
    """What a turn's tokens cost, or why that is not known."""
    if "combined_requests" in turn.counts:
        if turn.counts.get("combined_unpriced_tokens", 0):
            return PART_WITHOUT_PRICE
        return turn.counts.get("combined_usd", 0.0)
    if price is None:
        return NO_PRICE
    if "llm_prompt_tokens" not in turn.counts:
        return NO_TOKENS
    read, said = turn.counts["llm_prompt_tokens"], turn.counts.get("llm_completion_tokens", 0.0)
    return (read * price[0] + said * price[1]) / 1e6


def price_of(turns: Sequence[TurnRecord], price: UsdPerMillion | None) -> PriceRecord:
    """The mean price of a turn, and of a right answer: what all turns cost by those judged right.

    A price that some of the turns lack is none.
    """
    # A turn in which the agent was never asked, as one that it slept through, used no tokens.
    asked = [t for t in turns if t.outcome not in ("no_reply", "error") or t.counts]
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
            ms={n: _finite(expected_ms(figures, n)) for n in LENGTHS},
            usd={n: _finite(expected_usd(figures, n)) for n in LENGTHS},
        )
        for backend in backends
        if (figures := chain_figures(backend)) is not None
    )


def chain_figures(backend: BackendRecord) -> TurnFigures | None:
    """One backend's turns as a chain sees them; None where they were not judged or not heard."""
    correct = backend.correct
    if correct.value is None or backend.turn_ms is None:
        return None
    return TurnFigures(
        right=correct.value,
        ms=backend.turn_ms,
        usd=backend.price.usd_per_turn,
        right_low=correct.low,
        right_high=correct.high,
    )


def crossings(backends: Sequence[BackendRecord], retry: Retry = "blind") -> list[CrossingRecord]:
    """For each two backends, in time and in price: how long a task one overtakes the other at.

    The leader is who costs less for a single turn, wrong answers not counted; it may stay ahead.
    """
    if retry not in RETRIES:
        raise ValueError(f"{retry=}, expected one of {RETRIES}")
    found: list[CrossingRecord] = []
    known = {b.name: figures for b in backends if (figures := chain_figures(b)) is not None}
    names = list(known)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            found += _crossings_of(one, other, known, retry)
    return found


def _crossings_of(
    one: str, other: str, known: Mapping[str, TurnFigures], retry: Retry
) -> list[CrossingRecord]:
    found: list[CrossingRecord] = []
    for what, cost in (("time", expected_ms), ("price", expected_usd)):
        each = {n: (known[n].ms if what == "time" else known[n].usd) for n in (one, other)}
        if None in each.values():
            continue
        leader, follower = sorted((one, other), key=lambda n: each[n] or 0.0)
        at = crossing(known[leader], known[follower], cost, retry=retry)
        found.append(
            CrossingRecord(
                what="time" if what == "time" else "price",
                leader=leader,
                follower=follower,
                turns=at.turns,
                earliest=at.earliest,
                latest=at.latest,
                longest=at.longest,
            )
        )
    return found


def share_record(p: Proportion) -> ShareRecord:
    """A share as it is stored."""
    return ShareRecord(hits=p.hits, n=p.n, value=p.value, low=p.low, high=p.high)


def figure_record(p: Percentile) -> FigureRecord:
    """A percentile as it is stored."""
    return FigureRecord(value=p.value, low=p.low, high=p.high, why_none=p.why_none)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

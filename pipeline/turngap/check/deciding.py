"""What would bring a verdict where a check is undecided."""

import math

from turngap.check.record import BaselineUse, CheckRecord, MetricVerdict
from turngap.check.words import more_pairs, reason_words


def to_decide(record: CheckRecord) -> str:
    """Say what would bring a verdict, if it is undecided and more turns would; else empty."""
    if record.verdict != "undecided":
        return ""
    if (metric := _decisive(record)) is None or metric.turns_needed is None:
        open_budgets = [b for b in record.budgets if b.verdict == "undecided"]
        return "more turns: they narrow the budgets' intervals" if open_budgets else ""
    if record.baseline is not None:
        return _to_decide_beside(record.baseline, record, metric.turns_needed)
    text = f"about {more_pairs(metric.turns_needed)}"
    if rounds := _rounds_for(record, metric.turns_needed):
        text += f": --rounds {rounds}, or --until-decided"
    if metric.why and "conversations" in metric.why:
        text += f" (the {metric.name} {reason_words(metric)})"
    return text


def _decisive(record: CheckRecord) -> MetricVerdict | None:
    """Find the metric whose missing pairs would decide the whole.

    If one is beyond its limit already, the whole is regressed as soon as that is shown. If none is,
    all of them have to pass.
    """
    needing = [m for m in record.metrics if m.turns_needed is not None]
    beyond = [m for m in needing if (m.difference or 0.0) >= m.limit]
    if beyond:
        return min(beyond, key=lambda m: m.turns_needed or 0)
    return max(needing, key=lambda m: m.turns_needed or 0, default=None)


def _rounds_for(record: CheckRecord, more: int) -> int | None:
    """Count the rounds that would give this many more pairs; None if no round had any."""
    if not record.rounds or not record.pairs:
        return None
    return record.rounds + math.ceil(more / (record.pairs / record.rounds))


def _to_decide_beside(use: BaselineUse, record: CheckRecord, needed: int) -> str:
    """Say whether a stored baseline has enough turns to decide, and how to get there."""
    rounds = _rounds_for(record, needed)
    if needed <= use.more_pairs and rounds:
        return f"about {more_pairs(needed)}, which the baseline has: --rounds {rounds}"
    if not record.pairs:
        return "the rounds and phases that the baseline was saved with: none of its turns was met"
    left = f"only {use.more_pairs}" if use.more_pairs else "none"
    return (
        f"about {more_pairs(needed)}, of which the baseline has {left}: a bigger one "
        f"(--save with --rounds {rounds}), or the reference itself (--against)"
    )

"""A conversation so far in figures, for the page: of all its turns, and of those of each LLM."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from turngap.core.budget import DEFAULT_BUDGET_MS, OUTCOMES
from turngap.core.results import Turn
from turngap.core.stats import Proportion
from turngap.core.summary import counted_turns, summarise

# What answered a turn of an agent that does not say which LLM did.
UNNAMED = "agent"


def figures_of(turns: Sequence[Turn]) -> dict[str, Any]:
    """`all` of them, and `llms`: each LLM's, in the order in which they first answered."""
    names = dict.fromkeys(turn.llm or UNNAMED for turn in turns)
    by_llm = {name: [t for t in turns if (t.llm or UNNAMED) == name] for name in names}
    return {"all": _figures(turns), "llms": {name: _figures(own) for name, own in by_llm.items()}}


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """`others`: what became of the turns that were no hit; the left out ones by their reason."""
    summary = summarise(turns)
    rate = summary.hit_rate
    outcomes = Counter(turn.outcome for turn in counted_turns(turns))
    reasons = Counter(turn.left_out for turn in turns if turn.left_out is not None)
    others = {o: outcomes[o] for o in OUTCOMES if o != "answered" and outcomes[o]}
    others |= {f"left out: {why}": count for why, count in reasons.items()}
    words = [f"{count} {what}" for what, count in others.items()]
    return {
        "n": rate.n,
        "hits": rate.hits,
        "ci95": [rate.low, rate.high],
        "p50_ms": summary.gap_ms["p50"].value,
        "why_no_p50": summary.gap_ms["p50"].why_none,
        "others": others,
        "words": " · ".join([_in_words(rate), *words] if rate.n else words),
    }


def _in_words(rate: Proportion) -> str:
    assert rate.low is not None
    assert rate.high is not None
    interval = f"95 % interval {100 * rate.low:.0f}–{100 * rate.high:.0f} %"
    return f"{rate.hits} of {rate.n} within {DEFAULT_BUDGET_MS:g} ms ({interval})"

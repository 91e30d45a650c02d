"""Who spoke when they should not have: cut-ins, false stops, and how slowly the agent yields."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turngap.core.clusters import proportion_of
from turngap.core.results import TurnRecord
from turngap.core.stats import Percentile, Proportion, percentile, proportion
from turngap.core.summary import counted_turns, take_of


@dataclass(frozen=True, slots=True)
class TurnTakingFigures:
    """A run's turn-taking.

    Attributes:
        cut_ins: turns in which the agent spoke before the user had ended, of all turns.
        false_stops: backchannels for which the agent stopped its reply, of all backchannels.
        yield_ms: barge-in, from the user's onset to the agent's silence at the caller's ear, with
            all that was still buffered; the median over `barge_ins` turns.
        endpoint_ms: the agent's endpoint stage over the answered turns that report it.
    """

    cut_ins: Proportion
    false_stops: Proportion
    barge_ins: int
    yield_ms: Percentile
    endpoint_ms: Percentile
    gap_ms: Percentile

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "cut_in_rate": self.cut_ins.value,
            "cut_ins": self.cut_ins.hits,
            "backchannels": self.false_stops.n,
            "false_stops": self.false_stops.hits,
            "barge_ins": self.barge_ins,
            "yield_ms_p50": self.yield_ms.value,
            "endpoint_ms_p50": self.endpoint_ms.value,
        }


def turn_taking(turns: Sequence[TurnRecord]) -> TurnTakingFigures:
    """All turn-taking figures of a run; with no turns every one is None."""
    turns = counted_turns(turns)
    answered = [t for t in turns if t.outcome in ("answered", "late")]
    yields = [t.yield_ms for t in turns if t.yield_ms is not None]
    backchannels = [b for t in turns for b in t.backchannels]
    endpoints = [s.ms for t in answered for s in t.stages if s.name == "endpoint"]
    unanswered = sum(t.outcome in ("no_reply", "error") for t in turns)
    gaps = [t.gap_ms for t in answered if t.gap_ms is not None]
    return TurnTakingFigures(
        cut_ins=proportion_of([t.outcome == "cut_in" for t in turns], [take_of(t) for t in turns]),
        false_stops=proportion(sum(b.reply_stopped for b in backchannels), len(backchannels)),
        barge_ins=len(yields),
        yield_ms=percentile(yields, 0.5),
        endpoint_ms=percentile(endpoints, 0.5),
        gap_ms=percentile(gaps, 0.5, censored=unanswered),
    )

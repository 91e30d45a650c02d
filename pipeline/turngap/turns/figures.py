"""From turns, however they were played, to an agent's curve and what stands beside it. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan

import numpy as np
from numpy.typing import NDArray

from turngap.core.cut_ins import by_pause_length, early_turns, heard_cut_in
from turngap.core.results import Turn
from turngap.core.stats import CONFIDENCE, n_needed, percentile_of, proportion_of
from turngap.core.summary import counted_turns, due_ms, turn_taking
from turngap.turns.record import CurvePoint, CurveRecord, PointRecord, Reading

# Where curves are read, as eot-bench reads them: what people bear, and about what they leave
# among themselves.
SHARE, GAP_MS = 0.05, 300.0

# Curves that are computed go up to so much waiting, in such steps: labels are no finer.
LONGEST_MS, STEP_MS = 3000.0, 10.0
WAITS = np.arange(0.0, LONGEST_MS + STEP_MS / 2, STEP_MS)
# Pauses are labelled from this length on, so that nothing is known of a shorter hold.
SHORTEST_HOLD_MS = 100.0

# Resamples of the recorded turns behind an interval, and how many of these it takes.
RESAMPLES, FEWEST = 1000, 20

NO_PAUSES = (
    "no recording has labelled pauses: `turngap label FILE` finds them and writes them into the "
    "scenario"
)

TOO_FEW_GAPS = f"fewer than {n_needed(0.5)} turns have a gap, so that there is no median"

Floats = NDArray[np.float64]


def point_figures(turns: Sequence[Turn], **about: object) -> PointRecord:
    """Compute all figures of one point; `about` holds the fields that its turns do not give."""
    counted = counted_turns(turns)
    early, due = early_turns(counted), _due(counted)
    gaps, takes = [ms for _, ms in due], [turn.take for turn, _ in due]
    return PointRecord.model_validate(
        {
            "turns": len(counted),
            "recorded": len({turn.take[:2] for turn in counted}),
            "gap_n": len(due),
            "gap_ms": percentile_of(gaps, takes, 0.5),
            "gap_p95_ms": percentile_of(gaps, takes, 0.95),
            "endpoint_ms": turn_taking(turns).endpoint_ms,
            "heard": early.heard,
            "decided": early.decided,
            "why_not_decided": early.why_none,
            "pauses": by_pause_length(counted),
            **about,
        }
    )


def _due(turns: Iterable[Turn]) -> list[tuple[Turn, float]]:
    return [(turn, ms) for turn in turns if (ms := due_ms(turn)) is not None]


# Curves. Each is sampled: a row of what was seen, and one for each resample of the recorded turns.


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A curve's median gaps and shares of cut-ins: rows are resamples, columns its points."""

    gaps: Floats
    shares: Floats


class Recordings:
    """The recorded turns behind some curves, and resamples of them, the same for all curves.

    A recorded turn is drawn with all its takes, as `core.clusters.Clusters` has them together.
    """

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._number = {key: i for i, key in enumerate(dict.fromkeys(t.take[:2] for t in turns))}
        n = max(1, len(self._number))
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
        self._weights = np.vstack([np.ones((1, n)), drawn]).astype(float)

    def __len__(self) -> int:
        return len(self._number)

    def weights_of(self, turns: Sequence[Turn]) -> Floats:
        """Return how often each turn is in each resample; in row 0 each is once."""
        return self._weights[:, [self._number[turn.take[:2]] for turn in turns]]

    def median(self, turns: Sequence[Turn], values: Sequence[float]) -> Floats:
        """Return the median in each resample; nan if it has none of the turns."""
        order = np.argsort(values)
        ordered = np.asarray(values, float)[order]
        upto = np.cumsum(self.weights_of(turns)[:, order], axis=1)
        total = upto[:, -1:]
        middles = [(upto <= rank).sum(axis=1) for rank in ((total - 1) // 2, total // 2)]
        last = len(ordered) - 1
        halves = [ordered[np.minimum(middle, last)] for middle in middles]
        return np.where(total[:, 0] > 0, (halves[0] + halves[1]) / 2, np.nan)

    def share(self, turns: Sequence[Turn], hits: NDArray[np.bool_]) -> Floats:
        """Return the share of hits (turns by points) in each resample."""
        weights = self.weights_of(turns)
        with np.errstate(invalid="ignore"):
            return (weights @ hits) / weights.sum(axis=1, keepdims=True)


def measured_curve(points: Sequence[Sequence[Turn]], recordings: Recordings) -> CurveRecord:
    """Draw the curve through the points that were played, straight between any two of them."""
    known = [(turns, _due(turns)) for turns in map(counted_turns, points)]
    known = [(turns, due) for turns, due in known if len(due) >= n_needed(0.5)]
    if not known:
        return _no_curve(TOO_FEW_GAPS)
    gaps = [recordings.median([t for t, _ in due], [ms for _, ms in due]) for _, due in known]
    cut_in = [_cut_in(turns) for turns, _ in known]
    shares = [
        recordings.share(turns, hits[:, None])[:, 0]
        for (turns, _), hits in zip(known, cut_in, strict=True)
    ]
    sampled = _Sampled(np.column_stack(gaps), np.column_stack(shares))
    drawn = [
        _curve_point(gap, turns, hits)
        for gap, (turns, _), hits in zip(sampled.gaps[0], known, cut_in, strict=True)
        if np.isfinite(gap)
    ]
    drawn.sort(key=lambda point: point.gap_ms)
    return _curve(sum(len(turns) for turns, _ in known), drawn, sampled, len(recordings))


def waiting_curve(turns: Sequence[Turn], recordings: Recordings) -> CurveRecord:
    """Simulate the agent as if it had waited longer before each decision.

    Every gap grows by the wait. A cut-in remains one if the agent would still have decided within
    a pause (`outlasted_ms`). Turns that were not cut in on remain so.
    """
    turns = counted_turns(turns)
    cut_ins = [turn for turn in turns if turn.outcome == "cut_in"]
    if any(turn.pauses is None for turn in cut_ins):
        return _no_curve(NO_PAUSES)
    due = _due(turns)
    if len(due) < n_needed(0.5):
        return _no_curve(TOO_FEW_GAPS)
    lasts = np.array([outlasted_ms(turn) if t_cut else -1.0 for turn, t_cut in _marked(turns)])
    hits = (lasts[:, None] > WAITS) | ((lasts[:, None] >= 0) & (WAITS == 0))
    median = recordings.median([turn for turn, _ in due], [ms for _, ms in due])
    sampled = _Sampled(median[:, None] + WAITS, recordings.share(turns, hits))
    if not np.isfinite(median[0]):
        return _no_curve("half of the turns or more have no reply, so that there is no median gap")
    recorded = len({turn.take[:2] for turn in turns})
    return _curve(len(turns), _corners(sampled.gaps[0], turns, hits), sampled, recorded)


def outlasted_ms(turn: Turn) -> float:
    """Return how much longer the agent would have had to wait not to cut in on this turn.

    It decided at some instant of a pause. A wait is long enough once neither that pause nor a later
    one of the turn lasts longer than the time to the decision plus the wait. An agent that does not
    report when it decided had done so by its onset, or, if it was heard over speech, at the
    earliest as the pause began. No wait helps against a cut-in that no labelled pause explains.
    """
    cut_in = heard_cut_in(turn)
    if cut_in is None or cut_in.pause is None:
        return inf
    begun_ms = cut_in.pause.start_ms
    known_ms = cut_in.decided_ms
    if known_ms is None:
        known_ms = begun_ms if cut_in.over_speech else cut_in.at_ms
    later = [pause.ms for pause in turn.pauses or () if pause.start_ms >= begun_ms]
    return max(0.0, max(later) - (known_ms - begun_ms))


def silence_curve(turns: Sequence[Turn], recordings: Recordings) -> CurveRecord:
    """Simulate an agent that knows only how long it has been quiet, from the labelled pauses.

    With a hold of h it cuts in on every turn with a pause of h or more, and its gap is h: no
    engine's time is included.
    """
    known = [turn for turn in counted_turns(turns) if turn.pauses is not None]
    once = list({turn.take[:2]: turn for turn in known}.values())
    if not once:
        return _no_curve(NO_PAUSES)
    longest = np.array([max((p.ms for p in turn.pauses or ()), default=0.0) for turn in once])
    holds = WAITS[WAITS >= SHORTEST_HOLD_MS]
    hits = longest[:, None] >= holds
    shares = recordings.share(once, hits)
    sampled = _Sampled(np.tile(holds, (len(shares), 1)), shares)
    return _curve(len(once), _corners(holds, once, hits), sampled, len(once))


def _no_curve(why: str) -> CurveRecord:
    none = Reading(value=None, why_none=why)
    return CurveRecord(turns=0, points=(), gap_at_share_ms=none, cut_ins_at_gap=none, why_none=why)


def _marked(turns: Sequence[Turn]) -> Iterable[tuple[Turn, bool]]:
    return zip(turns, _cut_in(turns), strict=True)


def _cut_in(turns: Sequence[Turn]) -> NDArray[np.bool_]:
    return np.array([turn.outcome == "cut_in" for turn in turns], dtype=np.bool_)


def _curve_point(gap_ms: float, turns: Sequence[Turn], hits: NDArray[np.bool_]) -> CurvePoint:
    share = proportion_of(hits.tolist(), [turn.take for turn in turns])
    return CurvePoint(
        gap_ms=float(gap_ms), cut_ins=share.value or 0.0, low=share.low, high=share.high
    )


def _corners(gaps: Floats, turns: Sequence[Turn], hits: NDArray[np.bool_]) -> list[CurvePoint]:
    """Return the points at which the number of cut-ins changes, and both ends."""
    n = hits.sum(axis=0)
    ends = {0, len(gaps) - 1}
    changes = np.flatnonzero(np.diff(n)).tolist()
    chosen = sorted(ends | set(changes) | {i + 1 for i in changes})
    return [_curve_point(gaps[i], turns, hits[:, i]) for i in chosen]


def _curve(
    turns: int, points: Sequence[CurvePoint], sampled: _Sampled, recorded: int
) -> CurveRecord:
    """Build the curve of `turns` turns, which are takes of `recorded` recorded ones."""
    rows = [
        (gaps[order], shares[order])
        for gaps, shares in zip(sampled.gaps, sampled.shares, strict=True)
        for order in [np.argsort(gaps)[: int(np.isfinite(gaps).sum())]]
    ]
    enough = recorded >= FEWEST
    return CurveRecord(
        turns=turns,
        points=tuple(points),
        gap_at_share_ms=_reading([_gap_at(*row) for row in rows], _why_no_gap(*rows[0]), enough),
        cut_ins_at_gap=_reading([_share_at(*row) for row in rows], _why_no_share(*rows[0]), enough),
    )


def _gap_at(gaps: Floats, shares: Floats) -> float:
    """Find the gap at which the share falls to `SHARE`: inf if never, -inf if it begins below."""
    low = np.flatnonzero(shares <= SHARE)
    if not len(low):
        return inf
    if low[0] == 0:
        return -inf
    (g0, g1), (s0, s1) = (v[low[0] - 1 : low[0] + 1] for v in (gaps, shares))
    return float(g0 + (g1 - g0) * (s0 - SHARE) / (s0 - s1))


def _why_no_gap(gaps: Floats, shares: Floats) -> str:
    if not len(gaps):
        return "there is no median gap"
    if shares[0] <= SHARE:
        return f"already at its quickest, {gaps[0]:.0f} ms, it cuts in on {100 * shares[0]:.1f} %"
    return f"even at its most patient, {gaps[-1]:.0f} ms, it cuts in on {100 * shares[-1]:.1f} %"


def _share_at(gaps: Floats, shares: Floats) -> float:
    """Find the share at a gap of `GAP_MS`; infinite if the curve does not reach it."""
    if not len(gaps) or gaps[0] > GAP_MS:
        return inf
    return -inf if gaps[-1] < GAP_MS else float(np.interp(GAP_MS, gaps, shares))


def _why_no_share(gaps: Floats, _: Floats) -> str:
    if not len(gaps):
        return "there is no median gap"
    if gaps[0] > GAP_MS:
        return f"its quickest is slower: {gaps[0]:.0f} ms"
    return f"its most patient is quicker: {gaps[-1]:.0f} ms"


def _reading(values: Sequence[float], why_none: str, enough: bool) -> Reading:
    """Build a reading from the observed value, with the interval of the resamples."""
    seen, resampled = values[0], sorted(value for value in values[1:] if not isnan(value))
    if not isfinite(seen):
        return Reading(value=None, why_none=why_none)
    if not enough or not resampled:
        return Reading(value=seen)
    beyond = int((1 - CONFIDENCE) / 2 * len(resampled))
    ends = [end if isfinite(end) else None for end in (resampled[beyond], resampled[-1 - beyond])]
    return Reading(value=seen, low=ends[0], high=ends[1])

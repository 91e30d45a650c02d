"""Is the candidate slower than the reference, or does it cut in more? Paired statistics.

Each turn of the candidate is paired with the same turn of the reference (recording, phase, round).
A difference must be beyond chance, and a pass must exclude a regression of the size that matters.
docs/methodology.md explains the method and what it detects.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from turngap.core.budget import SILENT
from turngap.core.clusters import least_n, least_n_at
from turngap.core.paired import (
    CENSORED_MS,
    TOLERANCE_MS,
    Exchanges,
    Floats,
    Limits,
    Pair,
    Reading,
    Score,
    Starvation,
    detectable,
    exchanges,
    resampled_quantiles,
    shift,
    shift_interval,
    starvation_of,
    tail,
    typical,
)
from turngap.core.stats import (
    MISSED,
    beta_quantile,
    beta_share,
    bounding_ranks,
    n_needed,
    n_without_a_miss,
    net_share,
    normal_quantile,
)
from turngap.store.checks import CUT_INS, HIT_RATE, MetricVerdict, StageShift, Verdict

# Over all stages together. More than the verdict itself is allowed, since it only explains one.
STAGE_ALPHA = 0.05
# Of the width that is left, `turns_needed` lets the estimate take this much (80 % of cases).
_LUCK = 1 + normal_quantile(0.8) / normal_quantile(1 - MISSED)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict over all metrics; `left_out` counts pairs without a gap to compare.

    The verdict holds despite the caller's lateness in the turns that `starvation` counts, unless
    `starvation` names a reason not to judge.
    """

    verdict: Verdict
    metrics: tuple[MetricVerdict, ...]
    stages: tuple[StageShift, ...]
    n: int
    left_out: int
    starvation: Starvation

    @property
    def moved_stage(self) -> str | None:
        """Return the stage to blame for a regression: the one that grew most."""
        grown = [s for s in self.stages if s.moved]
        if self.verdict != "regressed" or not grown:
            return None
        return max(grown, key=lambda s: (max(s.shift_ms, TOLERANCE_MS), s.slowed)).name


def judge(
    pairs: Sequence[Pair], limits: Limits | None = None, *, seed: int = 1, share: float = 1.0
) -> Judgement:
    """Compare paired turns; deterministic for a seed.

    `share` is the part of the allowed error rate that this look may use up. A caller that looks
    again as more turns come in, and stops at the first decision, divides the error rate among its
    looks.
    """
    limits = limits or Limits()
    usable = [p for p in pairs if _comparable(p)]
    rng = np.random.default_rng(seed)
    swaps = exchanges([p.conversation for p in usable], rng)
    every = swaps if len(usable) == len(pairs) else exchanges([p.conversation for p in pairs], rng)
    sample = _Sample(
        a=_gaps([p.reference for p in usable]),
        b=_gaps([p.candidate for p in usable]),
        a_at_best=_gaps([p.reference.at_best for p in usable]),
        b_at_best=_gaps([p.candidate.at_best for p in usable]),
        swaps=swaps,
        share=share,
    )
    measured = [
        _typical_metric(sample, limits.p50_ms),
        _tail_metric(sample, limits.p95_ms),
        _share_metric(HIT_RATE, limits.hit_rate, pairs, every, share),
        # An agent that cuts in leaves the gaps and may have been late: no other metric sees it.
        _share_metric(CUT_INS, limits.cut_ins, pairs, every, share),
    ]
    metrics = tuple(_decided(measured, ALPHA * share, swaps.conversations))
    # What a late caller did to a stage is not known: it is among the agent's own marks.
    timely = np.array([not p.starved for p in usable], dtype=np.bool_)
    return Judgement(
        verdict=_overall(metrics),
        metrics=metrics,
        stages=_stage_shifts([p for p in usable if not p.starved], limits, swaps.of(timely)),
        n=len(pairs),
        left_out=len(pairs) - len(usable),
        starvation=starvation_of(pairs, every),
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    """The gaps of both sides, pair by pair, and the share of the error rate for this look.

    The gaps are kept as read, and at their quickest if a starved caller may have made them read
    long. A score that never falls has its least sum at the least differences, and its greatest sum
    at the greatest, so tests and bounds at these two extremes hold for all values in between.
    """

    a: Floats
    b: Floats
    a_at_best: Floats
    b_at_best: Floats
    swaps: Exchanges
    share: float

    @property
    def n(self) -> int:
        return len(self.a)

    @property
    def differences(self) -> Floats:
        return self.b - self.a

    @property
    def least(self) -> Floats:
        return self.b_at_best - self.a

    @property
    def greatest(self) -> Floats:
        return self.b - self.a_at_best

    def p_value(self, score: Score) -> float:
        return self.swaps.p_value(score(self.least))

    def detectable(self, score: Score) -> float | None:
        return detectable(self.least, score, self.swaps, ALPHA * self.share / METRICS, POWER)


def _comparable(pair: Pair) -> bool:
    """Return whether the pair's gaps can be compared: no cut-in, and not both interrupted.

    A cut-in was not quick: it has no gap. If the user let neither side's turn finish, there is no
    gap either. If only one side had not answered when the user continued, it was the slower one.
    """
    outcomes = (pair.reference.outcome, pair.candidate.outcome)
    return "cut_in" not in outcomes and outcomes != ("abandoned", "abandoned")


def _gaps(readings: Sequence[Reading]) -> Floats:
    return np.array(
        [CENSORED_MS if r.gap_ms is None or r.outcome in SILENT else r.gap_ms for r in readings],
        dtype=np.float64,
    )


def _typical_metric(sample: _Sample, limit: float) -> MetricVerdict:
    metric = MetricVerdict("gap p50", "ms", "undecided", sample.n, limit)
    if sample.n < n_needed(0.5):
        return _too_few(metric, n_needed(0.5))
    score = typical(limit, TOLERANCE_MS)
    interval = shift_interval(
        sample.least, sample.greatest, limit, sample.swaps, MISSED * sample.share
    )
    return replace(
        metric,
        difference=shift(sample.differences, limit),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        p_value=sample.p_value(score),
        detectable=sample.detectable(score),
    )


def _tail_metric(sample: _Sample, limit: float) -> MetricVerdict:
    metric = MetricVerdict("gap p95", "ms", "undecided", sample.n, limit)
    if sample.n < n_needed(0.95):
        return _too_few(metric, n_needed(0.95), n_without_a_miss(0.95, MISSED * sample.share))
    score = tail(limit)
    tested = replace(
        metric,
        p_value=sample.p_value(score),
        detectable=sample.detectable(score),
    )
    ends = float(np.quantile(sample.a, 0.95)), float(np.quantile(sample.b, 0.95))
    if max(np.quantile(x, 0.95, method="higher") for x in (sample.a, sample.b)) >= CENSORED_MS:
        return replace(tested, why="p95 lies among turns without a reply")
    missed = MISSED * sample.share
    low = float(np.quantile(_p95s(sample.b_at_best, sample) - _p95s(sample.a, sample), missed))
    high = float(np.quantile(_p95s(sample.b, sample) - _p95s(sample.a_at_best, sample), 1 - missed))
    beyond = _apart_beyond_p95(sample, missed)
    high = None if beyond is None else max(high, beyond)
    return replace(tested, difference=ends[1] - ends[0], low=low, high=high)


def _apart_beyond_p95(sample: _Sample, missed: float) -> float | None:
    """Return how much slower the candidate's slowest turns are: the most at any one rank.

    The ranks go from p95 up to the order statistic that bounds it; None with too few turns to bound
    it. This is needed because no resample is slower than the slowest turn seen: without it,
    candidates that are 300 ms slower in 6 % of turns passed.
    """
    gaps = sample.b_at_best, sample.b
    effective = min(least_n_at(gaps, q, sample.swaps.groups) for q in (0.5, 0.95))
    rank = bounding_ranks(sample.n, 0.95, effective, missed)[1]
    if rank is None:
        return None
    first = math.floor(0.95 * (sample.n - 1))
    return float((np.sort(sample.b) - np.sort(sample.a_at_best))[first : rank + 1].max())


def _p95s(gaps: Floats, sample: _Sample) -> Floats:
    return resampled_quantiles(gaps, 0.95, sample.swaps)


def _too_few(metric: MetricVerdict, needed: int, to_pass: int = 0) -> MetricVerdict:
    """Say how many pairs a figure needs, and how many more a pass needs."""
    more = max(needed, to_pass) - metric.n
    return replace(metric, turns_needed=more, why=f"n={metric.n}, needs {needed}")


def _share_metric(
    name: str, limit: float, pairs: Sequence[Pair], swaps: Exchanges, share: float
) -> MetricVerdict:
    """Judge the share of turns failed by the candidate alone minus that by the reference alone."""
    metric = MetricVerdict(name, "share", "undecided", len(pairs), limit)
    if not pairs:
        return replace(metric, why="no turns")
    return replace(metric, **asdict(failures_of(pairs, swaps, FAILED[name], share)))


def _decided(
    measured: Sequence[MetricVerdict], alpha: float, conversations: int
) -> list[MetricVerdict]:
    """Apply Holm's correction over all metrics, known or not, then give each a verdict."""
    known = sorted((m for m in measured if m.p_value is not None), key=lambda m: m.p_value or 0.0)
    regressed: set[str] = set()
    for rank, metric in enumerate(known):
        if metric.p_value is None or metric.p_value > alpha / (len(measured) - rank):
            break
        regressed.add(metric.name)
    enough = conversations_needed(alpha)
    return [_with_verdict(m, m.name in regressed, alpha, conversations, enough) for m in measured]


def _with_verdict(
    metric: MetricVerdict, regressed: bool, alpha: float, conversations: int, enough: int
) -> MetricVerdict:
    if regressed:
        return replace(metric, verdict="regressed")
    if metric.why is not None:
        return metric
    if metric.high is not None and metric.high < metric.limit:
        return replace(metric, verdict="pass")
    if metric.unit == "ms" and conversations < enough:
        why = f"in {conversations} of the {enough} conversations that it takes"
        missing = math.ceil(metric.n * (enough / conversations - 1))
        if metric.name == "gap p95":
            missing = max(missing, n_without_a_miss(0.95, MISSED * alpha / ALPHA) - metric.n)
        return replace(metric, turns_needed=missing, why=why)
    why = f"a regression of {_shown(metric, metric.limit)} is not excluded"
    needed = _turns_needed(metric, alpha, metric.n / max(1, conversations))
    return replace(metric, turns_needed=needed, why=why)


def _turns_needed(metric: MetricVerdict, alpha: float, each: float) -> int | None:
    """Return how many more pairs would move the limit, or 0, out of the interval.

    The interval narrows by the square root of the number of pairs. If nothing was lost,
    conversations of `each` pairs count.
    """
    difference, high, n = metric.difference, metric.high, metric.n
    if difference is None or metric.p_value is None:
        return None
    missed = MISSED * alpha / ALPHA
    if high is None:
        return max(1, n_without_a_miss(0.95, missed) - n)
    if metric.unit == "share" and difference <= 0 and metric.limit < 1:
        return max(1, math.ceil(each * n_without_a_miss(1 - metric.limit, missed)) - n)
    candidates: list[float] = []
    if difference < metric.limit:
        candidates.append(n * (_LUCK * (high - difference) / (metric.limit - difference)) ** 2)
    seen = -normal_quantile(max(metric.p_value, 1e-12))
    if seen > 0:
        candidates.append(n * (normal_quantile(alpha / METRICS) / seen) ** 2)
    return max(1, math.ceil(min(candidates)) - n) if candidates else None


def _shown(metric: MetricVerdict, value: float) -> str:
    return f"{value:g} ms" if metric.unit == "ms" else f"{100 * value:g} points"


def _overall(metrics: Sequence[MetricVerdict]) -> Verdict:
    verdicts = {m.verdict for m in metrics}
    if "regressed" in verdicts:
        return "regressed"
    return "undecided" if "undecided" in verdicts else "pass"


def _stage_shifts(
    pairs: Sequence[Pair], limits: Limits, swaps: Exchanges
) -> tuple[StageShift, ...]:
    """Compute each stage's shift, and whether it grew, with Holm's correction over the stages."""
    names = dict.fromkeys(name for p in pairs for name in p.reference.stages)
    shifts = [s for s in (_stage_shift(name, pairs, limits, swaps) for name in names) if s]
    grown: set[str] = set()
    for rank, stage in enumerate(sorted(shifts, key=lambda s: s.p_value)):
        if stage.p_value > STAGE_ALPHA / (len(shifts) - rank):
            break
        grown.add(stage.name)
    return tuple(replace(s, moved=s.name in grown) for s in shifts)


def _stage_shift(
    name: str, pairs: Sequence[Pair], limits: Limits, swaps: Exchanges
) -> StageShift | None:
    known = np.array([name in p.reference.stages and name in p.candidate.stages for p in pairs])
    both = [p for p, has in zip(pairs, known, strict=True) if has]
    if len(both) < n_needed(0.5):
        return None
    moved = np.array([p.candidate.stages[name] - p.reference.stages[name] for p in both])
    swaps = swaps.of(known)
    bulk = swaps.p_value(typical(limits.p50_ms, TOLERANCE_MS)(moved))
    far = swaps.p_value(tail(limits.p95_ms)(moved))
    long = limits.p95_ms / 2
    return StageShift(
        name=name,
        n=len(both),
        shift_ms=shift(moved, limits.p50_ms),
        slowed=int(np.sum(moved > long)) - int(np.sum(moved < -long)),
        p_value=min(1.0, 2 * min(bulk, far)),
        moved=False,
    )


# Turns that only one of two agents failed, and whether that is more than chance.


Failed = Callable[[Reading], bool]

# Whether an agent failed a turn, as these metrics count it.
FAILED: dict[str, Failed] = {
    HIT_RATE: lambda reading: reading.outcome != "answered",
    CUT_INS: lambda reading: reading.outcome == "cut_in",
}


@dataclass(frozen=True, slots=True)
class Failures:
    """The share of turns that the candidate alone failed minus that of the reference alone.

    `detectable`: the share of turns, each failed by itself, that the test would have found; None if
    no share of these conversations would be enough.
    """

    difference: float
    low: float
    high: float
    p_value: float
    detectable: float | None


def failures_of(pairs: Sequence[Pair], swaps: Exchanges, failed: Failed, share: float) -> Failures:
    """Estimate the share of `pairs` (at least one) that the candidate failed.

    `swaps` has the exchanges of the pairs, and `share` is as in `judge`. If a starved caller may
    have made a turn late, each bound assumes the case that favours it least.
    """
    surely = _moved([p.in_doubt_for for p in pairs], failed)
    perhaps = _moved([p.in_doubt_against for p in pairs], failed)
    return Failures(
        difference=float(_moved(pairs, failed).mean()),
        low=_bounds(surely, swaps, share)[0],
        high=_bounds(perhaps, swaps, share)[1],
        p_value=swaps.p_value(surely),
        detectable=_detectable(swaps.sums(surely), len(pairs), ALPHA * share / METRICS),
    )


def _moved(pairs: Sequence[Pair], failed: Failed) -> Floats:
    moved = [int(failed(p.candidate)) - int(failed(p.reference)) for p in pairs]
    return np.array(moved, dtype=np.float64)


def _bounds(moved: Floats, swaps: Exchanges, share: float) -> tuple[float, float]:
    """Bound the share of turns lost minus the share won, as if conversations were lost whole.

    A call can be lost whole, for example if a recogniser does not connect. If none of ten calls was
    lost, a loss of one in ten remains possible, however many turns they have.
    """
    n = least_n(swaps.groups)
    lost, won = float(np.mean(moved > 0)), float(np.mean(moved < 0))
    return net_share(lost * n, won * n, n, MISSED * share)


def _detectable(sums: Floats, turns: int, alpha: float) -> float | None:
    """Return the share of lost turns that the test finds, if a conversation loses or wins one."""
    k, won = len(sums), int(np.sum(sums < 0))
    enough = next((lost for lost in range(1, k + 1) if _sign_test(lost, won) <= alpha), None)
    if enough is None:
        return None
    of_conversations = beta_quantile(POWER, enough, k - enough + 1)
    return 1 - (1 - of_conversations) ** (k / turns)


def _sign_test(lost: int, won: int) -> float:
    """Return the probability of losing at least as often by chance alone."""
    return beta_share(0.5, lost, won + 1) if lost else 1.0


# An agent compared with itself is called slower in at most this share of comparisons.
ALPHA = 0.01

# The typical gap, its tail, the hit rate and the cut-ins.
METRICS = 4
POWER = 0.95


def conversations_needed(alpha: float = ALPHA) -> int:
    """Return the least number of conversations that can show that all their turns are slower.

    For k conversations there are 2^k exchanges, and Holm's first step takes a quarter of `alpha`.
    """
    return math.ceil(-math.log2(alpha / METRICS))

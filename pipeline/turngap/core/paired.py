"""Tests on paired turns whose one assumption is this: swapping the sides changes nothing.

If candidate and reference are equally fast, chance decides which of the two took which time in a
conversation that both had. Exchanging them, which negates the conversation's differences, then
makes data that are just as likely. Comparing the observed data with all such exchanges (Fisher's
randomisation test) is exact for any distribution, however heavy its tail.

Whole conversations are exchanged, not turns: a stall of the machine lasts longer than a turn, and
would be counted as several pieces of evidence.

Scores are fixed, odd and increasing functions of a difference. Making one turn of the candidate
slower therefore never raises a p-value (a test of ranks or of percentiles does not promise that).
"""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from turngap.core.budget import REPLIED, Outcome, outcome_of
from turngap.core.results import Turn
from turngap.core.stats import normal_quantile, student_quantile

Floats = NDArray[np.float64]
Signs = NDArray[np.float32]
Score = Callable[[Floats], Floats]

# All exchanges of this many conversations are listed, of more a sample is drawn.
EXHAUSTIVE = 12
SAMPLE = 9999
RESAMPLES = 4000
_BISECTIONS = 26


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The conversations of the pairs, and ways to exchange the sides of some of them.

    Attributes:
        groups: the conversation of each pair, counted from 0.
        signs: one way a row, 1 or -1 for each conversation; the first row exchanges none.
        counts: one resample a row: how often each conversation is drawn.
    """

    groups: NDArray[np.intp]
    signs: Signs
    counts: Floats

    @property
    def conversations(self) -> int:
        return self.signs.shape[1]

    def sums(self, scores: Floats) -> Floats:
        """Sum the scores of each conversation's pairs."""
        sums = np.zeros(self.conversations)
        np.add.at(sums, self.groups, scores)
        return sums

    def of(self, chosen: NDArray[np.bool_]) -> "Exchanges":
        """Return the exchanges for some of the pairs."""
        return replace(self, groups=self.groups[chosen])

    def p_value(self, scores: Floats) -> float:
        """Compute the one-sided p-value: the share of exchanges with at least the observed sum."""
        sums = self.sums(scores)
        # Single precision halves the time; what differs by less than it is as much.
        slack = 1e-5 * float(np.abs(sums).sum())
        as_much = np.count_nonzero(self.signs @ sums.astype(np.float32) >= sums.sum() - slack)
        return as_much / len(self.signs)


def exchanges(conversations: Sequence[Hashable], rng: np.random.Generator) -> Exchanges:
    """Draw exchanges for pairs of the named conversations, in the order of the pairs."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(conversations))}
    groups = np.array([numbers[name] for name in conversations], dtype=np.intp)
    k = len(numbers)
    if k <= EXHAUSTIVE:
        exchanged = np.array(list(itertools.product((0, 1), repeat=k)), dtype=np.float32)
    else:
        exchanged = rng.integers(0, 2, (SAMPLE + 1, k), dtype=np.int8).astype(np.float32)
        exchanged[0] = 0
    signs: Signs = 1 - 2 * exchanged
    counts = rng.multinomial(k, np.full(k, 1 / k), RESAMPLES) if k else np.zeros((0, 0))
    return Exchanges(groups, signs, counts.astype(np.float64))


def typical(limit: float, tolerance: float = 0.0) -> Score:
    """Score shifts of the bulk beyond `tolerance`; no pair counts for more than `limit`."""
    return lambda d: np.clip(d - tolerance, -limit, limit)


def tail(limit: float) -> Score:
    """Score large differences alone: from half the limit on, and no more beyond twice the limit."""
    return lambda d: np.sign(d) * np.clip(np.abs(d) - limit / 2, 0, 1.5 * limit)


def shift(differences: Floats, limit: float) -> float:
    """Compute Huber's location of the differences: the shift at which `typical` scores balance."""
    return _root(lambda at: float(np.sum(typical(limit, at)(differences))), differences)


def shift_interval(
    least: Floats, greatest: Floats, limit: float, pairs: Exchanges, tail_share: float
) -> tuple[float, float] | None:
    """Return the interval of shifts that the differences do not reject, at `tail_share` a side.

    `least` and `greatest` are the bounds of each difference; they are equal if every difference is
    known. Return None if there are too few conversations to reject any shift.
    """
    if 0.5**pairs.conversations > tail_share:
        return None

    def above(at: float) -> float:
        return tail_share - pairs.p_value(typical(limit, at)(least))

    def below(at: float) -> float:
        return pairs.p_value(-typical(limit, at)(greatest)) - tail_share

    return _root(above, least), _root(below, greatest)


def _root(falling: Callable[[float], float], differences: Floats) -> float:
    """Find where a function that falls over the differences' range crosses 0."""
    low, high = float(differences.min()) - 1.0, float(differences.max()) + 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def detectable(
    differences: Floats, score: Score, pairs: Exchanges, alpha: float, power: float
) -> float | None:
    """Return the smallest shift of all turns that a test at level `alpha` detects with `power`.

    The noise is that of the differences. Return None if there are too few conversations to detect
    any shift.
    """
    if 0.5**pairs.conversations > alpha:
        return None
    noise = differences - float(np.median(differences))
    k = pairs.conversations
    # Of the spread itself there is only an estimate, from k values.
    needed, margin = -normal_quantile(alpha), student_quantile(power, k - 1)

    def missed(at: float) -> bool:
        # Both ways round: which side the sample's worst moments fell on was chance.
        sums = np.concatenate([pairs.sums(score(side * noise + at)) for side in (1, -1)])
        chance = float(np.sqrt(k * np.mean(sums**2)))  # of the sum, under all exchanges
        spread = float(np.sqrt(k) * np.std(sums, ddof=1))
        # A shift that scores nothing at all is missed, however little noise there is.
        return needed * chance + margin * spread >= k * float(np.mean(sums))

    low, high = 0.0, 1.0
    while missed(high):
        low, high = high, 2 * high
        if high > 1e5:
            return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) else (low, middle)
    return high


def resampled_quantiles(values: Floats, q: float, pairs: Exchanges) -> Floats:
    """Return quantile `q` of `values` in each resample of whole conversations."""
    order = np.argsort(values, kind="stable")
    weights = pairs.counts[:, pairs.groups[order]].cumsum(axis=1)
    first = (weights >= q * weights[:, -1:]).argmax(axis=1)
    return values[order][first]


# The same turns, taken by two agents.

# Shifts up to this are real on a quiet machine and matter to no one.
TOLERANCE_MS = 3.0
# A turn without a reply is slower than any with one; longer than any caller waits.
CENSORED_MS = 10_000.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One turn as one agent took it.

    Attributes:
        gap_ms: None without a reply.
        stages: durations in ms by name.
        budget_ms: the budget behind `outcome`; None if not known.
        caller_error_ms: by how much the gap may read long because the caller was late.
        starved: whether the caller was later than its run accepts.
    """

    outcome: Outcome
    gap_ms: float | None
    stages: Mapping[str, float]
    budget_ms: float | None = None
    caller_error_ms: float = 0.0
    starved: bool = False

    @property
    def at_best(self) -> "Reading":
        """Return the turn at its quickest: its times without all possible lateness of the caller.

        A turn without a reply stays one: late packets delay an answer, but never remove it.
        """
        if self.caller_error_ms <= 0 or self.gap_ms is None or self.gap_ms <= 0:
            return self
        if self.outcome not in REPLIED:
            return self
        gap_ms = max(0.0, self.gap_ms - self.caller_error_ms)
        outcome = self.outcome
        if self.budget_ms is not None:
            outcome = outcome_of(gap_ms, self.budget_ms, "reply_done")
        return replace(self, outcome=outcome, gap_ms=gap_ms)


@dataclass(frozen=True, slots=True)
class Pair:
    """A turn taken by both agents. `key`: scenario, turn, and the number of its conversation."""

    key: tuple[str | int | float, ...]
    reference: Reading
    candidate: Reading

    @property
    def conversation(self) -> tuple[str | int | float, ...]:
        return (*self.key[:1], *self.key[2:])

    @property
    def starved(self) -> bool:
        return self.reference.starved or self.candidate.starved

    @property
    def in_doubt_for(self) -> "Pair":
        """Return the pair with the candidate at its quickest: a loss in this pair is certain."""
        return replace(self, candidate=self.candidate.at_best)

    @property
    def in_doubt_against(self) -> "Pair":
        """Return the pair with the reference at its quickest: a loss in this pair is possible."""
        return replace(self, reference=self.reference.at_best)


@dataclass(frozen=True, slots=True)
class Limits:
    """The smallest regression that must not pass unseen, per metric."""

    p50_ms: float = 30.0
    p95_ms: float = 100.0
    hit_rate: float = 0.10
    cut_ins: float = 0.10


# --- lateness of the caller -----------------------------------------------------------------------
# A gap may read long by the caller's own lateness (`PacingRecord.error_ms`). So each statement
# about two agents uses the end of that range that supports it least (`Reading.at_best`). Lateness
# on one side, or in too many turns, forbids any statement. docs/methodology.md, "A starved caller",
# says why no turn is left out.

# However much of a typical pair is in doubt, it counts for one limit in p50's balance: a quarter of
# them moves p50's bounds by at most a third of the limit (0.25 / 0.75), and what is left still
# decides. A quiet shared machine with two cores stalled in 5 of 72 turns; beside a build it
# did in most.
MAX_STARVED_PAIRS = 0.25
# Two-sided, that it was chance with which of the two agents the caller was late.
ONE_SIDED_ALPHA = 0.01


def reading_of(turn: Turn) -> Reading:
    """Read the values that a comparison needs from a stored turn."""
    pacing = turn.pacing
    return Reading(
        turn.outcome, turn.gap_ms, turn.stage_ms, turn.budget_ms, pacing.error_ms, pacing.starved
    )


@dataclass(frozen=True, slots=True)
class Starvation:
    """The number of turns in which the caller was starved, and with which agent it was late.

    Attributes:
        pairs: pairs, out of `of`, in which the caller was starved on either side.
        reference, candidate: turns of each side in which the caller was starved.
        error_ms: the most by which the gap of one of these turns may read long.
        p_value: chance of a difference this large between the sides' lateness, by exchanging whole
            conversations; 1 if the caller was never later by more than 3 ms.
        reference_ms, candidate_ms: by how much a typical turn's gap may read long on each side.
    """

    pairs: int
    of: int
    reference: int
    candidate: int
    error_ms: float
    p_value: float
    reference_ms: float = 0.0
    candidate_ms: float = 0.0

    @property
    def why_not_judged(self) -> str | None:
        """Return why starvation makes the comparison invalid; None if it is valid."""
        return self.why_not("reference", "candidate")

    def why_not(self, reference: str, candidate: str) -> str | None:
        """Return why the comparison is invalid, naming the two sides; None if it is valid."""
        no_chance = self.p_value <= ONE_SIDED_ALPHA
        if no_chance or abs(self.candidate_ms - self.reference_ms) > TOLERANCE_MS:
            ours = (self.candidate, self.candidate_ms, candidate)
            theirs = (self.reference, self.reference_ms, reference)
            (more, late_ms, beside), (fewer, less_ms, other) = sorted((ours, theirs), reverse=True)
            sure = f", which is not chance (p = {self.p_value:.2g})" if no_chance else ""
            return (
                f"the caller was starved in {more} turns of the {beside} and in {fewer} of the "
                f"{other}, and in the typical turn up to {late_ms:.1f} and {less_ms:.1f} ms "
                f"late{sure}: the {beside} takes the processor that the caller needs"
            )
        if self.pairs > MAX_STARVED_PAIRS * self.of:
            return f"the caller was starved in {self.pairs} of {self.of} pairs of turns"
        return None


def starvation_of(pairs: Sequence[Pair], swaps: Exchanges) -> Starvation:
    """Count the starved turns; `swaps` are the exchanges of all of `pairs`.

    The test on the sides is exact: it asks how many exchanges of whole conversations make the
    caller at least as much later on one side. It counts lateness over 3 ms, up to 12 ms a turn. It
    is thus a sign test if the caller stood still in one turn of each conversation.
    """
    candidate = np.array([p.candidate.caller_error_ms for p in pairs], dtype=np.float64)
    reference = np.array([p.reference.caller_error_ms for p in pairs], dtype=np.float64)
    later = tail(2 * TOLERANCE_MS)(candidate - reference)
    p_value = 1.0
    if np.any(later):
        p_value = min(1.0, 2 * float(min(swaps.p_value(later), swaps.p_value(-later))))
    starved = [r for p in pairs for r in (p.reference, p.candidate) if r.starved]
    return Starvation(
        pairs=sum(p.starved for p in pairs),
        of=len(pairs),
        reference=sum(p.reference.starved for p in pairs),
        candidate=sum(p.candidate.starved for p in pairs),
        error_ms=max((r.caller_error_ms for r in starved), default=0.0),
        p_value=p_value,
        reference_ms=median(reference.tolist()) if pairs else 0.0,
        candidate_ms=median(candidate.tolist()) if pairs else 0.0,
    )

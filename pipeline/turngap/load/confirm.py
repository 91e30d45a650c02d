"""Confirm that a level holds, with fresh turns that are tested a few times.

A look passes if the lower bound of the share of turns on time reaches the target (Clopper and
Pearson 1934, exact, for the effective n). The looks share the level's chance of a mistake
(Bonferroni). More turns can thus make up for a few misses, and the level is still certified wrongly
with no more than that chance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from turngap.core.stats import beta_binomial_share, beta_quantile

# Misses that each look still passes with, and its share of the chance of a mistake. With 2.5 % for
# the level and a target of 95 %, the looks come at 90, 242 and 509 turns, of levels at which 99,
# 98.5, 98 and 97 % are on time 100, 99, 93 and 48 in 100 pass, and a level without a miss takes 90.
LOOKS = ((0, 0.4), (4, 0.25), (14, 0.35))
# One or two sessions bring so few turns that three looks would take half an hour.
FEW_LOOKS = ((0, 0.8), (2, 0.2))
# Where no turn misses, nothing shows what misses would have in common: turns that come within one
# stall would be late together. So they say no more than one turn in this many seconds.
STALL_S = 2.0
# A level that passes its last look with less than this chance, by the misses so far (Jeffreys'
# prior), waits until a lower one is certified: minutes for so little come after what is likely.
LEAST_CHANCE = 0.2
# It is given up for good when it is all but sure to fail.
ALL_BUT_NONE = 0.01
# In the middle of a step, so few misses may be a single stall.
FEW_MISSES = 5
# Turns may be so linked that they never decide: this many times the last look's end it.
MOST_TIMES = 3
# At least this part of what has been played is asked for at a time, as each step has a warm-up.
LEAST_PART = 0.1


@dataclass(frozen=True, slots=True)
class Evidence:
    """The results of one probe.

    Attributes:
        turns: turns that count, missed ones included.
        hits: turns on time.
        effective_n: the number of independent turns with as much information; at most `turns`.
        seconds: length of the measured windows.
        caller_late_ms: p99 of the caller's lateness; None if nothing was sent.
    """

    turns: int
    hits: int
    effective_n: float
    seconds: float
    caller_late_ms: float | None = None

    @property
    def share(self) -> float:
        """Return the share on time; 0 without a turn."""
        return self.hits / self.turns if self.turns else 0.0

    @property
    def tells(self) -> float:
        """Return the effective n; without a miss, at most one turn in `STALL_S` counts."""
        if self.hits < self.turns:
            return self.effective_n
        return min(self.effective_n, self.seconds / STALL_S)

    def __add__(self, more: "Evidence") -> "Evidence":
        """Pool two steps, which share neither a call nor a spell of time.

        A step without a miss does not show how misses are linked, so the other step's link is used
        for both.
        """
        turns, steps = self.turns + more.turns, [e for e in (self, more) if e.turns]
        spread = sum(e.turns**2 / e.effective_n for e in steps)
        misses = sum(e.turns - e.hits for e in steps)
        effect = sum((e.turns - e.hits) * e.turns / e.effective_n for e in steps) / max(misses, 1)
        late = [e.caller_late_ms for e in (self, more) if e.caller_late_ms is not None]
        return Evidence(
            turns,
            self.hits + more.hits,
            min(turns**2 / spread if turns else 0.0, turns / max(effect, 1.0)),
            self.seconds + more.seconds,
            max(late, default=None),
        )

    def low(self, mistake: float) -> float:
        """Return the lower bound of the true share, wrong with probability `mistake`."""
        return lower_bound(self.share, self.tells, mistake)


NOTHING = Evidence(0, 0, 0.0, 0.0)


def lower_bound(share: float, n: float, mistake: float) -> float:
    """Return the Clopper-Pearson lower bound of a share of `n`, which may be no whole number."""
    hits = share * n
    return beta_quantile(mistake, hits, n - hits + 1) if hits > 0 and mistake > 0 else 0.0


@cache
def turns_needed(misses: int, mistake: float, target: float) -> int:
    """Return how many independent turns prove the target, if this many of them miss it."""
    few, many = misses + 1, 2 * misses + 2
    while lower_bound(1 - misses / many, many, mistake) < target:
        few, many = many, 2 * many
    while few < many:
        middle = (few + many) // 2
        if lower_bound(1 - misses / middle, middle, mistake) < target:
            few = middle + 1
        else:
            many = middle
    return few


class Confirmation:
    """The looks at one level.

    Args:
        mistake: the chance to certify the level although it does not hold.
        target: the share of turns that must be on time.
        looks: for each look, the misses that it allows and its share of the chance.
        least_chance: a level with less than this chance to pass is `unlikely` to pass.

    Attributes:
        least_s: the least duration of all steps together: as long as the first look would take
            without a miss, whatever missed.
        patient: whether it continues however unlikely it is to pass.
    """

    def __init__(
        self,
        mistake: float,
        target: float,
        looks: Sequence[tuple[int, float]] = LOOKS,
        least_chance: float = LEAST_CHANCE,
    ) -> None:
        self.mistake, self.target = mistake, target
        self._least_chance = least_chance
        self.patient = False
        self.seen = NOTHING
        self.low: float | None = None
        self.passed: bool | None = None
        self._looks = [
            (turns_needed(misses, mistake * share, target), misses, mistake * share)
            for misses, share in looks
        ]
        self.planned = self._looks[-1][0]
        self.least_s = self._looks[0][0] * STALL_S

    @property
    def needed(self) -> float:
        """Return how many more independent turns the next look needs."""
        return max(self._looks[0][0] - self.seen.effective_n, self.seen.effective_n * LEAST_PART)

    @property
    def needed_s(self) -> float:
        """Return how many more seconds the confirmation lasts at least."""
        return max(0.0, self.least_s - self.seen.seconds)

    def observe(self, evidence: Evidence) -> None:
        """Take the turns of one more step, and look once there are enough."""
        self.seen += evidence
        spent = 0.0
        long_enough = self.needed_s <= 0
        while long_enough and self._looks and self._looks[0][0] <= self.seen.tells + 1e-9:
            spent += self._looks.pop(0)[2]
        if spent and (low := self.seen.low(spent)) >= self.target:
            self.passed, self.low = True, low
        elif not self._looks or self._hopeless(self.seen, ALL_BUT_NONE):
            self.passed = False

    @property
    def unlikely(self) -> bool:
        """Return whether the last look will probably fail, judging by the turns so far."""
        return self._hopeless(self.seen, self._least_chance)

    def hopeless_with(self, evidence: Evidence) -> bool:
        """Return whether the last look will almost certainly fail, with these turns included.

        It can be called at any time: giving up a level never certifies one that does not hold.
        """
        many = evidence.turns - evidence.hits > FEW_MISSES
        return many and self._hopeless(self.seen + evidence, ALL_BUT_NONE)

    def _hopeless(self, seen: Evidence, least_chance: float) -> bool:
        n, e = seen.turns, seen.effective_n
        if n == 0 or not self._looks:
            return False
        if n > MOST_TIMES * self.planned and seen.seconds >= self.least_s:
            return True
        last, misses, _ = self._looks[-1]
        missed = (1 - seen.share) * e
        left, most = max(0.0, last - e), math.floor(misses - missed)
        chance = beta_binomial_share(most, left, missed + 0.5, e - missed + 0.5)
        return chance < least_chance

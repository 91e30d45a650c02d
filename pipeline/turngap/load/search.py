"""The sequential search for the most sessions that an agent holds. Pure: it plays nothing.

It explores first, by bisection, and says nothing sure by it. Then it confirms the best level with
turns of its own (`load.confirm`), and goes down where that fails.

The chance that it certifies any level that does not hold is at most one less the confidence. The
first level that it confirms may be wrong with half of that chance, and each level after one that
failed with half of what is left. What a certified level was given is free again: had it been a
mistake, the search would have made it there already. So the level above may be tried with all that
is left. No level is certified because another one is: that more sessions are no easier only chooses
what to look at.

What it takes (`python benchmarks/capacity_search.py`): 59 turns without a miss are the least with
which 95 % can be shown with 95 % confidence; a search needs 90, as it may look more than once and
at more than one level. An agent of 12 sessions with 1.5 % of its turns late, one turn of a session
every 7.2 s, takes 523 turns in the mean: 7 minutes at p50 and 12 at p90 (40 searches).
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

from turngap.core.clusters import SPELL_S
from turngap.core.stats import CONFIDENCE
from turngap.load.confirm import NOTHING, Confirmation, Evidence
from turngap.load.levels import levels
from turngap.load.record import Certificate

TARGET = 0.95
# A level is explored with so many turns, and with as many again where that many missed does not
# tell. Of levels at which 97 % are on time 98 in 100 look good, of those with 85 % 13.
EXPLORED_TURNS = 24
GOOD_MISSES, BAD_MISSES = 1, 5
STILL_GOOD_MISSES = 4  # of both together
# Below this share a level is so bad that the next one down is hardly worth confirming.
CLEARLY_BAD = 0.85
# The third level gets an eighth of the chance of a mistake, and takes 118 turns at the least.
MOST_CONFIRMED = 3
# A slow spell of the machine hits all sessions, however many turns they bring: a step that confirms
# lasts at least so many spells.
LEAST_SPELLS = 12


@dataclass(frozen=True, slots=True)
class Probe:
    """A level to be held next.

    Attributes:
        sessions: the level.
        turns: how many counted turns to play at it.
        confirms: whether the turns count towards the certificate.
    """

    sessions: int
    turns: int
    confirms: bool


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, to say beforehand how long the search will.

    Attributes:
        turn_s: from one turn of a session to its next.
        step_s: what each step takes beyond its measured window.
    """

    turn_s: float
    step_s: float

    def seconds(self, probe: Probe) -> float:
        """How long the step lasts that plays this."""
        return self.step_s + probe.turns * self.turn_s / probe.sessions


@dataclass(frozen=True, slots=True)
class ToCome:
    """What a search still takes, at least and at most, whichever level turns out to hold."""

    turns: tuple[int, int]
    seconds: tuple[float, float]


class Search:
    """Says what to play next, until it is sure of a level or has nothing left to try.

        while (probe := search.next()) is not None:
            search.observe(probe, evidence_of(played(probe)))
        certificate = search.certificate()

    Args:
        highest, lowest: the levels that it chooses from.
        pace: of the scenarios that are played.
        target: the share of turns that has to be on time.
        confidence: that no level is certified that does not hold.
        start: the level to begin with, where somebody has a guess; else the middle one.
    """

    def __init__(
        self,
        highest: int,
        pace: Pace,
        *,
        lowest: int = 1,
        target: float = TARGET,
        confidence: float = CONFIDENCE,
        start: int | None = None,
    ) -> None:
        self.pace, self.target, self.confidence = pace, target, confidence
        self._levels = levels(lowest, highest)
        self._start = self._index(start)
        self._left = 1 - confidence  # of the chance of a mistake
        self._explored: dict[int, Evidence] = {}  # by the number of the level, as all below
        self._good: dict[int, bool] = {}
        self._confirmed: dict[int, Confirmation] = {}
        self._now: int | None = None  # the level that is being confirmed
        self._certified: int | None = None
        self._why: str | None = None
        self._ended = False

    def next(self) -> Probe | None:
        """Return what to play; None once there is nothing left to try."""
        if self._ended:
            return None
        if self._now is not None:
            return self._confirming(self._now)
        level = self._to_explore()
        return None if level is None else Probe(self._levels[level], EXPLORED_TURNS, False)

    def observe(self, probe: Probe, evidence: Evidence) -> None:
        """Take what the probe brought.

        Raises:
            ValueError: it is not the probe that `next` said, or there are more hits than turns.
        """
        if probe != self.next():
            raise ValueError(f"{probe} is not what is to be played next, {self.next()} is")
        if not 0 <= evidence.hits <= evidence.turns or evidence.effective_n > evidence.turns:
            raise ValueError(f"{evidence}: neither hits nor effective_n can exceed the turns")
        if not evidence.turns:
            self.stop(f"no turn counted at {probe.sessions} sessions")
        elif self._now is None:
            self._explore(self._levels.index(probe.sessions), evidence)
        else:
            self._confirm(self._now, evidence)

    def stop(self, why: str) -> None:
        """End the search; what is certified stays so."""
        self._ended, self._why = True, self._why or why

    def certificate(self) -> Certificate:
        """What is sure so far; `why` says why nothing is, or why the search ended early."""
        level = self._certified
        done = None if level is None else self._confirmed[level]
        above = [i for i in self._looked_at if level is None or i > level]
        return Certificate(
            sessions=None if level is None else self._levels[level],
            hit_rate=None if done is None else done.seen.share,
            turns=0 if done is None else done.seen.turns,
            low=None if done is None else done.low,
            confidence=self.confidence,
            not_held=self._levels[min(above)] if above else None,
            caller_late_ms=None if done is None else done.seen.caller_late_ms,
            why=self._why or (None if done is not None else "the search has not ended"),
        )

    def to_come(self) -> ToCome:
        """Play the rest of the search in thought, for each level that may be the one that holds."""
        costs = [self._rest(holds) for holds in self._open_levels()] or [(0, 0.0)]
        turns, seconds = zip(*costs, strict=True)
        return ToCome((min(turns), max(turns)), (min(seconds), max(seconds)))

    # Exploring

    @property
    def _looked_at(self) -> set[int]:
        return {*self._explored, *self._confirmed}

    def _index(self, start: int | None) -> int:
        if start is None:
            return len(self._levels) // 2
        return min(range(len(self._levels)), key=lambda i: abs(self._levels[i] - start))

    def _bracket(self) -> tuple[int, int]:
        """The highest level that looks good and the lowest that does not, or just outside."""
        bad = min((i for i, good in self._good.items() if not good), default=len(self._levels))
        good = max((i for i, looks in self._good.items() if looks and i < bad), default=-1)
        return good, bad

    def _to_explore(self) -> int | None:
        unclear = [i for i in self._explored if i not in self._good]
        if unclear:
            return unclear[0]
        good, bad = self._bracket()
        if bad - good < 2:
            return None
        if good < self._start < bad and not self._good:
            return self._start
        return (good + bad) // 2

    def _explore(self, level: int, evidence: Evidence) -> None:
        again = level in self._explored
        seen = self._explored.get(level, NOTHING) + evidence
        self._explored[level] = seen
        share = (seen.turns - seen.hits) / seen.turns
        if again:
            self._good[level] = share <= STILL_GOOD_MISSES / (2 * EXPLORED_TURNS)
        elif share <= GOOD_MISSES / EXPLORED_TURNS:
            self._good[level] = True
        elif share >= BAD_MISSES / EXPLORED_TURNS:
            self._good[level] = False
        self._choose()

    # Confirming

    def _choose(self) -> None:
        """Begin to confirm the best level, once exploring has found it."""
        good, bad = self._bracket()
        if bad - good >= 2 or any(i not in self._good for i in self._explored):
            return
        if good == self._certified:
            self._ended = True
        elif good < 0:
            self.stop(self._none_holds())
        elif len(self._confirmed) == MOST_CONFIRMED and self._certified is None:
            failed = ", ".join(str(self._levels[i]) for i in sorted(self._confirmed))
            self.stop(f"turns at {failed} sessions did not show it, and nothing lower was tried")
        else:
            share = 1.0 if self._certified is not None else 0.5
            self._now = good
            self._confirmed[good] = Confirmation(self._left * share, self.target)

    def _none_holds(self) -> str:
        seen = self._confirmed[0].seen if 0 in self._confirmed else self._explored[0]
        level = self._levels[0]
        return (
            f"{seen.hits} of {seen.turns} turns were on time at {level} "
            f"session{'s' * (level > 1)}, the fewest that were looked at"
        )

    def _confirming(self, level: int) -> Probe:
        sessions, known = self._levels[level], self._confirmed[level]
        turns = math.ceil(known.needed / self._told_by_a_turn(known.seen) - 1e-9)
        if not known.seen.turns:
            turns = max(turns, math.ceil(LEAST_SPELLS * SPELL_S * sessions / self.pace.turn_s))
        return Probe(sessions, turns, confirms=True)

    def _told_by_a_turn(self, seen: Evidence) -> float:
        """How much a turn tells of an independent one, as far as was seen: between half and all."""
        if not seen.turns:
            seen = sum(self._explored.values(), NOTHING)
        return min(1.0, max(0.5, seen.effective_n / seen.turns)) if seen.turns else 1.0

    def _confirm(self, level: int, evidence: Evidence) -> None:
        known = self._confirmed[level]
        known.observe(evidence)
        if known.passed is None:
            return
        self._now = None
        if known.passed:
            self._certified = level
            self._look_above(level)
        elif self._certified is not None:
            self._ended = True
        else:
            self._left -= known.mistake
            self._good[level] = False
            if known.seen.share >= CLEARLY_BAD and level > 0:
                self._good[level - 1] = True
            self._choose()

    def _look_above(self, level: int) -> None:
        """Go on above a certified level, where exploring has not shown that all there is bad."""
        self._good = {i: good or i <= level for i, good in self._good.items()}
        above = level + 1
        seen = self._explored.get(above)
        if above in self._confirmed:
            self._ended = True
            return
        if seen is not None and seen.share >= CLEARLY_BAD:
            self._good[above] = True
        self._choose()

    # What is to come

    def _open_levels(self) -> Iterator[int]:
        """Levels that may be the most that hold, from just outside the lowest; -1: none does."""
        if self._ended:
            return
        if self._now is not None:
            yield from (self._now, max(self._now - 1, -1))
            return
        good, bad = self._bracket()
        yield from range(good, bad)

    def _rest(self, holds: int) -> tuple[int, float]:
        """Turns and seconds until the end, if 1 % are late up to this level, and all above it."""
        thought, turns, seconds = copy.deepcopy(self), 0, 0.0
        while (probe := thought.next()) is not None:
            turns, seconds = turns + probe.turns, seconds + self.pace.seconds(probe)
            late = 0.01 if self._levels.index(probe.sessions) <= holds else 1.0
            hits = probe.turns - math.floor(late * probe.turns)
            thought.observe(probe, Evidence(probe.turns, hits, probe.turns))
        return turns, seconds

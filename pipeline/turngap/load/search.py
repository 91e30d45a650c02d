"""The sequential search for the most sessions that an agent holds. Pure: it plays nothing.

It first explores by bisection, which proves nothing. Then it confirms the best level with turns of
its own (`load.confirm`), and goes down if that fails.

The chance that it certifies any level that does not hold is at most one minus the confidence. The
first level that it confirms gets half of that chance to be wrong, and each level after a failed one
half of the rest. The chance that a certified level used is free again: if certifying it was the
mistake, the search has made it already. So the level above may be tried with all that is left. A
level that will hardly pass waits, with its chance, until a lower one is certified, so that
something is certified early. No level is certified because another one is: that more sessions are
no easier only decides which level to try.

The cost: with 95 % confidence, 59 turns without a miss are the least that show 95 %. A search needs
90, because it may look more than once and at more than one level, and a level is confirmed for at
least three minutes. `python benchmarks/capacity_search.py --only stalls` shows why: it adds stalls
that make 6 % of the turns late, and show in nothing else. With stalls of 4 s, one in 67 s, up to 10
searches in 100 see none for three minutes and certify (n = 120); with stalls of 2 s, one in 33 s,
up to 3 searches do. So stalls of more than about 2 s that come less than once in half a minute may
be missed.
"""

import copy
import math
from dataclasses import dataclass, replace

from turngap.core.clusters import SPELL_S
from turngap.core.stats import CONFIDENCE
from turngap.load.confirm import (
    ALL_BUT_NONE,
    FEW_LOOKS,
    LEAST_CHANCE,
    LOOKS,
    NOTHING,
    Confirmation,
    Evidence,
)
from turngap.store.loads import Certificate

# Each level up to this one may be chosen; above it they lie about 6 % apart.
ONE_BY_ONE = 16
STEP = 1.06
# A level is explored with this many turns, and with as many again if the misses do not decide. Of
# levels at which 97 % are on time 98 in 100 look good, of those with 85 % 13.
EXPLORED_TURNS = 24
# Turns of few sessions take long: this many of each, and at least this many of all, are enough.
TURNS_EACH, LEAST_EXPLORED = 3, 12
GOOD_SHARE, BAD_SHARE = 1 / 20, 5 / 24
STILL_GOOD_SHARE = 4 / 48  # of both together
# The fewest sessions take longest: one of these is confirmed at once where no other is left.
NOT_EXPLORED = 2
# Below this share a level is so bad that the next one down is hardly worth confirming.
CLEARLY_BAD = 0.85


def levels(lowest: int, highest: int) -> list[int]:
    """List the levels that a search may choose from, with the lowest and the highest."""
    found, level = [lowest], lowest
    while level < highest:
        level = level + 1 if level < ONE_BY_ONE else max(level + 1, round(level * STEP))
        found.append(min(level, highest))
    return found


class Exploration:
    """The search by bisection for a level to confirm, with short steps that decide nothing.

    Levels are identified by their number among all levels.

    Args:
        levels: in their order.
        start: the number of the level to begin with.
    """

    def __init__(self, levels: list[int], start: int) -> None:
        self._levels, self._start = levels, start
        self.seen: dict[int, Evidence] = {}
        self.good: dict[int, bool] = {}

    def bracket(self) -> tuple[int, int]:
        """Return the highest good level and the lowest bad one.

        Without a good level the first is -1; without a bad one the second is `len(levels)`.
        """
        bad = min((i for i, good in self.good.items() if not good), default=len(self._levels))
        good = max((i for i, looks in self.good.items() if looks and i < bad), default=-1)
        return good, bad

    @property
    def best(self) -> int | None:
        """Return the level to confirm, -1 if none looks good; None while that is not known."""
        good, bad = self.bracket()
        if bad - good == 2 and self._levels[bad - 1] <= NOT_EXPLORED and bad - 1 not in self.good:
            return bad - 1
        return None if bad - good >= 2 or any(i not in self.good for i in self.seen) else good

    def next(self) -> int:
        """Return the level to explore next, while there is no best."""
        unclear = [i for i in self.seen if i not in self.good]
        if unclear:
            return unclear[0]
        good, bad = self.bracket()
        if good < self._start < bad and not self.good:
            return self._start
        few = bad <= len(self._levels) - 1 and self._levels[bad - 1] <= NOT_EXPLORED
        return bad - 1 if few else (good + bad) // 2

    def turns(self, level: int) -> int:
        """Return how many turns a step of exploring has."""
        return min(EXPLORED_TURNS, max(LEAST_EXPLORED, TURNS_EACH * self._levels[level]))

    def bad_with(self, level: int, evidence: Evidence) -> bool:
        """Return whether a step has so many misses that the rest of it changes nothing."""
        seen = self.seen.get(level, NOTHING)
        turns = self.turns(level)
        misses, most = evidence.turns - evidence.hits, BAD_SHARE * turns
        if level in self.seen:
            misses += seen.turns - seen.hits
            most = STILL_GOOD_SHARE * (seen.turns + turns) + 1
        return misses >= most - 1e-9

    def observe(self, level: int, evidence: Evidence) -> None:
        """Take the turns of a step."""
        again = level in self.seen
        seen = self.seen[level] = self.seen.get(level, NOTHING) + evidence
        missed = 1 - seen.share
        if again:
            self.good[level] = missed <= STILL_GOOD_SHARE + 1e-9
        elif missed <= GOOD_SHARE + 1e-9:
            self.good[level] = True
        elif missed >= BAD_SHARE - 1e-9:
            self.good[level] = False

    # What confirming a level says of the others

    def held(self, level: int) -> None:
        """Note that a level is certified; levels below that were seen look good, too."""
        self.good |= {level: True} | {i: True for i in self.good if i <= level}

    def may_be_good(self, level: int) -> None:
        """Let a level be confirmed that nearly looked good, if there was one."""
        seen = self.seen.get(level)
        if seen is not None and seen.share >= CLEARLY_BAD:
            self.good[level] = True

    def failed(self, level: int, share: float, *, again: bool) -> None:
        """Note that a level that looked good was not confirmed, with this share on time.

        If the share was near the target, the next level down is the one to confirm. A second
        failure (`again`) means that exploring was misled. The level to confirm is then one that
        looked good and is at most a quarter lower, if there is one.
        """
        below = max(0, level - 1)
        if again:
            quarter = max(0, level - max(2, level // 4))
            below = max([i for i, looks in self.good.items() if looks and i < level] + [quarter])
        self.good[level] = False
        if share >= CLEARLY_BAD and level > 0:
            self.good |= dict.fromkeys(range(below + 1, level), False) | {below: True}


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
    """The durations from which the length of a search is estimated.

    Attributes:
        turn_s: from one turn of a session to its next.
        step_s: the time that each step takes beyond its measured window.
    """

    turn_s: float
    step_s: float

    def measured_s(self, probe: Probe) -> float:
        """Return how long the measured window of this probe is."""
        return probe.turns * self.turn_s / probe.sessions

    def seconds(self, probe: Probe) -> float:
        """Return how long the whole step lasts."""
        return self.step_s + self.measured_s(probe)


@dataclass(frozen=True, slots=True)
class ToCome:
    """The rest of a search, at least and at most, over all levels that may hold."""

    turns: tuple[int, int]
    seconds: tuple[float, float]


TARGET = 0.95
NOTHING_LEFT = 1e-9  # of the chance of a mistake
# The fourth level gets a sixteenth of the chance of a mistake: it takes 131 turns at the least.
MOST_CONFIRMED = 4
# A level that does not hold is mostly seen after this many spells: then it is left early.
LEAST_SPELLS = 12
# A window ends between two turns: so much longer is asked for than is needed.
SPARE = 1.05


class Search:
    """Chooses what to play next, until a level is certain or nothing is left to try.

        while (probe := search.next()) is not None:
            search.observe(probe, evidence_of(played(probe)))  # or what was played until `decided`
        certificate = search.certificate()

    Args:
        highest, lowest: the levels that it chooses from.
        pace: of the scenarios that are played.
        target: the share of turns that has to be on time.
        confidence: that no level is certified that does not hold.
        asked: the level that the user asks about. The search begins there, and if exploring finds
            it bad, continues with a step there that is long enough to be sure: the caller may then
            `stop` it.
        most_s: once a level is certified, no further step begins after this many seconds.
    """

    def __init__(
        self,
        highest: int,
        pace: Pace,
        *,
        lowest: int = 1,
        target: float = TARGET,
        confidence: float = CONFIDENCE,
        asked: int | None = None,
        most_s: float = math.inf,
    ) -> None:
        self.pace, self.target, self.confidence = pace, target, confidence
        self._levels = sorted({*levels(lowest, highest), *(() if asked is None else (asked,))})
        self._asked = None if asked is None else self._levels.index(asked)
        start = len(self._levels) // 2 if self._asked is None else self._asked
        self._exploring = Exploration(self._levels, start)
        self._left = 1 - confidence  # of the chance of a mistake
        self._confirmed: dict[int, Confirmation] = {}  # by the number of the level
        # Levels that are likely to fail wait until one is certified, or nothing else is left.
        self._postponed: list[int] = []
        self._now: int | None = None  # the level that is being confirmed
        self._certified: int | None = None
        self._why: str | None = None
        self._ended = False
        self._most_s, self._played_s = most_s, 0.0
        self._making_sure = self._made_sure = False
        self._choose()

    def next(self) -> Probe | None:
        """Return what to play; None once there is nothing left to try."""
        if self._ended:
            return None
        if self._now is not None:
            return self._confirming(self._now)
        if self._making_sure:
            return self._long_enough(self._asked or 0, confirms=False)
        level = self._exploring.next()
        return Probe(self._levels[level], self._exploring.turns(level), confirms=False)

    def observe(self, probe: Probe, evidence: Evidence) -> None:
        """Take the results of the probe.

        Raises:
            ValueError: the probe is not the one that `next` returned, or there are more hits than
                turns.
        """
        if probe != self.next():
            raise ValueError(f"{probe} is not what is to be played next, {self.next()} is")
        if not 0 <= evidence.hits <= evidence.turns or evidence.effective_n > evidence.turns:
            raise ValueError(f"{evidence}: neither hits nor effective_n can exceed the turns")
        if not evidence.turns:
            self.stop(f"no turn counted at {probe.sessions} sessions")
        elif self._now is not None:
            self._confirm(self._now, evidence)
        elif self._making_sure:
            self._making_sure, self._made_sure = False, True
            self._choose()
        else:
            self._exploring.observe(self._levels.index(probe.sessions), evidence)
            asked = self._asked
            bad = asked is not None and self._exploring.good.get(asked) is False
            self._making_sure = bad and not self._made_sure and asked not in self._confirmed
            if not self._making_sure:
                self._choose()
        self._played_s += self.pace.step_s + evidence.seconds
        if not self._ended and self._certified is not None and self._played_s >= self._most_s:
            self._end(f"the time for it was over ({self._most_s / 60:.0f} minutes)")

    def decided(self, probe: Probe, evidence: Evidence) -> bool:
        """Return whether a probe has so many misses that the rest of it changes nothing.

        It may then be ended, and observed as it is. If the user named the level, it is played to
        its end, so that it gives more information.
        """
        level = self._levels.index(probe.sessions)
        if probe != self.next() or self._making_sure or self.is_asked(probe.sessions):
            return False
        if self._now is not None:
            return self._confirmed[self._now].hopeless_with(evidence)
        return self._exploring.bad_with(level, evidence)

    def stop(self, why: str) -> None:
        """End the search; what is certified stays so."""
        self._ended, self._why = True, self._why or why

    def certificate(self) -> Certificate:
        """Return the certificate so far; `why` says why there is none, or why it ended early."""
        level = self._certified
        done = None if level is None else self._confirmed[level]
        unsure = {*self._postponed, self._now, *(i for i, g in self._exploring.good.items() if g)}
        above = [i for i in self._looked_at - unsure if level is None or i > level]
        return Certificate(
            sessions=None if level is None else self._levels[level],
            hit_rate=None if done is None else done.seen.share,
            turns=0 if done is None else done.seen.turns,
            low=None if done is None else done.low,
            confidence=self.confidence,
            not_held=self._levels[min(above)] if above else None,
            caller_late_ms=None if done is None else done.seen.caller_late_ms,
            why=self._why or (None if done is not None else "the search has not ended"),
            seconds=None if done is None else done.seen.seconds,
        )

    @property
    def _looked_at(self) -> set[int]:
        return {*self._exploring.seen, *self._confirmed}

    def _turns_in(self, seconds: float, sessions: int) -> int:
        return math.ceil(seconds * sessions / self.pace.turn_s)

    def open_levels(self) -> list[int]:
        """Return the levels that may be the highest that holds; 0 if none may."""
        if self._ended:
            return []
        if self._now is not None:
            found = [self._now, self._now - 1]
        else:
            good, bad = self._exploring.bracket()
            found = list(range(good, bad))
        found += self._postponed
        return [0 if i < 0 else self._levels[i] for i in found]

    def is_asked(self, sessions: int) -> bool:
        """Return whether the user asks about this many sessions, or more."""
        return self._asked is not None and sessions <= self._levels[self._asked]

    @property
    def makes_sure(self) -> bool:
        """Return whether the next step is to prove that the requested level does not hold."""
        return self._making_sure

    # Confirming

    def _choose(self) -> None:
        """Begin to confirm the best level, once exploring has found it."""
        best = self._exploring.best
        if best is None:
            return
        if best == self._certified:
            self._end()
        elif best < 0:
            if not self._resume():
                self._end(self._none_holds())
        elif len(self._confirmed) == MOST_CONFIRMED and self._certified is None:
            if self._resume():
                return
            failed = ", ".join(str(self._levels[i]) for i in sorted(self._confirmed))
            self._end(f"turns at {failed} sessions did not show it, and nothing lower was tried")
        elif self._left <= NOTHING_LEFT:  # a level above the certified one has had it all
            self._end()
        else:
            # Nothing is left to be tried after the lowest, nor where another one is certified.
            share = 1.0 if self._certified is not None or best == 0 else 0.5
            looks = FEW_LOOKS if self._levels[best] <= NOT_EXPLORED else LOOKS
            least = ALL_BUT_NONE if self.is_asked(self._levels[best]) else LEAST_CHANCE
            self._now = best
            self._confirmed[best] = Confirmation(self._left * share, self.target, looks, least)

    def _end(self, why: str | None = None) -> None:
        self._ended, self._why = True, self._why or why

    def _none_holds(self) -> str:
        seen = self._confirmed[0].seen if 0 in self._confirmed else self._exploring.seen[0]
        level = self._levels[0]
        return (
            f"{seen.hits} of {seen.turns} turns were on time at {level} "
            f"session{'s' * (level > 1)}, the fewest that were tried"
        )

    def _confirming(self, level: int) -> Probe:
        sessions, known = self._levels[level], self._confirmed[level]
        if not known.seen.turns:
            return self._long_enough(level, confirms=True)
        turns = math.ceil(known.needed / self._worth_of_a_turn(known.seen) - 1e-9)
        longer = self._turns_in(SPARE * known.needed_s, sessions)
        return Probe(sessions, max(turns, longer), confirms=True)

    def _long_enough(self, level: int, *, confirms: bool) -> Probe:
        sessions = self._levels[level]
        return Probe(sessions, self._turns_in(LEAST_SPELLS * SPELL_S, sessions), confirms)

    def _worth_of_a_turn(self, seen: Evidence) -> float:
        """Return how much of an independent turn one turn is worth so far: half to all."""
        return min(1.0, max(0.5, seen.effective_n / seen.turns)) if seen.turns else 1.0

    def _confirm(self, level: int, evidence: Evidence) -> None:
        known = self._confirmed[level]
        known.observe(evidence)
        if known.passed is None and not (known.unlikely and self._may_postpone(level)):
            return
        self._now = None
        if known.passed:
            self._certified = level
            self._look_above(level)
        elif self._certified is not None:
            self._left -= 0.0 if known.patient else known.mistake
            self._exploring.good[level] = False
            self._look_above(self._certified)
        else:
            if not known.patient:  # else what it was given was taken off when it was left
                self._left -= known.mistake
                again = len(self._confirmed) > 1
                self._exploring.failed(level, known.seen.share, again=again)
            if known.passed is None:
                self._postponed.append(level)
                known.patient = True
            self._choose()

    def _may_postpone(self, level: int) -> bool:
        """Return whether a level that is likely to fail can wait for a lower certificate."""
        patient = self._confirmed[level].patient
        few = len(self._confirmed) < MOST_CONFIRMED
        return self._certified is None and level > 0 and few and not patient

    def _resume(self) -> bool:
        """Resume the lowest level that was postponed; return whether there is one."""
        if not self._postponed:
            return False
        self._postponed.sort(reverse=True)
        self._now = self._postponed.pop()
        return True

    def _look_above(self, level: int) -> None:
        """Continue above a certified level, unless exploring has shown that all above are bad."""
        self._exploring.held(level)
        if self._resume():
            return
        if level + 1 in self._confirmed:
            self._end()
            return
        self._exploring.may_be_good(level + 1)
        self._choose()


# The share of turns that is assumed to be late at a level that holds.
LATE = 0.01


def to_come(search: Search) -> ToCome:
    """Simulate the rest of a search, for each level that may be the highest that holds."""
    costs = [_rest(search, holds) for holds in search.open_levels()] or [(0, 0.0)]
    turns, seconds = zip(*costs, strict=True)
    return ToCome((min(turns), max(turns)), (min(seconds), max(seconds)))


def _rest(search: Search, holds: int) -> tuple[int, float]:
    """Estimate turns and seconds to the end of the search.

    Up to the level `holds`, the share `LATE` of the turns is late; above it, all turns are.
    """
    thought, turns, seconds = copy.deepcopy(search), 0, 0.0
    while (probe := thought.next()) is not None:
        all_late = probe.sessions > holds
        played = _played_of(thought, probe) if all_late else probe
        turns, seconds = turns + played.turns, seconds + search.pace.seconds(played)
        hits = 0 if all_late else played.turns - math.floor(LATE * played.turns)
        measured_s = search.pace.measured_s(played)
        if search.is_asked(probe.sessions) and all_late and (thought.makes_sure or probe.confirms):
            break  # the question is answered
        thought.observe(probe, Evidence(played.turns, hits, played.turns, measured_s))
    return turns, seconds


def _played_of(search: Search, probe: Probe) -> Probe:
    """Return the part of a probe that is played if every turn misses."""
    for turns in range(1, probe.turns):
        played = replace(probe, turns=turns)
        if search.decided(probe, Evidence(turns, 0, turns, search.pace.measured_s(played))):
            return played
    return probe

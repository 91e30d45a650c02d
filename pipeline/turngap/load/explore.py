"""Which level is worth confirming: found by bisection with short steps, which decide nothing."""

from turngap.load.confirm import NOTHING, Evidence

# Each level up to this one may be chosen; above it they lie about 6 % apart.
ONE_BY_ONE = 16
STEP = 1.06
# A level is explored with so many turns, and with as many again where that many missed does not
# tell. Of levels at which 97 % are on time 98 in 100 look good, of those with 85 % 13.
EXPLORED_TURNS = 24
# Of few sessions turns take long: so many of each, and at least so many of all, will do.
TURNS_EACH, LEAST_EXPLORED = 3, 12
GOOD_SHARE, BAD_SHARE = 1 / 20, 5 / 24
STILL_GOOD_SHARE = 4 / 48  # of both together
# The fewest sessions take longest: one of these is confirmed at once where no other is left.
NOT_EXPLORED = 2
# Below this share a level is so bad that the next one down is hardly worth confirming.
CLEARLY_BAD = 0.85


def levels(lowest: int, highest: int) -> list[int]:
    """All levels that a search may choose from, the lowest and the highest among them."""
    found, level = [lowest], lowest
    while level < highest:
        level = level + 1 if level < ONE_BY_ONE else max(level + 1, round(level * STEP))
        found.append(min(level, highest))
    return found


class Exploration:
    """The knowledge of each level, by its number among all levels.

    Args:
        levels: in their order.
        start: the number of the level to begin with.
    """

    def __init__(self, levels: list[int], start: int) -> None:
        self._levels, self._start = levels, start
        self.seen: dict[int, Evidence] = {}
        self.good: dict[int, bool] = {}

    def bracket(self) -> tuple[int, int]:
        """Return the highest good level and the lowest bad one, or just outside."""
        bad = min((i for i, good in self.good.items() if not good), default=len(self._levels))
        good = max((i for i, looks in self.good.items() if looks and i < bad), default=-1)
        return good, bad

    @property
    def best(self) -> int | None:
        """Return the level to be confirmed, -1 if none looks good; None while that is not known."""
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
        """Return how many turns to explore."""
        return min(EXPLORED_TURNS, max(LEAST_EXPLORED, TURNS_EACH * self._levels[level]))

    def bad_with(self, level: int, evidence: Evidence) -> bool:
        """Return whether enough of a step's turns have missed that the rest changes nothing."""
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
        """Take that a level is certified: those below it that were seen look good, too."""
        self.good |= {level: True} | {i: True for i in self.good if i <= level}

    def may_be_good(self, level: int) -> None:
        """Let a level be confirmed that was near to looking good, if it was."""
        seen = self.seen.get(level)
        if seen is not None and seen.share >= CLEARLY_BAD:
            self.good[level] = True

    def failed(self, level: int, share: float, *, again: bool) -> None:
        """Take that a level which looked good could not be confirmed, with this share on time.

        Where it was near, the next one down is the one to confirm. If another one had failed before
        it (`again`), exploring was misled: then one that looked good is, if there is such a one not
        more than a quarter lower.
        """
        below = max(0, level - 1)
        if again:
            quarter = max(0, level - max(2, level // 4))
            below = max([i for i, looks in self.good.items() if looks and i < level] + [quarter])
        self.good[level] = False
        if share >= CLEARLY_BAD and level > 0:
            self.good |= dict.fromkeys(range(below + 1, level), False) | {below: True}

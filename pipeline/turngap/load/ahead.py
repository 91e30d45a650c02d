"""What a search still takes: it is played to its end in thought."""

import copy
import math
from dataclasses import replace

from turngap.load.confirm import Evidence
from turngap.load.probe import Probe, ToCome
from turngap.load.search import Search

# So many turns are taken to be late at a level that holds.
LATE = 0.01


def to_come(search: Search) -> ToCome:
    """Play the rest of a search in thought, for each level that may be the one that holds."""
    costs = [_rest(search, holds) for holds in search.open_levels()] or [(0, 0.0)]
    turns, seconds = zip(*costs, strict=True)
    return ToCome((min(turns), max(turns)), (min(seconds), max(seconds)))


def _rest(search: Search, holds: int) -> tuple[int, float]:
    """Turns and seconds until the end, if `LATE` are late up to this level, and all above it."""
    thought, turns, seconds = copy.deepcopy(search), 0, 0.0
    while (probe := thought.next()) is not None:
        all_late = probe.sessions > holds
        played = _played_of(thought, probe) if all_late else probe
        turns, seconds = turns + played.turns, seconds + search.pace.seconds(played)
        hits = 0 if all_late else played.turns - math.floor(LATE * played.turns)
        measured_s = search.pace.measured_s(played)
        if search.is_asked(probe.sessions) and all_late and (thought.makes_sure or probe.confirms):
            break  # whoever asked knows enough
        thought.observe(probe, Evidence(played.turns, hits, played.turns, measured_s))
    return turns, seconds


def _played_of(search: Search, probe: Probe) -> Probe:
    """What is played of a probe of which every turn misses."""
    for turns in range(1, probe.turns):
        played = replace(probe, turns=turns)
        if search.decided(probe, Evidence(turns, 0, turns, search.pace.measured_s(played))):
            return played
    return probe

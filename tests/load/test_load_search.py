"""The search for the most sessions: what it plays, what it is sure of, and how often it errs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from capacity_search import stalled_errors
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import beta, binom

from turngap.core.clusters import Clusters
from turngap.load.confirm import (
    LOOKS,
    NOTHING,
    Confirmation,
    Evidence,
    lower_bound,
    turns_needed,
)
from turngap.load.search import Pace, Probe, Search, levels, to_come

PACE = Pace(turn_s=8.0, step_s=20.0)

Misses = Callable[[int], float]
Step = Callable[[np.random.Generator, Probe, float], Evidence]


def independent(random: np.random.Generator, probe: Probe, missing: float) -> Evidence:
    return Evidence(
        probe.turns,
        int(random.binomial(probe.turns, 1 - missing)),
        probe.turns,
        PACE.measured_s(probe),
    )


def seen(probe: Probe, hits: int) -> Evidence:
    return Evidence(probe.turns, hits, probe.turns, PACE.measured_s(probe))


def linked(calls: float, spells: float) -> Step:
    """Beta-binomial turns: the chance of a miss is that of the call, or of a spell of 4 s.

    The gap is what a miss is told by: it is long where the chance is high.
    """

    def step(random: np.random.Generator, probe: Probe, missing: float) -> Evidence:
        turns, sessions = np.arange(probe.turns), probe.sessions
        number, line = np.divmod(turns, sessions)
        call = line * 1000 + number // 5
        at_s = turns / sessions * PACE.turn_s + random.uniform(0, 4)
        kind = call if calls else np.floor(at_s / 4).astype(int)
        own = 1 / (calls or spells) - 1
        chance = random.beta(missing * own, (1 - missing) * own, kind.max() + 1)[kind]
        over = ndtri(np.clip(chance, 1e-9, 1 - 1e-9)) + random.standard_normal(len(turns))
        hits, clusters = over <= 0, Clusters.of_calls(call.tolist(), at_s.tolist())
        effective = clusters.effective_n_of(hits, over.tolist())
        return Evidence(len(turns), int(hits.sum()), effective, PACE.measured_s(probe))

    return step


def searched(
    misses: Misses, random: np.random.Generator, step: Step = independent, highest: int = 32
) -> Search:
    search = Search(highest, PACE)
    while (probe := search.next()) is not None:
        search.observe(probe, step(random, probe, misses(probe.sessions)))
    return search


def certified(search: Search) -> int:
    return search.certificate().sessions or 0


@given(st.integers(1, 40), st.integers(0, 3000))
def test_levels_are_one_apart_up_to_16_and_above_it_about_6_per_cent(
    lowest: int, more: int
) -> None:
    found = levels(lowest, lowest + more)
    assert (found[0], found[-1]) == (lowest, lowest + more)
    for level, above in pairwise(found):
        assert level < above <= max(level + 1, round(level * 1.06))
    assert set(range(lowest, min(17, lowest + more + 1))) <= set(found)


@given(st.integers(1, 500), st.floats(0, 1), st.sampled_from([0.05, 0.025, 0.001]))
def test_the_bound_is_clopper_and_pearsons(n: int, share: float, mistake: float) -> None:
    hits = round(share * n)
    expected = beta.ppf(mistake, hits, n - hits + 1) if hits else 0.0
    assert lower_bound(hits / n, n, mistake) == pytest.approx(expected, abs=1e-9)


def test_59_turns_without_a_miss_are_the_least_and_a_search_takes_90() -> None:
    assert turns_needed(0, 0.05, 0.95) == 59
    assert Confirmation(0.025, 0.95).needed == 90


@pytest.mark.parametrize("mistake", [0.05, 0.025, 0.0125, 0.00625])
@pytest.mark.parametrize("target", [0.9, 0.95, 0.99])
def test_all_looks_together_err_no_more_often_than_they_may(mistake: float, target: float) -> None:
    """Exactly, for independent turns of a level that just does not hold."""
    missed, played, passed = np.ones(1), 0, 0.0
    for misses, share in LOOKS:
        turns = turns_needed(misses, mistake * share, target)
        more = turns - played
        missed = np.convolve(missed, binom.pmf(np.arange(more + 1), more, 1 - target))
        passed += missed[: misses + 1].sum()
        missed[: misses + 1], played = 0.0, turns
    assert mistake / 2 < passed <= mistake


def test_a_step_is_ended_once_the_rest_of_it_would_change_nothing() -> None:
    search = Search(32, PACE)
    probe = search.next()
    assert probe is not None and not probe.confirms
    assert not search.decided(probe, seen(replace(probe, turns=4), 0))
    cut = replace(probe, turns=7)
    assert not search.decided(probe, seen(cut, 3))
    assert search.decided(probe, seen(cut, 2))
    search.observe(probe, seen(cut, 2))
    assert (lower := search.next()) is not None
    assert lower.sessions < probe.sessions


def test_a_confirming_step_is_ended_where_it_is_hopeless_and_not_for_one_stall() -> None:
    search = Search(4, PACE)
    while (probe := search.next()) is not None and not probe.confirms:
        search.observe(probe, seen(probe, probe.turns))
    assert probe is not None
    assert not search.decided(probe, seen(replace(probe, turns=8), 3))
    assert not search.decided(probe, seen(replace(probe, turns=60), 57))
    assert search.decided(probe, seen(replace(probe, turns=30), 22))
    assert not search.decided(replace(probe, turns=1), seen(replace(probe, turns=30), 22))


def explored_to(most: int, highest: int = 32) -> tuple[Search, Probe]:
    """A search that is about to confirm this level."""
    search = Search(highest, PACE)
    while (probe := search.next()) is not None and not probe.confirms:
        search.observe(probe, seen(probe, probe.turns if probe.sessions <= most else 0))
    assert probe is not None
    assert probe.sessions == most
    return search, probe


def test_a_level_that_will_hardly_pass_waits_until_a_lower_one_is_certified() -> None:
    search, probe = explored_to(9)
    search.observe(probe, seen(probe, probe.turns - 3))
    assert search.certificate().sessions is None
    played: list[int] = []
    while search.certificate().sessions is None:
        probe = search.next()
        assert probe is not None
        played.append(probe.sessions)
        search.observe(probe, seen(probe, probe.turns))
    assert set(played) == {8}
    again = search.next()
    assert again is not None
    assert (again.sessions, again.confirms) == (9, True)
    assert search.certificate().not_held is not None
    while (probe := search.next()) is not None:
        search.observe(probe, seen(probe, probe.turns))
    assert search.certificate().sessions == 9


@given(st.integers(0, 2**32 - 1), st.integers(1, 48), st.floats(0.0005, 0.01))
@settings(max_examples=60, deadline=None)
def test_the_levels_that_fail_never_spend_more_than_the_chance_of_a_mistake(
    seed: int, highest: int, late: float
) -> None:
    random = np.random.default_rng(seed)
    steepness = random.uniform(1.05, 1.6)
    misses = {n: min(0.9, late * steepness ** (n * random.uniform(0.8, 1.2))) for n in range(1, 49)}
    search = searched(misses.__getitem__, random, highest=highest)
    failed = [c.mistake for c in search._confirmed.values() if not c.passed]
    assert sum(failed) <= 1 - search.confidence + 1e-9
    assert all(c.mistake > 0 for c in search._confirmed.values())


def test_where_the_time_is_over_the_certificate_says_so_and_blames_no_open_level() -> None:
    search, probe = explored_to(9)
    search._most_s = 1.0
    search.observe(probe, seen(probe, probe.turns - 3))
    while (probe := search.next()) is not None:
        search.observe(probe, seen(probe, probe.turns))
    certificate = search.certificate()
    assert certificate.sessions == 8
    assert "time" in (certificate.why or "")
    assert certificate.not_held != 9


def test_a_level_that_waited_is_tried_where_nothing_lower_holds() -> None:
    search, probe = explored_to(5, highest=8)
    search.observe(probe, seen(probe, probe.turns - 3))
    again: list[int] = []
    while (probe := search.next()) is not None:
        again.append(probe.sessions)
        search.observe(probe, seen(probe, probe.turns if probe.sessions == 5 else 0))
    assert again[-1] == 5
    assert search.certificate().sessions == 5


def test_once_a_level_is_certified_no_step_begins_after_the_time_that_was_given() -> None:
    search = Search(32, PACE, most_s=1.0)
    while (probe := search.next()) is not None:
        search.observe(probe, seen(probe, probe.turns if probe.sessions <= 8 else 0))
    assert search.certificate().sessions == 8
    search = Search(32, PACE, most_s=1.0)
    while (probe := search.next()) is not None:
        search.observe(probe, seen(probe, 0))
    assert search.certificate().sessions is None


def test_a_level_that_somebody_asks_about_is_played_to_its_end() -> None:
    search = Search(32, PACE, asked=8)
    probe = search.next()
    assert probe is not None and probe.sessions == 8
    assert not search.decided(probe, seen(replace(probe, turns=20), 0))


def test_turns_that_are_linked_are_looked_at_later() -> None:
    confirmation = Confirmation(0.025, 0.95)
    confirmation.observe(Evidence(90, 90, 60.0, 180.0))
    assert confirmation.passed is None
    assert confirmation.needed == pytest.approx(30)
    confirmation.observe(Evidence(45, 45, 31.0, 60.0))
    assert confirmation.passed is True
    assert confirmation.low is not None
    assert confirmation.low >= 0.95


def test_turns_that_never_tell_enough_end() -> None:
    confirmation = Confirmation(0.025, 0.95)
    while confirmation.passed is None:
        confirmation.observe(Evidence(90, 90, 1.0, 180.0))
    assert confirmation.passed is False
    assert confirmation.seen.turns <= 3 * confirmation.planned + 90


def test_a_level_that_cannot_be_confirmed_any_more_is_left_early() -> None:
    confirmation = Confirmation(0.025, 0.95)
    confirmation.observe(Evidence(90, 70, 90.0, 60.0))
    assert confirmation.passed is False


@given(st.lists(st.tuples(st.integers(1, 90), st.floats(0.1, 1)), min_size=1, max_size=5))
def test_pooled_steps_tell_no_more_than_their_turns(steps: list[tuple[int, float]]) -> None:
    pooled = sum((Evidence(n, n // 2, n * part, 5.0) for n, part in steps), NOTHING)
    assert pooled.turns == sum(n for n, _ in steps)
    assert pooled.effective_n <= pooled.turns + 1e-9
    assert pooled.effective_n <= sum(n * part for n, part in steps) + 1e-9


@settings(max_examples=60)
@given(st.integers(0, 120), st.integers(1, 120), st.integers(0, 2**32 - 1))
def test_an_agent_that_never_misses_up_to_its_capacity_is_found_exactly(
    capacity: int, highest: int, seed: int
) -> None:
    capacity = max((level for level in levels(1, highest) if level <= capacity), default=0)
    search = searched(
        lambda n: 0.0 if n <= capacity else 1.0, np.random.default_rng(seed), highest=highest
    )
    certificate = search.certificate()
    assert certificate.sessions == (capacity or None)
    if capacity:
        assert certificate.low is not None
        assert certificate.low >= 0.95
        assert certificate.why is None
        above = [level for level in levels(1, highest) if level > capacity]
        assert certificate.not_held == (above[0] if above else None)
    else:
        assert certificate.why == (
            "0 of 8 turns were on time at 1 session, the fewest that were tried"
        )


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=32, max_size=32), st.integers(0, 2**32 - 1))
def test_it_ends_whatever_the_agent_does_and_certifies_what_was_shown(
    shares: list[float], seed: int
) -> None:
    search = searched(lambda n: 1 - shares[n - 1], np.random.default_rng(seed))
    certificate = search.certificate()
    assert (certificate.sessions is None) == (certificate.low is None)
    assert certificate.sessions is not None or certificate.why


# The chance of a mistake: no level holds that has less than the target on time.


def just_too_few(n: int) -> float:
    return 0.0501


def good_then_just_too_few(n: int) -> float:
    return 0.01 if n <= 8 else 0.0501


def accepted(trials: int) -> int:
    """Return the most errors by chance at exactly 5 in 100, in 95 of 100 tests; 10 in 100 are
    more."""
    most = int(binom.ppf(0.95, trials, 0.05))
    assert most < 0.1 * trials
    return most


@pytest.mark.parametrize(
    ("step", "misses", "holds", "trials"),
    [
        (independent, just_too_few, 0, 250),
        (independent, good_then_just_too_few, 8, 250),
        (linked(calls=0.3, spells=0), good_then_just_too_few, 8, 150),
        (linked(calls=0, spells=0.1), just_too_few, 0, 150),
    ],
    ids=["none holds", "one holds", "linked by the call", "linked by the time"],
)
def test_levels_that_do_not_hold_are_certified_in_no_more_than_5_of_100_searches(
    step: Step, misses: Misses, holds: int, trials: int
) -> None:
    random = np.random.default_rng(7)
    found = [certified(searched(misses, random, step, highest=12)) for _ in range(trials)]
    assert sum(level > holds for level in found) <= accepted(trials)


@pytest.mark.parametrize(("stall_s", "highest"), [(0.5, 8), (2.0, 8), (2.0, 32)])
def test_stalls_that_hit_every_turn_and_show_in_nothing_else_deceive_as_seldom(
    stall_s: float, highest: int
) -> None:
    """6 % of the time is stalled at every level, so none holds."""
    assert sum(stalled_errors(stall_s, highest, 150)) <= accepted(150)


def test_a_miss_now_and_then_costs_turns_and_not_the_level() -> None:
    random = np.random.default_rng(8)
    found = [certified(searched(lambda n: 0.015 if n <= 12 else 0.5, random)) for _ in range(100)]
    assert found.count(12) >= 95
    assert max(found) == 12


# Around it


def test_it_says_beforehand_how_long_it_will_take() -> None:
    search = Search(32, PACE)
    told = to_come(search)
    assert search.next() == Probe(15, 24, confirms=False)
    for capacity in (0, 3, 12, 32):
        search, turns, seconds = Search(32, PACE), 0, 0.0
        while (probe := search.next()) is not None:
            turns, seconds = turns + probe.turns, seconds + PACE.seconds(probe)
            late = probe.sessions > capacity
            hits = 0 if late else probe.turns - probe.turns // 100
            search.observe(probe, seen(probe, hits))
        assert told.turns[0] <= turns <= told.turns[1]
        assert told.seconds[0] <= seconds <= told.seconds[1]
        assert to_come(search).seconds == (0.0, 0.0)


def test_it_begins_with_a_guess_and_confirms_for_three_minutes() -> None:
    search = Search(64, PACE, asked=60)
    first = search.next()
    assert first is not None
    assert first.sessions == 60
    steps: list[Probe] = []
    while (probe := search.next()) is not None:
        steps.append(probe)
        late = 2.5 if probe.confirms else 90.0
        told = Evidence(probe.turns, probe.turns, probe.turns, PACE.measured_s(probe), late)
        search.observe(probe, told)
    confirming = [probe for probe in steps if probe.confirms]
    assert [probe.sessions for probe in confirming] == [64, 64]
    assert PACE.measured_s(confirming[0]) == pytest.approx(60, rel=0.01)
    certificate = search.certificate()
    assert (certificate.sessions, certificate.not_held) == (64, None)
    assert certificate.turns == sum(probe.turns for probe in confirming)
    assert certificate.seconds == pytest.approx(60 + 120 * 1.05, rel=0.01)
    assert certificate.caller_late_ms == 2.5


def test_a_level_that_is_asked_about_and_looks_bad_is_looked_at_for_long_enough_to_be_sure() -> (
    None
):
    search, steps = Search(12, PACE, asked=10), list[Probe]()
    while (probe := search.next()) is not None:
        steps.append(probe)
        search.observe(probe, seen(probe, probe.turns if probe.sessions <= 4 else 0))
    assert search.certificate().sessions == 4
    assert (steps[1].sessions, steps[1].confirms) == (10, False)
    assert PACE.measured_s(steps[1]) == pytest.approx(60, rel=0.01)
    assert [probe.sessions for probe in steps].count(10) == 2


def test_without_a_miss_turns_tell_no_more_than_one_every_other_second() -> None:
    assert Evidence(400, 400, 400.0, 60.0).tells == 30
    assert Evidence(20, 20, 20.0, 60.0).tells == 20
    confirmation = Confirmation(0.025, 0.95)
    confirmation.observe(Evidence(400, 400, 400.0, 60.0))
    assert confirmation.passed is None
    assert confirmation.needed_s == 120
    confirmation.observe(Evidence(400, 399, 400.0, 60.0))
    assert confirmation.passed is None
    confirmation.observe(Evidence(400, 400, 400.0, 60.0))
    assert confirmation.passed is True


def test_a_stall_in_one_step_counts_for_steps_that_saw_none() -> None:
    pooled = Evidence(100, 90, 10.0, 60.0) + Evidence(300, 300, 300.0, 180.0)
    assert pooled.effective_n == pytest.approx(40)


def test_evidence_that_cannot_be_is_refused() -> None:
    search = Search(4, PACE)
    probe = search.next()
    assert probe is not None
    with pytest.raises(ValueError, match="is to be played next"):
        search.observe(Probe(1, 3, confirms=True), Evidence(3, 3, 3, 1.0))
    with pytest.raises(ValueError, match="can exceed the turns"):
        search.observe(probe, Evidence(9, 10, 9, 1.0))
    search.observe(probe, NOTHING)
    assert search.certificate().why == "no turn counted at 3 sessions"


def test_nothing_is_played_below_a_certified_level() -> None:
    search = Search(4, PACE)
    while (probe := search.next()) is not None:
        if (sure := search.certificate().sessions) is not None:
            assert probe.sessions > sure
        hits = probe.turns if probe.sessions <= 2 else 0
        search.observe(probe, seen(probe, hits))
    assert search.certificate().sessions == 2

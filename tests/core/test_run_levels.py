"""The level of a run, from the turns that it shares with others."""

import numpy as np
import pytest

from turngap.core.paired import CENSORED_MS
from turngap.core.run_levels import RunLevel, run_levels


def test_a_level_has_less_noise_than_a_median():
    rng = np.random.default_rng(3)
    typical = rng.uniform(200, 600, 12)
    gaps = typical + rng.normal(0, 10, (30, 12))
    levels = [level.ms for level in run_levels([dict(enumerate(row)) for row in gaps])]
    assert np.std(np.array(levels, float)) < 0.6 * np.std(np.median(gaps, axis=1))
    assert np.mean(np.array(levels, float)) == pytest.approx(np.median(typical), abs=3)


def test_what_a_run_adds_to_all_turns_is_its_level_whatever_turns_it_lacks():
    typical = {turn: 200.0 + 50 * turn for turn in range(10)}
    runs = [dict(typical) for _ in range(5)]
    runs[3] = {turn: gap + 40 for turn, gap in typical.items()}
    del runs[3][0], runs[3][1], runs[3][2]
    levels = [level.ms for level in run_levels(runs)]
    assert levels == pytest.approx([425, 425, 425, 465, 425], abs=0.1)


def test_one_turn_without_a_reply_does_not_make_a_run_slow():
    runs = [dict.fromkeys(range(12), 300.0) for _ in range(6)]
    runs[2][4] = 10_000.0
    levels = [level.ms for level in run_levels(runs)]
    assert levels[2] == pytest.approx(300, abs=4)
    assert levels[0] == pytest.approx(300, abs=0.1)


def test_a_run_that_shares_too_few_turns_has_no_level():
    runs = [dict.fromkeys(range(8), 300.0) for _ in range(4)]
    runs.append(dict.fromkeys(range(4, 20), 300.0))
    runs.append({99: 1.0})
    levels = run_levels(runs)
    assert levels[4] == RunLevel(None, 4)
    assert levels[5] == RunLevel(None, 0)
    assert levels[0].ms == pytest.approx(300, abs=0.1)
    assert run_levels([]) == []
    assert run_levels([{}, {}]) == [RunLevel(None, 0)] * 2


TYPICAL = np.linspace(200, 600, 12)


def uneven(gaps: np.ndarray) -> list[int]:
    levels = run_levels([dict(enumerate(row)) for row in gaps])
    return [place for place, level in enumerate(levels) if level.uneven]


def quiet(rng: np.random.Generator, runs: int = 24) -> np.ndarray:
    return TYPICAL + rng.normal(0, 5, (runs, 1)) + rng.normal(0, 6, (runs, 12))


def slowed_by_a_machine(rng: np.random.Generator, runs: int) -> np.ndarray:
    """What a busy machine adds: to each turn of each run something else."""
    return rng.exponential(60, (runs, 12))


def test_a_run_that_a_busy_machine_slowed_is_uneven_at_either_end_too():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gaps = quiet(rng)
        assert uneven(gaps) == []
        gaps[[0, 9, 10, 23]] += slowed_by_a_machine(rng, 4)
        assert uneven(gaps) == [0, 9, 10, 23]


def test_an_agent_that_is_slower_in_all_or_in_some_turns_from_a_run_on_is_not_uneven():
    for seed in range(20):
        gaps = quiet(np.random.default_rng(seed))
        gaps[14:] += 40
        assert uneven(gaps) == []
        gaps[14:, ::2] += 60
        assert uneven(gaps) == []


def test_where_most_runs_are_uneven_none_is():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gaps = quiet(rng)
        gaps[10:] += slowed_by_a_machine(rng, 14)
        assert set(uneven(gaps)) <= {10}


def test_gaps_that_are_the_same_but_for_a_little_are_even():
    gaps = np.tile(TYPICAL, (10, 1))
    gaps[3, :6] += 4
    assert uneven(gaps) == []
    gaps[3, :6] += 30
    assert uneven(gaps) == [3]


def test_turns_that_only_one_of_the_runs_around_took_tell_nothing_of_it():
    runs = [dict.fromkeys(range(6), 300.0) for _ in range(20)]
    for run in runs[10:]:
        run.update(dict.fromkeys(range(6, 12), 500.0))
    runs[0].update(dict.fromkeys(range(6, 12), 900.0))
    assert [level.uneven for level in run_levels(runs)] == [False] * 20


def test_replies_that_were_lost_do_not_make_a_run_uneven():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gaps = quiet(rng)
        gaps[9, rng.choice(12, 3, replace=False)] = CENSORED_MS
        assert uneven(gaps) == []


def test_one_turn_in_common_says_nothing_of_a_run():
    runs = [dict.fromkeys(range(14), 300.0) for _ in range(20)]
    for run in runs[6:10] + runs[11:15]:
        for turn in range(5):
            del run[turn]
    runs[10] = {turn: 300.0 + 90 * (turn % 2) for turn in range(6)}
    levels = run_levels(runs)
    assert levels[10].turns == 6
    assert not levels[10].uneven
    runs[6:15] = [dict.fromkeys(range(6), 300.0) for _ in range(4)] + [runs[10]] + runs[11:15]
    assert run_levels(runs)[10].uneven

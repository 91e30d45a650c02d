"""The level of a run, from the turns that it shares with others."""

import numpy as np
import pytest

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

"""Seeded trials of the gate on made-up runs; benchmarks/gate_trials.py has the full curves.

Each bound is what an agent of exactly the claimed rate would keep in 999 of 1000 such tests.
"""

from functools import cache

import numpy as np
import pytest
from made_pairs import QUIET, ROUGH, Injected, Noise, simulated_pairs
from scipy.stats import binom

from turngap.check.verdict import Judgement, judge
from turngap.store.checks import MetricVerdict

STAGE = "tts_request"


@cache  # three tests look at the same trials of an agent beside itself
def judged(n: int, noise: Noise, injected: Injected, seed: int) -> Judgement:
    return judge(simulated_pairs(n, noise, injected, np.random.default_rng((7, n, seed))))


def metric(judgement: Judgement, name: str) -> MetricVerdict:
    return next(m for m in judgement.metrics if m.name == name)


def at_least(trials: int, rate: float) -> int:
    return int(binom.ppf(0.001, trials, rate))


def at_most(trials: int, rate: float) -> int:
    return int(binom.ppf(0.999, trials, rate))


@pytest.mark.parametrize("noise", [QUIET, ROUGH], ids=["quiet", "rough"])
def test_30_ms_on_one_stage_are_caught_in_60_turns_and_the_stage_is_named(noise: Noise) -> None:
    trials = 60
    found = [judged(60, noise, Injected(STAGE, 30.0), i) for i in range(trials)]
    assert sum(j.verdict == "regressed" for j in found) >= at_least(trials, 0.95)
    assert sum(j.moved_stage == STAGE for j in found) >= at_least(trials, 0.95)


@pytest.mark.parametrize("noise", [QUIET, ROUGH], ids=["quiet", "rough"])
@pytest.mark.parametrize(("n", "trials"), [(20, 100), (60, 60), (200, 20)])
def test_an_agent_beside_itself_is_not_called_slower(noise: Noise, n: int, trials: int) -> None:
    found = [judged(n, noise, Injected(), i) for i in range(trials)]
    assert sum(j.verdict == "regressed" for j in found) <= at_most(trials, 0.01)
    assert all(j.moved_stage is None for j in found if j.verdict != "regressed")


def test_a_slow_twentieth_moves_p95_and_not_p50() -> None:
    trials = 10
    found = [judged(500, QUIET, Injected(STAGE, 200.0, share=0.05), i) for i in range(trials)]
    assert sum(metric(j, "gap p95").verdict == "regressed" for j in found) >= at_least(trials, 0.95)
    assert sum(metric(j, "gap p50").verdict == "regressed" for j in found) <= at_most(trials, 0.01)


@pytest.mark.parametrize("name", ["gap p50", "gap p95"])
def test_what_it_says_it_would_have_caught_it_catches(name: str) -> None:
    trials = 40
    caught = 0
    for i in range(trials):
        claimed = metric(judged(60, QUIET, Injected(), i), name).detectable
        assert claimed is not None
        second = judged(60, QUIET, Injected(STAGE, claimed), 1000 + i)
        caught += metric(second, name).verdict == "regressed"
    # It is an estimate itself: 92 % is what benchmarks/gate_trials.py leaves it.
    assert caught >= at_least(trials, 0.92)

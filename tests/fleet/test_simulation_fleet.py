from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.core.errors import InputError
from turngap.core.stats import Proportion
from turngap.fleet.fleet import Fleet, Load, Outcome, Pool, Routing, idle_turn_ms, simulate
from turngap.fleet.run import carried, figures, find_capacity, hit_rate
from turngap.fleet.workload import TurnSample, Workload
from turngap.inference.engine import Policy
from turngap.inference.server import H100, Server, find_model
from turngap.store.loads import AgentCpu, Capacity, LoadFigures

SAMPLES = tuple(TurnSample(250 + 9 * n, 40, 900 + 70 * n, 1500, 10, 14 + n, 5) for n in range(12))
WORK = Workload(SAMPLES, system_tokens=300, turns=6, think_ms=300, think_sigma=0.6)
SERVER = Server(H100, find_model("llama-3.1-8b"), weights="fp8", kv="fp8")
# Sixteen at once, so that tens of calls are a load.
SMALL = Pool(SERVER, Policy("continuous", 16, chunk_tokens=512), 1, part_hour_usd=3.0)
FLEET = Fleet((SMALL,))


def equal(a: Outcome, b: Outcome) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("gap_ms", "at_s", "llm_ms", "unanswered_s", "calls", "busy", "batch", "hit")
    )


def test_the_same_seed_is_the_same_outcome_and_another_is_not() -> None:
    load = Load(20, 60)
    first = simulate(FLEET, WORK, load, seed=3)
    assert equal(first, simulate(FLEET, WORK, load, seed=3))
    assert not equal(first, simulate(FLEET, WORK, load, seed=4))


@pytest.mark.parametrize("prompt_us", [0, 50_000])
def test_an_idle_fleet_answers_in_the_time_that_its_steps_take(prompt_us: float) -> None:
    part = replace(SERVER.accelerator, prompt_us=prompt_us)
    fleet = Fleet((replace(SMALL, server=replace(SERVER, accelerator=part)),))
    outcome = simulate(fleet, replace(WORK, think_sigma=0), Load(1, 3600), seed=1)
    idle_ms = idle_turn_ms(fleet, WORK)
    assert idle_ms - idle_turn_ms(FLEET, WORK) == pytest.approx(prompt_us / 1000)
    # What a conversation has said before is read from the cache, so prompts take no longer.
    assert np.median(outcome.llm_ms) == pytest.approx(idle_ms, rel=0.1)
    assert outcome.llm_ms.min() > 0.7 * idle_ms
    fixed = outcome.gap_ms - outcome.llm_ms
    assert fixed.min() == pytest.approx(290)
    assert fixed.max() == pytest.approx(290 + 9 * 11)
    assert len(outcome.unanswered_s) == 0


def test_there_are_as_many_calls_as_were_asked_for() -> None:
    outcome = simulate(FLEET, WORK, Load(50, 600), seed=1)
    assert outcome.calls == pytest.approx(50, rel=0.1)
    turn_s = (WORK.mean_turn_ms + idle_turn_ms(FLEET, WORK)) / 1000
    assert outcome.turns == pytest.approx(600 * 50 / turn_s, rel=0.1)
    assert 0 <= outcome.at_s.min() < outcome.at_s.max() < 600


def test_more_calls_wait_longer_and_too_many_are_not_all_answered() -> None:
    outcomes = [simulate(FLEET, WORK, Load(calls, 120), seed=1) for calls in (10, 100, 400, 3000)]
    medians = [float(np.median(o.llm_ms)) for o in outcomes]
    assert medians == sorted(medians)
    shares = [hit_rate(o, 800).value for o in outcomes]
    assert shares[0] == 1.0
    assert shares[-1] is not None
    assert shares[-1] < 0.1
    flooded = outcomes[-1]
    assert len(flooded.unanswered_s) > 0
    assert flooded.turns == len(flooded.gap_ms) + len(flooded.unanswered_s)
    assert flooded.busy == pytest.approx(1, abs=0.01)
    assert flooded.batch == pytest.approx(16, rel=0.1)


@pytest.mark.parametrize("routing", ["sticky", "least-busy"])
def test_twice_the_replicas_hold_about_twice_the_calls(routing: Routing) -> None:
    double = Fleet((replace(SMALL, replicas=2),), routing)
    alone = simulate(Fleet((SMALL,), routing), WORK, Load(60, 120), seed=1)
    shared = simulate(double, WORK, Load(120, 120), seed=1)
    assert np.median(shared.llm_ms) == pytest.approx(np.median(alone.llm_ms), rel=0.1)


def test_routing_to_the_least_busy_pays_with_the_prefix_cache() -> None:
    pools = (replace(SMALL, replicas=4),)
    sticky = simulate(Fleet(pools), WORK, Load(40, 120), seed=1)
    roaming = simulate(Fleet(pools, "least-busy"), WORK, Load(40, 120), seed=1)
    without = simulate(Fleet(pools, prefix_cache=False), WORK, Load(40, 120), seed=1)
    assert sticky.hit > roaming.hit > without.hit == 0


def test_batches_that_wait_to_be_full_make_callers_wait() -> None:
    def median(policy: Policy) -> float:
        outcome = simulate(Fleet((replace(SMALL, policy=policy),)), WORK, Load(20, 120), seed=1)
        return float(np.median(outcome.llm_ms))

    joining = median(Policy("continuous", 8))
    alone = median(Policy("immediate", 1))
    waiting = median(Policy("static", 8))
    hurried = median(Policy("static", 8, max_wait_ms=20))
    assert joining < waiting
    assert joining < alone
    assert hurried < waiting


@settings(max_examples=15)
@given(
    calls=st.integers(1, 150),
    replicas=st.integers(1, 3),
    batch=st.integers(1, 20),
    routing=st.sampled_from(["sticky", "least-busy"]),
    seed=st.integers(0, 1000),
)
def test_every_turn_is_counted_once_and_never_before_its_time(
    calls: int, replicas: int, batch: int, routing: Routing, seed: int
) -> None:
    policy = Policy("continuous", batch, chunk_tokens=512)
    fleet = Fleet((Pool(SERVER, policy, replicas),), routing)
    outcome = simulate(fleet, WORK, Load(calls, 30, settle_s=5), seed=seed)
    assert len(outcome.gap_ms) == len(outcome.at_s) == len(outcome.llm_ms)
    for at_s in (outcome.at_s, outcome.unanswered_s):
        assert ((at_s >= 0) & (at_s < 30)).all()
    # No step is shorter than its overhead, and an opening of five tokens takes five steps.
    assert (outcome.llm_ms >= 5 * 2.0).all()
    assert (outcome.gap_ms - outcome.llm_ms >= 290 - 1e-6).all()
    assert 0 <= outcome.busy <= 1.2
    assert 0 <= outcome.hit <= 1


def test_a_server_without_room_for_the_longest_call_is_refused() -> None:
    chatty = replace(WORK, turns=1000, system_tokens=1_000_000)
    with pytest.raises(InputError, match="the longest call comes to"):
        simulate(FLEET, chatty, Load(1, 10))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fleet(()), "without replicas"),
        (lambda: Fleet((SMALL,), "random"), "random"),  # type: ignore[arg-type]
        (lambda: replace(SMALL, replicas=0), "0 replicas"),
        (lambda: replace(SMALL, part_hour_usd=-1), "-1 USD"),
    ],
)
def test_fleets_that_cannot_be_are_refused(make: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()  # type: ignore[operator]


def outcome_of(gap_ms: np.ndarray, at_s: np.ndarray, late_s: np.ndarray) -> Outcome:
    return Outcome(gap_ms, at_s, gap_ms, late_s, 100.0, 5.0, 0.5, 2.0, 0.9)


def test_turns_without_an_answer_stay_in_every_denominator() -> None:
    outcome = outcome_of(np.full(90, 500.0), np.linspace(0, 99, 90), np.linspace(0, 99, 10))
    made = figures(FLEET, 5, outcome, 800, 0.95)
    assert (made.turns, made.unanswered, made.hit_rate.value) == (100, 10, 0.9)
    assert made.gap_ms["p50"].value == 500
    assert made.gap_ms["p95"].value is None
    assert made.gap_ms["p95"].why_none == "10 of 100 turns have no reply"


def test_price_and_hours_are_of_the_whole_fleet_busy_or_not() -> None:
    fleet = Fleet((replace(SMALL, replicas=4),))
    outcome = outcome_of(np.full(1000, 500.0), np.linspace(0, 99, 1000), np.empty(0))
    made = figures(fleet, 5, outcome, 800, 0.95)
    # Four parts for 100 s answer 1000 turns.
    assert made.part_hours_per_1000 == pytest.approx(400 / 3600)
    assert made.usd_per_1000 == pytest.approx(3 * 400 / 3600)
    unpriced = figures(Fleet((replace(SMALL, part_hour_usd=None),)), 5, outcome, 800, 0.95)
    assert (unpriced.usd_per_1000, unpriced.why_no_usd) == (None, "no accelerator's price is given")


def test_turns_that_fail_together_make_the_interval_wider() -> None:
    at_s = np.linspace(0, 99.9, 2000)
    spread = np.where(np.arange(2000) % 10 == 0, 900.0, 500.0)
    together = np.where(at_s >= 90, 900.0, 500.0)
    apart = hit_rate(outcome_of(spread, at_s, np.empty(0)), 800)
    at_once = hit_rate(outcome_of(together, at_s, np.empty(0)), 800)
    assert apart.value == pytest.approx(at_once.value, abs=0.001)

    def width(share: Proportion) -> float:
        assert share.low is not None
        assert share.high is not None
        return share.high - share.low

    assert width(at_once) > 5 * width(apart)
    assert hit_rate(outcome_of(np.empty(0), np.empty(0), np.empty(0)), 800).value is None


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    # A loaded fleet with real queues: the truth is what a long run says, the rest are short ones.
    fleet, calls = Fleet((replace(SMALL, policy=Policy("continuous", 4)),)), 34
    budget_ms = 400
    truth = hit_rate(simulate(fleet, WORK, Load(calls, 3000), seed=99), budget_ms).value
    assert truth is not None
    assert 0.05 < truth < 0.98
    inside = 0
    for seed in range(15):
        share = hit_rate(simulate(fleet, WORK, Load(calls, 300), seed=seed), budget_ms)
        assert share.low is not None
        assert share.high is not None
        inside += share.low <= truth <= share.high
    # Of 15 intervals that hold with 95 % each, fewer than 11 come once in 1000 times.
    assert inside >= 11


def asked(threshold: float, noise: float = 0.0) -> tuple[list[float], object]:
    evaluated: list[float] = []

    def evaluate(calls: float) -> LoadFigures:
        evaluated.append(calls)
        share = 0.99 if calls <= threshold else 0.5
        rate = Proportion(99, 100, share, share - noise, share + noise)
        return LoadFigures(
            calls, calls, 60, 100, 0, rate, None, {}, {}, 0.5, 1.0, 0.9, 1.0, None, "not given"
        )

    return evaluated, evaluate


@pytest.mark.parametrize("threshold", [1, 2, 7, 100, 999, 12_345])
def test_the_search_finds_the_most_calls_that_are_held(threshold: int) -> None:
    evaluated, evaluate = asked(threshold)
    found = find_capacity(evaluate, 0.95)  # type: ignore[arg-type]
    assert found.held is not None
    assert found.not_held is not None
    assert found.held <= threshold < found.not_held
    assert found.not_held <= max(found.held * 1.021, found.held + 1)
    assert len(evaluated) == len(set(evaluated)) < 25


def test_the_search_says_when_not_one_call_is_held_or_all_are() -> None:
    assert find_capacity(asked(0)[1], 0.95) == Capacity(None, 1)  # type: ignore[arg-type]
    unlimited = find_capacity(asked(1e9)[1], 0.95, most=5000)  # type: ignore[arg-type]
    assert unlimited == Capacity(4096, None)


def test_an_agent_carries_no_more_calls_than_take_its_cores() -> None:
    servers = Capacity(40, 41)
    assert carried(servers, None) == servers
    assert carried(servers, AgentCpu(8, 0.2)) == servers
    assert carried(servers, AgentCpu(2, 0.17)) == Capacity(11, 12, of_llm=40)
    assert carried(servers, AgentCpu(0.3, 0.1)) == Capacity(3, 4, of_llm=40)
    assert carried(servers, AgentCpu(0.5, 0.6)) == Capacity(None, 1, of_llm=40)
    none = Capacity(None, 1)
    assert carried(none, AgentCpu(0.5, 0.6)) == none


def test_what_the_turns_do_not_tell_is_not_held() -> None:
    _, evaluate = asked(100, noise=0.05)
    assert evaluate(10).hit_rate.reaches(0.95) is None  # type: ignore[operator]
    assert evaluate(10).hit_rate.reaches(0.90) is True  # type: ignore[operator]
    assert evaluate(1000).hit_rate.reaches(0.95) is False  # type: ignore[operator]
    assert find_capacity(evaluate, 0.95).held is None  # type: ignore[arg-type]

"""Outcomes that must not change, whatever makes them quicker, and the two engines side by side."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_cases import MIXTURE, SERVERS, Arrival, arrivals, servers
from numba import njit
from numba.core.caching import CacheImpl

import turngap.inference.flow as flow_module
from turngap.fleet.fleet import Fleet, Load, Outcome, Pool, simulate
from turngap.fleet.workload import TurnSample, Workload
from turngap.inference.engine import Engine
from turngap.inference.flow import Flow
from turngap.inference.hardware import H100, WAFER
from turngap.inference.kernel import compiled, step_ps
from turngap.inference.model import find_model
from turngap.inference.policy import Policy
from turngap.inference.request import Request
from turngap.inference.server import PS_PER_MS, Server, StepCosts, whole
from turngap.inference.speculation import Speculation

SAMPLES = tuple(TurnSample(250 + 9 * n, 40, 900 + 70 * n, 1500, 10, 14 + n, 5) for n in range(12))
WORK = Workload(SAMPLES, system_tokens=300, turns=6, think_ms=300, think_sigma=0.6)
BRIEF = replace(
    WORK, samples=(TurnSample(200, 30, 800, 900, 9, 1, 1), TurnSample(90, 10, 700, 800, 30, 3, 1))
)
GPU = Server(H100, find_model("llama-3.1-8b"), weights="fp8", kv="fp8")
JOINING = Policy("continuous", 64, chunk_tokens=512)
CASES: dict[str, tuple[Fleet, Workload, Load]] = {
    "gpu": (Fleet((Pool(GPU, JOINING),)), WORK, Load(150, 40, 5)),
    "full batches": (
        Fleet((Pool(GPU, Policy("continuous", 6, chunk_tokens=None), 2),)), WORK, Load(120, 40, 5)
    ),
    "cut prompts": (
        Fleet((Pool(GPU, Policy("continuous", 16, chunk_tokens=40)),)), WORK, Load(60, 40, 5)
    ),
    "one token": (Fleet((Pool(GPU, JOINING),)), BRIEF, Load(90, 40, 5)),
    "no cache": (Fleet((Pool(GPU, JOINING),), prefix_cache=False), WORK, Load(100, 40, 5)),
    "cramped": (
        Fleet((Pool(Server(H100, find_model("35.7b"), context=2048), JOINING),)), WORK,
        Load(12, 60, 5),
    ),
    "wafer": (
        Fleet((Pool(Server(WAFER, find_model("20b"), weights="fp16"), JOINING),)), WORK,
        Load(100, 40, 5),
    ),
    "experts, and a split one": (
        Fleet((
            Pool(Server(H100, MIXTURE, weights="fp8"), JOINING),
            Pool(Server(H100, find_model("llama-3.3-70b"), 4, weights="fp8"), JOINING),
        )), WORK, Load(80, 40, 5),
    ),
    "least busy": (Fleet((Pool(GPU, JOINING, 3),), "least-busy"), WORK, Load(60, 30, 5)),
    "static": (
        Fleet((Pool(GPU, Policy("static", 8, max_wait_ms=20)),)), WORK, Load(30, 40, 5)
    ),
    "immediate": (Fleet((Pool(GPU, Policy("immediate", 4), 2),)), WORK, Load(30, 40, 5)),
    "speculative": (
        Fleet((Pool(replace(GPU, speculation=Speculation(0.7, 3, 0.05)), JOINING),)), WORK,
        Load(60, 30, 5),
    ),
}  # fmt: skip

# Turns, the LLM's share of all gaps in ms, mean calls, busy, batch and share spared, with seed 1;
# by the engine that has an object for each request, before there was another one.
FOUND: dict[str, tuple[float, ...]] = {
    "gpu": (1839, 53119.7121, 160.950809, 0.993446726, 4.48017446, 0.977564649),
    "full batches": (1451, 41204.1512, 126.426813, 0.851666141, 2.0464439, 0.977655163),
    "cut prompts": (717, 20330.7652, 62.7309388, 0.83265634, 2.07071182, 0.977631985),
    "one token": (1775, 10934.0581, 94.2871123, 0.386372292, 0.588473205, 0.953973644),
    "no cache": (1195, 47039.3264, 104.900124, 0.967137476, 3.37776413, 0),
    "cramped": (187, 32884.654, 11.2559741, 0.888580888, 2.00174419, 0.692122633),
    "wafer": (1203, 5255.61299, 104.597926, 0.340363386, 1.13268542, 0.669332374),
    "experts, and a split one": (
        943,
        34676.8061,
        82.2489654,
        0.704525037,
        1.71997616,
        0.977520215,
    ),
    "least busy": (537, 14510.611, 62.3909888, 0.537800777, 1.06260776, 0.875783263),
    "static": (333, 23420.6863, 29.4407546, 0.623632887, 1.28228165, 0.97763104),
    "immediate": (334, 16009.0385, 29.3442865, 0.395608055, 1.01464779, 0.977662598),
    "speculative": (540, 10186.1443, 62.4585238, 0.626674203, 1.31595577, 0.977668787),
}


@pytest.mark.parametrize("name", CASES)
def test_a_load_comes_out_as_it_always_did(name: str) -> None:
    fleet, work, load = CASES[name]
    out = simulate(fleet, work, load, seed=1)
    found = (out.turns, out.llm_ms.sum(), out.calls, out.busy, out.batch, out.hit)
    assert found == pytest.approx(FOUND[name], rel=1e-8)


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "_KEPT", 5)


def by_objects(fleet: Fleet, work: Workload, load: Load, seed: int) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flow, "suits", lambda *_: False)
        return simulate(fleet, work, load, seed=seed)


def assert_equal(a: Outcome, b: Outcome) -> None:
    for name in ("gap_ms", "at_s", "llm_ms", "unanswered_s"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
    for name in ("calls", "busy", "batch", "hit"):
        assert getattr(a, name) == getattr(b, name)


continuous = st.builds(
    Policy,
    st.just("continuous"),
    st.integers(1, 20),
    chunk_tokens=st.none() | st.integers(21, 512),
)
fleets = st.builds(
    Fleet,
    st.builds(
        Pool,
        st.sampled_from([GPU, *(SERVERS[name] for name in ("wafer", "cramped", "experts"))]),
        continuous,
        st.integers(1, 3),
    ).map(lambda pool: (pool,)),
    st.sampled_from(["sticky", "least-busy"]),
    st.booleans(),
)


@settings(max_examples=25)
@given(fleets, st.sampled_from([WORK, BRIEF]), st.integers(1, 200), st.integers(0, 1000))
def test_a_fleet_is_the_same_to_the_last_bit_with_either_engine(
    fleet: Fleet, work: Workload, calls: int, seed: int
) -> None:
    load = Load(calls, 15, settle_s=5)
    assert_equal(simulate(fleet, work, load, seed=seed), by_objects(fleet, work, load, seed))


def test_a_fleet_that_is_flooded_is_the_same_with_either_engine() -> None:
    fleet, load = Fleet((Pool(GPU, Policy("continuous", 4, chunk_tokens=64)),)), Load(3000, 20, 5)
    quick = simulate(fleet, WORK, load, seed=1)
    assert len(quick.unanswered_s) > 100
    assert_equal(quick, by_objects(fleet, WORK, load, 1))


@given(servers, continuous, arrivals(), st.booleans(), st.integers(1, 5))
def test_a_flow_plays_requests_as_the_engine_does(
    server: Server, policy: Policy, came: list[Arrival], cache: bool, windows: int
) -> None:
    engine = Engine(server, policy, prefix_cache=cache, shared=20)
    flow = Flow(server, policy, prefix_cache=cache, shared=20)
    requests = [Request(a.prompt, a.output, a.opening, n % 4, n) for n, a in enumerate(came)]
    engine.expect(requests, [a.at_ps for a in came])
    numbers = range(len(came))
    flow.expect(
        whole(numbers),
        whole([a.at_ps for a in came]),
        prompts=whole([a.prompt for a in came]),
        outputs=whole([a.output for a in came]),
        openings=whole([a.opening for a in came]),
        sessions=whole([n % 4 for n in numbers]),
    )
    end_ps = came[-1].at_ps + 500 * PS_PER_MS
    for until_ps in (*(end_ps * n // windows for n in range(1, windows + 1)), 10**16):
        engine.advance(until_ps)
        flow.advance(until_ps)
        tags, arrived_ps, opened_ps = flow.take_opened()
        assert tags.tolist() == [r.tag for r in engine.opened]
        assert arrived_ps.tolist() == [r.arrived_ps for r in engine.opened]
        assert opened_ps.tolist() == [r.opening_ps for r in engine.opened]
        assert sorted(flow.unopened_ps()) == sorted(r.arrived_ps for r in engine.unopened())
        engine.opened.clear()
        for name in ("load", "spent"):
            assert getattr(flow, name) == getattr(engine, name)
    assert flow.unopened_ps() == []


def test_a_flow_is_of_continuous_batches_only() -> None:
    with pytest.raises(ValueError, match="got Policy"):
        Flow(GPU, Policy("immediate", 1))


def test_what_64_bits_do_not_hold_is_played_by_objects() -> None:
    vast = Server(H100, find_model("0.1b"), 1024, weights="fp8", kv="fp8")
    assert Flow.suits(vast, Policy("continuous", 256, chunk_tokens=512))
    assert not Flow.suits(vast, Policy("continuous", 256))
    out = simulate(Fleet((Pool(vast, Policy("continuous", 256)),)), WORK, Load(20, 15, 5), seed=1)
    assert out.turns > 20
    assert 0 < out.llm_ms.min() < out.llm_ms.max() < 1000


def test_each_step_costs_what_the_engine_s_costs() -> None:
    rules = flow_module._rules(SERVERS["talkative"], JOINING, keeps=True, shared=20)
    costs = StepCosts(SERVERS["talkative"])
    plain = step_ps.py_func  # pyright: ignore[reportFunctionMemberAccess]
    for sequences, looked_back, prefill, read, pairs, prompts in (
        (3, 900, 0, 0, 0, 0),
        (2, 80, 400, 30, 92_200, 2),
    ):
        wanted = costs.step_ps(sequences, looked_back, prefill, read, pairs, prompts=prompts)
        for function in (step_ps, plain):
            assert function(rules, sequences, looked_back, prefill, read, pairs, prompts) == wanted


def test_it_is_compiled_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        njit(lambda number: number + 1, cache=True)
    assert compiled(lambda number: number + 1)(2) == 3

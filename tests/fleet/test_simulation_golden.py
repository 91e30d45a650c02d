"""Outcomes that must not change, whatever makes them quicker."""

from dataclasses import replace

import pytest
from inference_cases import MIXTURE

from turngap.fleet.fleet import Fleet, Load, Pool, simulate
from turngap.fleet.workload import TurnSample, Workload
from turngap.inference.engine import Policy
from turngap.inference.server import H100, WAFER, Server, Speculation, find_model

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

# Turns, the LLM's share of all gaps in ms, mean calls, busy, batch and share spared, with seed 1.
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


def test_the_smallest_steps_are_whole_picoseconds() -> None:
    vast = Server(H100, find_model("0.1b"), 1024, weights="fp8", kv="fp8")
    out = simulate(Fleet((Pool(vast, Policy("continuous", 256)),)), WORK, Load(20, 15, 5), seed=1)
    assert out.turns > 20
    assert 0 < out.llm_ms.min() < out.llm_ms.max() < 1000

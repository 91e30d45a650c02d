import random
from dataclasses import replace

import pytest

from turngap.core.errors import InputError
from turngap.inference.fit import Measured, fit, predicted_ms
from turngap.inference.hardware import H100, Accelerator
from turngap.inference.model import Model, find_model
from turngap.inference.server import Server

# A CPU with a small model, in the proportions that such a server has: steps of a few ms, of which
# the software takes the most.
CPU = Accelerator(
    "cpu", memory_gb=16, bandwidth_gb_s=20, tflops={"bf16": 0.2}, memory_efficiency=1,
    compute_efficiency=1, step_us=4000, sequence_us=60,
)  # fmt: skip
SMALL = Model("small", params_b=0.025, layers=8, heads=8, kv_heads=4, head_dim=64)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
SERVERS = {
    "gpu": Server(H100, find_model("llama-3.1-8b"), weights="bf16"),
    "split": Server(H100, find_model("llama-3.3-70b"), 4),
    "cpu": Server(replace(CPU, sequence_us=0), SMALL),
}
STEPS = [
    *(Measured(1, sequences=n, context=c) for n in STREAMS for c in (100, 2000)),
    Measured(1, sequences=512, context=100),
    Measured(1, prefill=2000),
]


def measure(server: Server, steps: list[Measured], noise: float = 0.0) -> list[Measured]:
    draw = random.Random(1)
    return [
        replace(s, ms=predicted_ms(server, s) * (1 + draw.uniform(-noise, noise))) for s in steps
    ]


def knows_nothing_of(server: Server) -> Server:
    part = replace(server.accelerator, bandwidth_gb_s=1, tflops={"bf16": 1}, step_us=1)
    return replace(server, accelerator=part)


@pytest.mark.parametrize("name", SERVERS)
def test_what_made_the_steps_is_found_again(name: str) -> None:
    truth = SERVERS[name]
    found = fit(knows_nothing_of(truth), measure(truth, STEPS))
    part, real = found.server.accelerator, truth.accelerator
    assert found.unknown == ()
    assert found.worst < 0.01
    assert part.bandwidth_gb_s == pytest.approx(
        real.bandwidth_gb_s * real.memory_efficiency, rel=0.02
    )
    assert part.tflops["bf16"] == pytest.approx(
        real.tflops["bf16"] * real.compute_efficiency, rel=0.02
    )
    assert part.step_us == pytest.approx(real.step_us, rel=0.02)


@pytest.mark.parametrize("name", SERVERS)
def test_noisy_steps_of_some_batches_predict_the_others(name: str) -> None:
    truth = SERVERS[name]
    seen = [s for s in STEPS if s.sequences not in (4, 16)]
    found = fit(knows_nothing_of(truth), measure(truth, seen, noise=0.05))
    for step in STEPS:
        assert predicted_ms(found.server, step) == pytest.approx(predicted_ms(truth, step), rel=0.1)


def test_an_overhead_that_grows_with_the_batch_is_told_apart() -> None:
    truth = Server(CPU, SMALL)
    steps = measure(truth, STEPS, noise=0.02)
    with_it = fit(knows_nothing_of(truth), steps, per_sequence=True)
    assert with_it.server.accelerator.sequence_us == pytest.approx(60, rel=0.25)
    assert with_it.worst < 0.05
    for streams in (1, 4, 16, 64):
        step = Measured(1, sequences=streams, context=300)
        assert predicted_ms(with_it.server, step) == pytest.approx(
            predicted_ms(truth, step), rel=0.05
        )


def test_what_a_prompt_adds_is_told_from_what_a_step_takes() -> None:
    truth = Server(replace(CPU, prompt_us=2500), SMALL)
    seen = [Measured(1, sequences=n, context=100) for n in (2, 8, 32)]
    seen += [Measured(1, prefill=40), Measured(1, prefill=400)]
    seen += [Measured(1, sequences=8, context=100, prefill=40, prompts=0.4)]
    found = fit(
        knows_nothing_of(truth),
        measure(truth, seen),
        per_sequence=True,
        per_prompt=True,
        bandwidth_gb_s=20,
    )
    part = found.server.accelerator
    assert found.unknown == ()
    assert part.prompt_us == pytest.approx(2500, rel=0.02)
    assert part.step_us == pytest.approx(CPU.step_us, rel=0.02)


def test_a_step_that_reads_a_prompt_at_times_lies_between_both() -> None:
    server = Server(replace(CPU, prompt_us=2500), SMALL)

    def ms(**kind: float) -> float:
        return predicted_ms(server, Measured(1, sequences=8, context=100, **kind))  # type: ignore[arg-type]

    never, always, sometimes = ms(), ms(prefill=40), ms(prefill=40, prompts=0.25)
    assert always - never > 2.5
    assert sometimes == pytest.approx(never + 0.25 * (always - never))


def test_what_a_small_model_does_not_tell_of_its_memory_can_be_given() -> None:
    # Steps of a few sequences, all with short caches: memory and overhead are the same to them.
    truth = Server(CPU, SMALL)
    seen = [Measured(1, sequences=n, context=100) for n in (2, 8, 32)]
    steps = measure(truth, [*seen, Measured(1, prefill=40), Measured(1, prefill=400)])
    found = fit(knows_nothing_of(truth), steps, per_sequence=True, bandwidth_gb_s=20)
    part = found.server.accelerator
    assert (found.unknown, part.bandwidth_gb_s) == ((), 20)
    assert part.step_us == pytest.approx(CPU.step_us, rel=0.02)
    assert part.sequence_us == pytest.approx(60, rel=0.02)
    assert part.tflops["bf16"] == pytest.approx(0.2, rel=0.02)


def test_what_no_measurement_depends_on_is_said_to_be_unknown() -> None:
    truth = SERVERS["gpu"]
    few = [Measured(1, sequences=n, context=c) for n in (1, 4) for c in (100, 8000)]
    found = fit(knows_nothing_of(truth), measure(truth, few))
    assert found.unknown == ("tflops",)
    assert found.worst < 0.01


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([Measured(1, sequences=1)] * 5, "1 measurements for 3 unknowns"),
        ([Measured(0, sequences=1)] * 3, "above 0"),
        ([Measured(float("nan"), sequences=1)] * 3, "above 0"),
        ([Measured(1)] * 3, "work that took it"),
        ([Measured(1, sequences=1, context=-1)] * 3, "expected"),
        ([Measured(1, sequences=1, prefill=9, prompts=-1.0)] * 3, "expected"),
    ],
)
def test_measurements_that_tell_nothing_are_refused(steps: list[Measured], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fit(SERVERS["gpu"], steps)

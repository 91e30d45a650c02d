"""Fits a simulated server to a few measured steps of a real one.

Data sheets give peaks, and a server's software reaches only part of them. A few measured steps give
bandwidth, arithmetic and overhead; the engine then predicts the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turngap.core.errors import InputError
from turngap.inference.server import PS_PER_S, Server, StepCosts

Parameter = Literal["bandwidth_gb_s", "tflops", "step_us", "sequence_us", "prompt_us"]
# If doubling a parameter changes no measured step by this share, the parameter is unknown.
_TELLING = 0.01
# The search starts from these shares of the shortest step as overhead.
_STARTS = (0.02, 0.2, 0.5, 0.8, 0.95)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of step, as measured.

    Attributes:
        ms: its typical duration.
        sequences: how many sequences decoded in it; each got 1000 / `ms` tokens a second.
        context: mean number of tokens in the cache of each.
        prefill: prompt tokens that it computed of each prompt.
        prompts: mean number of prompts in such a step.
    """

    ms: float
    sequences: int = 0
    context: float = 0.0
    prefill: int = 0
    prompts: float = 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A server that behaves as measured, as nearly as the model can.

    Attributes:
        server: the given one with its parts replaced; their efficiencies are 1, because the fitted
            values include them.
        unknown: parameters that the measurements do not determine; their values are guesses, and
            no measured step depends on them.
        worst: the largest relative error among the measured steps.
    """

    server: Server
    unknown: tuple[Parameter, ...]
    worst: float


def predicted_ms(server: Server, step: Measured) -> float:
    """Return how long the model says such a step takes."""
    looked_back = round(step.sequences * step.context)
    pairs, costs = step.prefill * (step.prefill + 1) // 2, StepCosts(server)
    if not step.prefill:
        return costs.step_ps(step.sequences, looked_back) / PS_PER_S * 1000
    ps = float(costs.step_ps(step.sequences, looked_back, step.prefill, 0, pairs, prompts=1))
    if step.prompts != 1:
        without_ps = costs.step_ps(step.sequences, looked_back)
        ps = without_ps + step.prompts * (ps - without_ps)
    return ps / PS_PER_S * 1000


def fit(
    server: Server,
    measured: Sequence[Measured],
    *,
    per_sequence: bool = False,
    per_prompt: bool = False,
    bandwidth_gb_s: float | None = None,
) -> Fit:
    """Find the bandwidth, arithmetic and overhead that explain the measured steps best.

    Relative errors count, so that a step of 1 ms weighs as much as one of 100.

    Args:
        server: what is known about it: the model, the number of parts, the precisions.
        measured: its steps.
        per_sequence: also fit a part of the overhead that grows with the batch.
        per_prompt: also fit a part of the overhead that each prompt adds.
        bandwidth_gb_s: bandwidth of one part, if it was measured separately. The steps of a small
            model do not separate moving its weights from overhead, as both are always there.

    Raises:
        InputError: there are fewer measurements than unknowns, or one is impossible.
    """
    parameters: tuple[Parameter, ...] = ("tflops", "step_us")
    if bandwidth_gb_s is None:
        parameters = ("bandwidth_gb_s", *parameters)
    else:
        part = replace(server.accelerator, bandwidth_gb_s=bandwidth_gb_s)
        server = replace(server, accelerator=part)
    if per_sequence:
        parameters = (*parameters, "sequence_us")
    from scipy.optimize import least_squares  # heavy, and a simulation does without

    if per_prompt:
        parameters = (*parameters, "prompt_us")
    _check(measured, len(parameters))
    targets = np.log([step.ms for step in measured])

    def errors(logs: Floats) -> Floats:
        candidate = _with(server, parameters, logs)
        return np.log([predicted_ms(candidate, step) for step in measured]) - targets

    starts = [_start(server, measured, share, parameters) for share in _STARTS]
    found = min(
        (
            least_squares(errors, start, x_scale=1.0, diff_step=[1e-3] * len(parameters))
            for start in starts
        ),
        key=lambda result: result.cost,
    )
    best = np.asarray(found.x, dtype=np.float64)
    unknown: list[Parameter] = [
        name
        for index, name in enumerate(parameters)
        if np.abs(errors(_moved(best, index)) - errors(best)).max() < _TELLING
    ]
    return Fit(
        server=_with(server, parameters, best),
        unknown=tuple(unknown),
        worst=float(np.abs(np.expm1(errors(best))).max()),
    )


def _check(measured: Sequence[Measured], unknowns: int) -> None:
    for step in measured:
        sane = step.sequences >= 0 and step.context >= 0 and step.prefill >= 0
        sane = sane and 0 <= step.prompts < math.inf
        if not (0 < step.ms < math.inf and sane and step.sequences + step.prefill > 0):
            raise InputError(
                "inference.measured", f"{step}: expected a time above 0 and work that took it"
            )
    if len(set(measured)) < unknowns:
        raise InputError(
            "inference.measured",
            f"{len(set(measured))} measurements for {unknowns} unknowns",
            hint="measure steps of several batch sizes and the prefill of a long prompt",
        )


def _start(
    server: Server, measured: Sequence[Measured], share: float, parameters: Sequence[Parameter]
) -> Floats:
    """Guess the parameters (logs), with that share of the shortest step as overhead."""
    shortest = min(step.ms for step in measured)
    longest = max(measured, key=lambda step: step.sequences + step.prefill)
    left_s = shortest * (1 - share) / 1000
    tokens = longest.sequences + longest.prefill
    flops = server.model.flops_per_token * tokens / (longest.ms / 1000)
    guess: dict[Parameter, float] = {
        "bandwidth_gb_s": server.model.moved_bytes(server.weights, 1) / left_s / server.parts / 1e9,
        "tflops": flops / server.parts / 1e12,
        "step_us": 1000 * shortest * share,
        "sequence_us": shortest,
        "prompt_us": 1000 * shortest * share,
    }
    return np.log([guess[name] for name in parameters])


def _with(server: Server, parameters: Sequence[Parameter], logs: Floats) -> Server:
    # Beyond these limits a float overflows; no server comes near them.
    values = dict(zip(parameters, np.exp(np.clip(logs, -40, 40)).tolist(), strict=True))
    part = server.accelerator
    part = replace(
        part,
        bandwidth_gb_s=values.get("bandwidth_gb_s", part.bandwidth_gb_s),
        tflops={"bf16": values["tflops"]},
        step_us=values["step_us"],
        sequence_us=values.get("sequence_us", part.sequence_us),
        prompt_us=values.get("prompt_us", part.prompt_us),
        memory_efficiency=1.0,
        compute_efficiency=1.0,
    )
    return replace(server, accelerator=part)


def _moved(logs: Floats, index: int) -> Floats:
    moved = logs.copy()
    moved[index] += math.log(2)
    return moved

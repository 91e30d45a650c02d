"""Accelerators: how much they hold, how fast they move it and how fast they compute."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from turngap.core.errors import InputError

Precision = Literal["bf16", "fp16", "fp8", "int8", "fp4", "int4"]
BYTES: Mapping[Precision, float] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One part of a server. The defaults are those of an H100.

    Attributes:
        memory_gb: its memory, 10^9 bytes.
        bandwidth_gb_s: peak bandwidth of its memory, 10^9 bytes a second.
        tflops: dense peak in 10^12 operations a second for each precision. A missing precision
            computes as bf16 does, because its weights are unpacked first.
        usable: share of the memory that weights and KV cache may take.
        memory_efficiency: share of the bandwidth that a decode step reaches.
        compute_efficiency: share of the peak that a long prefill reaches.
        step_us: fixed cost of a step: scheduler, launches, sampling.
        sequence_us: what each sequence that decodes adds: its sampling and its stream.
        prompt_us: what each prompt that is read in the step adds: its place in the batch.
        layer_us: what each layer adds.
        split_us: what each layer adds if the model is split over several parts, which exchange
            results twice in each layer.
        link_gb_s: what a part sends to the others in one direction; the amount grows with the
            tokens of a step.
    """

    name: str = "custom"
    _: KW_ONLY
    memory_gb: float
    bandwidth_gb_s: float
    tflops: Mapping[str, float]
    usable: float = 0.9
    memory_efficiency: float = 0.75
    compute_efficiency: float = 0.5
    step_us: float = 2000.0
    sequence_us: float = 0.0
    prompt_us: float = 0.0
    layer_us: float = 0.0
    split_us: float = 15.0
    link_gb_s: float = 450.0

    def __post_init__(self) -> None:
        for name in ("memory_gb", "bandwidth_gb_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise _bad(self.name, name, getattr(self, name), "more than 0")
        if not self.link_gb_s > 0:
            raise _bad(self.name, "link_gb_s", self.link_gb_s, "more than 0")
        for name in ("usable", "memory_efficiency", "compute_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise _bad(self.name, name, getattr(self, name), "more than 0 and at most 1")
        for name in ("step_us", "sequence_us", "prompt_us", "layer_us", "split_us"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise _bad(self.name, name, value, "0 or more microseconds")
        if "bf16" not in self.tflops:
            raise _bad(self.name, "tflops", dict(self.tflops), "at least bf16")
        for precision, value in self.tflops.items():
            if not 0 < value < math.inf:
                raise _bad(self.name, f"tflops.{precision}", value, "more than 0")

    def flops(self, precision: Precision) -> float:
        """Return the dense peak in operations a second with weights of that precision."""
        key = "bf16" if precision == "fp16" else precision
        return self.tflops.get(key, self.tflops["bf16"]) * 1e12


def _bad(owner: str, name: str, value: object, want: str) -> InputError:
    return InputError("inference.hardware", f"{owner}: {name} is {value!r}, expected {want}")


# Efficiencies and overheads are one set for each kind of part, fitted to 80 public figures of
# TensorRT-LLM 1.0 (NVIDIA/TensorRT-LLM docs/source/performance/perf-overview.md: Llama 8B, 70B and
# 405B at FP8 and FP4, ten lengths each). `benchmarks/inference_public.py` prints them beside what
# the engine predicts: 12 % off on average on H100 and H200, 21 % on GB200.
H100 = Accelerator(
    # NVIDIA H100 SXM data sheet: 80 GB HBM3, 3.35 TB/s, NVLink 900 GB/s both ways; dense figures
    # are half of those it gives with sparsity.
    "h100",
    memory_gb=80,
    bandwidth_gb_s=3350,
    tflops={"bf16": 989.4, "fp8": 1978.9, "int8": 1978.9},
)
H200 = Accelerator(
    # NVIDIA H200 SXM data sheet: the H100's arithmetic with 141 GB HBM3e at 4.8 TB/s.
    "h200",
    memory_gb=141,
    bandwidth_gb_s=4800,
    tflops={"bf16": 989.4, "fp8": 1978.9, "int8": 1978.9},
)
GB200 = Accelerator(
    # One GPU of NVIDIA's GB200 NVL72 (data sheet / 72): 8 TB/s HBM3e, which is 2.4 times an H100's,
    # 1.8 TB/s of NVLink both ways. Microsoft measured 7.35 TB/s and 2744 TFLOPS of FP8 on it
    # (techcommunity.microsoft.com, ND GB200 v6).
    "gb200",
    memory_gb=186,
    bandwidth_gb_s=8040,
    tflops={"bf16": 2500, "fp8": 5000, "int8": 5000, "fp4": 10_000},
    memory_efficiency=0.6,
    compute_efficiency=0.35,
    link_gb_s=900,
)
WAFER = Accelerator(
    # Cerebras WSE-3: 44 GB SRAM, 21 PB/s, 125 PFLOPS with sparsity, of which a tenth is taken for
    # dense. Steps are fitted to two public rates at batch 1: Llama 3.1 8B at 1,800 tokens/s
    # (cerebras.ai/blog, August 2024) and 405B at 969 (November 2024). Llama 3.1 70B, which it was
    # not fitted to, comes out at 1,250: 450 in August 2024, 2,100 in October of that year with
    # speculative decoding.
    "wafer",
    memory_gb=44,
    bandwidth_gb_s=21_000_000,
    tflops={"bf16": 12_500},
    usable=0.95,  # no allocator that needs slack: what runs on it is laid out beforehand
    step_us=390,
    layer_us=5,
    split_us=0,
    link_gb_s=math.inf,
)
ACCELERATORS: Mapping[str, Accelerator] = {a.name: a for a in (H100, H200, GB200, WAFER)}


def find_accelerator(name: str) -> Accelerator:
    """Find a known accelerator.

    Raises:
        InputError: it is unknown; the message lists the known ones.
    """
    if name in ACCELERATORS:
        return ACCELERATORS[name]
    raise InputError(
        "inference.hardware",
        f"no accelerator {name!r}",
        hint=f"known: {', '.join(ACCELERATORS)}; a fleet file can describe another",
    )

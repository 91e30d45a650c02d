"""A server: accelerators with a model on them, what fits, and how long each step takes."""

import math
import random
import re
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
        sequence_us: time that each decoding sequence adds: its sampling and its stream.
        prompt_us: time that each prompt read in the step adds: its place in the batch.
        layer_us: time that each layer adds.
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
                raise _bad(self, name, getattr(self, name), "more than 0")
        if not self.link_gb_s > 0:
            raise _bad(self, "link_gb_s", self.link_gb_s, "more than 0")
        for name in ("usable", "memory_efficiency", "compute_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise _bad(self, name, getattr(self, name), "more than 0 and at most 1")
        for name in ("step_us", "sequence_us", "prompt_us", "layer_us", "split_us"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise _bad(self, name, value, "0 or more microseconds")
        if "bf16" not in self.tflops:
            raise _bad(self, "tflops", dict(self.tflops), "at least bf16")
        for precision, value in self.tflops.items():
            if not 0 < value < math.inf:
                raise _bad(self, f"tflops.{precision}", value, "more than 0")

    def flops(self, precision: Precision) -> float:
        """Return the dense peak in operations a second with weights of that precision."""
        key = "bf16" if precision == "fp16" else precision
        return self.tflops.get(key, self.tflops["bf16"]) * 1e12


# Efficiencies and overheads are one set for each kind of part, fitted to 80 public figures of
# TensorRT-LLM 1.0 (NVIDIA/TensorRT-LLM docs/source/performance/perf-overview.md: Llama 8B, 70B and
# 405B at FP8 and FP4, ten lengths each). `benchmarks/inference_public.py` prints them next to what
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
        InputError: the accelerator is unknown; the message lists the known ones.
    """
    if name in ACCELERATORS:
        return ACCELERATORS[name]
    raise InputError(
        "inference.hardware",
        f"no accelerator {name!r}",
        hint=f"known: {', '.join(ACCELERATORS)}; a fleet file can describe another",
    )


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    Attributes:
        params_b: all parameters, 10^9.
        layers: its depth.
        heads: query heads; the arithmetic of attention goes with them.
        kv_heads: key and value heads; the KV cache goes with them.
        head_dim: width of a head.
        active_b: parameters that a token passes through, 10^9; all of them unless the model is a
            mixture of experts.
        experts: routed experts in each layer; 0 if the model is dense.
        experts_per_token: how many of them a token passes through.
    """

    name: str = "custom"
    _: KW_ONLY
    params_b: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    active_b: float | None = None
    experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        for name in ("params_b", "layers", "heads", "kv_heads", "head_dim"):
            if not 0 < getattr(self, name) < 1e6:
                raise _bad(self, name, getattr(self, name), "more than 0")
        if self.active_b is not None and not 0 < self.active_b <= self.params_b:
            raise _bad(self, "active_b", self.active_b, f"0 to {self.params_b:g}")
        if self.experts and self.active_b is None:
            raise _bad(self, "active_b", None, "a number, because there are experts")
        if not 0 <= self.experts_per_token <= self.experts:
            raise _bad(self, "experts_per_token", self.experts_per_token, "0 to experts")

    @property
    def flops_per_token(self) -> float:
        """Return the operations for one token without attention: two for each weight."""
        return 2e9 * (self.active_b or self.params_b)

    @property
    def flops_per_context_token(self) -> float:
        """Return the operations that attention adds for each token it looks back at."""
        return 4.0 * self.layers * self.heads * self.head_dim

    @property
    def width(self) -> int:
        """Return the size of the vector of a token between layers."""
        return self.heads * self.head_dim

    def weight_bytes(self, precision: Precision) -> float:
        return 1e9 * self.params_b * BYTES[precision]

    def moved_bytes(self, precision: Precision, tokens: int) -> float:
        """Return the size of the weights that a step over that many tokens reads.

        Of a mixture of experts, a step reads the experts that its tokens are routed to: with even
        routing, a share 1 - (1 - k/E)^tokens of them. A step always reads all other weights.
        """
        if not self.experts or self.active_b is None:
            return self.weight_bytes(precision)
        chosen = self.experts_per_token / self.experts
        # params = rest + routed, active = rest + chosen * routed.
        routed_b = (self.params_b - self.active_b) / (1 - chosen)
        touched = 1 - (1 - chosen) ** max(1, tokens)
        return 1e9 * (self.params_b - routed_b + routed_b * touched) * BYTES[precision]

    def kv_bytes(self, precision: Precision) -> float:
        """Return the size of one token's keys and values over all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * BYTES[precision]


def _bad(owner: Accelerator | Model, name: str, value: object, want: str) -> InputError:
    """Build the error for an attribute out of its range."""
    kind, of = ("model", "model ") if isinstance(owner, Model) else ("hardware", "")
    text = f"{of}{owner.name}: {name} is {value!r}, expected {want}"
    return InputError(f"inference.{kind}", text)


# Shapes from the publishers' config.json.
MODELS: Mapping[str, Model] = {
    m.name: m
    for m in (
        Model("llama-3.1-8b", params_b=8.03, layers=32, heads=32, kv_heads=8, head_dim=128),
        Model("llama-3.3-70b", params_b=70.55, layers=80, heads=64, kv_heads=8, head_dim=128),
        Model("llama-3.1-405b", params_b=405.85, layers=126, heads=128, kv_heads=8, head_dim=128),
        Model(
            "qwen3-30b-a3b", params_b=30.53, layers=48, heads=32, kv_heads=4, head_dim=128,
            active_b=3.34, experts=128, experts_per_token=8,
        ),
        Model(
            "gpt-oss-120b", params_b=116.83, layers=36, heads=64, kv_heads=8, head_dim=64,
            active_b=5.13, experts=128, experts_per_token=4,
        ),
    )
}  # fmt: skip

_SIZE = re.compile(r"(?:dense-)?(\d+(?:\.\d+)?)b", re.IGNORECASE)
_LARGEST_B = 10_000


def dense(params_b: float) -> Model:
    """Make a dense model of that many 10^9 parameters in the proportions of the Llama family.

    Between its 8B, 70B and 405B the width is about 116 times the depth, a layer holds about 13.2
    times its width squared, heads are 128 wide, and 8 of them hold keys and values.
    """
    width = 128 * max(1, round((1e9 * params_b * 116 / 13.2) ** (1 / 3) / 128))
    return Model(
        f"dense-{params_b:g}b",
        params_b=params_b,
        layers=max(1, round(1e9 * params_b / (13.2 * width**2))),
        heads=width // 128,
        kv_heads=min(8, width // 128),
        head_dim=128,
    )


def find_model(name: str) -> Model:
    """Find a known model, or make a dense one of a size such as `20b`.

    Raises:
        InputError: the name is neither; the message lists the known models.
    """
    if name in MODELS:
        return MODELS[name]
    size = _SIZE.fullmatch(name)
    if size and 0 < float(size[1]) <= _LARGEST_B:
        return dense(float(size[1]))
    raise InputError(
        "inference.model",
        f"no model {name!r}",
        hint=f"known: {', '.join(MODELS)}; a size such as 20b makes a dense model of that size",
    )


@dataclass(frozen=True, slots=True)
class Speculation:
    """The quality of the draft and its cost.

    Attributes:
        acceptance: probability that a proposed token is kept, given that those before it were.
        draft_tokens: tokens proposed in each step.
        draft_cost: time of a draft's step as a share of the model's own.
    """

    acceptance: float
    draft_tokens: int = 4
    draft_cost: float = 0.05

    def __post_init__(self) -> None:
        for name, low, high in (
            ("acceptance", 0.0, 1.0),
            ("draft_tokens", 1, 64),
            ("draft_cost", 0.0, 10.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(
                    "inference.speculation",
                    f"speculation: {name} is {getattr(self, name)!r}, expected {low:g} to {high:g}",
                )

    @property
    def tokens_per_step(self) -> float:
        """Return the expected tokens in a step (Leviathan et al. 2023, eq. 1)."""
        if self.acceptance == 1:
            return self.draft_tokens + 1.0
        return (1 - self.acceptance ** (self.draft_tokens + 1)) / (1 - self.acceptance)

    def steps(self, tokens: int, key: str) -> list[int]:
        """Return how many tokens each step of one reply yields; they sum to `tokens`.

        The draws depend on `key` alone, so that a reply has the same luck in any batch.
        """
        random_ = random.Random(key)  # seeded by the text's SHA-512: the same in every process
        yields: list[int] = []
        left = tokens
        while left > 0:
            got = 1
            while got <= self.draft_tokens and random_.random() < self.acceptance:
                got += 1
            got = min(got, left)
            yields.append(got)
            left -= got
        return yields


PS_PER_S = 10**12
PS_PER_MS = 10**9
PS_PER_US = 10**6
# Suggested to someone whose model does not fit, from the usual to the smallest.
_SUGGESTED: tuple[Precision, ...] = ("fp16", "int8", "int4")
_MAX_PARTS = 1024


@dataclass(frozen=True, slots=True)
class Server:
    """One replica: a model, split over `parts` equal accelerators.

    Attributes:
        weights: precision of the weights.
        kv: precision of the KV cache.
        context: tokens of the longest conversation that must fit.
    """

    accelerator: Accelerator
    model: Model
    parts: int = 1
    weights: Precision = "bf16"
    kv: Precision = "bf16"
    context: int = 4096
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= _MAX_PARTS:
            raise InputError(
                "inference.parts", f"{self.parts} accelerators, expected 1 to {_MAX_PARTS}"
            )
        if self.context < 1:
            raise InputError("inference.context", f"context {self.context}, expected 1 or more")
        if self.kv_tokens < self.context:
            raise self._no_fit()

    @property
    def usable_bytes(self) -> float:
        return self.parts * self.accelerator.memory_gb * 1e9 * self.accelerator.usable

    @property
    def kv_tokens(self) -> int:
        """Return the tokens that fit next to the weights; negative if not even these fit."""
        left = self.usable_bytes - self.model.weight_bytes(self.weights)
        return math.floor(left / self.model.kv_bytes(self.kv))

    def _no_fit(self) -> InputError:
        held = self.parts * self.accelerator.memory_gb
        parts = f"{self.parts} × {self.accelerator.name}"
        needed = self.model.weight_bytes(self.weights) / 1e9
        cache = self.context * self.model.kv_bytes(self.kv) / 1e9
        fits = ", ".join(f"{_about(self.usable_bytes / BYTES[p] / 1e9)} at {p}" for p in _SUGGESTED)
        one = self.accelerator.memory_gb * 1e9 * self.accelerator.usable
        enough = math.ceil((needed + cache) * 1e9 / one)
        return InputError(
            "inference.no_fit",
            f"{self.model.name} at {self.weights} does not fit: {needed:.4g} GB of weights and "
            f"{cache:.2g} GB for one conversation of {self.context} tokens, but {parts} "
            f"has {held:.4g} GB, of which {self.accelerator.usable:.0%} can be used",
            hint=f"{held:.4g} GB hold {fits}; this model needs {enough} × "
            f"{self.accelerator.name}, fewer bits or a smaller model",
        )


def _about(params_b: float) -> str:
    """Format a size such as `about 20B`, rounded down, or it would not quite fit."""
    step = 10 if params_b >= 30 else 5 if params_b >= 10 else 1 if params_b >= 2 else 0.1
    return f"about {math.floor(params_b / step + 1e-9) * step:g}B"


class StepCosts:
    """Durations of a server's steps, in whole picoseconds.

    A step moves the weights and the KV cache of its sequences through memory, and computes. A step
    takes the longer of these two times, plus an overhead.

    Attributes:
        dense: whether every step reads all weights.
        kv_ps: time to move one token's keys and values.
        attention_ps: time to attend to one token.
        token_ps: time to compute one token.
        link_ps: time that the parts of a split model take to exchange one token.
        overhead_ps: the fixed part of each step.
        sequence_ps: time that each decoding sequence adds to it.
        prompt_ps: time that each prompt read in the step adds.
        checked: tokens that the model computes for each sequence of a decode step; more than 1
            with speculative decoding.
    """

    def __init__(self, server: Server) -> None:
        part, model = server.accelerator, server.model
        flops = part.flops(server.weights) * part.compute_efficiency * server.parts
        self._server = server
        self._model = model
        self.dense = not model.experts
        self._moved: dict[int, int] = {}
        self.kv_ps = self._moving_ps(model.kv_bytes(server.kv))
        self.weights_ps = self._moving_ps(model.weight_bytes(server.weights))
        self.attention_ps = round(model.flops_per_context_token / flops * PS_PER_S)
        self.token_ps = round(model.flops_per_token / flops * PS_PER_S)
        # Two all-reduces a layer of one 16-bit vector, each passing 2 (n - 1) / n of it.
        sent = 2 * model.layers * 2 * model.width * 2 * (server.parts - 1) / server.parts
        self.link_ps = round(sent / (part.link_gb_s * 1e9) * PS_PER_S)
        per_layer_us = part.layer_us + (part.split_us if server.parts > 1 else 0.0)
        self.overhead_ps = round((part.step_us + model.layers * per_layer_us) * PS_PER_US)
        self.sequence_ps = round(part.sequence_us * PS_PER_US)
        self.prompt_ps = round(part.prompt_us * PS_PER_US)
        speculation = server.speculation
        self.checked = 1 + speculation.draft_tokens if speculation else 1
        self._draft_ppm = (
            round(speculation.draft_tokens * speculation.draft_cost * 1e6) if speculation else 0
        )

    def moved_ps(self, tokens: int) -> int:
        """Return the time to move the weights that a step over that many tokens reads."""
        if self.dense:
            return self.weights_ps
        cached = self._moved.get(tokens)
        if cached is None:
            moved = self._model.moved_bytes(self._server.weights, tokens)
            cached = self._moved[tokens] = self._moving_ps(moved)
        return cached

    def step_ps(
        self,
        sequences: int,
        looked_back: int,
        prefill: int = 0,
        read: int = 0,
        pairs: int = 0,
        *,
        prompts: int = 0,
    ) -> int:
        """Return the duration of one step.

        Args:
            sequences: how many sequences decode.
            looked_back: tokens in their caches, in all.
            prefill: prompt tokens computed in the same step.
            read: tokens in the caches of the prompts that these continue, in all.
            pairs: how often a prompt token attends to one before it, in all.
            prompts: how many prompts these tokens are from.
        """
        computed = sequences * self.checked + prefill
        moved = self.moved_ps(computed)
        moved += self.kv_ps * (looked_back + read)
        looks = looked_back * self.checked + pairs
        arithmetic = self.token_ps * computed + self.attention_ps * looks
        duration = max(moved, arithmetic) + self.link_ps * computed + self.overhead_ps
        duration += self.sequence_ps * sequences + self.prompt_ps * prompts
        if self._draft_ppm and sequences:
            # The draft runs as often as it proposes tokens, for the sequences that decode.
            duration += self.decode_ps(sequences, looked_back) * self._draft_ppm // 10**6
        return duration

    def decode_ps(self, sequences: int, looked_back: int) -> int:
        """Return the duration of a step that only decodes, without speculation."""
        moved = self.moved_ps(sequences)
        moved += self.kv_ps * looked_back
        arithmetic = self.token_ps * sequences + self.attention_ps * looked_back
        return (
            max(moved, arithmetic)
            + (self.link_ps + self.sequence_ps) * sequences
            + self.overhead_ps
        )

    def _moving_ps(self, size: float) -> int:
        part = self._server.accelerator
        speed = part.bandwidth_gb_s * 1e9 * part.memory_efficiency * self._server.parts
        return round(size / speed * PS_PER_S)

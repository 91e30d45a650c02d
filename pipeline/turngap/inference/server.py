"""A server: accelerators with a model on them, what fits, and how long each step takes."""

import math
import random
from dataclasses import dataclass

from turngap.core.errors import InputError
from turngap.inference.hardware import BYTES, Accelerator, Precision
from turngap.inference.model import Model


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
        """Expected tokens in a step (Leviathan et al. 2023, eq. 1)."""
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
        """Tokens whose keys and values fit beside the weights; negative if not even these fit."""
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
            hint=f"in {held:.4g} GB fit {fits}; for this one take {enough} × "
            f"{self.accelerator.name}, fewer bits or a smaller model",
        )


def _about(params_b: float) -> str:
    """Word a size such as `about 20B`, rounded down, or it would not quite fit."""
    step = 10 if params_b >= 30 else 5 if params_b >= 10 else 1 if params_b >= 2 else 0.1
    return f"about {math.floor(params_b / step + 1e-9) * step:g}B"


class StepCosts:
    """Durations of a server's steps, in whole picoseconds.

    A step moves the weights and the KV cache of its sequences through memory, and computes. It
    takes the longer of the two, plus an overhead.

    Attributes:
        dense: whether every step reads all weights.
        kv_ps: time to move one token's keys and values.
        attention_ps: time to attend to one token.
        token_ps: time to compute one token.
        link_ps: time that the parts of a split model take to exchange one token.
        overhead_ps: the fixed part of each step.
        sequence_ps: what each sequence that decodes adds to it.
        prompt_ps: what each prompt that is read in the step adds.
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
        told = 2 * model.layers * 2 * model.width * 2 * (server.parts - 1) / server.parts
        self.link_ps = round(told / (part.link_gb_s * 1e9) * PS_PER_S)
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
            prefill: prompt tokens computed beside them.
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

"""A server: parts and a model on them, what fits, and what each step takes."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngap.core.errors import InputError
from turngap.inference.hardware import BYTES, Accelerator, Precision
from turngap.inference.model import Model
from turngap.inference.speculation import Speculation

Whole = NDArray[np.int64]

PS_PER_S = 10**12
PS_PER_MS = 10**9
PS_PER_US = 10**6
# What is named to someone whose model does not fit, from the usual to the smallest.
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
        """What weights and KV cache may take of all parts."""
        return self.parts * self.accelerator.memory_gb * 1e9 * self.accelerator.usable

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit beside the weights; negative where not even these do."""
        left = self.usable_bytes - self.model.weight_bytes(self.weights)
        return math.floor(left / self.model.kv_bytes(self.kv))

    def _no_fit(self) -> InputError:
        held = self.parts * self.accelerator.memory_gb
        parts = f"{self.parts} × {self.accelerator.name}"
        needed = self.model.weight_bytes(self.weights) / 1e9
        cache = self.context * self.model.kv_bytes(self.kv) / 1e9
        fits = ", ".join(f"{_about(self._most_b(p))} at {p}" for p in _SUGGESTED)
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

    def _most_b(self, precision: Precision) -> float:
        """The most parameters, 10^9, whose weights alone fit at a precision."""
        return self.usable_bytes / BYTES[precision] / 1e9


def _about(params_b: float) -> str:
    """`about 20B`: rounded down, to tens above 20, or it would not quite fit."""
    step = 10 if params_b >= 30 else 5 if params_b >= 10 else 1 if params_b >= 2 else 0.1
    return f"about {math.floor(params_b / step + 1e-9) * step:g}B"


class StepCosts:
    """Durations of a server's steps, in whole picoseconds.

    A step moves the weights and the KV cache of its sequences through memory, and computes; the
    longer of the two counts, and the overhead on top. Everything is linear in the tokens looked
    back at, which is what lets the engine leap over many decode steps at once.

    Attributes:
        dense: whether every step reads all weights.
        kv_ps: moving one token's keys and values.
        attention_ps: attending to one token.
        token_ps: computing one token.
        link_ps: what the parts of a split model tell each other about one token.
        overhead_ps: each step's fixed part.
        sequence_ps: what each sequence that decodes adds to it.
        prompt_ps: what each prompt that is read in it adds.
        checked: tokens that the model computes for each sequence of a decode step; more than 1
            with speculative decoding.
    """

    __slots__ = (
        "_draft_ppm", "_model", "_moved", "_server", "attention_ps", "checked", "dense", "kv_ps",
        "link_ps", "overhead_ps", "prompt_ps", "sequence_ps", "token_ps", "weights_ps",
    )  # fmt: skip

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
        """Moving the weights that a step over so many tokens reads."""
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
        """One step.

        Args:
            sequences: how many decode.
            looked_back: tokens in their caches, in all.
            prefill: prompt tokens computed beside them.
            read: tokens in the caches of the prompts that these continue, in all.
            pairs: how often a prompt token attends to one before it, in all.
            prompts: from how many prompts these tokens are.
        """
        computed = sequences * self.checked + prefill
        moved = self.weights_ps if self.dense else self.moved_ps(computed)
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
        """A step of decoding alone, without speculation."""
        moved = self.weights_ps if self.dense else self.moved_ps(sequences)
        moved += self.kv_ps * looked_back
        arithmetic = self.token_ps * sequences + self.attention_ps * looked_back
        longer = moved if moved > arithmetic else arithmetic
        return longer + (self.link_ps + self.sequence_ps) * sequences + self.overhead_ps

    def leap_ps(self, sequences: int, looked_back: int, steps: int) -> int:
        """So many decode steps in a row, the caches growing by a token a sequence each step.

        Exactly the sum of `decode_ps` over them; without speculative decoding only.
        """
        if steps == 1:
            return self.decode_ps(sequences, looked_back)
        moved = self.moved_ps(sequences) + self.kv_ps * looked_back
        arithmetic = self.token_ps * sequences + self.attention_ps * looked_back
        faster, slower = self.kv_ps * sequences, self.attention_ps * sequences
        ahead, gains = moved - arithmetic, faster - slower
        # Both grow by the same each step, so the longer one changes at most once.
        first = steps
        if gains > 0 > ahead:
            first = min(steps, -(ahead // gains))
        elif gains < 0 <= ahead:
            first = min(steps, ahead // -gains + 1)
        by_memory = ahead >= 0
        total = steps * (self.overhead_ps + (self.link_ps + self.sequence_ps) * sequences)
        for count, start, memory in ((first, 0, by_memory), (steps - first, first, not by_memory)):
            if count:
                base, slope = (moved, faster) if memory else (arithmetic, slower)
                total += count * base + slope * (count * start + count * (count - 1) // 2)
        return total

    def leap(self, sequences: int, looked_back: int, within_ps: int, most: int) -> tuple[int, int]:
        """How many of `most` decode steps in a row begin within that time, and what they take.

        The first one does. As `begun` and `leap_ps` find it, but nearly always at once.
        """
        moved = self.weights_ps if self.dense else self.moved_ps(sequences)
        moved += self.kv_ps * looked_back
        arithmetic = self.token_ps * sequences + self.attention_ps * looked_back
        fixed_ps = (self.link_ps + self.sequence_ps) * sequences + self.overhead_ps
        by_memory = moved >= arithmetic
        one_ps = (moved if by_memory else arithmetic) + fixed_ps
        # Steps only get longer: at the first one's pace there are no fewer.
        more = min(most, (within_ps - 1) // one_ps + 1) - 1
        if more < 1:
            return 1, one_ps
        if by_memory == (self.kv_ps >= self.attention_ps):  # it stays the longer one
            slope = (self.kv_ps if by_memory else self.attention_ps) * sequences
            before_last_ps = more * one_ps + slope * (more * (more - 1) // 2)
            if before_last_ps < within_ps:
                return more + 1, before_last_ps + one_ps + slope * more
        steps = self.begun(sequences, looked_back, within_ps, most)
        return steps, self.leap_ps(sequences, looked_back, steps)

    def begun(self, sequences: int, looked_back: int, within_ps: int, most: int) -> int:
        """How many of `most` decode steps in a row begin within that time; the first one does."""
        one_ps = self.decode_ps(sequences, looked_back)
        # Steps only get longer, so no more of them begin in time than at the first one's pace;
        # and as they grow slowly, that guess is nearly always right.
        low, high = 1, min(most, (within_ps - 1) // one_ps + 1)
        middle = high
        while low < high:
            if self.leap_ps(sequences, looked_back, middle - 1) < within_ps:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    def _moving_ps(self, size: float) -> int:
        part = self._server.accelerator
        speed = part.bandwidth_gb_s * 1e9 * part.memory_efficiency * self._server.parts
        return round(size / speed * PS_PER_S)


def whole(numbers: Sequence[int]) -> Whole:
    """Whole numbers as an array; by way of `array`, which reads a list in a third of the time."""
    return np.array(array("q", numbers), dtype=np.int64)

"""What the simulator is told of a real server: measured beside no load that it is judged by.

- the memory's bandwidth, by itself (a copy, as STREAM counts it), once;
- steps that only decode, at batches of 2, 8, 32 and 96, by the server's own count of tokens;
- steps that only read a prompt, a short and a long one, by the server's own clock;
- steps that do both, of streams whose replies end all the time, by its count of steps;
- from a reply's last token to the next request's arrival at the engine (HTTP, template, tokens):
  what the client waits for a first token beyond that step.
"""

import asyncio
import json
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle
from math import prod
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
from closed_loop import Ask
from vllm_load import (
    CONTEXT,
    KV_GIB,
    Asking,
    Metrics,
    dropped,
    gained,
    mean_ms,
    until_ended,
)

from turngap.core.errors import InconclusiveError, InputError
from turngap.inference.fit import Fit, Measured, fit
from turngap.inference.hardware import Accelerator
from turngap.inference.model import Model
from turngap.inference.server import Server

BATCHES = (2, 8, 32, 96)
LONG_TOKENS = 400
# Streams, and tokens of their replies, of the steps that do both: a prompt costs the more, the
# more there is beside it.
BOTH = ((8, 16), (32, 32), (96, 64))
# A prompt's step is the median of so many.
PREFILLS = 12
BOTH_S = 1.0
# A decode step is timed over so long, in which a conversation grows no longer than those of the
# loads to come; the median of so many.
DECODE_S, DECODES = 0.3, 3
# Far beyond any cache; the best of a few copies is the one that nobody disturbed.
COPY_BYTES, COPIES = 1 << 28, 8
GENERATED, PREFILL = "vllm:generation_tokens", "vllm:request_prefill_time_seconds"
# A histogram of the tokens in each step; how many it has counted is how many steps there were.
STEPS = "vllm:iteration_tokens_total_count"
ENDED = f"{PREFILL}_count"  # vLLM notes it when the reply ends


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        bandwidth_gb_s: of the memory, 10^9 bytes a second.
        steps: decode steps of some batches, prefills, and steps that do both.
        turn_ms: from a reply's last token to the next request's arrival.
    """

    bandwidth_gb_s: float
    steps: tuple[Measured, ...]
    turn_ms: float

    def fit(self, model: Model) -> Fit:
        """The simulated server that does what was measured."""
        held_gb = (model.weight_bytes("bf16") + KV_GIB * 2**30) / 1e9
        # What is fitted is replaced; that much memory is what the real one has.
        part = Accelerator(
            "cpu", memory_gb=held_gb, bandwidth_gb_s=1.0, tflops={"bf16": 1.0}, usable=1.0
        )
        server = Server(part, model, context=CONTEXT)
        return fit(
            server,
            self.steps,
            per_sequence=True,
            per_prompt=True,
            bandwidth_gb_s=self.bandwidth_gb_s,
        )


def middle(calibrations: Sequence[Calibration]) -> Calibration:
    """The median of each figure."""
    steps = zip(*(each.steps for each in calibrations), strict=True)
    return Calibration(
        calibrations[0].bandwidth_gb_s,
        tuple(_median(kind) for kind in steps),
        median(each.turn_ms for each in calibrations),
    )


async def calibrate(
    asking: Asking, asks: Sequence[Ask], long: str, bandwidth_gb_s: float
) -> Calibration:
    """Measure a server that is otherwise idle; `long` is the text of the long prompt."""
    decodes = [await decoding(asking, asks, batch) for batch in BATCHES]
    turns: list[float] = []
    prefills: list[Measured] = []
    for text in (asks[0].text, long):
        each = [await _prefill(asking, text) for _ in range(PREFILLS)]
        prefills.append(_median([step for step, _ in each]))
        turns += [turn_ms for _, turn_ms in each]
    both = [await doing_both(asking, asks, streams, tokens) for streams, tokens in BOTH]
    return Calibration(bandwidth_gb_s, (*decodes, *prefills, *both), median(turns))


async def decoding(asking: Asking, asks: Sequence[Ask], batch: int) -> Measured:
    """A step of so many sequences, all of which decode: the median time.

    Raises:
        InconclusiveError: this client fell so far behind that replies had ended, or the server had
            made nothing meanwhile.
    """
    found = [await _decoding(asking, asks, batch) for _ in range(DECODES)]
    steps = [step for step in found if step is not None]
    if not steps:
        raise _too_busy(
            f"the replies of {batch} sequences were over before the server's counters were read, "
            "or none of them had a token more"
        )
    return _median(steps)


async def _decoding(asking: Asking, asks: Sequence[Ask], batch: int) -> Measured | None:
    chosen = [asks[n % len(asks)] for n in range(batch)]
    tokens = CONTEXT - max(ask.prompt for ask in chosen) - 1
    loop = asyncio.get_running_loop()
    at_first = before = await asking.metrics()
    running = [asyncio.create_task(asking.reply(ask.text, tokens)) for ask in chosen]
    try:
        # Once each has a few tokens, nobody's prompt is read any more.
        while gained(at_first, before, GENERATED) < 4 * batch:
            await until_ended(running, 0.05)
            before = await asking.metrics()
        began_s = loop.time()
        # Asked more often than this, the counters cost the server's front end half of its time.
        await until_ended(running, DECODE_S)
        after, lasted_s = await asking.metrics(), loop.time() - began_s
        void = any(task.done() for task in running) or not gained(before, after, GENERATED)
    finally:
        await dropped(running)
    await asking.reply(asks[0].text, 1)  # those that were dropped are gone before it is answered
    prompts = [ask.prompt for ask in chosen]
    return None if void else decode_step(batch, prompts, lasted_s, (at_first, before, after))


def _too_busy(what: str) -> InconclusiveError:
    hint = "the machine is too busy: run it on a quiet one"
    return InconclusiveError("simulate_vllm.late", what, hint=hint)


def decode_step(
    batch: int, prompts: Sequence[int], lasted_s: float, readings: tuple[Metrics, Metrics, Metrics]
) -> Measured:
    """A step, by the tokens made in a time.

    Args:
        batch: sequences of each step.
        prompts: tokens of their prompts.
        lasted_s: the time.
        readings: the server's counters before any token, and at both ends of the time.
    """
    none, before, after = (reading[GENERATED] for reading in readings)
    made = ((before - none) + (after - none)) / 2 / batch
    return Measured(
        ms=lasted_s * 1000 * batch / (after - before),
        sequences=batch,
        context=sum(prompts) / batch + made,
    )


async def doing_both(asking: Asking, asks: Sequence[Ask], streams: int, tokens: int) -> Measured:
    """The mean step of streams that ask again as soon as they have had a reply of some tokens.

    Raises:
        InconclusiveError: the server made no step meanwhile.
    """
    lengths = Random(1)  # about as many for each, or they would stay in step with each other

    async def stream(index: int) -> None:
        for number in count(index):
            length = round(tokens * lengths.uniform(0.5, 1.5))
            await asking.reply(asks[number % len(asks)].text, length)

    loop = asyncio.get_running_loop()
    running = [asyncio.create_task(stream(index)) for index in range(streams)]
    try:
        # They began together; once each has had a reply they no longer end so.
        none = before = await asking.metrics()
        while gained(none, before, ENDED) < streams:
            await until_ended(running, 0.1)
            before = await asking.metrics()
        before, began = await asking.metrics(), loop.time()
        await until_ended(running, BOTH_S)
        after, lasted_s = await asking.metrics(), loop.time() - began
    finally:
        await dropped(running)
    await asking.reply(asks[0].text, 1)
    if not gained(before, after, STEPS):
        raise _too_busy(f"the server made no step for {streams} streams in {lasted_s:.1f} s")
    return mixed_step(asks, tokens, lasted_s, before, after)


def mixed_step(
    asks: Sequence[Ask], tokens: int, lasted_s: float, before: Metrics, after: Metrics
) -> Measured:
    """A step in the mean, by the server's counters at both ends of a time.

    Args:
        asks: whose prompts it read.
        tokens: of a reply, in the mean.
        lasted_s: the time.
        before: the counters when it began.
        after: and when it was over.
    """
    steps, prompts = gained(before, after, STEPS), gained(before, after, ENDED)
    prompt = sum(ask.prompt for ask in asks) / len(asks)
    return Measured(
        ms=lasted_s * 1000 / steps,
        # The first token of each reply is made by the step that reads its prompt.
        sequences=round((gained(before, after, GENERATED) - prompts) / steps),
        context=prompt + tokens / 2,
        prefill=round(prompt),
        prompts=prompts / steps,
    )


async def _prefill(asking: Asking, text: str) -> tuple[Measured, float]:
    """A prompt alone in its step, and what the client waited beyond it, ms."""
    before = await asking.metrics()
    reply = await asking.reply(text, 1, count=True)
    after = await asking.metrics()
    step_ms = mean_ms(before, after, PREFILL)
    if step_ms is None or reply.first_ms is None or reply.prompt is None:
        raise RuntimeError(f"vLLM did not say how long it read a prompt, or what it read: {reply}")
    return Measured(ms=step_ms, prefill=reply.prompt), reply.first_ms - step_ms


async def long_text(asking: Asking, asks: Sequence[Ask]) -> str:
    """Several texts in one, of a prompt of `LONG_TOKENS` or a few more."""
    text = ""
    for ask in cycle(asks):
        text = f"{text} {ask.text}".strip()
        if (await prompt_tokens(asking, text)) >= LONG_TOKENS:
            return text
    raise ValueError("nothing to ask")


async def prompt_tokens(asking: Asking, text: str) -> int:
    """Tokens of a prompt, as the server counts them.

    Raises:
        RuntimeError: it does not say.
    """
    reply = await asking.reply(text, 1, count=True)
    if reply.prompt is None:
        raise RuntimeError("the server does not say how many tokens a prompt has")
    return reply.prompt


def memory_gb_s() -> float:
    """What this machine's memory moves, 10^9 bytes a second: read and written."""
    source = np.ones(COPY_BYTES // 8)
    target = np.zeros_like(source)
    taken: list[float] = []
    for _ in range(COPIES):
        began = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(taken) / 1e9


def model_of(folder: Path) -> Model:
    """A model's shape, from its config.json and the header of its weights.

    Raises:
        InputError: it has not both.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        with (folder / "model.safetensors").open("rb") as weights:
            (length,) = struct.unpack("<Q", weights.read(8))
            header = json.loads(weights.read(length))
    except OSError as e:
        raise InputError(
            "simulate_vllm.model",
            f"{e.filename}: {e.strerror}",
            hint="--model: a folder with config.json and model.safetensors",
        ) from e
    params = sum(prod(part["shape"]) for name, part in header.items() if name != "__metadata__")
    return Model(
        folder.name,
        params_b=params / 1e9,
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
    )


def _median(steps: Sequence[Measured]) -> Measured:
    """The median of one kind of step; its context is that of the one in the middle."""
    return sorted(steps, key=lambda step: step.ms)[len(steps) // 2]

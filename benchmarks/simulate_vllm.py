"""The simulator held to account: a real vLLM's rates beside those predicted of it.

Starts one vLLM whose worker has a core of its own, and measures in rounds: its steps at other loads
than those to come (`vllm_calibration.py`); 1, 4, 16 and 64 streams that ask again as soon as they
are answered; the steps again. What the streams get is predicted from the steps' medians.

    python benchmarks/simulate_vllm.py --command vllm-env/bin/python --serve-arg=--enforce-eager \
      --serve-arg=--dtype --serve-arg=bfloat16 --write docs/simulate.md

Prompts and replies have the same numbers of tokens in both, drawn once for all; a reply has as many
as it is asked for (`ignore_eos`). Nothing that the streams got enters a prediction.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import aiohttp
from closed_loop import Ask, Rates, ask_of, replay
from endings import errors_told
from pages import write
from vllm_calibration import (
    GENERATED,
    Calibration,
    calibrate,
    long_text,
    memory_gb_s,
    middle,
    model_of,
    prompt_tokens,
)
from vllm_load import (
    Asking,
    Reply,
    Running,
    add_server_arguments,
    dropped,
    gained,
    kept_apart,
    started,
    until_ended,
)

from turngap.core.errors import InconclusiveError
from turngap.inference.fit import Fit, Measured, predicted_ms
from turngap.inference.model import Model
from turngap.inference.policy import Policy
from turngap.store.provenance import git_commit, this_machine
from turngap_services.script import scenarios

BEGIN = "<!-- made by benchmarks/simulate_vllm.py -->"
STREAMS = (1, 4, 16, 64)
# To reach: no rate further off than this.
WITHIN = 0.15
# Of a reply. As many for all would keep the streams in step with each other.
TOKENS = (24, 96)
POLICY = Policy("continuous", max_batch=128, chunk_tokens=2048)
# The server is told what the simulated one does: how many sequences and tokens a step takes, and
# that nothing is kept of a prompt for the next one.
SERVE_ARGS = (
    *("--max-num-seqs", str(POLICY.max_batch)),
    *("--max-num-batched-tokens", str(POLICY.chunk_tokens)),
    "--no-enable-prefix-caching",
)
# Of a rate: on a machine that is busy with something else a load goes on until it has so many
# replies, but not for ever.
LEAST_REPLIES, LONGEST_S = 8, 30.0
# A first load that does once what a server does once: it prepares its kernels for each batch.
WARM_STREAMS, WARM_S = 64, 2.0
# Virtual seconds: so many that the prediction does not hang on where it is cut.
PREDICTED_S = 120.0


@dataclass
class Row:
    """One load: what was measured in each round, in tokens/s."""

    streams: int
    replies: int = 0
    per_user: list[float] = field(default_factory=list[float])
    total: list[float] = field(default_factory=list[float])

    def add(self, rates: Rates) -> None:
        """One more round."""
        self.replies += len(rates.per_user)
        self.per_user.append(rates.middle)
        self.total.append(rates.total)


@dataclass(frozen=True)
class Judged:
    """A load beside its prediction, in tokens/s."""

    row: Row
    predicted_per_user: float
    predicted_total: float

    @property
    def per_user_error(self) -> float:
        """Of what was predicted, as a share of what was measured (median of the rounds)."""
        return self.predicted_per_user / median(self.row.per_user) - 1

    @property
    def total_error(self) -> float:
        """Likewise of the total."""
        return self.predicted_total / median(self.row.total) - 1

    @property
    def within(self) -> bool:
        """Whether both are as near as they should be."""
        return max(abs(self.per_user_error), abs(self.total_error)) <= WITHIN


@dataclass(frozen=True)
class Found:
    """What was measured: the loads, and the steps before the first round and after each."""

    asks: list[Ask]
    calibrations: list[Calibration]
    rows: list[Row]

    def fit(self, model: Model) -> Fit:
        """The simulated server."""
        return middle(self.calibrations).fit(model)

    def judged(self, fitted: Fit) -> list[Judged]:
        """Each load beside what such a server makes of it."""
        turn_ms = middle(self.calibrations).turn_ms
        return [predicted(fitted, turn_ms, self.asks, row) for row in self.rows]


def predicted(fitted: Fit, turn_ms: float, asks: Sequence[Ask], row: Row) -> Judged:
    """What a load is expected to get."""
    rates = replay(fitted.server, POLICY, asks, row.streams, turn_ms=turn_ms, seconds=PREDICTED_S)
    return Judged(row, rates.middle, rates.total)


async def drawn(asking: Asking, seed: int) -> list[Ask]:
    """What is asked: the library's turns, with the server's count of their prompts."""
    random = Random(seed)
    texts = [turn.say for scenario in scenarios(None) for turn in scenario.turns]
    return [Ask(text, await prompt_tokens(asking, text), random.randint(*TOKENS)) for text in texts]


async def loaded(asking: Asking, asks: Sequence[Ask], streams: int, seconds: float) -> Rates:
    """What a load gets of the real server, from when each stream has had a reply, for so long.

    Raises:
        InconclusiveError: it is too slow for a rate.
    """
    replies: list[Reply] = []
    waited_for = set(range(streams))

    async def stream(index: int) -> None:
        number = 0
        while True:
            ask = ask_of(asks, index, number)
            replies.append(await asking.reply(ask.text, ask.tokens))
            waited_for.discard(index)
            number += 1

    running = [asyncio.create_task(stream(n)) for n in range(streams)]
    try:
        while waited_for:
            await until_ended(running, 0.05)
        replies.clear()
        loop = asyncio.get_running_loop()
        before, began = await asking.metrics(), loop.time()
        await until_ended(running, seconds)
        while len(replies) < LEAST_REPLIES and loop.time() - began < LONGEST_S:
            await until_ended(running, 0.05)
        after, lasted_s = await asking.metrics(), loop.time() - began
        per_user = tuple(reply.per_s for reply in replies if reply.per_s is not None)
    finally:
        await dropped(running)
    if not per_user:
        raise InconclusiveError(
            "simulate_vllm.slow",
            f"no reply of {streams} streams came token by token in {lasted_s:.0f} s",
            hint="the machine is too busy: run it on a quiet one",
        )
    return Rates(per_user, gained(before, after, GENERATED) / lasted_s)


async def measure(asking: Asking, bandwidth_gb_s: float, *, rounds: int, seconds: float) -> Found:
    """Calibrate, and load the server in rounds with a calibration after each."""
    asks = await drawn(asking, seed=1)
    long = await long_text(asking, asks)
    await loaded(asking, asks, WARM_STREAMS, WARM_S)
    calibrations = [await calibrate(asking, asks, long, bandwidth_gb_s)]
    found = Found(asks, calibrations, [Row(streams) for streams in STREAMS])
    for number in range(rounds):
        # Each way as often: the first load of a round is not always the same one.
        for row in found.rows if number % 2 == 0 else found.rows[::-1]:
            row.add(await loaded(asking, asks, row.streams, seconds))
            print(
                f"round {number + 1}: {row.streams} streams, {row.per_user[-1]:.1f} tokens/s a "
                f"user, {row.total[-1]:.0f} in all",
                flush=True,
            )
        calibrations.append(await calibrate(asking, asks, long, bandwidth_gb_s))
    return found


def basis(found: Found, fitted: Fit) -> list[str]:
    """What was measured beside the loads, and what the simulated server is made of."""
    part = fitted.server.accelerator
    kinds = zip(*(each.steps for each in found.calibrations), strict=True)
    lines = [
        f"memory {part.bandwidth_gb_s:.1f} GB/s (measured by itself, once), arithmetic "
        f"{part.tflops['bf16'] * 1000:.0f} GFLOP/s, a step {part.step_us / 1000:.2f} ms, "
        f"{part.sequence_us / 1000:.3f} ms for each sequence in it and "
        f"{part.prompt_us / 1000:.2f} ms for each prompt; from a reply to the next request "
        f"{_spread([each.turn_ms for each in found.calibrations])} ms",
        "",
        *(
            f"- {_kind(typical)}: {_spread([step.ms for step in steps])} ms measured, "
            f"{predicted_ms(fitted.server, typical):.2f} fitted"
            for typical, steps in zip(middle(found.calibrations).steps, kinds, strict=True)
        ),
    ]
    if fitted.unknown:
        lines.append(f"- these steps say nothing of {', '.join(fitted.unknown)}")
    return lines


def _kind(step: Measured) -> str:
    if not step.prefill:
        return f"a step of {step.sequences} sequences"
    if not step.sequences:
        return f"a prompt of {step.prefill} tokens"
    return f"a step of {step.sequences} sequences and, in the mean, {step.prompts:.2f} prompts"


def table(loads: Sequence[Judged]) -> str:
    """Both, side by side, in Markdown."""
    head = (
        "streams", "replies", "a user, tokens/s", "predicted", "off",
        "all, tokens/s", "predicted", "off", f"within {WITHIN:.0%}",
    )  # fmt: skip
    lines = [head, ("---",) * len(head), *map(_cells, loads)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(load: Judged) -> tuple[str, ...]:
    return (
        str(load.row.streams),
        str(load.row.replies),
        _spread(load.row.per_user),
        f"{load.predicted_per_user:.1f}",
        f"{load.per_user_error:+.0%}",
        _spread(load.row.total),
        f"{load.predicted_total:.0f}",
        f"{load.total_error:+.0%}",
        "yes" if load.within else "**no**",
    )


def _spread(values: Sequence[float]) -> str:
    """The median, and from the least to the most."""
    digits = 0 if median(values) >= 100 else 1 if median(values) >= 10 else 2
    low, middling, high = (f"{v:.{digits}f}" for v in (min(values), median(values), max(values)))
    return f"{middling} ({low} to {high})"


def page(found: Found, fitted: Fit, loads: Sequence[Judged], context: Mapping[str, object]) -> str:
    """The table, and what it rests on."""
    told = (
        f"Medians of {context['rounds']} rounds of {context['seconds']} s a load, and their range; "
        f"a user's rate is the median reply's. vLLM {context['vllm']}, {context['model']}, its "
        f"worker on a core of its own ({context['cpu']}); commit {context['commit']}. The "
        f"predictions rest on {len(found.calibrations)} calibrations in between: "
    )
    return f"{table(loads)}\n\n{told}" + "\n".join(basis(found, fitted))


async def run(
    server: Running, chosen: argparse.Namespace, model: Model, bandwidth_gb_s: float
) -> str:
    """Measure it and return what is for a page."""
    # A stream waits for nothing but the server, which closes connections that rest for 5 s.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as client:
        async with client.get(server.base_url.removesuffix("/v1") + "/version") as response:
            version = (await response.json())["version"]
        found = await measure(
            Asking(client, server),
            bandwidth_gb_s,
            rounds=chosen.rounds,
            seconds=chosen.seconds,
        )
    fitted = found.fit(model)
    loads = found.judged(fitted)
    context = {
        "vllm": version,
        "model": model.name,
        "cpu": this_machine().cpu,
        "commit": git_commit() or "unknown",
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
    }
    return page(found, fitted, loads, context)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_arguments(parser)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load in each round")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    chosen = parser.parse_args()
    if chosen.rounds < 1 or not chosen.seconds > 0:
        parser.error("--rounds: 1 or more; --seconds: more than 0")
    with errors_told(), ExitStack() as stack:
        model = model_of(Path(chosen.model))
        cores, bandwidth_gb_s = sorted(os.sched_getaffinity(0)), memory_gb_s()
        server = started(chosen, stack, core=cores[-1], serve_args=SERVE_ARGS)
        # The load does not disturb the core that it is measured on, where there is another.
        os.sched_setaffinity(0, cores[:-1] or cores)
        server.wait_until_healthy()
        if len(cores) > 1:
            kept_apart(cores[-1], cores)
        running = Running(server.base_url, server.model)
        text = asyncio.run(run(running, chosen, model, bandwidth_gb_s))
    print(text)
    if chosen.write is not None:
        write(chosen.write, BEGIN, text)


if __name__ == "__main__":
    main()

"""The simulator held to account: a real vLLM's rates beside those predicted of it.

Starts one vLLM on one core; measures the memory's bandwidth, and the server's steps at other loads
than those to come (`vllm_calibration.py`), once; predicts what 1, 4, 16 and 64 streams get that ask
again as soon as they are answered; then loads the server with them, in rounds, and prints both.

    python benchmarks/simulate_vllm.py --command vllm-env/bin/python --serve-arg=--enforce-eager \
      --serve-arg=--dtype --serve-arg=bfloat16 --write docs/simulate.md

Prompts and replies have the same numbers of tokens in both, drawn once for all; a reply has as many
as it is asked for (`ignore_eos`). Nothing of what is measured in the rounds enters a prediction.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import aiohttp
from closed_loop import Ask, Rates, ask_of, replay
from pages import write
from vllm_calibration import (
    GENERATED,
    Calibration,
    calibrate,
    memory_gb_s,
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
    started,
    until_ended,
)

from turngap.core.errors import InconclusiveError, TurngapError
from turngap.core.inference.fit import Fit, predicted_ms
from turngap.core.inference.policy import Policy
from turngap.provenance import git_commit, this_machine
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
    """One load: what was measured in each round, and what was predicted, in tokens/s."""

    streams: int
    predicted_per_user: float
    predicted_total: float
    replies: int = 0
    per_user: list[float] = field(default_factory=list[float])
    total: list[float] = field(default_factory=list[float])

    def add(self, rates: Rates) -> None:
        """One more round."""
        self.replies += len(rates.per_user)
        self.per_user.append(rates.middle)
        self.total.append(rates.total)

    @property
    def per_user_error(self) -> float:
        """Of what was predicted, as a share of what was measured (median of the rounds)."""
        return self.predicted_per_user / median(self.per_user) - 1

    @property
    def total_error(self) -> float:
        """Likewise of the total."""
        return self.predicted_total / median(self.total) - 1

    @property
    def within(self) -> bool:
        """Whether both are as near as they should be."""
        return max(abs(self.per_user_error), abs(self.total_error)) <= WITHIN


def predicted(fitted: Fit, calibration: Calibration, asks: Sequence[Ask], streams: int) -> Row:
    """What a load is expected to get."""
    rates = replay(
        fitted.server, POLICY, asks, streams, turn_ms=calibration.turn_ms, seconds=PREDICTED_S
    )
    return Row(streams, rates.middle, rates.total)


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


async def measure(
    asking: Asking, model: Path, bandwidth_gb_s: float, *, rounds: int, seconds: float
) -> tuple[Calibration, Fit, list[Row]]:
    """Calibrate, predict, and then load the server in rounds; each goes through the loads anew."""
    asks = await drawn(asking, seed=1)
    await loaded(asking, asks, WARM_STREAMS, WARM_S)
    calibration = await calibrate(asking, asks, bandwidth_gb_s)
    fitted = calibration.fit(model_of(model))
    rows = [predicted(fitted, calibration, asks, streams) for streams in STREAMS]
    print("\n".join(basis(calibration, fitted)), flush=True)
    for number in range(rounds):
        for row in rows if number % 2 == 0 else reversed(rows):
            row.add(await loaded(asking, asks, row.streams, seconds))
            print(
                f"round {number + 1}: {row.streams} streams, {row.per_user[-1]:.1f} tokens/s a "
                f"user, {row.total[-1]:.0f} in all",
                flush=True,
            )
    return calibration, fitted, rows


def basis(calibration: Calibration, fitted: Fit) -> list[str]:
    """What was measured once, and what the simulated server is made of."""
    part = fitted.server.accelerator
    lines = [
        f"memory {part.bandwidth_gb_s:.1f} GB/s (measured by itself), arithmetic "
        f"{part.tflops['bf16'] * 1000:.1f} GFLOP/s, a step {part.step_us / 1000:.2f} ms and "
        f"{part.sequence_us / 1000:.3f} ms for each sequence in it, {calibration.turn_ms:.1f} ms "
        "from a reply to the next request",
        *(
            f"- {_kind(step.sequences, step.prefill)}: {step.ms:.2f} ms measured, "
            f"{predicted_ms(fitted.server, step):.2f} fitted"
            for step in calibration.steps
        ),
    ]
    if fitted.unknown:
        lines.append(f"- these steps say nothing of {', '.join(fitted.unknown)}")
    return lines


def _kind(sequences: int, prefill: int) -> str:
    return f"a prompt of {prefill} tokens" if prefill else f"a step of {sequences} sequences"


def table(rows: Sequence[Row]) -> str:
    """Both, side by side, in Markdown."""
    head = (
        "streams", "replies", "a user, tokens/s", "predicted", "off",
        "all, tokens/s", "predicted", "off", f"within {WITHIN:.0%}",
    )  # fmt: skip
    lines = [head, ("---",) * len(head), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.streams),
        str(row.replies),
        _spread(row.per_user),
        f"{row.predicted_per_user:.1f}",
        f"{row.per_user_error:+.0%}",
        _spread(row.total),
        f"{row.predicted_total:.0f}",
        f"{row.total_error:+.0%}",
        "yes" if row.within else "**no**",
    )


def _spread(rates: Sequence[float]) -> str:
    """The median of the rounds, and from the slowest to the quickest."""
    digits = 1 if median(rates) < 100 else 0
    low, middle, high = (f"{r:.{digits}f}" for r in (min(rates), median(rates), max(rates)))
    return f"{middle} ({low} to {high})"


def page(
    calibration: Calibration, fitted: Fit, rows: Sequence[Row], context: Mapping[str, object]
) -> str:
    """The table, and what it rests on."""
    rounds = len(rows[0].per_user)
    told = (
        f"Medians of {rounds} rounds, and their range; a user's rate is the median reply's. "
        f"vLLM {context['vllm']}, {context['model']}, on one core ({context['cpu']}); commit "
        f"{context['commit']}. Measured once, before: "
    )
    return f"{table(rows)}\n\n{told}" + "\n".join(basis(calibration, fitted))


def document(
    calibration: Calibration, fitted: Fit, rows: Sequence[Row], context: Mapping[str, object]
) -> dict[str, object]:
    """All of it, for `--json`."""
    part = fitted.server.accelerator
    names = ("bandwidth_gb_s", "tflops", "step_us", "sequence_us")
    return {
        **context,
        "calibration": asdict(calibration),
        "fitted": {name: getattr(part, name) for name in names} | {"worst": fitted.worst},
        "unknown": fitted.unknown,
        "loads": [
            asdict(row)
            | {
                "per_user_error": row.per_user_error,
                "total_error": row.total_error,
                "within": row.within,
            }
            for row in rows
        ],
    }


async def run(server: Running, chosen: argparse.Namespace, bandwidth_gb_s: float) -> str:
    """Measure it; returns what is for a page, and keeps the rest."""
    # A stream waits for nothing but the server, which closes connections that rest for 5 s.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as client:
        async with client.get(server.base_url.removesuffix("/v1") + "/version") as response:
            version = (await response.json())["version"]
        calibration, fitted, rows = await measure(
            Asking(client, server),
            Path(chosen.model),
            bandwidth_gb_s,
            rounds=chosen.rounds,
            seconds=chosen.seconds,
        )
    context = {
        "vllm": version,
        "model": Path(chosen.model).name,
        "cpu": this_machine().cpu,
        "commit": git_commit() or "unknown",
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
    }
    if chosen.json is not None:
        text = json.dumps(document(calibration, fitted, rows, context), indent=2)
        chosen.json.write_text(text + "\n", encoding="utf-8")
    return page(calibration, fitted, rows, context)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_arguments(parser)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load in each round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all of it")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    chosen = parser.parse_args()
    cores, bandwidth_gb_s = sorted(os.sched_getaffinity(0)), memory_gb_s()
    try:
        with ExitStack() as stack:
            server = started(chosen, stack, core=cores[-1], serve_args=SERVE_ARGS)
            # The load does not disturb the core that it is measured on, where there is another.
            os.sched_setaffinity(0, cores[:-1] or cores)
            server.wait_until_healthy()
            text = asyncio.run(run(Running(server.base_url, server.model), chosen, bandwidth_gb_s))
    except TurngapError as e:
        sys.exit(f"simulate_vllm: {e}{f' ({e.hint})' if e.hint else ''}")
    print(text)
    if chosen.write is not None:
        write(chosen.write, BEGIN, text)


if __name__ == "__main__":
    main()

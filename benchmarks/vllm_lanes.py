"""What one person gets of a busy vLLM: in the shared lane, ahead of it, or in the low-batch lane.

Starts two servers of the same weights, one core each: the *shared* one, and a *low-batch* replica
that answers few at a time. Loads the shared one with 1, 4, 16 and 64 streams that ask again as soon
as they are answered, and measures, beside the same load:

- `shared`: what each of these streams gets;
- `priority`: what one more stream gets that the shared server takes before the others;
- `low-batch`: what one stream gets of the replica, and what the shared server still makes;
- `small`: what one stream gets of the backend `small`, in this process; once without a load too.

    python benchmarks/vllm_lanes.py --command vllm-env/bin/python --model models/teacher

Every reply of a server has the same number of tokens (`ignore_eos`), so that a rate is exact
however the tokens are packed into chunks; those of `small` are as long as it makes them. Totals are
the servers' own count (`/metrics`), and so are the queue, the requests running and the share of the
KV cache.
"""

import argparse
import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

import aiohttp
from endings import errors_told
from vllm_load import (
    Asking,
    Metrics,
    Reply,
    Running,
    add_server_arguments,
    dropped,
    gained,
    mean_ms,
    messages,
    started,
)

from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import SmallModel
from turngap_services.llm.vllm import Lane
from turngap_services.script import scenarios

STREAMS = (1, 4, 16, 64)
# As many replies as make a median, or one a stream; no longer than this.
LEAST_REPLIES = 8
LONGEST_S = 20.0
BUILD_UP_MS = 1000.0
SAMPLE_MS = 500.0
CLOCK = MonotonicClock()

# To reach, at the heaviest load: tokens/s of one person, and times the loaded shared lane's.
LOW_BATCH_RATIO, SMALL_RATIO, SMALL_PER_S = 2.5, 15.0, 1000.0


@dataclass
class Replies:
    """What the streams of one lane got: time to the first token, and tokens/s with that wait."""

    first_ms: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        """One more; one without a token is left out.

        By the whole reply, because a front end that is short of CPU sends most of one at once: by
        the time between its tokens a stream beside no other was read at 89,573 a second.
        """
        if reply.first_ms is not None and reply.whole_per_s is not None:
            self.first_ms.append(reply.first_ms)
            self.per_s.append(reply.whole_per_s)


@dataclass(frozen=True)
class Phase:
    """One load, measured: replies of each lane, totals in tokens/s, the shared server's gauges."""

    replies: dict[str, Replies]
    total_per_s: float
    beside_per_s: float
    running: float
    waiting: float
    kv_share: float
    queue_ms: float | None
    prefill_ms: float | None


class SmallPath:
    """A model in this process, asked as the servers are: one reply after another."""

    def __init__(self, model: SmallModel) -> None:
        self._model = model

    def ask(self, text: str) -> Reply:
        """One reply. Blocks."""
        at: list[float] = []
        prompt = self._model.prompt(messages(text))
        asked = time.perf_counter()
        # A token without text of its own is not counted: the rate is no higher than it was.
        self._model.say(prompt, lambda _: at.append(time.perf_counter()), threading.Event())
        if not at:
            return Reply(None, None)
        whole_per_s = len(at) / (at[-1] - asked)
        return Reply((at[0] - asked) * 1000, None, whole_per_s=whole_per_s)


class Lanes:
    """The two servers, by their lanes, the model in this process, and a client."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        servers: Mapping[str, Running],
        small: SmallPath,
        tokens: int,
    ) -> None:
        self._lanes = {lane: Asking(client, server) for lane, server in servers.items()}
        self._small = small
        self._tokens = tokens
        self._asks = [turn.say for scenario in scenarios(None) for turn in scenario.turns]

    async def phase(self, streams: int, beside: str | None) -> Phase:
        """Load the shared server; `beside` names the lane of one more stream."""
        enough = max(LEAST_REPLIES, streams) if streams else 0
        replies = {"shared": Replies()} | ({beside: Replies()} if beside else {})
        tasks = [self._stream("shared", 0, n, replies["shared"]) for n in range(streams)]
        if beside == "priority":
            tasks.append(self._stream("shared", -1, streams, replies[beside]))
        elif beside == "small":
            tasks.append(self._small_stream(replies[beside]))
        elif beside:
            tasks.append(self._stream(beside, 0, streams, replies[beside]))
        running = [asyncio.create_task(task) for task in tasks]
        try:
            # Each stream's first reply is of a load that is still building up.
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(BUILD_UP_MS))
            for lane in replies.values():
                lane.first_ms.clear()
                lane.per_s.clear()
            return await self._watched(replies, enough, running)
        finally:
            await dropped(running)

    async def _watched(
        self, replies: dict[str, Replies], enough: int, running: Sequence["asyncio.Task[None]"]
    ) -> Phase:
        began, at = time.monotonic(), await self._lanes["shared"].metrics()
        beside = await self._lanes["low-batch"].metrics()
        gauges: list[Metrics] = []
        while time.monotonic() - began < LONGEST_S:
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(SAMPLE_MS))
            for task in running:
                if task.done():
                    task.result()
            gauges.append(await self._lanes["shared"].metrics())
            others = [lane for name, lane in replies.items() if name != "shared"]
            if len(replies["shared"].per_s) >= enough and all(
                len(lane.per_s) >= LEAST_REPLIES for lane in others
            ):
                break
        lasted_s = time.monotonic() - began
        after, later = gauges[-1], await self._lanes["low-batch"].metrics()
        return Phase(
            replies={name: Replies(list(r.first_ms), list(r.per_s)) for name, r in replies.items()},
            total_per_s=gained(at, after, "vllm:generation_tokens") / lasted_s,
            beside_per_s=gained(beside, later, "vllm:generation_tokens") / lasted_s,
            running=median(g["vllm:num_requests_running"] for g in gauges),
            waiting=median(g["vllm:num_requests_waiting"] for g in gauges),
            kv_share=max(g["vllm:kv_cache_usage_perc"] for g in gauges),
            queue_ms=mean_ms(at, after, "vllm:request_queue_time_seconds"),
            prefill_ms=mean_ms(at, after, "vllm:request_prefill_time_seconds"),
        )

    async def _stream(self, lane: str, priority: int, number: int, replies: Replies) -> None:
        turn = number
        while True:
            turn += 1
            text = self._asks[turn % len(self._asks)]
            # A replica of few requests orders none.
            ranked = priority if lane == "shared" else None
            replies.add(await self._lanes[lane].reply(text, self._tokens, priority=ranked))

    async def _small_stream(self, replies: Replies) -> None:
        for text in cycle(self._asks):
            replies.add(await asyncio.to_thread(self._small.ask, text))


def _middle(values: Sequence[float]) -> str:
    return f"{median(values):.0f}" if values else "–"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _row(streams: int, name: str, phase: Phase) -> str:
    lane = phase.replies[name]
    return (
        f"{streams:>7} {name:<10} {_middle(lane.per_s):>6} {_middle(lane.first_ms):>8} "
        f"{len(lane.per_s):>5} {phase.total_per_s:>8.0f} {phase.beside_per_s:>8.0f} "
        f"{phase.running:>8.0f} {phase.waiting:>8.0f} {phase.kv_share:>6.1%} "
        f"{_ms(phase.queue_ms):>9} {_ms(phase.prefill_ms):>11}"
    )


def worth(streams: int, alone: Phase, beside: Mapping[str, Phase], unloaded: Phase) -> list[str]:
    """What the fast lanes are worth at the heaviest load, against what was to be reached.

    Args:
        streams: of that load.
        alone: the shared lane under it.
        beside: the lanes `low-batch` and `small`, each beside the same load.
        unloaded: the lane `small` without any.
    """
    shared = alone.replies["shared"].per_s
    low_batch, small = (beside[name].replies[name].per_s for name in ("low-batch", "small"))
    idle = unloaded.replies["small"].per_s
    if not (shared and low_batch and small and idle):
        return ["no reply ended in time in one of the lanes: nothing to compare"]
    each = f"the {median(shared):.0f} that each of {streams} streams gets (n={len(shared)})"
    low_ratio, ratio = (median(lane) / median(shared) for lane in (low_batch, small))
    return [
        f"low-batch lane: {median(low_batch):.0f} tokens/s (n={len(low_batch)}), {low_ratio:.1f} "
        f"times {each}; to reach: {LOW_BATCH_RATIO:g}, {_reached(low_ratio, LOW_BATCH_RATIO)}; the "
        f"shared server then makes {beside['low-batch'].total_per_s:.0f} of "
        f"{alone.total_per_s:.0f} tokens/s",
        f"small path: {median(small):.0f} tokens/s (n={len(small)}), {ratio:.1f} times {each}; to "
        f"reach: {SMALL_RATIO:g}, {_reached(ratio, SMALL_RATIO)}; the shared server then makes "
        f"{beside['small'].total_per_s:.0f} of {alone.total_per_s:.0f} tokens/s",
        f"small path without a load: {median(idle):.0f} tokens/s (n={len(idle)}); to reach: "
        f"{SMALL_PER_S:g}, {_reached(median(idle), SMALL_PER_S)}",
    ]


def _reached(found: float, least: float) -> str:
    return "reached" if found >= least else "NOT reached"


async def measure(
    servers: Mapping[str, Running], small: SmallModel, streams: Sequence[int], tokens: int
) -> None:
    """Print a row a load and lane, and what the fast lanes are worth at the heaviest."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        lanes = Lanes(client, servers, SmallPath(small), tokens)
        for lane in ("low-batch", "shared"):  # what a server does once, it does now
            await lanes.phase(1, None if lane == "shared" else lane)
        print(f"{tokens} tokens a reply; medians; queue and prefill: the shared server's means")
        print(
            "streams lane        tok/s  TTFT ms     n   shared   beside  running  waiting     KV  "
            "queue ms  prefill ms"
        )
        unloaded = alone = await lanes.phase(0, "small")
        print(_row(0, "small", unloaded), flush=True)
        beside: dict[str, Phase] = {}
        for count in streams:
            alone = await lanes.phase(count, None)
            print(_row(count, "shared", alone), flush=True)
            for lane in ("priority", "low-batch", "small"):
                beside[lane] = await lanes.phase(count, lane)
                print(_row(count, lane, beside[lane]), flush=True)
        for line in worth(streams[-1], alone, beside, unloaded):
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description="What one person gets of a busy vLLM.")
    add_server_arguments(parser)
    parser.add_argument("--shared-url", help="a running server's, .../v1, instead of one's own")
    parser.add_argument("--low-batch-url", help="likewise")
    parser.add_argument(
        "--small", default="student", help="the model of `small` (default: student)"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--tokens", type=int, default=32)
    chosen = parser.parse_args()
    if (chosen.shared_url is None) != (chosen.low_batch_url is None):
        parser.error("give both --shared-url and --low-batch-url, or neither")
    urls: dict[Lane, str | None] = {"shared": chosen.shared_url, "low-batch": chosen.low_batch_url}
    with errors_told(), ExitStack() as stack:
        small = SmallModel(SmallSettings(model=chosen.small))
        small.warm_up()
        if chosen.shared_url:
            servers = {lane: Running(url, chosen.model) for lane, url in urls.items() if url}
        else:
            policy = {"shared": ("--scheduling-policy", "priority")}
            own = {
                lane: started(chosen, stack, core=core, lane=lane, serve_args=policy.get(lane, ()))
                for core, lane in enumerate(urls)
            }
            for server in own.values():
                server.wait_until_healthy()
            servers = {lane: Running(s.base_url, s.model) for lane, s in own.items()}
        asyncio.run(measure(servers, small, chosen.streams, chosen.tokens))


if __name__ == "__main__":
    main()

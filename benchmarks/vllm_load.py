"""A vLLM to put load on: started on one core, asked over HTTP, its own counters read."""

import argparse
import asyncio
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.server import Server

SYSTEM = "You are on a phone call. Answer in one or two short spoken sentences."
# Of the KV cache; a small model's conversations need a fraction of it.
KV_GIB = 1
CONTEXT = 512

Metrics = dict[str, float]
# Of vLLM's page, what is read here. While the client parses, the streams that it measures wait, and
# most of the page is buckets and other figures.
_READ = re.compile(
    r"vllm:(generation_tokens|iteration_tokens|num_requests_|kv_cache_usage|request_(queue|prefill)_time)"
    r"(?!\w*_bucket)"
)


@dataclass(frozen=True)
class Running:
    """A server that is healthy."""

    base_url: str
    model: str


@dataclass(frozen=True)
class Reply:
    """One reply as the client got it.

    Attributes:
        first_ms: from the request to the first token; None where no token came that has a text.
        per_s: tokens a second after it; None where all came at once.
        prompt: tokens of the prompt, as the server counts them; None where it did not say.
    """

    first_ms: float | None
    per_s: float | None
    prompt: int | None = None


class Asking:
    """Requests to one server."""

    def __init__(self, client: aiohttp.ClientSession, server: Running) -> None:
        self._client = client
        self._server = server

    async def reply(self, text: str, tokens: int, *, count: bool = False) -> Reply:
        """Ask for a reply of exactly so many tokens; `count`: and for those of the prompt."""
        body = {
            "model": self._server.model,
            "messages": messages(text),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "skip_special_tokens": False,  # or what follows the reply's own end would have no text
            "stream": True,
        }
        if count:
            body["stream_options"] = {"include_usage": True}
        asked = time.perf_counter()
        first = last = 0.0
        prompt: int | None = None
        url = f"{self._server.base_url}/chat/completions"
        async with self._client.post(url, json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if _text_of(chunk):
                    last = time.perf_counter()
                    first = first or last
                if usage := chunk.get("usage"):
                    prompt = usage["prompt_tokens"]
        # A server that is short of CPU has been seen to put a whole reply into one chunk.
        per_s = (tokens - 1) / (last - first) if last > first else None
        return Reply((first - asked) * 1000 if first else None, per_s, prompt)

    async def metrics(self) -> Metrics:
        """The server's own counters, gauges and sums, without their labels."""
        url = self._server.base_url.removesuffix("/v1") + "/metrics"
        async with self._client.get(url) as response:
            response.raise_for_status()
            text = await response.text()
        values: Metrics = {}
        ours = (line for line in text.splitlines() if _READ.search(line))
        for family in text_string_to_metric_families("\n".join(ours)):
            for sample in family.samples:
                if sample.name.endswith("_total") or family.type in ("gauge", "histogram"):
                    name = sample.name.removesuffix("_total")
                    values[name] = values.get(name, 0.0) + sample.value
        return values


def gained(before: Metrics, after: Metrics, name: str) -> float:
    """By how much a counter has grown."""
    return after[name] - before[name]


def mean_ms(before: Metrics, after: Metrics, name: str) -> float | None:
    """Mean of a histogram of seconds between two readings; None where nothing was counted."""
    count = gained(before, after, f"{name}_count")
    return gained(before, after, f"{name}_sum") / count * 1000 if count else None


async def until_ended(running: Iterable["asyncio.Task[Any]"], most_s: float) -> None:
    """Wait until one of them has ended, or so long.

    Raises:
        Exception: what one of them failed with.
    """
    ended, _ = await asyncio.wait(running, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()


async def dropped(running: Sequence["asyncio.Task[Any]"]) -> None:
    """Cancel them: vLLM drops a request whose client has gone."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def messages(text: str) -> list[dict[str, str]]:
    """A conversation that has just begun."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """What starts a server of one's own."""
    parser.add_argument("--model", default="models/teacher")
    parser.add_argument("--command", default="vllm", help="vLLM, or the Python it is installed in")
    parser.add_argument("--serve-arg", action="append", default=[], help="for every server")


def started(
    chosen: argparse.Namespace,
    stack: ExitStack,
    *,
    core: int,
    serve_args: Sequence[str] = (),
) -> Server:
    """A server of one's own on one core, which is not healthy yet; it ends with the stack."""
    settings = VllmSettings(
        model=chosen.model,
        command=chosen.command,
        log=Path("vllm.log"),
        serve_args=("--max-model-len", str(CONTEXT), *serve_args, *chosen.serve_arg),
        # Both would take the same cores by themselves.
        serve_env={"VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "VLLM_CPU_OMP_THREADS_BIND": str(core)},
    )
    server = Server(settings, chosen.model)
    stack.callback(server.stop)
    return server


def kept_apart(core: int, others: Sequence[int]) -> None:
    """Leave the core of a server's worker to it alone: all else that it started goes to others.

    vLLM binds its worker and nothing else. On two cores its front end and engine, which waits for
    the worker by asking again and again, take turns with it: 16 streams got 115 to 147 tokens/s
    each so, and 163 to 234 kept apart (four loads each, of one server, in turns).
    """
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith("VLLM::Worker"):
            continue
        if process.name().startswith("VLLM::Engine"):
            process.nice(19)  # it waits by asking again and again; its front end has tokens to send
        for thread in process.threads():
            os.sched_setaffinity(thread.id, set(others) - {core})


def _text_of(chunk: dict[str, list[dict[str, dict[str, str]]]]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", []))

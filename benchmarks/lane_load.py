"""Turns' requests to a language model in an open loop: sent at instants that were fixed beforehand.

What a lane does cannot slow the requests down. Each one's times count from the instant at which it
was due, so that waiting for a place in the lane is part of them.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

import aiohttp
from vllm_load import Running, dropped, messages

from turngap.core.clock import Clock, ms_to_ns, ns_to_ms
from turngap.load.schedule import Shape, Window, poisson
from turngap_services.llm.small.model import SmallModel

# Not counted, so that the counted ones meet a load that runs.
WARM_S = 1.0
# What has not come so long after the last counted request was due is called missing: no turn whose
# reply comes later fits any window.
DRAIN_S = 1.0
ARRANGEMENTS = ("shared", "low-batch", "both", "student")
BOTH = ("shared beside low-batch", "low-batch beside shared")
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(frozen=True)
class Due:
    """A request that is to be sent: when, in seconds from the beginning, and what it says."""

    at_s: float
    text: str
    counted: bool


@dataclass
class Heard:
    """What came of one request, in ms from the instant at which it was due.

    Attributes:
        due: the request.
        late_ms: how much later than due the client turned to it; its own fault.
        sent_ms: when the lane took it; None where it still waited for a place.
        came: instants, and how many tokens had come by then.
        ended_ms: when the reply was whole.
        failed: why there is no whole reply, where the server or the model failed.
    """

    due: Due
    late_ms: float = 0.0
    sent_ms: float | None = None
    came: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    ended_ms: float | None = None
    failed: str | None = None

    @property
    def first_ms(self) -> float | None:
        """The time to the first token."""
        return self.when(1)

    def when(self, tokens: int) -> float | None:
        """When so many tokens had come; None where they did not."""
        return next((at_ms for at_ms, had in self.came if had >= tokens), None)

    def by(self, ms: float) -> int:
        """How many tokens had come by then."""
        return max((had for at_ms, had in self.came if at_ms <= ms), default=0)


# Told the number of tokens of the reply so far.
Came = Callable[[int], None]


class Path(Protocol):
    """A way to a model."""

    async def reply(self, text: str, came: Came) -> None:
        """Ask, tell each time how many tokens have come, and return when the reply is whole."""
        ...


class ServerPath:
    """A vLLM, asked for replies of exactly so many tokens, with a priority: lower goes first."""

    def __init__(
        self, client: aiohttp.ClientSession, server: Running, tokens: int, priority: int
    ) -> None:
        self._client, self._server, self._tokens = client, server, tokens
        self._priority = priority

    async def reply(self, text: str, came: Came) -> None:
        body = {
            "model": self._server.model,
            "messages": messages(text),
            "max_tokens": self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            "priority": self._priority,
            "stream": True,
            # A busy front end puts several tokens into a chunk; this counts them.
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        url = f"{self._server.base_url}/chat/completions"
        async with self._client.post(url, json=body) as response:
            response.raise_for_status()
            had = 0
            async for line in response.content:
                found = _TOKENS.search(line)
                if found and (now := int(found[1])) > had:
                    had = now
                    came(had)
        if had < self._tokens:
            raise ConnectionError(f"the reply ended after {had} of {self._tokens} tokens")


class SmallPath:
    """A model in this process, which makes one reply at a time; others wait in front of it."""

    def __init__(self, model: SmallModel, tokens: int, threads: ThreadPoolExecutor) -> None:
        self._model, self._tokens, self._threads = model, tokens, threads
        self._free = asyncio.Lock()

    async def reply(self, text: str, came: Came) -> None:
        loop, stop = asyncio.get_running_loop(), Event()
        async with self._free:
            prompt = self._model.prompt(messages(text))
            heard = _Counter(loop, came)
            work = loop.run_in_executor(
                self._threads,
                lambda: self._model.say(prompt, heard.piece, stop, least_tokens=self._tokens),
            )
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                stop.set()
                await work
                raise
            # Of pieces without text of their own nothing was told.
            came(self._tokens)


class _Counter:
    """Counts pieces of text in the engine's thread, and tells the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Came) -> None:
        self._loop, self._tell, self._had = loop, tell, 0

    def piece(self, _: str) -> None:
        self._had += 1
        self._loop.call_soon_threadsafe(self._tell, self._had)


class Lane:
    """A way to a model with places for so many replies at a time; None: for any number."""

    def __init__(self, path: Path, places: int | None = None) -> None:
        self._path = path
        self._places = None if places is None else asyncio.Semaphore(places)

    async def reply(self, heard: Heard, since: Callable[[], float]) -> None:
        """Wait for a place and have the reply; `since` tells ms from when it was due."""
        if self._places is not None:
            await self._places.acquire()
        try:
            heard.sent_ms = since()
            await self._path.reply(heard.due.text, lambda had: heard.came.append((since(), had)))
            heard.ended_ms = since()
        except (aiohttp.ClientError, OSError) as e:
            heard.failed = f"{type(e).__name__}: {e}"
        finally:
            if self._places is not None:
                self._places.release()


def requests(per_s: float, seconds: float, texts: Sequence[str], seed: int) -> list[Due]:
    """Draw when which text is asked; counted are those of the last `seconds`."""
    shapes = [Shape(text, ends_s=(0.0,), length_s=0.0) for text in texts]
    calls = poisson(shapes, per_s, Window(WARM_S, seconds, cool_down_s=0.0), seed)
    return [
        Due(due_s, call.shape.scenario, counted)
        for call in calls
        for due_s, counted in zip(call.due_s, call.counted, strict=True)
    ]


def arranged(
    arrangement: str, dues: Sequence[Due], lanes: Mapping[str, Lane]
) -> list[tuple[Due, Lane, str]]:
    """Say which lane each request goes to, and the name of the cell that it counts in."""
    if arrangement != "both":
        return [(due, lanes[arrangement], arrangement) for due in dues]
    ways = [(lanes["shared"], BOTH[0]), (lanes["low-batch"], BOTH[1])]
    return [(due, *ways[number % 2]) for number, due in enumerate(dues)]


async def played(schedule: Sequence[tuple[Due, Lane]], clock: Clock) -> list[Heard]:
    """Send each request when it is due; what the counted ones got.

    Returns when all counted replies are whole, or `DRAIN_S` after the last one was due. Replies
    that are still under way are dropped then.
    """
    began_ns = clock.now_ns()
    tasks: dict[asyncio.Task[None], Heard] = {}
    try:
        for due, lane in schedule:
            due_ns = began_ns + ms_to_ns(due.at_s * 1000)
            await clock.sleep_until_ns(due_ns)

            def since(due_ns: int = due_ns) -> float:
                return ns_to_ms(clock.now_ns() - due_ns)

            heard = Heard(due, late_ms=since())
            tasks[asyncio.create_task(lane.reply(heard, since))] = heard
        waited_for = {task for task, heard in tasks.items() if heard.due.counted}
        last_s = max((tasks[task].due.at_s for task in waited_for), default=0.0)
        left_s = last_s + DRAIN_S - ns_to_ms(clock.now_ns() - began_ns) / 1000
        if waited_for:
            await asyncio.wait(waited_for, timeout=max(0.0, left_s))
        for task in tasks:
            if task.done():
                task.result()  # a fault of this script's is no miss of the lane's
    finally:
        await dropped(list(tasks))
    return [heard for heard in tasks.values() if heard.due.counted]

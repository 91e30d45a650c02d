"""A simulated inference server in real time: the engine of `turngap.inference` on a clock."""

import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from turngap.core.clock import Clock
from turngap.inference.engine import Engine, Policy, Request
from turngap.inference.server import PS_PER_S, Server, StepCosts

PS_PER_NS = 1000
# After this long without a request of ours, the background is not caught up with but begins anew.
RESTART_S = 2.0
# The background runs this long before the first request of ours, so that its streams settle.
SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Background:
    """Other people's requests, which come at random.

    Attributes:
        streams: mean number of them that are answered at the same time.
        prompt: tokens of each prompt; `unread` of them are not in the prefix cache.
        output: mean tokens of each reply; geometric.
    """

    streams: int
    prompt: int = 2000
    unread: int = 100
    output: int = 200


class LiveServer:
    """One server that all sessions of a process share. Its clock alone moves its time.

    Args:
        server: the hardware and the model; batching is continuous.
        background: other people's requests.
        max_batch: most sequences at once, the background's included.
        seed: seed of the background.
        clock: decides when a step is over.
    """

    def __init__(
        self, server: Server, background: Background, *, max_batch: int, seed: int, clock: Clock
    ) -> None:
        self._server = server
        self._policy = Policy("continuous", max_batch)
        self._background = background
        self._seed = seed
        self._clock = clock
        self._running = 0
        self._starts = 0
        self._before = 0
        self._rate = _rate(StepCosts(server), background)
        self._start()

    @property
    def load(self) -> int:
        return self._engine.load

    @property
    def steps(self) -> int:
        return self._before + self._engine.steps

    async def tokens(self, prompt: int, output: int) -> AsyncGenerator[int]:
        """Ask for a reply; yield the number of its tokens so far, each time there are more.

        Closing the generator drops the request at the end of the running step.
        """
        # One instant for both: between two, background requests would come before this one.
        idle_ps = self._now_ps() - self._engine.now_ps  # meanwhile the background went on
        if not self._running and idle_ps > RESTART_S * PS_PER_S:
            self._before += self._engine.steps
            self._start()
        now_ps = self._now_ps()
        self._play(now_ps)
        request = Request(prompt, output)
        self._engine.submit(request, now_ps)
        engine, origin_ns = self._engine, self._origin_ns
        self._running += 1
        out = 0
        try:
            while out < output:
                self._play(self._now_ps())
                ready = engine.tokens_out(request)
                # The tokens of a step are there when the step ends, not before.
                at_ns = origin_ns + -(-engine.now_ps // PS_PER_NS)
                await self._clock.sleep_until_ns(at_ns)
                if ready > out:
                    out = ready
                    yield out
        finally:
            self._running -= 1
            engine.cancel(request, (self._clock.now_ns() - origin_ns) * PS_PER_NS)

    def _now_ps(self) -> int:
        return (self._clock.now_ns() - self._origin_ns) * PS_PER_NS

    def _start(self) -> None:
        """Start a server with the background under way: replies of every age, and more to come."""
        background = self._background
        self._random = random.Random(f"{self._seed}|{self._starts}")
        self._starts += 1
        self._engine = Engine(
            self._server,
            self._policy,
            prefix_cache=True,
            shared=max(0, background.prompt - background.unread),
        )
        self._origin_ns = self._clock.now_ns() - round(SETTLE_S * 1e9)
        self._next_ps = 0
        for _ in range(background.streams):
            left = max(1, round(self._output() * self._random.random()))
            self._engine.submit(Request(background.prompt - background.unread + 1, left), 0)
        self._play(self._now_ps())

    def _play(self, until_ps: int) -> None:
        """Submit the background's requests and run every step that begins by then."""
        while self._background.streams and self._next_ps <= until_ps:
            request = Request(self._background.prompt, self._output())
            self._engine.submit(request, self._next_ps)
            self._next_ps += round(self._random.expovariate(self._rate) * PS_PER_S)
            # The engine takes requests in their order, so earlier steps are played first.
            self._engine.advance(min(until_ps, self._next_ps))
        self._engine.advance(until_ps + 1)
        self._engine.opened.clear()

    def _output(self) -> int:
        return max(1, round(self._random.expovariate(1 / self._background.output)))


def _rate(costs: StepCosts, background: Background) -> float:
    """Return the requests a second that keep the number of background streams constant.

    As many begin as end: in each step one in `output` of the streams, with its prompt to compute.
    """
    streams, known = background.streams, background.prompt - background.unread
    coming = streams / background.output
    unread = coming * background.unread
    step_ps = costs.step_ps(
        streams,
        streams * (background.prompt + background.output),
        round(unread),
        round(coming * known),
        round(unread * (known + background.unread / 2)),
    )
    step_ps += costs.prompt_ps * coming  # `coming` is mostly below one, not a number of prompts
    return streams / (background.output * step_ps / PS_PER_S)

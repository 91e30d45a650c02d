"""Streams that ask again as soon as they are answered, on a simulated server in virtual time."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from turngap.inference.engine import Engine, Policy, Request
from turngap.inference.server import PS_PER_MS, PS_PER_S, Server


@dataclass(frozen=True)
class Ask:
    """A request: its text, the tokens of the whole prompt, and those of the reply."""

    text: str
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Rates:
    """Rates of a load in a time, in tokens a second.

    Attributes:
        per_user: of each reply that ended in it: its tokens after the first one, by the time
            between its first and its last.
        total: all tokens that the server made in it, by the time.
    """

    per_user: tuple[float, ...]
    total: float

    @property
    def middle(self) -> float:
        """Return one user's rate: the median reply's."""
        return median(self.per_user)


def ask_of(asks: Sequence[Ask], stream: int, number: int) -> Ask:
    """Return a stream's request `number`; each begins elsewhere, so that they differ."""
    return asks[(stream + number) % len(asks)]


def replay(
    server: Server,
    policy: Policy,
    asks: Sequence[Ask],
    streams: int,
    *,
    turn_ms: float,
    seconds: float,
) -> Rates:
    """Simulate the load; it is measured from when each stream has had a reply, for so long.

    Args:
        server: what answers.
        policy: how it forms batches.
        asks: in the order in which each stream asks them, see `ask_of`.
        streams: how many there are.
        turn_ms: from a reply's last token to the arrival of the stream's next request.
        seconds: of virtual time.
    """
    engine = Engine(server, policy)
    turn_ps, length_ps = round(turn_ms * PS_PER_MS), round(seconds * PS_PER_S)
    asked = [0] * streams
    coming = [(0, stream) for stream in range(streams)]
    going: dict[int, Request] = {}
    waited_for = set(range(streams))
    began_ps, began_with, per_user = -1, 0, list[float]()
    while began_ps < 0 or engine.now_ps < began_ps + length_ps:
        while coming and coming[0][0] <= engine.next_ps:
            at_ps, stream = heapq.heappop(coming)
            ask = ask_of(asks, stream, asked[stream])
            asked[stream] += 1
            going[stream] = Request(ask.prompt, ask.tokens)
            engine.submit(going[stream], at_ps)
        engine.advance(engine.next_ps + 1)  # one step
        ended = [(stream, r) for stream, r in going.items() if r.done_ps >= 0]
        for stream, request in ended:
            del going[stream]
            heapq.heappush(coming, (request.done_ps + turn_ps, stream))
            if began_ps >= 0:
                spoken_s = (request.done_ps - request.first_ps) / PS_PER_S
                per_user.append((request.output - 1) / spoken_s)
        waited_for.difference_update(stream for stream, _ in ended)
        if began_ps < 0 and not waited_for:
            began_ps, began_with = engine.now_ps, engine.emitted
    lasted_s = (engine.now_ps - began_ps) / PS_PER_S
    return Rates(tuple(per_user), (engine.emitted - began_with) / lasted_s)

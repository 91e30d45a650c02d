"""Some of the zoo's agents over real sockets, in real time and in both dialects."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
import quiet
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from turngap.caller.arrival import StampedSocket
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.play.calibrate import DIALECTS, begin, lengths_of, reading, scenario_of
from turngap.testing.agent import Socket
from turngap.testing.dialects import make_half
from turngap.testing.zoo import ZOO, converse

pytestmark = pytest.mark.realtime
# No ambience: where sound never stops, a packet that comes late delays all that follows it.
NAMES = {"plain", "slow 2", "hold 2.2", "goodbye", "false start"}


def from_its_second_turn(agent):
    return replace(agent, calls=1, says=lambda t: agent.says(replace(t, number=t.number + 1)))


PLAYED = [from_its_second_turn(agent) for agent in ZOO if agent.name in NAMES]
# Sessions begin apart, so that no two of them listen for a first word at once.
APART_NS = 300_000_000


def two_turns(barge_ms):
    """Return what the person says without the last turn: one lasts 10 s on the phone."""
    loaded = scenario_of(barge_ms)
    turns = loaded.scenario.turns[:2]
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": turns}))


async def played(agent, dialect, out, after_ns):
    clock = MonotonicClock(precise=True)
    await clock.sleep_until_ns(clock.now_ns() + after_ns)
    scenario = two_turns(agent.barge_ms)

    async def be(connection: ServerConnection) -> None:
        assert isinstance(connection, Socket)
        about = {"call": 1, "lengths_ms": lengths_of(scenario)}
        with suppress(ConnectionClosed):
            await converse(agent, make_half(dialect), connection, connection.clock, **about)

    listener = StampedSocket(type=socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    async with serve(be, sock=listener, compression=None, create_connection=Socket):
        endpoint = Endpoint(f"ws://127.0.0.1:{listener.getsockname()[1]}/", dialect)
        run = begin(agent, dialect, out)
        async with endpoint.open(clock) as line:
            await run.play_over(line, clock, scenario)
    return reading(agent, dialect, run.finish())


async def test_they_are_read_as_in_virtual_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("turngap.play.calibrate.scenario_of", two_turns)
    pairs = enumerate(product(PLAYED, DIALECTS))
    readings = await asyncio.gather(
        *(played(a, d, tmp_path / f"{a.name} {d}", n * APART_NS) for n, (a, d) in pairs)
    )
    assert len(readings) == len(NAMES) * len(DIALECTS)
    assert {len(r.turns) for r in readings} == {2}
    off = [f"{r.agent.name} in {r.dialect}: {why}" for r in readings for why in r.off]
    with quiet.measured():
        assert {r.verdict for r in readings} == {"right"}, off

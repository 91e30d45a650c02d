"""How much the live page's relay adds to a gap: the same agent with and without it, from outside.

    python benchmarks/relay_delay.py [--turns 200]

A caller on loopback plays tones to a scripted agent that answers after known delays, once directly
and once through the relay of `turngap talk --agent`, in turn. It prints the difference between each
agent's chunk arriving at the caller and the instant at which it was due, ms. The caller, the relay
and the agent are processes of their own. Run it on a quiet machine.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
from websockets.asyncio.client import connect

from turngap.caller.dialects.pipecat import audio_frame, parse, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS, ms_to_ns
from turngap.core.frames import message_frame
from turngap.testing.agent import Reply, Script, script_to_json

RATE, PACKET = 16_000, 320
CLOCK = MonotonicClock(precise=True)
DELAY_MS = 250.0
SPOKEN, QUIET = 10, 35  # packets of 20 ms

SERVE = """
import asyncio, sys, tempfile
from pathlib import Path
from turngap.agent.seats import Seats
from turngap.agent.server import ServeSettings, bind, create_server
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.live.answering import ForeignAgent, reach
from turngap.live.app import LiveServer
from turngap.live.keeping import Keeping
clock, settings = MonotonicClock(), ServeSettings(port=0)
endpoint = Endpoint(sys.argv[1], sys.argv[2])
async def main():
    answering = ForeignAgent(endpoint, await reach(endpoint, clock), clock)
    seats = Seats(8, settings.limits, clock)
    with bind(settings) as listener:
        live = LiveServer(answering, settings, Keeping(None), seats)
        print(listener.getsockname()[1], answering.rates[0], flush=True)
        await create_server(live.app, settings.limits, seats).serve(sockets=[listener])
asyncio.run(main())
"""


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[str]:
    """A Python process of its own; yields the line in which it says that it is ready."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
    finally:
        process.terminate()
        process.wait()


async def gaps(url: str, turns: int, rate: int) -> list[float]:
    """Gaps that a caller sees at this socket: from its last loud sample to the first chunk, ms."""
    found: list[float] = []
    async with connect(url, compression=None) as socket:
        await socket.send(message_frame(rtvi("client-ready", {"version": "2.2.0"})))
        arrived: asyncio.Queue[int] = asyncio.Queue()
        ready = asyncio.Event()

        async def listen() -> None:
            async for message in socket:
                frame = parse(message)
                if frame.WhichOneof("frame") == "audio":
                    arrived.put_nowait(CLOCK.now_ns())
                elif payload_of(frame).get("type") == "bot-ready":
                    ready.set()

        listening = asyncio.create_task(listen())
        await ready.wait()
        size = rate // 50
        packets = [np.full(size, 8000, np.int16)] * SPOKEN + [np.zeros(size, np.int16)] * QUIET
        due_ns = CLOCK.now_ns()
        for _ in range(turns):
            while not arrived.empty():
                arrived.get_nowait()
            ended_ns = due_ns + ms_to_ns(20 * SPOKEN)
            for packet in packets:
                due_ns += ms_to_ns(20)
                await CLOCK.sleep_until_ns(due_ns)
                await socket.send(audio_frame(packet.tobytes(), rate))
            if not arrived.empty():
                found.append((arrived.get_nowait() - ended_ns) / NS_PER_MS)
        listening.cancel()
    return found


def main() -> None:
    """Measure, and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=200)
    wanted = parser.parse_args()
    script = Script(replies=(Reply(delay_ms=DELAY_MS, speech_ms=100),), hold_ms=100, yield_ms=None)
    with child("-m", "turngap.testing.agent", script_to_json(script)) as said:
        agent = json.loads(said)["url"]
        with child("-c", SERVE, agent, "pipecat") as served:
            port, rate = map(int, served.split())
            relay = f"ws://127.0.0.1:{port}/live"
            found: dict[str, list[float]] = {"direct": [], "relayed": []}
            for _ in range(max(1, wanted.turns // 20)):
                for name, url in (("direct", agent), ("relayed", relay)):
                    found[name] += asyncio.run(gaps(url, 20, rate))
    figures = {name: _figures(each) for name, each in found.items()}
    added = {p: round(figures["relayed"][p] - figures["direct"][p], 3) for p in ("p50", "p95")}
    print(json.dumps({**figures, "added_ms": added}, indent=2))


def _figures(gaps_ms: list[float]) -> dict[str, float]:
    off = np.array(gaps_ms) - DELAY_MS
    named = zip(("p50", "p95", "p99"), np.percentile(off, [50, 95, 99]), strict=True)
    return {"n": len(off), **{name: round(float(value), 3) for name, value in named}}


if __name__ == "__main__":
    main()

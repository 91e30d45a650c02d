"""Measure how late a line hands bytes on, against the instants of its legs.

In real time and over real sockets, on a quiet machine: inside the caller's WebSocket, and through
the proxy. 99 % should be within 2 ms.

    python benchmarks/line_schedule.py --line lte-moving --seconds 60
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

import numpy as np
from websockets.asyncio.server import ServerConnection, serve

from turngap.caller.line.proxy import Proxy
from turngap.caller.line.running import Crossing
from turngap.caller.line.spec import parse_line
from turngap.caller.line.transport import LinedTransport
from turngap.caller.opening import Request, connect
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS

PACKET, PACKET_MS = 640, 20
CLOCK = MonotonicClock(precise=True)


def figures(late_ns: Sequence[int]) -> dict[str, float]:
    """Return the percentiles of lateness, ms."""
    ms = np.array(late_ns, dtype=np.float64) / NS_PER_MS
    cuts = {f"p{q}": round(float(np.percentile(ms, q)), 3) for q in (50, 95, 99)}
    within = {"within_2_ms": round(float(np.mean(ms <= 2.0)), 4)}
    return {"n": len(ms), **cuts, "max": round(float(ms.max()), 3), **within}


def against(crossing: Crossing, seen: Sequence[tuple[int, int]]) -> list[int]:
    """Return how much later than the leg's instants bytes were seen: instants, and bytes so far."""
    ends, late = np.array(crossing.ends), []
    for seen_ns, so_far in seen:
        place = int(np.searchsorted(ends, so_far, "right")) - 1
        if place >= 0:
            late.append(seen_ns - crossing.arrived_ns[place])
    return late


async def inside(line: str, seconds: float) -> dict[str, dict[str, float]]:
    """Talk both ways over a WebSocket of the caller."""
    n = round(seconds * 1000 / PACKET_MS)
    seen_up: list[int] = []

    async def agent(socket: ServerConnection) -> None:
        async def speak() -> None:
            begun_ns = CLOCK.now_ns()
            for packet in range(n):
                await CLOCK.sleep_until_ns(begun_ns + packet * PACKET_MS * NS_PER_MS)
                await socket.send(bytes(PACKET))

        speaking = asyncio.create_task(speak())
        for _ in range(n):
            await socket.recv()
            seen_up.append(CLOCK.now_ns())
        await speaking

    async with serve(agent, "127.0.0.1", 0, compression=None) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        request = Request(url, {}, (), 10.0, url, line=parse_line(line), call="line_schedule")
        socket = await connect(request, CLOCK)
        late_down: list[int] = []

        async def listen() -> None:
            for _ in range(n):
                await socket.recv()
                late_down.append(CLOCK.now_ns() - socket.arrived_ns)

        listening, begun_ns = asyncio.create_task(listen()), CLOCK.now_ns()
        for packet in range(n):
            await CLOCK.sleep_until_ns(begun_ns + packet * PACKET_MS * NS_PER_MS)
            await socket.send(bytes(PACKET))
        await listening
        while len(seen_up) < n:
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + PACKET_MS * NS_PER_MS)
        transport = socket.transport
        assert isinstance(transport, LinedTransport)
        up = transport.line.crossings.up
        # Before the first packet came the request and a ping; a packet has a head of 8 bytes.
        first = up.ends[-1] - n * (PACKET + 8)
        late_up = against(
            up, [(at, first + (k + 1) * (PACKET + 8)) for k, at in enumerate(seen_up)]
        )
        await socket.close()
    return {"inside, up": figures(late_up), "inside, down": figures(late_down)}


async def through_proxy(line: str, seconds: float) -> dict[str, dict[str, float]]:
    """Send packets through the proxy, both ways, and compare with what its line noted."""
    n = round(seconds * 1000 / PACKET_MS)
    seen: dict[str, list[tuple[int, int]]] = {"up": [], "down": []}

    async def exchange(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str
    ) -> None:
        async def speak() -> None:
            begun_ns = CLOCK.now_ns()
            for packet in range(n):
                await CLOCK.sleep_until_ns(begun_ns + packet * PACKET_MS * NS_PER_MS)
                writer.write(bytes(PACKET))

        speaking = asyncio.create_task(speak())
        for packet in range(n):
            if not await reader.read(1) or not await reader.readexactly(PACKET - 1):
                break
            seen[way].append((CLOCK.now_ns(), (packet + 1) * PACKET))
        await speaking

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):  # the proxy's own look at the port ends at once
            writer.write(b"!")
            await exchange(reader, writer, "up")
        writer.close()

    crossings = []
    made = LinedTransport.__init__

    def keep(self: LinedTransport, *given: object, **how: object) -> None:
        made(self, *given, **{**how, "keep": 2**20})  # type: ignore[arg-type]
        crossings.append(self.line.crossings)

    LinedTransport.__init__ = keep  # type: ignore[method-assign]
    async with await asyncio.start_server(agent, "127.0.0.1", 0) as server:
        proxy = Proxy(parse_line(line), server.sockets[0].getsockname()[:2], lambda _: None)
        reader, writer = await asyncio.open_connection(*await proxy.listen(("127.0.0.1", 0)))
        writer.write(b"!")
        await reader.readexactly(1)
        await exchange(reader, writer, "down")
        await CLOCK.sleep_until_ns(CLOCK.now_ns() + 2_000 * NS_PER_MS)
        writer.close()
        await proxy.close()
    LinedTransport.__init__ = made  # type: ignore[method-assign]
    return {
        f"proxy, {way}": figures(
            against(getattr(crossings[0], way), [(at, size + 1) for at, size in seen[way]])
        )
        for way in seen
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--line", default="lte-moving", help="the line, as --line takes it")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each part talks")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = asyncio.run(inside(asked.line, asked.seconds))
    found |= asyncio.run(through_proxy(asked.line, asked.seconds))
    if asked.json:
        print(json.dumps({"line": asked.line, "late_ms": found}, indent=2))
    else:
        for name, late in found.items():
            print(f"{name:<14}" + "  ".join(f"{key} {value:g}" for key, value in late.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Stall, freeze and burst the line to an agent on this machine, and print what it makes of that.

    python benchmarks/dead_peers.py embedded stock ws://127.0.0.1:8765/ws [--repeats 3]

An agent is the name of a stack, which is served, or a URL that speaks pipecat's protobuf. To serve
the stacks of another checkout: --python and --path (its `pipeline:services`). Four things are
tried, with a client whose kernel holds little, as a network that stalls does:

- *stall*: the client reads nothing for 3 s of the reply. How much audio comes within 100 ms when it
  reads on?
- *barge-in*: the same, and the person interrupts meanwhile. How much of the old reply (ms) comes
  before the flush, and when does the flush come?
- *frozen*: the client reads and sends nothing any more. When (s) is its connection closed, and its
  session gone? Once while the agent speaks and once while it waits.
- *burst*: the person's audio of 3 s comes at once. Is it refused? When is it answered, and how long
  does another client's ping take meanwhile?
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from endings import errors_told
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.said import AudioBytes, Flush
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, ms_to_ns, ns_to_ms
from turngap.play.process import running
from turngap.scenario.library import load_scenario

CLOCK = MonotonicClock()
SOUP = Path(__file__).parent.parent / "scenarios/soup-recipe.yaml"
RATE, PACKET = 16_000, 320
HELD_BYTES = 4096  # by the client's kernel
STALL_S, LOST_S, ANSWER_S = 3.0, 70.0, 15.0
AUDIBLE = 300
ESTABLISHED = "01"


async def rest(seconds: float) -> None:
    await CLOCK.sleep_until_ns(CLOCK.now_ns() + round(seconds * NS_PER_S))


class Client:
    """A WebSocket client that reads from its socket only when it is told to."""

    def __init__(self, url: str) -> None:
        self._parts, self._protocol = urlsplit(url), ClientProtocol(parse_uri(url), max_size=None)
        self._speaks = PipecatSession()
        self._loop = asyncio.get_running_loop()
        self.closed: tuple[int | None, str | None] | None = None
        self.pong_ns = 0
        self.socket = socket.socket()

    @classmethod
    async def call(cls, url: str) -> Self:
        client = cls(url)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HELD_BYTES)
        client.socket.setblocking(False)
        await client._loop.sock_connect(client.socket, (client._parts.hostname, client._parts.port))
        client._protocol.send_request(client._protocol.connect())
        await client._flush()
        while not client._protocol.handshake_exc and not client._protocol.state.value:
            await client.read(0.1)
        client._speaks.open()
        await client.speak()
        return client

    async def speak(self, pcm: np.ndarray | None = None) -> None:
        if pcm is not None:
            self._speaks.send_audio(pcm.astype("<i2").tobytes())
        for message in self._speaks.data_to_send():
            self._protocol.send_binary(message if isinstance(message, bytes) else message.encode())
        await self._flush()

    async def say(self, pcm: np.ndarray) -> None:
        """Send audio at the speed of speech, and read nothing."""
        due_ns = CLOCK.now_ns()
        for first in range(0, len(pcm) - PACKET + 1, PACKET):
            await self.speak(pcm[first : first + PACKET])
            due_ns += ms_to_ns(20)
            await CLOCK.sleep_until_ns(due_ns)

    async def ping(self) -> float:
        """Return how long (ms) a ping takes."""
        sent_ns, self.pong_ns = CLOCK.now_ns(), 0
        self._protocol.send_ping(b"x")
        await self._flush()
        while not self.pong_ns:
            await self.read(0.05)
        return ns_to_ms(self.pong_ns - sent_ns)

    async def read(self, within_s: float) -> list[Any]:
        """Return what comes next: `AudioBytes`, `Flush` and others; nothing if time is up."""
        try:
            async with asyncio.timeout(within_s):
                data = await self._loop.sock_recv(self.socket, 1 << 16)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        (self._protocol.receive_data if data else lambda _: self._protocol.receive_eof())(data)
        if not data:
            self.closed = self.closed or (self._protocol.close_code, self._protocol.close_reason)
        facts: list[Any] = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                facts += self._speaks.receive_data(bytes(event.data))
            elif isinstance(event, Frame) and event.opcode is Opcode.PONG:
                self.pong_ns = CLOCK.now_ns()
        await self._flush()
        return facts

    async def _flush(self) -> None:
        try:
            for data in self._protocol.data_to_send():
                await self._loop.sock_sendall(self.socket, data)
        except OSError:
            return

    async def listen(self, until: Callable[[Any], bool], within_s: float) -> list[tuple[int, Any]]:
        """Keep a silent line open and read until something comes; return all, with instants."""
        came: list[tuple[int, Any]] = []
        ends_ns = due_ns = CLOCK.now_ns()
        ends_ns += round(within_s * NS_PER_S)
        while (now_ns := CLOCK.now_ns()) < ends_ns and not self.closed:
            if now_ns >= due_ns:
                due_ns += ms_to_ns(20)
                await self.speak(np.zeros(PACKET, np.int16))
            for fact in await self.read(0.01):
                came.append((CLOCK.now_ns(), fact))
                if until(fact):
                    return came
        return came

    def socket_is_held(self) -> bool:
        """Return whether the agent's end of the connection is open, as the kernel says."""
        ours, theirs = self.socket.getsockname()[1], self._parts.port
        ends = f":{theirs:04X}", f":{ours:04X}"
        for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            if local.endswith(ends[0]) and remote.endswith(ends[1]):
                return state == ESTABLISHED
        return False


def is_voice(fact: Any) -> bool:
    return isinstance(fact, AudioBytes) and bool(
        np.abs(np.frombuffer(fact.data, "<i2").astype(np.int32)).max(initial=0) > AUDIBLE
    )


def audio_ms(came: list[tuple[int, Any]]) -> float:
    return sum(len(f.data) / 2 / f.rate * 1000 for _, f in came if isinstance(f, AudioBytes))


def turns() -> list[np.ndarray]:
    """Return what the person says, with the silence that ends each turn."""
    clips = load_scenario(SOUP).clips
    return [clip.at_rate(RATE) for clip in list(clips.values())[:2]]


async def answered(url: str) -> Client:
    """Call and ask; return once the reply has been heard for 300 ms."""
    client = await Client.call(url)
    await client.listen(lambda _: False, 1.5)  # a greeting would be over, or is talked into
    await client.say(turns()[0])
    heard = await client.listen(is_voice, ANSWER_S)
    if not heard or not is_voice(heard[-1][1]):
        raise SystemExit(f"{url} did not answer: {client.closed}")
    await client.listen(lambda _: False, 0.3)
    return client


async def stall(url: str) -> dict[str, Any]:
    client = await answered(url)
    await client.say(np.zeros(round(RATE * STALL_S), np.int16))
    at_once = audio_ms(await client.listen(lambda _: False, 0.1))
    rest = await client.listen(lambda _: False, 1.0)
    client.socket.close()
    return {"at once ms": at_once, "in the next s ms": audio_ms(rest), "closed": client.closed}


async def barge_in(url: str) -> dict[str, Any]:
    client = await answered(url)
    words = turns()[1]
    await client.say(np.zeros(round(RATE * STALL_S) - len(words), np.int16))
    await client.say(words)
    began_ns = CLOCK.now_ns()
    came = await client.listen(lambda fact: isinstance(fact, Flush), 5.0)
    flushed = came and isinstance(came[-1][1], Flush)
    flush_ms = ns_to_ms(came[-1][0] - began_ns) if flushed else None
    client.socket.close()
    return {"stale ms": audio_ms(came), "flush after ms": flush_ms, "closed": client.closed}


def sessions(url: str) -> int | None:
    try:
        with urllib.request.urlopen(f"http://{urlsplit(url).netloc}/healthz", timeout=5) as answer:
            return json.load(answer)["sessions"]
    except (OSError, KeyError, ValueError):
        return None


async def frozen(url: str, *, speaking: bool) -> dict[str, Any]:
    if speaking:
        client = await answered(url)
    else:
        client = await Client.call(url)
        await client.listen(lambda _: False, 4.0)
    began_ns, socket_s, session_s = CLOCK.now_ns(), None, None
    knows = await asyncio.to_thread(sessions, url) is not None
    while (now_s := (CLOCK.now_ns() - began_ns) / NS_PER_S) < LOST_S:
        if socket_s is None and not client.socket_is_held():
            socket_s = now_s
        if knows and session_s is None and not await asyncio.to_thread(sessions, url):
            session_s = now_s
        if socket_s is not None and (session_s is not None or not knows):
            break
        await rest(0.1)
    client.socket.close()
    return {"socket s": socket_s, "session s": session_s}


async def burst(url: str) -> dict[str, Any]:
    client, other = await Client.call(url), await Client.call(url)
    await client.listen(lambda _: False, 1.5)
    await rest(STALL_S)
    words = turns()[0]
    silence = np.zeros(max(0, round(RATE * STALL_S) - len(words)), np.int16)
    began_ns = CLOCK.now_ns()
    pings: list[float] = []

    async def others() -> None:
        while True:
            pings.append(await other.ping())
            await rest(0.01)

    pinging = asyncio.create_task(others())
    for first in range(0, len(silence) + len(words), PACKET):
        await client.speak(np.concatenate((silence, words))[first : first + PACKET])
    came = await client.listen(is_voice, ANSWER_S)
    pinging.cancel()
    heard = came and is_voice(came[-1][1])
    for each in client, other:
        each.socket.close()
    return {
        "answered after ms": ns_to_ms(came[-1][0] - began_ns) if heard else None,
        "another's ping p50 ms": statistics.median(pings),
        "worst ms": max(pings),
        "closed": client.closed,
    }


@asynccontextmanager
async def served(agent: str, python: str) -> AsyncIterator[str]:
    if "://" in agent:
        yield agent
        return
    with tempfile.TemporaryDirectory(prefix="turngap-dead-peers-") as folder:
        argv = ["turngap", "serve", "--agent", agent, "--port", "0", "--json", "--no-keep"]
        async with running(argv, Path(folder) / "agent.log", python=python) as url:
            yield url


async def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("agents", nargs="+", metavar="STACK_OR_URL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["stall", "barge-in", "frozen", "burst"])
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that serves stacks"
    )
    parser.add_argument("--path", help="PYTHONPATH of the checkout that serves stacks")
    given = parser.parse_args()
    if given.path:
        os.environ["PYTHONPATH"] = given.path
    tries = {
        "stall": stall,
        "barge-in": barge_in,
        "frozen while it speaks": lambda url: frozen(url, speaking=True),
        "frozen while it waits": lambda url: frozen(url, speaking=False),
        "burst": burst,
    }
    for agent in given.agents:
        async with served(agent, given.python) as url:
            for name, tried in tries.items():
                if given.only and not name.startswith(given.only):
                    continue
                for _ in range(1 if name.startswith("frozen") else given.repeats):
                    figures = {
                        k: round(v, 1) if isinstance(v, float) else v
                        for k, v in (await tried(url)).items()
                    }
                    print(f"{agent:12} {name:24} {json.dumps(figures)}", flush=True)
                    await rest(1.0)


if __name__ == "__main__":
    with errors_told():
        asyncio.run(main())

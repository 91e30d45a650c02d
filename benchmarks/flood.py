"""What a client can do to a server by what it sends, and to those who talk with it meanwhile.

python benchmarks/flood.py messages [--count 100000] [--seed 1]
    Random and mutated messages to `/ws`, `/live` and over HTTP: what each connection came to, and
    what the server holds before and after. Nothing may crash, and nothing may be left.
python benchmarks/flood.py gaps [--rounds 20] [--seed 1]
    Two callers replay a scenario again and again while another client floods the server in every
    second round, with each flood in turn. Prints their gaps with and without it. A round takes
    three and a half minutes, and needs a machine that does nothing else.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from foreign_messages import http_request, websocket_message
from loguru import logger
from soak import CLOCK, Figures, Soaked, at_rest, serving, show
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State

from turngap.agent.limits import Limits
from turngap.agent.log import set_log_level
from turngap.caller.conversation import Conversation
from turngap.caller.dialects.pipecat import PipecatSession, audio_frame
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.line import open_line
from turngap.core.clock import ms_to_ns
from turngap.core.frames import message_frame
from turngap.core.results import OffsetRecord
from turngap.play.cues import cues_of
from turngap.play.process import running
from turngap.scenario.library import LoadedScenario, library_dir, load_scenario, scenario_paths

NO_OFFSET = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
PATIENCE_S = 20.0
AT_ONCE = 4
# Messages of one connection, unless it is closed before.
RUN = 50
# So that messages are tried and not the limits, which tests try.
WIDE = Limits(
    messages_per_s=1e6, packets_per_s=1e6, speed=1e6, audio_rate=1e6, asks_per_s=1e6,
    begins_per_s=1e6, requests_per_s=1e6, request_s=3.0, first_s=3.0, resume_s=1.0,
    download_s=1.0,
)  # fmt: skip


# Messages


async def messages(count: int, seed: int, agent: str) -> None:
    for path in ("/ws", "/live", "http"):
        with tempfile.TemporaryDirectory(prefix="turngap-flood-") as runs, failures() as failed:
            async with serving(agent, Path(runs), WIDE, most=64) as (port, seats):
                rng, came = random.Random(seed), Counter[str]()
                before = Figures.now()
                await _all(port, path, count // 20, rng, came)
                await at_rest(seats)
                warm = Figures.now()
                await _all(port, path, count - count // 20, rng, came)
                await at_rest(seats)
                soaked = Soaked(came, (before, warm, Figures.now()))
        print(f"\n{count} messages to {path}, seed {seed}; {len(failed)} errors in the log")
        print("\n".join([*show(soaked), *failed[:5]]))


@contextmanager
def failures() -> Iterator[list[str]]:
    """Collect what the server logs as an error."""
    failed: list[str] = []
    sink = logger.add(lambda message: failed.append(str(message)[:2000]), level="ERROR")
    try:
        yield failed
    finally:
        logger.remove(sink)


async def _all(port: int, path: str, count: int, rng: random.Random, came: Counter[str]) -> None:
    left = iter(range(count))
    one = _http if path == "http" else _websocket

    async def worker() -> None:
        while await one(port, path, rng, left, came):
            pass

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _websocket(
    port: int, path: str, rng: random.Random, left: Iterator[int], came: Counter[str]
) -> bool:
    """Send messages over one connection; False if none are left."""
    more = True
    try:
        async with asyncio.timeout(PATIENCE_S), connect(f"ws://127.0.0.1:{port}{path}") as socket:
            for _ in range(RUN):
                more = next(left, None) is not None
                if not more:
                    break
                message = websocket_message(rng)
                await socket.send(message if isinstance(message, str) else bytes(message))
            # Whatever came before it, a text closes the connection; then all has been read.
            await socket.send("end")
            while True:
                await socket.recv()
    except ConnectionClosed as e:
        came[f"closed with {e.rcvd.code if e.rcvd else 'nothing'}"] += 1
    except InvalidHandshake as e:
        came[f"refused: {e}"] += 1
    except TimeoutError:
        came["hung"] += 1
    return more


async def _http(
    port: int, _: str, rng: random.Random, left: Iterator[int], came: Counter[str]
) -> bool:
    if next(left, None) is None:
        return False
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(http_request(rng))
            writer.write_eof()
            answer = await reader.read(12)
        came[f"answered {answer[9:].decode(errors='replace') or 'nothing'}"] += 1
    except TimeoutError:
        came["hung"] += 1
    except OSError:
        came["reset"] += 1
    finally:
        writer.transport.abort()
    return True


# Floods

# Limits are counted by address. A flood from the callers' own would use up theirs; this is another
# one of loopback (on Linux).
FROM = ("127.0.0.2", 0)


Flood = Callable[[str, random.Random], Coroutine[Any, Any, None]]


async def small_messages(url: str, _: random.Random) -> None:
    """30,000 small messages as fast as they are taken."""
    async with connect(url, local_addr=FROM) as socket:
        for _each in range(30_000):
            await socket.send(message_frame(rtvi("client-message", {"t": "x"})))


async def fast_audio(url: str, _: random.Random) -> None:
    """Ten minutes of audio as fast as it is taken."""
    noise = audio_frame(np.full(16_000, 3000, np.int16).tobytes(), 16_000)
    async with connect(url, local_addr=FROM) as socket:
        for _each in range(600):
            await socket.send(noise)


async def any_messages(url: str, rng: random.Random) -> None:
    """Random and mutated messages, on one connection after the other."""
    async with connect(url, local_addr=FROM) as socket:
        while True:
            await socket.send(websocket_message(rng))


async def connections(url: str, _: random.Random) -> None:
    """Connections that come and go."""
    async with connect(url, local_addr=FROM) as socket:
        socket.transport.abort()


async def pings(url: str, _: random.Random) -> None:
    """Pings whose answers nobody reads."""
    socket = await connect(url, local_addr=FROM)
    while socket.state is State.OPEN and not socket.transport.is_closing():
        socket.transport.write(b"\x89\xfd\0\0\0\0" + bytes(125))
        await asyncio.sleep(0)  # noqa: TID251  # a hostile client waits for nobody's clock


async def requests(url: str, rng: random.Random) -> None:
    """HTTP requests on one connection after the other."""
    parts = urlsplit(url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=FROM)
    writer.write(http_request(rng) * 20)
    await writer.drain()
    writer.transport.abort()


FLOODS: dict[str, Flood] = {
    each.__name__: each
    for each in (small_messages, fast_audio, any_messages, connections, pings, requests)
}


async def flood(name: str, url: str, seed: int) -> None:
    rng = random.Random(seed)
    while True:
        with suppress(ConnectionClosed, InvalidHandshake, OSError, TimeoutError):
            await FLOODS[name](url, rng)


# Gaps


async def gaps(rounds: int, seed: int, agent: str) -> None:
    (path,) = scenario_paths(library_dir(), ["quick-questions"])
    scenario = load_scenario(path)
    calm: list[float] = []
    during: dict[str, list[float]] = {name: [] for name in FLOODS}
    lost: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="turngap-flood-") as folder:
        log = Path(folder) / "log"
        serve = ["turngap", "serve", "--agent", agent, "--port", "0", "--json", "--no-keep"]
        async with running(serve, log) as url:
            await _round(url, scenario, lost, "")  # the first one warms up
            for number in range(rounds):
                for name in FLOODS:
                    print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
                    calm += await _round(url, scenario, lost, "calm")
                    async with _flooding(name, url, seed + number):
                        during[name] += await _round(url, scenario, lost, name)
        print(f"log: {log.stat().st_size / 1024:.0f} KiB; turns without a gap: {dict(lost) or 0}")
    print(f"{'':<16}{'n':>6}{'p50':>8}{'p95':>8}{'p95 longer by':>16}   (ms)")
    print(_row("calm", calm, calm))
    for name, found in during.items():
        print(_row(name, found, calm))
    print(_row("all floods", [gap for found in during.values() for gap in found], calm))


def _row(name: str, found: list[float], calm: list[float]) -> str:
    p50, p95 = np.percentile(found, (50, 95))
    longer = p95 - np.percentile(calm, 95)
    return f"{name:<16}{len(found):>6}{p50:>8.0f}{p95:>8.0f}{longer:>16.0f}"


class _flooding:  # noqa: N801  # reads as a verb
    """Another process that floods the server for as long as this lasts."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        self._argv = (
            sys.executable,
            __file__,
            "flood",
            "--of",
            name,
            "--url",
            url,
            "--seed",
            str(seed),
        )

    async def __aenter__(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._argv)
        await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(2000))

    async def __aexit__(self, *error: object) -> None:
        self._process.kill()
        await self._process.wait()


async def _round(url: str, scenario: LoadedScenario, lost: Counter[str], name: str) -> list[float]:
    """Let two callers play the scenario; their gaps."""
    played = await asyncio.gather(*(_caller(url, scenario) for _ in range(2)))
    both = [gap for one in played for gap in one]
    if missing := both.count(None):
        lost[name] += missing
    return [gap for gap in both if gap is not None]


async def _caller(url: str, scenario: LoadedScenario) -> list[float | None]:
    async with open_line(url, PipecatSession(), CLOCK) as line:
        talk = Conversation(line, cues_of(scenario), CLOCK, offset=NO_OFFSET)
        return [p.turn.gap_ns and p.turn.gap_ns / 1e6 async for p in talk.play()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("messages", "gaps", "flood"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agent", default="embedded")
    parser.add_argument("--of", choices=FLOODS)
    parser.add_argument("--url")
    given = parser.parse_args()
    if given.part == "messages":
        set_log_level("WARNING")
        asyncio.run(messages(given.count, given.seed, given.agent))
    elif given.part == "gaps":
        asyncio.run(gaps(given.rounds, given.seed, given.agent))
    else:
        os.nice(10)  # the flood shall burden the server, not the processors
        asyncio.run(flood(given.of, given.url, given.seed))

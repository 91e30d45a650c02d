"""Send random and mutated messages to a server, and show what is left of them.

python benchmarks/flood.py [--count 100000] [--seed 1]

They go to `/ws`, to `/live` and over HTTP. Prints what each connection came to, and what the server
holds before and after. Nothing may crash, and nothing may be left.
"""

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foreign_messages import http_request, websocket_message
from loguru import logger
from soak import Figures, Soaked, at_rest, serving, show
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from turngap.agent.access import Limits
from turngap.agent.server import set_log_level
from turngap.core.run_record import OffsetRecord

NO_OFFSET = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
PATIENCE_S = 20.0
AT_ONCE = 4
# Messages of one connection, unless it is closed before.
RUN = 50
# So that messages are tried and not the limits, which tests try.
WIDE = Limits(messages_per_s=1e6, request_s=3.0, first_s=3.0)


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agent", default="embedded")
    given = parser.parse_args()
    set_log_level("WARNING")
    asyncio.run(messages(given.count, given.seed, given.agent))

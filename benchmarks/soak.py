"""Many short conversations on one server, and what is left of them: descriptors, tasks, memory.

python benchmarks/soak.py [--conversations 2000] [--agent embedded]

Every second conversation is at the page's socket, every tenth has a turn, and they leave in four
ways: with a close, without one, by saying something that no client may say, and in the middle of a
message. The server and its clients share this process. It is measured at rest, after some
conversations that fill what is filled only once, and at the end.
"""

import argparse
import asyncio
import gc
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from turngap.agent.access import Limits, Seats
from turngap.agent.server import Server, ServeSettings, bind, set_log_level
from turngap.agent.session import assemble
from turngap.caller.dialects.pipecat import audio_frame, parse
from turngap.caller.dialects.rtvi import rtvi
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm
from turngap.core.clock import ms_to_ns
from turngap.core.wire import message_frame
from turngap.live.answering import OwnStack
from turngap.live.app import LiveServer
from turngap.live.keeping import Keeping
from turngap.play.target import AgentChoice
from turngap.play.turns import cues_of
from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir, scenario_paths

RATE, PACKET = 16_000, 320
CLOCK = MonotonicClock()
AT_ONCE = 4
# Longer than any machine needs, since what is asked is what is left and not how long it took.
PATIENCE_S = 120.0
WARM_UP = 40


@dataclass(frozen=True)
class Figures:
    """Resources that a process holds."""

    descriptors: int
    tasks: int
    threads: int
    memory_mb: float

    @classmethod
    def now(cls) -> "Figures":
        gc.collect()
        process = psutil.Process()
        return cls(
            process.num_fds(),
            len(asyncio.all_tasks()),
            process.num_threads(),
            process.memory_info().rss / 2**20,
        )


@dataclass(frozen=True)
class Soaked:
    """Results of conversations, and resources at rest before, after a warm-up, and after."""

    came: Counter[str]
    figures: tuple[Figures, Figures, Figures]


async def soak(
    port: int,
    seats: Seats,
    conversations: int,
    speech: Pcm,
    *,
    seed: int = 1,
    warm_up: int = WARM_UP,
) -> Soaked:
    """Hold so many conversations, a few at once."""
    rng = random.Random(seed)
    came: Counter[str] = Counter()
    before = Figures.now()
    await _some(port, range(warm_up), speech, rng, came)
    await at_rest(seats)
    warm = Figures.now()
    await _some(port, range(warm_up, conversations), speech, rng, came)
    await at_rest(seats)
    return Soaked(came, (before, warm, Figures.now()))


async def _some(
    port: int, numbers: range, speech: Pcm, rng: random.Random, came: Counter[str]
) -> None:
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            path = "/live" if number % 2 else "/ws"
            while (
                how := await _one(port, path, speech if not number % 10 else None, rng)
            ) == "full":
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(200))
            came[how] += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _one(port: int, path: str, speech: Pcm | None, rng: random.Random) -> str:
    """Hold one conversation; how it came out."""
    try:
        url = f"ws://127.0.0.1:{port}{path}"
        async with asyncio.timeout(PATIENCE_S), connect(url, open_timeout=None) as socket:
            about = {"version": "2.2.0", "about": {"library": "soak"}}
            await socket.send(message_frame(rtvi("client-ready", about)))
            await _until(socket, "message")
            if speech is not None:
                await _speak(socket, speech)
                await _until(socket, "audio")
            await _leave(socket, rng)
            return "answered" if speech is not None else "greeted"
    except ConnectionClosed as e:
        return "full" if e.rcvd and e.rcvd.code == 1013 else f"closed: {e}"
    except InvalidHandshake as e:
        return f"refused: {e}"
    except TimeoutError:
        return "nothing came"


async def _until(socket: ClientConnection, kind: str) -> None:
    while True:
        data = await socket.recv()
        assert isinstance(data, bytes)
        if parse(data).WhichOneof("frame") == kind:
            return


async def _speak(socket: ClientConnection, speech: Pcm) -> None:
    for first in range(0, len(speech), PACKET):
        await socket.send(audio_frame(speech[first : first + PACKET].tobytes(), RATE))


async def _leave(socket: ClientConnection, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            await socket.close()
        case 1:
            socket.transport.abort()
        case 2:
            await socket.send("hello")
        case _:
            socket.transport.write(b"\x82\xfe\x02\x00half")
            socket.transport.abort()


async def at_rest(seats: Seats) -> None:
    """Wait until every seat is free and its connection closed."""
    async with asyncio.timeout(PATIENCE_S):
        while seats.taken:
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(50))
    await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(3000))


@asynccontextmanager
async def serving(
    agent: str, runs: Path, limits: Limits | None = None, most: int = 8
) -> AsyncIterator[tuple[int, Seats]]:
    """Serve a stack."""
    settings = ServeSettings(port=0, limits=limits or Limits())
    assembly = assemble(AgentChoice(agent).stack(), library_dir(None), CLOCK)
    assembly.prepare()
    seats = Seats(most)
    live = LiveServer(OwnStack(assembly), settings, Keeping(runs), seats)
    with bind(settings) as listener:
        server = Server(live.app, settings.limits, seats)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1], seats
        finally:
            server.should_exit = True
            await task
            await live.close()


def a_turn() -> Pcm:
    """Return the first turn of the first scenario that ships, with the silence after it."""
    scenario = load_scenario(scenario_paths(library_dir(None))[0])
    return np.concatenate((cues_of(scenario)[0].pcm, np.zeros(RATE, np.int16)))


def show(soaked: Soaked) -> Sequence[str]:
    rows = [f"{'':<16}{'descriptors':>12}{'tasks':>8}{'threads':>9}{'memory, MB':>12}"]
    for name, figures in zip(("before", "warm", "after"), soaked.figures, strict=True):
        descriptors, tasks, threads, memory = astuple(figures)
        rows.append(f"{name:<16}{descriptors:>12}{tasks:>8}{threads:>9}{memory:>12.0f}")
    return [*rows, ", ".join(f"{count} {how}" for how, count in soaked.came.most_common())]


async def main(conversations: int, agent: str) -> None:
    with tempfile.TemporaryDirectory(prefix="turngap-soak-") as runs:
        async with serving(agent, Path(runs)) as (port, seats):
            print("\n".join(show(await soak(port, seats, conversations, a_turn()))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--agent", default="embedded")
    given = parser.parse_args()
    set_log_level("WARNING")
    asyncio.run(main(given.conversations, given.agent))

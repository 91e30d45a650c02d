"""A client that is gone or reads nothing ends its call soon; one that stalls does not."""

import asyncio
import json
import socket
from contextlib import suppress
from types import SimpleNamespace

import pytest
from fake_engines import Served, fake_assembly, served
from hostile_clients import AUDIO, READY, Client, typed
from websockets.asyncio.client import connect

from turngap.agent.access import Limits
from turngap.agent.guard import HELD_MS, Kernel
from turngap.caller.dialects.pipecat import audio_frame
from turngap.clocks import MonotonicClock
from turngap.core.wire import Frame
from turngap.testing.agent import voice

CLOCK = MonotonicClock()
RATE, PACKET_BYTES = 16_000, 640
GONE = Limits(ping_s=0.2, pong_s=0.5)
UNREAD = Limits(unread_s=0.8)


async def rest(seconds: float) -> None:
    await CLOCK.sleep_until_ns(CLOCK.now_ns() + round(seconds * 1e9))


async def stalled(agent: Served) -> Client:
    """Have the agent speak to a client that does not read."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", agent.port))
    client = Client(agent.port, "/ws", *await asyncio.open_connection(sock=own))
    await client.upgrade()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(READY, typed("hello"))
    return client


@pytest.mark.parametrize(("limits", "sends"), [(GONE, False), (UNREAD, True)])
async def test_a_client_that_is_frozen_or_never_reads_leaves_nothing(
    limits: Limits, sends: bool
) -> None:
    async with served(fake_assembly(), limits=limits, max_sessions=1) as agent:
        await rest(0.05)
        before = asyncio.all_tasks()
        client = await stalled(agent)
        await agent.sessions_become(1)
        async with asyncio.timeout(15):
            while agent.seats.taken:
                if sends:
                    await client.send(AUDIO)
                await rest(0.05)
        assert not agent.seats.why_none
        async with asyncio.timeout(15):
            while asyncio.all_tasks() - before:
                await rest(0.05)
        await client.leave()


def test_the_kernel_says_how_much_it_holds_and_what_came() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        own, _ = listener.accept()
    with client, own:
        transport = SimpleNamespace(get_extra_info=lambda _: own)
        assert Kernel.of(transport).came == 0
        client.sendall(b"x")
        own.recv(1)
        assert Kernel.of(transport).came == 1
        assert Kernel.of(transport).held_ms(48) < 1
        own.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                own.send(bytes(4800))
        assert Kernel.of(transport).held_ms(48) > HELD_MS


async def test_a_client_that_stalls_for_a_while_hears_the_rest() -> None:
    limits = Limits(ping_s=0.2, pong_s=5.0, unread_s=5.0)
    async with served(fake_assembly(), limits=limits) as agent:
        client = await stalled(agent)
        await rest(1.5)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            await client.reader.readuntil(b"bot-stopped-speaking")
        assert agent.seats.taken == 1
        await client.leave()


async def test_speech_that_comes_in_one_burst_is_answered() -> None:
    async with served(fake_assembly()) as agent, connect(agent.url) as client:
        await client.send(READY)
        pcm = voice(3000, RATE).tobytes() + bytes(RATE)
        for first in range(0, len(pcm), PACKET_BYTES):
            await client.send(audio_frame(pcm[first : first + PACKET_BYTES], RATE))
        kinds: set[str] = set()
        async with asyncio.timeout(20):
            while "bot-started-speaking" not in kinds:
                frame = Frame.FromString(await client.recv())
                if frame.WhichOneof("frame") == "message":
                    kinds.add(json.loads(frame.message.data)["type"])

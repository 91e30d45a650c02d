"""Whatever a client does, it is closed with a reason, and the next one is served."""

import asyncio
import logging
import sys

import pytest
from fake_engines import fake_assembly, served
from hostile_clients import HOSTILE, Client

from helpers.descriptors import open_descriptors
from turngap.agent.limits import Limits
from turngap.clocks import MonotonicClock

CLOCK = MonotonicClock()


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_client_is_closed_with_a_reason_and_harms_nobody(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = HOSTILE[name]
    with caplog.at_level(logging.WARNING):
        async with served(
            fake_assembly(), max_sessions=hostile.max_sessions, limits=hostile.limits
        ) as agent:
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)  # its timer stays open
            before = open_descriptors()
            client = await Client.connect(agent.port, hostile.path)
            await hostile.does(client)
            code, words = await client.came()
            await client.leave()
            assert (code, hostile.words in words) == (hostile.code, True), (code, words)
            async with asyncio.timeout(20):
                while agent.seats.taken or agent.seats.coming_down or open_descriptors() > before:
                    await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)
    assert len(caplog.records) <= 4, "a client can fill the log"
    assert not [r for r in caplog.records if r.exc_info], caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address only on Linux")
async def test_a_client_that_opens_all_it_can_leaves_connections_to_other_addresses() -> None:
    async with served(fake_assembly(), max_sessions=1, limits=Limits(connections=4)) as agent:
        client = await Client.connect(agent.port, "/ws")
        for _ in range(10):
            await client.another()
        assert (await client.left[-1].came())[0] == 503
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", agent.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await client.leave()

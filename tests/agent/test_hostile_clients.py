"""Whatever a client does, it is closed with a reason, and the next one is served."""

import asyncio
import logging

import pytest
from fake_engines import fake_assembly, served
from hostile_clients import HOSTILE, Client

from helpers.descriptors import open_descriptors
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
                while agent.seats.taken or open_descriptors() > before:
                    await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)
    assert len(caplog.records) <= 4, "a client can fill the log"
    assert not [r for r in caplog.records if r.exc_info], caplog.text

"""A line under a call over WebRTC: lost packets stay lost, and nothing but the line delays them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.exceptions import ConnectionClosedError

pytest.importorskip("aiortc")

from turngap.caller.endpoint import Endpoint
from turngap.caller.line.spec import parse_line
from turngap.caller.rtc import lined
from turngap.caller.rtc import peer as module
from turngap.caller.rtc.peer import RtcPeer, offering
from turngap.caller.rtc.rtp import FRAME, Datagram, RtpPacket
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.testing.agent import Script
from turngap.testing.rtc import RtcAgent, answering

CLOCK = MonotonicClock()


@asynccontextmanager
async def call(text: str, call: str = "1") -> AsyncIterator[tuple[RtcPeer, RtcPeer]]:
    ends: list[RtcPeer] = []
    tasks: list[asyncio.Task[None]] = []

    async def exchange(offer: str) -> str:
        agent, answer = await answering(offer, CLOCK)
        ends.append(agent)
        tasks.append(asyncio.create_task(agent.connect(10)))
        return answer

    line = parse_line(text)
    try:
        async with offering(exchange, CLOCK, loopback=True, line=line, call=call) as caller:
            await tasks[0]
            yield caller, ends[0]
    finally:
        for agent in ends:
            await agent.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}


def rtp(number: int) -> bytes:
    return RtpPacket(0, number, number * FRAME, 0, b"\xf8sound", marker=number == 0).pack()


async def a_packet() -> None:
    await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)


async def heard(sends: RtcPeer, hears: RtcPeer, packets: int) -> list[int]:
    """Send packets, 20 ms apart, and return the numbers of those that arrive before a text."""
    for number in range(packets):
        sends.send_now(rtp(number))
        await a_packet()
    await sends.send("that was all")
    numbers: list[int] = []
    while isinstance(message := await hears.recv(), bytes):
        numbers.append(RtpPacket.parse(message).sequence)
    return numbers


async def test_what_is_lost_stays_lost_and_the_rest_keeps_its_order() -> None:
    async with call("delay=30,loss=20%,burst=60") as (caller, agent):
        for ends in ((caller, agent), (agent, caller)):
            numbers = await heard(*ends, 60)
            assert numbers == sorted(numbers)
            assert 15 < len(numbers) < 60


async def test_a_datagram_arrives_when_the_line_gives_it_up() -> None:
    async with call("delay=100") as (caller, agent):
        for number in range(5):
            before_ns = CLOCK.now_ns()
            agent.send_now(rtp(number))
            packet = await caller.recv()
            assert isinstance(packet, Datagram)
            assert packet.is_stamped
            assert caller.crossings is not None
            entered_ns = caller.crossings.entered_ns("down", caller.arrived_ns)
            assert entered_ns is not None
            assert before_ns - 1_000_000 < entered_ns < before_ns + 50_000_000
            assert 0 <= caller.arrived_ns - entered_ns - 100_000_000 < 1000  # by no event loop


async def test_a_line_that_is_half_open_is_noticed_and_the_agents_end_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert module.MOST_UNHEARD / 50 < 10
    monkeypatch.setattr(module, "MOST_UNHEARD", 50)
    monkeypatch.setattr(lined, "_QUIET_S", 0.3)
    async with call("half-open=1.5") as (caller, agent):
        while caller.crossings and caller.crossings.half_open_ns is None:
            agent.send_now(rtp(0))
            await a_packet()
        while caller.send_now(rtp(0)):
            pass
        with pytest.raises(ConnectionClosedError, match="nothing has come"):
            while True:
                await caller.recv()
        await agent.close()
    assert caller.crossings is not None
    assert caller.crossings.half_open_ns is not None
    assert caller.crossings.agent_left_ns is not None
    assert caller.crossings.agent_left_ns > caller.crossings.half_open_ns - NS_PER_S


async def test_a_line_that_is_reset_ends_the_call() -> None:
    async with call("reset=1.5") as (caller, _):
        with pytest.raises(ConnectionClosedError, match="the line was reset"):
            await asyncio.wait_for(caller.recv(), 10)


async def test_a_call_by_its_address_crosses_the_line() -> None:
    async with RtcAgent(script=Script(dialect="webrtc")) as agent:
        over = parse_line("delay=50")
        async with Endpoint(agent.url, "webrtc").open(CLOCK, line=over, call="a/1") as opened:
            offset = await opened.clock_offset()
            assert opened.crossings is not None
            assert opened.crossings.both_ms == 100
            assert offset.bound_ns is not None
            assert offset.bound_ns < 50_000_000  # the line's time is left out of it

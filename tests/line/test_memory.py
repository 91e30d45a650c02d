"""A line between two ends in memory: whole messages, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from turngap.caller.connection import Line
from turngap.caller.dialects.registry import find_dialect
from turngap.caller.line.spec import parse_line
from turngap.caller.opening import NO_ANSWER
from turngap.clocks import others_first
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.testing.agent import Script, converse
from turngap.testing.memory import End, line_from, two_ends
from turngap.testing.virtual import LoopClock, in_virtual_time


def run(course: Callable[[LoopClock], Coroutine[Any, Any, Any]]) -> Any:
    return in_virtual_time(course(LoopClock()))


def ends(clock: LoopClock, text: str) -> tuple[End, End]:
    return two_ends(clock, parse_line(text), "a/1")


def test_a_message_arrives_when_its_last_byte_does() -> None:
    async def course(clock: LoopClock) -> None:
        caller, agent = ends(clock, "delay=40,rate=80kbit")
        await agent.send(bytes(1000))
        await others_first()  # else both would be one segment
        await agent.send("done")
        assert await caller.recv() == bytes(1000)
        # 4 bytes of frame and 52 of headers at 10 bytes a millisecond, and 40 ms
        assert caller.arrived_ns == pytest.approx(145.6 * NS_PER_MS, abs=1000)
        assert await caller.recv() == "done"
        assert caller.crossings is not None and agent.crossings is None
        assert caller.crossings.entered_ns("down", caller.arrived_ns) == 0
        await caller.close(1000, "bye")
        with pytest.raises(ConnectionClosedOK):
            await agent.recv()

    run(course)


def test_a_full_line_holds_the_agent_up() -> None:
    async def course(clock: LoopClock) -> int:
        _, agent = ends(clock, "delay=40,rate=100kbit")
        for _ in range(300):
            await agent.send(bytes(1000))
        return clock.now_ns()

    assert run(course) > 10 * NS_PER_S


@pytest.mark.parametrize("fault", ["reset", "half-open"])
def test_both_ends_lose_a_reset_line_and_the_caller_a_half_open_one(fault: str) -> None:
    async def course(clock: LoopClock) -> None:
        caller, agent = ends(clock, f"delay=40,{fault}=2s")
        with pytest.raises(ConnectionClosed) as closed:
            await caller.recv()
        assert clock.now_ns() == (2 if fault == "reset" else 11) * NS_PER_S
        if fault == "reset":
            with pytest.raises(ConnectionClosed):
                await agent.recv()
        else:
            assert str(closed.value.__cause__) == NO_ANSWER

    run(course)


@pytest.mark.parametrize("text", ["delay=80,jitter=20", "lte-moving", "up.delay=200,down.delay=20"])
def test_clocks_are_compared_without_the_time_in_the_line(text: str) -> None:
    async def course(clock: LoopClock) -> None:
        script = Script()
        session = find_dialect(script.dialect).session()
        caller, end = ends(clock, text)
        agent = asyncio.ensure_future(converse(script, end, clock, None))
        async with line_from(caller, agent, session, clock) as line:
            assert isinstance(line, Line)
            offset = await line.clock_offset()
        assert offset.offset_ns is not None and offset.n > 0
        assert abs(offset.offset_ns) < NS_PER_MS

    run(course)

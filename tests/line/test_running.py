"""A running line in virtual time: what comes out, when, and what is known of it afterwards."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from turngap.caller.line.running import RunningLine
from turngap.caller.line.spec import parse_line
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.testing.virtual import LoopClock, in_virtual_time

Pieces = list[tuple[int, bytes]]
LINES = ("delay=40", "lte-moving,loss=3%", "g1050-h", "delay=80,rate=300kbit,loss=1%,burst=60")


class Played:
    """A line of which everything that comes out is kept."""

    def __init__(self, text: str, call: str = "a/1", **how: Any) -> None:
        self.clock = LoopClock()
        self.up: Pieces = []
        self.down: Pieces = []
        spec = parse_line(text)
        self.line = RunningLine(
            spec,
            call,
            self.clock,
            lambda at_ns, data: self.up.append((at_ns, data)),
            lambda at_ns, data: self.down.append((at_ns, data)),
            **how,
        )

    async def wait(self, ms: float) -> None:
        await self.clock.sleep_until_ns(self.clock.now_ns() + round(ms * NS_PER_MS))

    async def talk(self, messages: list[bytes], every_ms: float = 20.0) -> None:
        for message in messages:
            self.line.send_up(self.clock.now_ns(), message)
            self.line.send_down(self.clock.now_ns(), message)
            await self.wait(every_ms)


def messages(n: int = 300, seed: int = 1) -> list[bytes]:
    chance = Random(seed)
    return [chance.randbytes(chance.randint(1, 2000)) for _ in range(n)]


def joined(pieces: Pieces) -> bytes:
    return b"".join(data for _, data in pieces)


def played(course: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return in_virtual_time(course())


@pytest.mark.parametrize("text", LINES)
def test_bytes_and_order_are_conserved_and_the_end_comes_last(text: str) -> None:
    async def course() -> Played:
        line = Played(text)
        await line.talk(messages())
        line.line.finish_up(line.clock.now_ns())
        line.line.finish_down(line.clock.now_ns())
        await line.wait(120_000)
        return line

    line = played(course)
    for pieces in (line.up, line.down):
        assert joined(pieces) == b"".join(messages())
        assert pieces[-1][1] == b""
        instants = [at for at, _ in pieces]
        assert instants == sorted(instants)
        assert len(set(instants)) == len(instants)


@pytest.mark.parametrize("text", LINES)
def test_what_came_out_is_found_again_where_it_entered(text: str) -> None:
    entered: list[int] = []

    async def course() -> Played:
        line = Played(text)
        for message in messages(100):
            entered.append(line.clock.now_ns())
            await line.talk([message])
        await line.wait(60_000)
        return line

    line = played(course)
    crossings = line.line.crossings
    assert list(crossings.up.entered_ns) == entered
    assert crossings.up.ends[-1] == len(joined(line.up)) == crossings.up.bytes
    assert not crossings.up.waiting and crossings.up.bytes_waiting == 0
    for at_ns, _ in line.up:
        assert crossings.entered_ns("up", at_ns) in entered
    for each in entered:
        arrived_ns = crossings.arrived_ns("up", each)
        assert arrived_ns is not None and crossings.entered_ns("up", arrived_ns) == each
        assert crossings.up.backlog(each) > 0
    assert crossings.up.backlog(line.up[-1][0]) == 0


def test_the_same_call_gets_the_same_line() -> None:
    async def course(call: str) -> Pieces:
        line = Played("lte-moving", call)
        await line.talk(messages(100))
        await line.wait(10_000)
        return line.up

    first, again, other = (played(lambda c=c: course(c)) for c in ("a/1", "a/1", "a/2"))
    assert first == again != other


def test_nothing_comes_out_of_a_half_open_line() -> None:
    async def course() -> Played:
        line = Played("delay=40,half-open=2s")
        await line.talk(messages(300))
        await line.wait(60_000)
        return line

    line = played(course)
    assert line.line.crossings.half_open_ns == 2 * NS_PER_S
    assert 0 < line.up[-1][0] < 2 * NS_PER_S
    assert line.line.crossings.arrived_ns("up", 2 * NS_PER_S) is None
    assert line.line.up.room < 0 and line.line.down.room < 0


def test_a_reset_is_reported_once_and_nothing_is_taken_afterwards() -> None:
    resets: list[int] = []

    async def course() -> Played:
        clock = LoopClock()
        line = Played("delay=40,reset=1s", on_reset=lambda: resets.append(clock.now_ns()))
        await line.talk(messages(100))
        return line

    line = played(course)
    assert resets == [NS_PER_S] and line.line.closed
    assert line.up[-1][0] < NS_PER_S


@pytest.mark.parametrize("text", LINES)
def test_packets_stay_whole_and_the_lost_ones_are_skipped(text: str) -> None:
    async def course() -> Played:
        line = Played(f"{text},loss=10%", packets=True)
        await line.talk(messages(500))
        await line.wait(10_000)
        return line

    line = played(course)
    sent, got = messages(500), [data for _, data in line.down]
    assert len(got) < 500
    left = iter(sent)
    assert all(each in left for each in got)  # in their order, some left out
    assert len(line.line.crossings.down.arrived_ns) == len(got)


def test_only_the_last_crossings_are_kept() -> None:
    async def course() -> Played:
        line = Played("delay=40", most=50)
        await line.talk(messages(300))
        await line.wait(1000)
        return line

    line = played(course)
    assert 25 <= len(line.line.crossings.up.ends) <= 50
    assert line.line.crossings.up.bytes == len(b"".join(messages(300)))

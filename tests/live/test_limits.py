"""The meter: no more than its rate in the long run, a burst at once."""

import math

from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.types import Message, Scope

from turngap.agent.connections import REQUESTS_AT_ONCE_S, Requests
from turngap.agent.limits import ADDRESSES, Limits, Meter, Meters
from turngap.agent.seats import Seats
from turngap.core.clock import NS_PER_S
from turngap.testing import ManualClock

STEPS = st.lists(st.tuples(st.integers(0, 3 * NS_PER_S), st.floats(0.01, 40)), max_size=60)


@given(steps=STEPS)
def test_never_more_than_rate_and_burst_allow(steps: list[tuple[int, float]]) -> None:
    meter, now_ns, taken = Meter(20, 2, 0), 0, 0.0
    for wait_ns, amount in steps:
        now_ns += wait_ns
        if meter.take(amount, now_ns):
            taken += amount
        assert taken <= 40 + 20 * now_ns / NS_PER_S + 1e-6


@given(steps=STEPS)
def test_whoever_keeps_to_the_rate_is_never_refused(steps: list[tuple[int, float]]) -> None:
    meter, now_ns = Meter(20, 2, 0), 0
    for wait_ns, amount in steps:
        # A nanosecond more: what a rate gives is a fraction of one.
        now_ns += max(wait_ns, math.ceil(amount / 20 * NS_PER_S) + 1)
        assert meter.take(amount, now_ns)


def test_a_clock_that_stands_still_gives_nothing() -> None:
    meter = Meter(10, 1, 0)
    assert [meter.take(5, 0) for _ in range(3)] == [True, True, False]


def test_an_ordinary_page_stays_far_below_its_limits() -> None:
    limits = Limits()
    packet_bytes, packets_per_s = 700, 50
    assert limits.message_bytes > 10 * packet_bytes
    assert limits.packets_per_s > 2 * packets_per_s
    assert limits.audio_rate > 1
    assert limits.vanished_s > 2 * 5


def test_addresses_are_forgotten_in_the_order_in_which_they_came() -> None:
    meters = Meters(1, 1)
    assert [meters.take("10.0.0.1", 0) for _ in range(2)] == [True, False]
    for number in range(ADDRESSES - 1):
        meters.take(f"10.0.1.{number}", 0)
    assert not meters.take("10.0.0.1", 0)
    for number in range(ADDRESSES):
        meters.take(f"10.0.2.{number}", 0)
    assert meters.take("10.0.0.1", 0)


def asked_from(address: str) -> Scope:
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    return {**scope, "client": (address, 1)}


async def test_whoever_asks_too_often_shuts_no_other_address_out() -> None:
    requests, statuses = Requests(Starlette(), 1.0), list[int]()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    for address in ["10.0.0.1"] * (round(REQUESTS_AT_ONCE_S) + 1) + ["10.0.0.2"]:
        await requests(asked_from(address), receive, send)
    assert statuses[-2:] == [429, 404]


async def test_whoever_comes_and_goes_shuts_no_other_address_out() -> None:
    seats = Seats(1, Limits(), ManualClock())
    refused = ""
    while not refused:
        async with seats.seat(asked_from("10.0.0.1")) as seat:
            refused = seat.refused
    assert "too many conversations begin" in refused
    async with seats.seat(asked_from("10.0.0.2")) as seat:
        assert seat.refused == ""


async def test_a_seat_is_free_at_once_and_few_pipelines_may_still_come_down() -> None:
    seats, scope = Seats(1, Limits(), ManualClock()), asked_from("10.0.0.1")
    async with seats.seat(scope) as first:
        async with seats.seat(scope) as second:
            assert second.refused.startswith("full: 1 of 1 conversations; try again")
        first.leave()
        async with seats.seat(scope) as second:
            assert (second.refused, seats.taken, seats.coming_down) == ("", 1, 1)
            second.leave()
            async with seats.seat(scope) as third:
                assert third.refused.startswith("full: 0 of 1 conversations, and 2 still ending")
    assert (seats.taken, seats.coming_down) == (0, 0)


async def test_a_server_of_many_seats_lets_more_conversations_begin() -> None:
    clock = ManualClock()
    seats = Seats(100, Limits(), clock)

    async def begun(count: int) -> int:
        taken = 0
        for _ in range(count):
            async with seats.seat(asked_from("10.0.0.1")) as seat:
                taken += not seat.refused
        return taken

    assert await begun(210) == 200  # all may come at once, and once more
    await clock.advance(NS_PER_S)
    assert await begun(30) == 20

"""The end of a server: it waits for its calls, for so long and no longer."""

import signal

import pytest
from fake_engines import fake_assembly
from fastapi import FastAPI

from turngap.agent.connections import Config
from turngap.agent.drain import SWITCH_S, Drain, Server
from turngap.agent.limits import CODE_FULL, CODE_RESTART, Limits
from turngap.agent.seats import DRAINS, Seats, not_ready
from turngap.agent.server import ServeSettings, create_app, create_server
from turngap.core.clock import NS_PER_S
from turngap.testing import ManualClock


def server_of(seats: Seats, clock: ManualClock) -> Server:
    settings = ServeSettings()
    app = create_app(fake_assembly(), settings, seats)
    server = create_server(app, settings.limits, seats, Drain(seats, clock, 60))
    server.config.load()
    return server


def test_it_is_over_when_the_last_call_has_come_down() -> None:
    clock = ManualClock()
    seats = Seats(2, Limits(), clock)
    drain = Drain(seats, clock, 60)
    seat = seats.take("10.0.0.1")
    assert not drain.over()
    assert drain.begin()
    assert not drain.begin()
    refused = seats.take("10.0.0.2")
    assert (refused.refused, refused.reason, refused.code) == (DRAINS, "draining", CODE_RESTART)
    assert not_ready(seats) == DRAINS
    assert not drain.over()
    seat.leave()
    assert not drain.over()
    seats.give_back(seat)
    assert drain.over()


async def test_it_waits_no_longer_than_it_may() -> None:
    clock = ManualClock()
    seats = Seats(2, Limits(), clock)
    drain = Drain(seats, clock, 60)
    seats.take("10.0.0.1")
    drain.begin()
    await clock.advance(60 * NS_PER_S - 1)
    assert not drain.over()
    await clock.advance(1)
    assert drain.over()


def test_without_time_to_wait_it_does_not_begin() -> None:
    clock = ManualClock()
    seats = Seats(2, Limits(), clock)
    assert not Drain(seats, clock, 0).begin()
    assert seats.take("10.0.0.1").refused == ""


def test_full_comes_before_restart_only_while_calls_are_taken() -> None:
    clock = ManualClock()
    seats = Seats(1, Limits(), clock)
    seats.take("10.0.0.1")
    full = seats.take("10.0.0.1")
    assert (full.reason, full.code) == ("full", CODE_FULL)
    seats.drains = True
    assert seats.take("10.0.0.1").reason == "draining"


async def test_the_first_sigterm_drains_a_server_and_the_second_ends_it() -> None:
    clock = ManualClock()
    seats = Seats(1, Limits(), clock)
    server = server_of(seats, clock)
    seat = seats.take("10.0.0.1")
    server.handle_exit(signal.SIGTERM, None)
    assert not await server.on_tick(1)
    seats.give_back(seat)
    assert await server.on_tick(1)
    assert not server.should_exit
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit


def test_every_server_hands_the_interpreter_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr("sys.setswitchinterval", told.append)
    Server(Config(FastAPI(), Limits(), 1))
    assert told == [SWITCH_S]


async def test_an_interrupt_ends_a_server_at_once() -> None:
    clock = ManualClock()
    seats = Seats(1, Limits(), clock)
    server = server_of(seats, clock)
    seats.take("10.0.0.1")
    server.handle_exit(signal.SIGINT, None)
    assert await server.on_tick(1)

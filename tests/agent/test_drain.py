"""The end of a server: it waits for its calls, for so long and no longer."""

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest
from fake_engines import fake_assembly
from fastapi import FastAPI

from turngap.agent.access import CODE_RESTART, HangUpError, Limits, Seats
from turngap.agent.server import SWITCH_S, Server, ServeSettings, create_app


def server_of(seats: Seats, drain_s: float = 60.0) -> Server:
    settings = ServeSettings()
    server = Server(create_app(fake_assembly(), settings, seats), settings.limits, seats, drain_s)
    server.config.load()
    return server


async def test_the_first_sigterm_lets_the_last_call_end_and_takes_no_other() -> None:
    seats = Seats(2)
    server = server_of(seats)
    async with seats.seat():
        server.handle_exit(signal.SIGTERM, None)
        with pytest.raises(HangUpError) as refused:
            await seats.seat().__aenter__()
        assert refused.value.args[0] == CODE_RESTART
        assert "is shutting down" in refused.value.args[1]
        assert not await server.on_tick(1)
    assert await server.on_tick(1)
    assert not server.should_exit


@pytest.mark.parametrize("left", [True, False])
async def test_a_call_that_waits_for_a_seat_gets_none_once_the_server_drains(
    left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngap.agent.access.SEAT_S", 5.0 if left else 0.01)
    seats = Seats(1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(seats.seat())
        waiting = asyncio.create_task(seats.seat().__aenter__())
        await asyncio.wait({waiting}, timeout=0)
        seats.drains = True
        if left:
            await stack.aclose()
        with pytest.raises(HangUpError, match="is shutting down") as refused:
            await waiting
    assert refused.value.args[0] == CODE_RESTART
    assert seats.taken == 0


async def test_it_waits_no_longer_than_it_may() -> None:
    seats = Seats(2)
    server = server_of(seats, drain_s=1e-9)
    async with seats.seat():
        server.handle_exit(signal.SIGTERM, None)
        assert not await server.on_tick(1)
        assert await server.on_tick(2)


@pytest.mark.parametrize(
    ("drain_s", "signs"),
    [(60, (signal.SIGTERM, signal.SIGTERM)), (60, (signal.SIGINT,)), (0, (signal.SIGTERM,))],
)
async def test_a_second_sigterm_an_interrupt_and_one_without_time_to_wait_end_it_at_once(
    drain_s: float, signs: tuple[int, ...]
) -> None:
    seats = Seats(1)
    server = server_of(seats, drain_s)
    async with seats.seat():
        for sign in signs:
            server.handle_exit(sign, None)
        assert await server.on_tick(1)


def test_every_server_hands_the_interpreter_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr("sys.setswitchinterval", told.append)
    Server(FastAPI(), Limits(), Seats(1))
    assert told == [SWITCH_S]

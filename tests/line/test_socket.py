"""A line inside the caller's WebSocket: bytes, backlog, resets, half-open lines and dead peers."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trustme
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from turngap.caller import opening
from turngap.caller.line import transport
from turngap.caller.line.running import CALLER_BUFFER
from turngap.caller.line.spec import parse_line
from turngap.caller.line.transport import LinedTransport
from turngap.caller.opening import Request, Socket, connect
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.core.errors import AgentError

CLOCK = MonotonicClock()
PATIENCE_S = 30.0
Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


async def wait(seconds: float) -> None:
    await CLOCK.sleep_until_ns(CLOCK.now_ns() + round(seconds * NS_PER_S))


@asynccontextmanager
async def connected(
    handler: Handler, line: str | None, tls: trustme.CA | None = None
) -> AsyncIterator[Socket]:
    """A socket to a server that runs `handler`; afterwards no task of the caller is left."""
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.issue_cert("localhost").configure_cert(context)
    async with serve(handler, "127.0.0.1", 0, ssl=context, close_timeout=0.2) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws{'s' * bool(tls)}://localhost:{port}"
        spec = None if line is None else parse_line(line)
        async with asyncio.timeout(PATIENCE_S):
            socket = await connect(Request(url, {}, (), 10.0, url, line=spec), CLOCK)
            try:
                yield socket
            finally:
                await socket.close()
                await socket.gone()
                await wait(0.01)
                ours = [t for t in asyncio.all_tasks() if t.get_name().startswith("turngap-")]
                assert not ours
                if isinstance(socket.transport, LinedTransport):
                    assert socket.transport.line.closed


@pytest.mark.parametrize("tls", [False, True])
async def test_messages_cross_whole_and_in_order(
    tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = trustme.CA() if tls else None
    if ca is not None:
        with ca.cert_pem.tempfile() as file:
            trusted = ssl.create_default_context(cafile=file)
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusted)
    messages = [bytes([n]) * (n * 37 % 3000 + 1) for n in range(200)]
    async with connected(echo, "delay=20,jitter=10,loss=2%,rate=5Mbit", ca) as socket:
        begun_ns = CLOCK.now_ns()

        async def say() -> None:
            for message in messages:
                await socket.send(message)

        saying = asyncio.create_task(say())
        assert [await socket.recv() for _ in messages] == messages
        await saying
        assert CLOCK.now_ns() - begun_ns > 40 * NS_PER_MS
        crossings = socket.crossings
        assert crossings is not None
        entered_ns = crossings.entered_ns("down", socket.arrived_ns)
        assert entered_ns is not None
        assert socket.arrived_ns - entered_ns >= 20 * NS_PER_MS
        assert crossings.up.bytes > sum(map(len, messages))


async def test_the_closing_handshake_crosses_too() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.send("one")
        await socket.close(4000, "enough")

    async with connected(leave, "delay=60") as socket:
        assert await socket.recv() == "one"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4000


async def test_an_agent_that_vanishes_is_noticed_after_what_it_has_sent() -> None:
    async def vanish(socket: ServerConnection) -> None:
        await socket.send("one")
        socket.transport.abort()

    async with connected(vanish, "delay=80") as socket:
        assert await socket.recv() == "one"
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_a_slow_line_holds_the_writer_up() -> None:
    async with connected(echo, "delay=20,rate=300kbit") as socket:
        sent = 0
        while socket.send_now(bytes(640)):
            sent += 1
            assert sent < 3000
        assert CALLER_BUFFER < sent * 640 < CALLER_BUFFER + 65_536  # and the line's window
        writing = asyncio.create_task(socket.send(bytes(200_000)))
        await wait(0.2)
        assert not writing.done()
        socket.transport.abort()
        with suppress(ConnectionClosed):
            await writing


async def test_backlog_reaches_the_agent() -> None:
    sizes: list[int] = []

    async def speak(socket: ServerConnection) -> None:
        socket.transport.set_write_buffer_limits(0)
        with suppress(ConnectionClosed):
            while True:
                await socket.send(bytes(10_000))
                sizes.append(10_000)

    async with connected(speak, "delay=20,rate=300kbit") as socket:
        got = 0
        while got < 100_000:
            got += len(await socket.recv())
        assert socket.crossings is not None
        assert socket.crossings.down.most_waiting < 200_000
        assert sum(sizes) < 8_000_000  # the agent's own kernel holds the rest
        socket.transport.abort()


async def test_a_reset_reaches_both_ends() -> None:
    gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def listen(socket: ServerConnection) -> None:
        await socket.wait_closed()
        gone.set_result(socket.close_code or 0)

    async with connected(listen, "delay=10,reset=1s") as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert str(closed.value.__cause__) == transport.RESET
        assert await gone == 1006


async def test_a_dead_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "QUIET_S", 0.4)
    monkeypatch.setattr(opening, "ANSWER_S", 0.5)
    monkeypatch.setattr(transport, "WATCH_S", 3.0)

    async def leave_in_time(socket: ServerConnection) -> None:
        await wait(2.0)
        socket.transport.abort()

    async with connected(leave_in_time, "delay=10,half-open=1s") as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert str(closed.value.__cause__) == opening.NO_ANSWER
        assert socket.crossings is not None and socket.crossings.half_open_ns is not None
        assert CLOCK.now_ns() - socket.crossings.half_open_ns < 2 * NS_PER_S
        await socket.gone()
        left_ns = socket.crossings.agent_left_ns
        assert left_ns is not None and left_ns > socket.crossings.half_open_ns


async def test_a_half_open_line_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WATCH_S", 1.0)
    gone: list[int] = []

    async def stay(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await socket.send(bytes(1000))
                await wait(0.01)
        gone.append(CLOCK.now_ns())

    async with connected(stay, "delay=10,half-open=1s") as socket:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.3):
                while True:
                    await socket.recv()
        socket.transport.abort()
        await socket.wait_closed()
        assert not gone
        await socket.gone()
        await wait(0.1)
        assert gone and socket.crossings is not None
        assert socket.crossings.agent_left_ns is None


@pytest.mark.parametrize("answers", [True, False])
async def test_a_peer_without_a_line_is_judged_if_it_answers_pings(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "QUIET_S", 0.2)
    monkeypatch.setattr(opening, "ANSWER_S", 0.3)

    async def freeze(socket: ServerConnection) -> None:
        if answers:
            await wait(0.1)
        socket.transport.pause_reading()
        await socket.wait_closed()

    if not answers:  # the first ping comes before the handler can pause
        monkeypatch.setattr(Socket, "_answers", property(lambda _: False, lambda *_: None))
    async with connected(freeze, None) as socket:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert answers and str(closed.value.__cause__) == opening.NO_ANSWER
                return
        assert not answers
        socket.transport.abort()


async def test_silence_and_stalls_do_not_end_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "QUIET_S", 0.2)
    monkeypatch.setattr(opening, "ANSWER_S", 0.3)
    async with connected(echo, "delay=30") as socket:
        await wait(2.0)
        await socket.send("still there")
        assert await socket.recv() == "still there"


async def test_a_ping_behind_others_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "QUIET_S", 0.2)
    monkeypatch.setattr(opening, "ANSWER_S", 0.3)

    async def listen(socket: ServerConnection) -> None:
        async for _ in socket:
            pass

    async with connected(listen, "delay=10,up=500kbit") as socket:
        await wait(0.1)
        while socket.send_now(bytes(1000)):
            pass
        await wait(1.0)  # the line needs 1.3 s for it
        assert socket.transport.get_write_buffer_size() == 0
        await socket.send(b"alive")
        socket.transport.abort()


def test_a_stall_of_three_seconds_is_no_death_and_ten_are() -> None:
    assert opening.QUIET_S > 3 < opening.ANSWER_S
    assert opening.QUIET_S + opening.ANSWER_S < 10


@pytest.mark.parametrize("line", ["reset=0s", "reset=0.005s,delay=20", "half-open=0s"])
async def test_a_line_that_breaks_in_the_opening_says_so_and_leaves_nothing(line: str) -> None:
    async with serve(echo, "127.0.0.1", 0) as server:
        before = asyncio.all_tasks()
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        with pytest.raises(AgentError) as raised:
            await connect(Request(url, {}, (), 1.0, url, line=parse_line(line)), CLOCK)
        assert raised.value.kind == "agent.line_lost"
        assert line.partition("=")[0] in raised.value.message
        await wait(0.1)
        assert not [t for t in asyncio.all_tasks() - before if "turngap" in t.get_name()]

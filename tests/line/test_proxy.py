"""`turngap line` between real sockets, and its command."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from commandline import turngap_here

from turngap.caller.line import proxy as proxies
from turngap.caller.line import transport
from turngap.caller.line.proxy import Proxy
from turngap.caller.line.spec import parse_line, profiles
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def wait(seconds: float) -> None:
    clock = MonotonicClock()
    await clock.sleep_until_ns(clock.now_ns() + round(seconds * NS_PER_S))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(10_000):
        writer.write(data)
        await writer.drain()


class Front:
    """A proxy in front of a server that runs `serve` for each connection."""

    def __init__(self, port: int, said: list[str], proxy: Proxy) -> None:
        self.port, self.said, self.proxy = port, said, proxy
        self.opened: list[asyncio.StreamWriter] = []

    async def open(self) -> Ends:
        ends = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(ends[1])
        return ends

    async def over(self, n: int = 1) -> list[str]:
        while len(self.said) < n:
            await wait(0.01)
        return self.said


@asynccontextmanager
async def front(serve: Serve, line: str) -> AsyncIterator[Front]:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    said: list[str] = []
    async with asyncio.timeout(30):
        async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
            proxy = Proxy(parse_line(line), server.sockets[0].getsockname()[:2], said.append)
            _, port = await proxy.listen(("127.0.0.1", 0))
            at = Front(port, said, proxy)
            try:
                yield at
            finally:
                await proxy.close()
                for writer in at.opened:
                    writer.close()
                    with suppress(ConnectionError):
                        await writer.wait_closed()
                await wait(0.02)
                left = [t for t in asyncio.all_tasks() if t.get_name().startswith("turngap-")]
                assert not left


async def test_bytes_and_order_are_conserved_both_ways() -> None:
    chance = Random(1)
    pieces = [chance.randbytes(chance.randint(1, 5000)) for _ in range(200)]
    async with front(echo, "delay=10,jitter=10,loss=2%,rate=20Mbit") as at:

        async def one() -> None:
            reader, writer = await at.open()
            for piece in pieces:
                writer.write(piece)
                if chance.random() < 0.2:
                    await wait(0.002)
            writer.write_eof()
            came, sent = await reader.read(), b"".join(pieces)
            assert (len(came), came == sent) == (len(sent), True)  # no diff of a megabyte
            writer.close()

        await asyncio.gather(*(one() for _ in range(3)))
        said = await at.over(3)
        assert sorted(text.partition(":")[0] for text in said) == [
            "connection 1",
            "connection 2",
            "connection 3",
        ]
        assert "longest stall" in said[0] and "half-open" not in said[0]


async def test_an_end_crosses_each_way_by_itself() -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(data * 2)

    async with front(late, "delay=30") as at:
        reader, writer = await at.open()
        writer.write(b"once")
        writer.write_eof()
        assert await reader.read() == b"onceonce"
        writer.close()
        await at.over()


async def test_the_servers_reset_reaches_the_client() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(3)
        transport.break_off(writer.transport)

    async with front(reset, "delay=20") as at:
        reader, writer = await at.open()
        writer.write(b"one")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await at.over()


async def test_the_clients_reset_reaches_the_server() -> None:
    ends: list[str] = []

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1000):
                pass
            ends.append("end")
        except ConnectionResetError:
            ends.append("reset")

    async with front(listen, "delay=20") as at:
        _, writer = await at.open()
        writer.write(b"one")
        await wait(0.1)
        transport.break_off(writer.transport)
        await at.over()
        await wait(0.05)
        assert ends[-1] == "reset"


async def test_the_lines_reset_reaches_both() -> None:
    async with front(echo, "delay=20,reset=1s") as at:
        reader, _ = await at.open()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await at.over()


async def test_backlog_reaches_who_sends_and_a_vanished_client_ends_it() -> None:
    sent: list[int] = []

    async def pour(__: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(1000):  # 10 MB
            writer.write(bytes(10_000))
            await writer.drain()
            sent.append(10_000)

    async with front(pour, "delay=20,rate=300kbit") as at:
        reader, writer = await at.open()
        await reader.readexactly(50_000)
        writer.transport.abort()
        (said,) = await at.over()
        assert sum(sent) < 9_000_000
        assert "down" in said


async def test_a_half_open_line_is_told_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WATCH_S", 2.0)

    async def leave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wait(1.5)

    async with front(leave, "delay=20,half-open=1s") as at:
        reader, writer = await at.open()
        writer.write(b"one")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.7):
                await reader.read()
        writer.close()
        (said,) = await at.over()
        assert "half-open, and the agent left after 0.5 s" in said


async def test_a_server_that_closes_at_once_or_is_gone() -> None:
    async def leave(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        pass

    async with front(leave, "delay=20") as at:
        reader, writer = await at.open()
        assert await reader.read() == b""
        writer.close()
        await at.over()
        at.proxy.to = ("127.0.0.1", 9)
        reader, _ = await at.open()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert "nothing answers at 127.0.0.1:9: Connection refused" in (await at.over(2))[1]


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "MOST_CONNECTIONS", 1)
    async with front(echo, "delay=5") as at:
        _, writer = await at.open()
        writer.write(b"one")
        reader, _ = await at.open()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert "refused" in (await at.over())[0]


async def test_a_port_in_use_is_an_error() -> None:
    async with front(echo, "delay=5") as at:
        with pytest.raises(AgentError, match="something listens there already"):
            await at.proxy.listen(("127.0.0.1", at.port))


def test_the_command_lists_the_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    listed = turngap_here(capsys, "line", "--json").document()
    assert [each["line"] for each in listed] == list(profiles())
    assert all(each["source"] and each["up"]["delay_ms"] for each in listed)
    assert "delay=42.5" in turngap_here(capsys, "line").out
    assert turngap_here(capsys, "line", "lte,loss=3%").out.count("loss=3%") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("lte", "--to", "ws://127.0.0.1:1/ws"), 2, "expected HOST:PORT"),
        (("--to", "127.0.0.1:1"), 2, "which line?"),
        (("lte", "--to", "127.0.0.1:1"), 4, "nothing answers at 127.0.0.1:1"),
        (("nowhere",), 2, "unknown line"),
    ],
)
def test_the_command_refuses(
    arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = turngap_here(capsys, "line", *arguments)
    assert done.code == code and words in done.err


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command(ends: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        to = f"127.0.0.1:{server.getsockname()[1]}"
        command = (sys.executable, "-m", "turngap", "line", "delay=5", "--to", to)
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ) as running:
            assert running.stderr is not None
            assert b"leads to" in running.stderr.readline()
            running.send_signal(ends)
            assert running.wait(30) == 0
            assert running.stderr.read() == b""

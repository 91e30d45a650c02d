"""Instants of arrival by the kernel, also where the event loop reads much later."""

import asyncio
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from turngap.caller.arrival import StampedSocket, age_ns, arrived_ns, connect_stamped
from turngap.caller.connection import open_line
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.opening import Socket
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.wire import message_frame
from turngap.testing import ManualClock
from turngap.testing.agent import ScriptedAgent

CLOCK = MonotonicClock()
# The kernel stamps by the wall clock, which may be slewed a little.
TOLERANCE_NS = ms_to_ns(1)


def stamped_pair() -> tuple[StampedSocket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = StampedSocket(type=socket.SOCK_STREAM)
        near.connect(server.getsockname())
        far, _ = server.accept()
    return near, far


@pytest.fixture(scope="module")
def stamps() -> Iterator[None]:
    """Hold a stamped socket open: the kernel begins to stamp a moment after the first one is."""
    near, far = stamped_pair()
    with near, far:
        for _ in range(100):
            far.sendall(b"x")
            near.recv(10)
            if near.age_ns():
                yield
                return
            time.sleep(0.02)
        pytest.skip("this kernel stamps no TCP data")


needs_stamps = pytest.mark.usefixtures("stamps")


def hold_up(ms: float) -> None:
    """Keep this thread, and with it the event loop, from reading anything."""
    until_ns = CLOCK.now_ns() + ms_to_ns(ms)
    while CLOCK.now_ns() < until_ns:
        pass


@needs_stamps
@pytest.mark.parametrize("into", [False, True])
def test_bytes_are_as_old_as_they_are_whenever_they_are_read(into: bool) -> None:
    near, far = stamped_pair()
    with near, far:
        before_ns = CLOCK.now_ns()
        far.sendall(b"hello")
        after_ns = CLOCK.now_ns()
        hold_up(300)
        room = bytearray(100)
        got = bytes(room[: near.recv_into(room)]) if into else near.recv(100)
        known_ns = near.age_ns()
        arrived_ns = CLOCK.now_ns() - known_ns
    assert got == b"hello"
    assert before_ns - TOLERANCE_NS < arrived_ns < after_ns + ms_to_ns(200)


def test_everything_that_was_sent_is_read_in_pieces() -> None:
    near, far = stamped_pair()
    sent = bytes(range(256)) * 100
    with near, far:
        far.sendall(sent)
        far.shutdown(socket.SHUT_WR)
        got = b""
        while piece := near.recv(1 << 18):
            assert len(piece) <= 2048
            got += piece
    assert got == sent


def test_a_kernel_that_stamps_nothing_leaves_the_instant_of_reading() -> None:
    near, far = stamped_pair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, 35, 0)
        far.sendall(b"hello")
        hold_up(20)
        assert near.recv(100) == b"hello"
        assert near.age_ns() == 0


@pytest.mark.parametrize("age_s", [-3600, 3600])
def test_a_clock_that_was_set_meanwhile_is_not_believed(age_s: int) -> None:
    near, far = stamped_pair()
    with near, far:
        now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        stamp = struct.pack("@ll", *divmod(now_ns - age_s * 10**9, 10**9))
        near._note([(socket.SOL_SOCKET, 35, stamp)])
        assert near.age_ns() == 0


async def test_a_host_is_tried_at_each_of_its_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # localhost is ::1 too, where nobody listens.
        tcp = await connect_stamped("localhost", server.getsockname()[1], 5.0)
        with tcp:
            assert tcp.getpeername() == server.getsockname()


async def test_an_address_that_swallows_packets_holds_up_the_next_one_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    resolve, connect = loop.getaddrinfo, loop.sock_connect

    async def getaddrinfo(host: str, port: int, **how: int) -> list[object]:
        return [x for ip in ("127.0.0.2", "127.0.0.1") for x in await resolve(ip, port, **how)]

    async def sock_connect(tcp: socket.socket, address: tuple[str, int]) -> None:
        if address[0] == "127.0.0.2":
            await asyncio.Event().wait()
        await connect(tcp, address)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
    monkeypatch.setattr(loop, "sock_connect", sock_connect, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        tcp = await connect_stamped("two.test", server.getsockname()[1], 30.0)
        with tcp:
            assert tcp.getpeername() == server.getsockname()


async def test_nobody_there_is_the_last_address_own_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await connect_stamped("127.0.0.1", unused.getsockname()[1], 5.0)


async def test_nothing_is_delayed_on_the_way_out() -> None:
    async with ScriptedAgent() as agent, open_line(agent.url, PipecatSession(), CLOCK) as line:
        assert isinstance(line._peer, Socket)
        tcp = line._peer.transport.get_extra_info("socket")
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def agent_in_a_thread(hold_back: threading.Event, sent_ns: list[int]) -> Server:
    """An agent with an event loop of its own, or none: it says one thing when it may."""

    def talk(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(message_frame(rtvi("bot-ready", {"version": "2.0.0"})))
        hold_back.wait(30)
        sends_ns = CLOCK.now_ns()
        connection.send(message_frame(rtvi("bot-llm-text", {"text": "now"})))
        sent_ns.append(sends_ns)
        for _ in connection:
            pass

    server = serve(talk, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@needs_stamps
async def test_a_message_is_stamped_when_it_came_though_the_event_loop_was_held_up() -> None:
    go, sent_ns = threading.Event(), list[int]()
    with agent_in_a_thread(go, sent_ns) as server:
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        async with open_line(url, PipecatSession(), CLOCK) as line:
            go.set()
            while not sent_ns:  # not a wait: nothing else of this loop may run
                pass
            hold_up(300)
            read_ns = CLOCK.now_ns()
            arrived_ns, _ = await line.next()
        server.shutdown()
    assert sent_ns[0] - TOLERANCE_NS < arrived_ns < read_ns - ms_to_ns(100)


@needs_stamps
async def test_a_transport_that_reads_into_a_buffer_as_for_tls_is_stamped_too() -> None:
    class Reads(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.room, self.got, self.age_ns = bytearray(4096), b"", 0
            self.done = asyncio.Event()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.room

        def buffer_updated(self, nbytes: int) -> None:
            self.got += self.room[:nbytes]
            self.age_ns = age_ns(self.transport)
            self.done.set()

    near, far = stamped_pair()
    near.setblocking(False)
    with far:
        far.sendall(b"hello")
        hold_up(200)
        transport, reads = await asyncio.get_running_loop().create_connection(Reads, sock=near)
        await reads.done.wait()
        transport.close()
    assert reads.got == b"hello"
    assert reads.age_ns > ms_to_ns(100)


@needs_stamps
async def test_an_ordinary_socket_has_no_stamp_even_where_a_stamped_one_was_before_it() -> None:
    near, far = stamped_pair()
    with far:
        far.sendall(b"hello")
        near.recv(10)
        assert age_ns(FakeTransport(near)) > 0
    descriptor = near.fileno()
    near.close()
    with socket.socket() as other:
        plain = socket.socket(fileno=os.dup2(other.fileno(), descriptor))
        with plain:
            assert age_ns(FakeTransport(plain)) == 0


class FakeTransport(asyncio.Transport):
    def __init__(self, tcp: socket.socket) -> None:
        super().__init__({"socket": tcp})


async def test_what_comes_later_arrived_no_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, transport = ManualClock(), asyncio.Transport()
    ages = iter([ms_to_ns(1), ms_to_ns(9), 0])
    monkeypatch.setattr("turngap.caller.arrival.age_ns", lambda _: next(ages))
    last, found = 0, list[int]()
    for now_ms in (20, 21, 30):  # the first was read 5 ms too late: a pause between two clocks
        await clock.advance_to(ms_to_ns(now_ms))
        last = arrived_ns(transport, clock, last)
        found.append(last)
    assert found == [ms_to_ns(19), ms_to_ns(19), ms_to_ns(30)]


async def test_why_an_agent_cannot_be_reached_is_told_before_what_this_machine_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 1)) for host in ("127.0.0.1", "::1")
    ]

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        return list(addresses)

    async def sock_connect(_: object, address: tuple[str, int]) -> None:
        number = errno.ECONNREFUSED if address[0] == "127.0.0.1" else errno.EADDRNOTAVAIL
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
    monkeypatch.setattr(loop, "sock_connect", sock_connect, raising=False)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await connect_stamped("localhost", 1, 10.0)
        addresses.reverse()
    del addresses[addresses.index(next(a for a in addresses if a[4][0] == "127.0.0.1"))]
    with pytest.raises(OSError, match="Cannot assign requested address"):
        await connect_stamped("localhost", 1, 10.0)

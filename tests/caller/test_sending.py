"""The quick way to send against the library's own: order, a peer that does not read, the end."""

import asyncio
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from turngap.caller.opening import Request, Socket, connect, frame_of
from turngap.clocks import MonotonicClock, others_first

CLOCK = MonotonicClock()


async def opened(port: int) -> Socket:
    url = f"ws://127.0.0.1:{port}"
    return await connect(Request(url, {}, (), 10.0, url), CLOCK)


async def test_a_peer_that_does_not_read_is_waited_for_and_gets_all_in_order() -> None:
    reads, taken = asyncio.Event(), list[bytes | str]()
    messages = [bytes([n]) * 65_000 if n % 2 else f"{n:>65000}" for n in range(200)]

    async def take(connection: ServerConnection) -> None:
        await reads.wait()
        for _ in messages:
            taken.append(await connection.recv())

    async with serve(take, "127.0.0.1", 0, max_queue=1) as server:
        socket = await opened(next(iter(server.sockets)).getsockname()[1])
        sent = list[int]()

        async def send() -> None:
            for number, message in enumerate(messages):
                await socket.send(message)
                sent.append(number)

        task = asyncio.create_task(send())
        async with asyncio.timeout(60):
            while not socket.transport.get_write_buffer_size():
                await others_first()
        for _ in range(100):  # it goes no further, however often it gets to run
            await others_first()
        assert not task.done()
        assert len(sent) < len(messages)
        reads.set()
        await asyncio.wait_for(task, 60)
        await socket.wait_closed()
    assert taken == messages


async def test_a_line_that_is_closed_says_so() -> None:
    async def leave(connection: ServerConnection) -> None:
        await connection.close(4000, "enough")

    async with serve(leave, "127.0.0.1", 0) as server:
        socket = await opened(next(iter(server.sockets)).getsockname()[1])
        await socket.wait_closed()
        for message in (b"audio", "text"):
            with pytest.raises(ConnectionClosed, match="enough"):
                await socket.send(message)


async def test_what_is_no_message_is_refused_as_ever() -> None:
    async with serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0) as server:
        socket = await opened(next(iter(server.sockets)).getsockname()[1])
        with pytest.raises(TypeError):
            await socket.send(3)
        await socket.close()


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)), st.binary(min_size=4, max_size=4))
@example(bytes(125), b"mask")
@example(bytes(126), b"mask")
@example(b"a" * 65_535, b"\0\0\0\0")
@example(b"a" * 65_536, b"mask")
def test_a_frame_is_the_one_that_the_library_makes(message: bytes | str, mask: bytes) -> None:
    opcode = Opcode.TEXT if isinstance(message, str) else Opcode.BINARY
    frame = Frame(opcode, message.encode() if isinstance(message, str) else message)
    assert frame_of(message, b"") == frame.serialize(mask=False)
    with patch("secrets.token_bytes", lambda _: mask):
        assert frame_of(message, mask) == frame.serialize(mask=True)


async def test_messages_are_taken_as_they_come_and_what_is_not_taken_is_received() -> None:
    async def say(connection: ServerConnection) -> None:
        await connection.recv()
        for message in (b"1", "2", ["3", "4"], b"5", "6", b"last"):
            await connection.send(message)
        await connection.wait_closed()

    taken, received = list[bytes | str](), list[bytes | str]()

    def take(message: bytes | str) -> bool:
        if message in (b"5", "6", b"last"):  # not this one, so none that follows it either
            return False
        taken.append(message)
        return True

    async with serve(say, "127.0.0.1", 0) as server:
        socket = await opened(next(iter(server.sockets)).getsockname()[1])
        socket.takes = take
        await socket.send(b"begin")
        while not received or received[-1] != b"last":
            received.append(await asyncio.wait_for(socket.recv(), 60))
        await socket.close()
    # A message in pieces always waits for `recv`.
    assert taken == [b"1", "2"]
    assert received == ["34", b"5", "6", b"last"]

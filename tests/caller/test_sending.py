"""The quick way to send against the library's own: order, a peer that does not read, the end."""

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from turngap.caller.opening import Request, Socket, connect
from turngap.clocks import MonotonicClock

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
        _, unfinished = await asyncio.wait([task], timeout=0.5)
        assert unfinished
        assert socket.transport.get_write_buffer_size() > 0
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

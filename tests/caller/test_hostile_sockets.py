"""Agents that are hostile below the dialect, over a socket: each run ends with a reason."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from commandline import only_run, turngap_here
from websockets.asyncio.server import ServerConnection as AsyncConnection
from websockets.asyncio.server import serve as serve_async
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import Server, ServerConnection, serve

from turngap.caller.connection import open_line
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.intake import MOST_MESSAGE_BYTES, MOST_QUEUED
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.core.wire import message_frame

Capsys = pytest.CaptureFixture[str]
EVIL = "\x1b[2J\x1b]0;owned\x07\u202eevil"
# What both ends of a loopback connection hold, with room to spare; Linux gives them 10 MB.
IN_KERNEL_BYTES = 2**25
READY = message_frame(rtvi("bot-ready", {}))


@contextmanager
def agent(act: Callable[[ServerConnection], None], **options: Any) -> Iterator[str]:
    """Serve on loopback: the agent is ready, then does this, then hangs up."""

    def session(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed, OSError):
            connection.recv()
            connection.send(READY)
            act(connection)

    server: Server = serve(session, "127.0.0.1", 0, compression=None, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
    finally:
        server.shutdown()
        thread.join(10)


def raw(data: bytes) -> Callable[[ServerConnection], None]:
    """Write bytes that are no frame, or half of one, and be gone."""

    def act(connection: ServerConnection) -> None:
        connection.socket.sendall(data)
        connection.socket.shutdown(socket.SHUT_WR)

    return act


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda c: c.close(4000, EVIL), "code 4000 ([2J ]0;owned evil)"),
        (lambda c: c.close(1000, ""), "the agent ended the call (1000)"),
        (lambda c: c.close(1011, "x" * 123), f"code 1011 ({'x' * 123})"),
        (lambda c: c.send(bytes(MOST_MESSAGE_BYTES + 1)), "code 1009"),
        (raw(b"\x81\x02\xff\xff"), "code 1007"),
        (raw(b"\xff\xff\xff\xff"), "code 1002"),
        (raw(b"\x82\x7e\x10\x00half"), "without a closing handshake"),
        (raw(b""), "without a closing handshake"),
    ],
    ids=[
        *("a reason that escapes", "no reason", "the longest reason", "a message too large"),
        *("no UTF-8", "no frame", "half a frame", "hangs up"),
    ],
)
def test_a_line_that_ends_ends_the_run_with_the_reason(
    act: Callable[[ServerConnection], None], said: str, tmp_path: Path, capsys: Capsys
) -> None:
    with agent(act) as url:
        arguments = ("--calibration", "0", "--agent", url, "--out", tmp_path)
        done = turngap_here(capsys, "replay", "quick-questions", *arguments)
    assert done.code == 4
    assert said in done.err
    assert all(line.isprintable() for line in (done.out + done.err).split("\n"))
    record = json.loads((only_run(tmp_path) / "run.json").read_text())
    assert (record["valid"], said in record["failure"]) == (False, True)


def test_a_refusal_by_http_is_shown_and_not_obeyed(tmp_path: Path, capsys: Capsys) -> None:
    def refuse(*_: object) -> Response:
        body = EVIL.encode()
        headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
        return Response(HTTPStatus.FORBIDDEN, "\x1b[31mForbidden", headers, body)

    with agent(lambda _: None, process_request=refuse) as url:
        arguments = ("--calibration", "0", "--agent", url, "--out", tmp_path)
        done = turngap_here(capsys, "replay", "quick-questions", *arguments)
    assert done.code == 4
    assert "as a WebSocket" in done.err
    assert all(line.isprintable() for line in (done.out + done.err).split("\n"))


async def test_an_agent_waits_while_the_caller_does_not_read() -> None:
    """It would fill the caller's memory otherwise."""
    sent, messages, size = 0, 1_000, 2**16
    clock = MonotonicClock()

    async def flood(connection: AsyncConnection) -> None:
        nonlocal sent
        await connection.recv()
        await connection.send(READY)
        with suppress(ConnectionClosed):
            for _ in range(messages):
                await connection.send(bytes(size))
                sent += 1

    async with serve_async(flood, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with open_line(url, PipecatSession(), clock):
            before = -1
            while not 0 < sent == before:  # until it stands still, however slow the machine is
                before = sent
                await clock.sleep_until_ns(clock.now_ns() + NS_PER_S // 2)
            assert sent * size < MOST_QUEUED * size + IN_KERNEL_BYTES

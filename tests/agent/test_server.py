"""The agent's server: who is let in, who is turned away, and what does not bring it down."""

import asyncio
import dataclasses
import json
import socket

import numpy as np
import pytest
from fake_engines import fake_assembly, served
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from turngap.agent.server import ServeSettings, bind, set_log_level
from turngap.caller.connection import open_line
from turngap.caller.dialects.pipecat import PipecatSession, audio_frame
from turngap.caller.dialects.rtvi import rtvi
from turngap.clocks import MonotonicClock
from turngap.core.errors import AgentError, InputError
from turngap.core.wire import Frame, message_frame

CLOCK = MonotonicClock()
SPOKEN = audio_frame(np.zeros(320, np.int16).tobytes(), 16_000)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a call that lives answer its pings on a busy machine, too."""
    monkeypatch.setattr("turngap.caller.connection.PING_WAIT_S", 30.0)


async def is_served(url: str) -> bool:
    """Return whether an ordinary caller gets through the handshake and has its pings answered."""
    async with open_line(url, PipecatSession(), CLOCK) as line:
        return (await line.clock_offset()).n > 0


# --- the port ---------------------------------------------------------------------------------


def test_a_port_in_use_is_one_clear_error() -> None:
    with bind(ServeSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AgentError) as raised:
            bind(ServeSettings(port=port))
    assert raised.value.kind == "serve.port"
    assert f"127.0.0.1:{port}" in raised.value.message
    assert "--port 0" in raised.value.hint


def test_an_address_of_another_machine_is_one_clear_error() -> None:
    with pytest.raises(AgentError) as raised:
        bind(ServeSettings(host="192.0.2.1", port=0))
    assert raised.value.kind == "serve.port"


def test_a_port_can_be_used_again_at_once() -> None:
    with bind(ServeSettings(port=0)) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            peer, _ = first.accept()
            peer.close()  # the server's side is left in TIME_WAIT
    with bind(ServeSettings(port=port)) as second:
        assert second.getsockname()[1] == port


async def test_what_is_sent_is_not_held_back() -> None:
    # asyncio switches Nagle's algorithm off only where the socket names its protocol.
    delayed: list[int] = []

    async def on_connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delayed.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    listener = bind(ServeSettings(port=0))
    async with await asyncio.start_server(on_connect, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert len(delayed) == 1
    assert delayed[0] != 0


def test_an_unknown_log_level_names_the_known_ones() -> None:
    with pytest.raises(InputError) as raised:
        set_log_level("loud")
    assert raised.value.kind == "serve.log_level"
    assert "WARNING" in raised.value.hint


# --- sessions ---------------------------------------------------------------------------------


async def test_health_says_who_it_is_and_how_many_are_there() -> None:
    async with served(fake_assembly()) as agent:
        assert await agent.health() == {"agent": "fake", "sessions": 0}
        async with open_line(agent.url, PipecatSession(), CLOCK):
            assert await agent.health() == {"agent": "fake", "sessions": 1}
        await agent.sessions_become(0)


async def test_a_full_agent_says_so_and_takes_the_next_when_there_is_room() -> None:
    async with served(fake_assembly(), max_sessions=1) as agent:
        async with open_line(agent.url, PipecatSession(), CLOCK):
            with pytest.raises(AgentError) as raised:
                await is_served(agent.url)
            assert "code 1013 (full: 1 of 1 conversations; try" in raised.value.message
            assert (await agent.health())["sessions"] == 1
        await agent.sessions_become(0)
        assert await is_served(agent.url)


async def test_an_engine_that_cannot_be_made_frees_its_session() -> None:
    async with served(fake_assembly(broken=True), max_sessions=1) as agent:
        for _ in range(2):
            with pytest.raises(AgentError, match="line was lost"):
                await is_served(agent.url)
            await agent.sessions_become(0)


async def test_conversations_do_not_hear_each_other() -> None:
    async with (
        served(fake_assembly()) as agent,
        open_line(agent.url, PipecatSession(), CLOCK) as first,
        open_line(agent.url, PipecatSession(), CLOCK) as second,
    ):
        offsets = [await line.clock_offset() for line in (first, second)]
        assert [o.n for o in offsets] == [12, 12]
        assert (await agent.health())["sessions"] == 2


@pytest.mark.parametrize("wanted", [False, True])
async def test_pipecat_s_own_metrics_are_sent_to_those_who_want_them(wanted: bool) -> None:
    assembly = fake_assembly()
    pipeline = assembly.stack.pipeline.model_copy(update={"metrics": wanted})
    stack = assembly.stack.model_copy(update={"pipeline": pipeline})
    kinds: set[str] = set()
    typed = {"content": "hello", "options": {"run_immediately": True}}
    async with (
        served(dataclasses.replace(assembly, stack=stack)) as agent,
        connect(agent.url) as client,
        asyncio.timeout(20),
    ):
        await client.send(message_frame(rtvi("client-ready", {"version": "2.2.0"})))
        await client.send(message_frame(rtvi("send-text", typed)))
        while "bot-stopped-speaking" not in kinds:
            frame = Frame.FromString(await client.recv())
            if frame.WhichOneof("frame") == "message":
                kinds.add(json.loads(frame.message.data)["type"])
    assert ("metrics" in kinds) == wanted


# --- garbage ----------------------------------------------------------------------------------


GARBAGE = {
    "text": "hello",
    "empty text": "",
    "bytes": b"\xff\xfe\xfd",
    "no bytes": b"",
    "audio of odd length": audio_frame(b"\x00" * 3, 16_000),
    "audio of no rate": audio_frame(b"\x00" * 4, 0),
    "a list": message_frame([]),  # pyright: ignore[reportArgumentType]
    "no type": message_frame({"label": "rtvi-ai"}),
    "an unknown type": message_frame(rtvi("no-such", {})),
    "a client message without a type": message_frame(rtvi("client-message", {})),
    "a ping without a number": message_frame(rtvi("client-message", {"t": "turngap.ping"})),
    "a ping of text": message_frame(rtvi("client-message", {"t": "turngap.ping", "d": "x"})),
    "ready twice over": message_frame(rtvi("client-ready", "x")),
}


async def test_garbage_from_a_client_brings_down_nobody_else() -> None:
    async with (
        served(fake_assembly()) as agent,
        open_line(agent.url, PipecatSession(), CLOCK) as other,
    ):
        for name, garbage in GARBAGE.items():
            async with connect(agent.url) as client:
                await send_all(client, garbage, SPOKEN, garbage, SPOKEN)
            assert (await other.clock_offset()).n == 12, name
            await agent.sessions_become(1)
        assert await is_served(agent.url)


async def send_all(client: ClientConnection, *messages: bytes | str) -> None:
    """Send what the server takes before it hangs up, and give it time to choke on it."""
    try:
        for message in messages:
            await client.send(message)
        async with asyncio.timeout(0.2):
            while True:
                await client.recv()
    except (ConnectionClosed, TimeoutError):
        return


async def test_what_is_no_websocket_is_answered_as_a_web_server_does() -> None:
    async with served(fake_assembly()) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 404")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"detail": "Not Found"}
        writer.close()
        await writer.wait_closed()

"""Opening a line to what is there, is not there, or is something else; and comparing clocks."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.protocol import State

from turngap.caller import intake
from turngap.caller.connection import Line, open_line
from turngap.caller.dialects.pipecat import PipecatSession, audio_frame, parse, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.endpoint import Endpoint
from turngap.caller.opening import Request, Socket, connect
from turngap.caller.said import AudioChunk, Incoming, Message, ReplyText
from turngap.clocks import MonotonicClock, others_first
from turngap.core.clock import ms_to_ns
from turngap.core.errors import AgentError, InputError
from turngap.core.wire import PING, message_frame
from turngap.testing.agent import Script, ScriptedAgent

CLOCK = MonotonicClock()
PATIENCE_S = 30.0
READY = message_frame(rtvi("bot-ready", {"version": "2.0.0"}))

Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def peer(handler: Handler) -> AsyncIterator[str]:
    """The URL of a WebSocket server that does with each connection what it is told."""
    async with serve(handler, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}"


@asynccontextmanager
async def tcp_peer(answer: bytes | None) -> AsyncIterator[str]:
    """The URL of a TCP server that says `answer` to whatever it is told, or nothing."""

    handlers: list[asyncio.Task[None]] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with suppress(ConnectionError):
            await reader.read(4096)
            if answer is None:
                await reader.read()  # until the caller gives up
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(on_connect, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    await asyncio.gather(*handlers)


async def failure(url: str, timeout_s: float = PATIENCE_S) -> AgentError:
    with pytest.raises(AgentError) as raised:
        async with open_line(url, PipecatSession(), CLOCK, timeout_s=timeout_s):
            pass
    assert "\n" not in raised.value.message
    return raised.value


# --- what a URL may be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "embedded",
        "127.0.0.1:7860",
        "ws://",
        "ws://127.0.0.1:99999/",
        "ws://127.0.0.1:port/",
        "ws://[::1/",
        "ws://a..b/",
        f"ws://{'a' * 70}/",
        "ws://127.0.0.1:1/#part",
        "ws://127.0.0.1:1/\r\nX: y",
        "ws://127.0.0.1:1/\n",
        " ws://127.0.0.1:1/",
        "ws://127.0.0.1:1/a b",
        "ws://127.0.0.1:1/\x1b[2J",
        "ws://127.0.0.1:1/\u202ea",
        "POST http://127.0.0.1:1/\x00",
    ],
)
async def test_what_is_no_websocket_url_is_bad_input(url: str) -> None:
    with pytest.raises(InputError) as raised:
        async with open_line(url, PipecatSession(), CLOCK):
            pass
    assert raised.value.kind == "agent.url"
    assert repr(url) in raised.value.message
    meant = {"127.0.0.1:7860": "ws://127.0.0.1:7860"}
    assert meant.get(url, "ws://host:port/path") in raised.value.hint


# --- what is not there, or something else -----------------------------------------------------


async def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = await failure(f"ws://127.0.0.1:{unused.getsockname()[1]}/")
    assert error.kind == "agent.unreachable"
    assert error.hint


async def test_a_web_server_that_is_no_websocket() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    async with tcp_peer(page) as url:
        assert (await failure(url)).kind == "agent.no_websocket"


async def test_a_server_that_is_no_web_server() -> None:
    async with tcp_peer(b"220 mail.example ESMTP\r\n") as url:
        assert (await failure(url)).kind in ("agent.no_websocket", "agent.unreachable")


async def test_a_server_that_hangs_up() -> None:
    async with tcp_peer(b"") as url:
        assert (await failure(url)).kind in ("agent.no_websocket", "agent.unreachable")


async def test_a_server_that_says_nothing() -> None:
    async with tcp_peer(None) as url:
        error = await failure(url, timeout_s=0.2)
    assert error.kind == "agent.not_open"
    assert "took the connection, and did not open the WebSocket within 0.2 s" in error.message
    assert ("open_s=" in error.hint, "--start" in error.hint) == (True, False)


async def test_pings_are_sent_on_demand_since_an_agent_of_phones_may_answer_none() -> None:
    async with ScriptedAgent() as agent:
        for settings, interval in (("", None), (",ping_s=7", 7.0)):
            async with Endpoint(agent.url, f"pipecat{settings}").open(CLOCK) as line:
                socket_ = cast("Socket", line._peer)
                assert (socket_.ping_interval, socket_.ping_timeout) == (interval, interval)
                tcp = socket_.transport.get_extra_info("socket")
                # So a peer that is gone is noticed by what it does not acknowledge.
                assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0


async def test_a_reply_may_begin_at_any_sound() -> None:
    async with ScriptedAgent() as agent:
        for settings, begins_at in (("", "speech"), (",first_word=sound", "sound")):
            async with Endpoint(agent.url, f"pipecat{settings}").open(CLOCK) as line:
                assert line.first_word == begins_at


async def test_a_header_that_is_given_takes_the_place_of_the_librarys_own() -> None:
    heads: list[str] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.close()

    async with await asyncio.start_server(on_connect, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        endpoint = Endpoint(url, "twilio", ("host: bot.internal", "User-Agent: me"))
        with pytest.raises(AgentError):
            async with endpoint.open(CLOCK):
                pass
    hosts = [line for line in heads[0].splitlines() if line.lower().startswith("host:")]
    assert hosts == ["host: bot.internal"]
    assert heads[0].lower().count("user-agent") == 1


@pytest.mark.parametrize("name", ["Upgrade", "connection", "Sec-WebSocket-Key"])
def test_a_header_of_the_websocket_itself_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="of its own") as raised:
        Endpoint("ws://127.0.0.1:1/", "twilio", (f"{name}: x",)).check()
    assert raised.value.kind == "endpoint.header"


async def test_a_wrong_path_says_the_status() -> None:
    async with tcp_peer(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        error = await failure(url)
    assert (error.kind, "404" in error.message) == ("agent.path", True)


async def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with (
        ScriptedAgent() as agent,
        open_line(agent.url, PipecatSession(), CLOCK) as line,
    ):
        assert line


async def test_a_websocket_that_never_answers_the_handshake() -> None:
    async with ScriptedAgent(script=Script(greets=False)) as agent:
        request = Request(agent.url, {}, (), PATIENCE_S, agent.url)
        async with await connect(request, CLOCK) as socket:
            with pytest.raises(AgentError, match=r"within 0\.2 s") as raised:
                await Line(socket, PipecatSession(), CLOCK).handshake(0.2)
    assert raised.value.kind == "agent.not_ready"
    assert "--dialect" in raised.value.hint


async def test_a_peer_that_speaks_text() -> None:
    async def say(socket: ServerConnection) -> None:
        await socket.send('{"type": "session.created"}')
        await socket.wait_closed()

    async with peer(say) as url:
        error = await failure(url)
    assert error.kind == "agent.other_protocol"
    assert "session.created" in error.message
    assert "--dialect" in error.hint


async def test_a_peer_that_speaks_other_bytes() -> None:
    async def say(socket: ServerConnection) -> None:
        await socket.send(b"\xff\xfe\xfd")
        await socket.wait_closed()

    async with peer(say) as url:
        assert (await failure(url)).kind == "agent.other_protocol"


async def test_a_peer_whose_audio_cannot_be_played_speaks_no_other_dialect() -> None:
    async def greet(socket: ServerConnection) -> None:
        await socket.send(audio_frame(b"fLaC" + bytes(40), 16_000))
        await socket.wait_closed()

    async with peer(greet) as url:
        error = await failure(url)
    assert error.kind == "agent.audio"
    assert "FLAC" in error.message
    assert "PCM16" in error.hint
    assert "--dialect" not in error.hint


@pytest.mark.parametrize("listens_first", [True, False])
async def test_a_peer_that_closes_says_why(listens_first: bool) -> None:
    async def close(socket: ServerConnection) -> None:
        if listens_first:
            await socket.recv()
        await socket.close(1013, "full: 8 of 8 conversations")

    async with peer(close) as url:
        error = await failure(url)
    assert error.kind == "agent.line_lost"
    assert "code 1013 (full: 8 of 8 conversations)" in error.message
    assert not error.hint


async def test_a_code_of_the_agents_own_is_no_question_of_the_protocol() -> None:
    async with peer(lambda socket: socket.close(4003, "the token is used")) as url:
        error = await failure(url)
    assert "code 4003 (the token is used)" in error.message
    assert ("protocol" in error.hint, "POST http" in error.hint) == (False, True)


async def test_a_peer_that_breaks_the_line() -> None:
    async def die(socket: ServerConnection) -> None:
        socket.transport.abort()

    async with peer(die) as url:
        error = await failure(url)
    assert error.kind == "agent.line_lost"
    assert error.message.endswith("without a closing handshake")


async def test_a_peer_that_refuses() -> None:
    async def refuse(socket: ServerConnection) -> None:
        error = {"error": "no such customer", "fatal": True}
        await socket.send(message_frame(rtvi("error", error)))
        await socket.wait_closed()

    async with peer(refuse) as url:
        error = await failure(url)
    assert (error.kind, "no such customer" in error.message) == ("agent.refused", True)


# --- an open line -----------------------------------------------------------------------------


async def received(line: Line, count: int) -> list[tuple[int, Incoming]]:
    """The first `count` messages that `receive` hands on."""
    got: list[tuple[int, Incoming]] = []
    enough = asyncio.Event()

    def on_message(at_ns: int, incoming: Incoming) -> None:
        got.append((at_ns, incoming))
        if len(got) == count:
            enough.set()

    task = asyncio.create_task(line.receive(on_message))
    async with asyncio.timeout(PATIENCE_S):
        await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return got


async def answering_pings(socket: ServerConnection, on_ping: Callable[[int], list[bytes]]) -> None:
    async for message in socket:
        payload = payload_of(parse(message))
        data: dict[str, Any] = payload["data"]
        if payload["type"] == "client-ready":
            await socket.send(READY)
        elif data.get("t") == PING:
            for answer in on_ping(data["d"]["ping"]):
                await socket.send(answer)


def pong(number: int, agent_ns: int) -> bytes:
    data = {"turngap": "pong", "ping": number, "agent_ns": agent_ns}
    return message_frame(rtvi("server-message", data))


async def test_what_is_said_before_the_first_turn_is_not_lost() -> None:
    greeting = audio_frame(np.full(480, 9000, np.int16).tobytes(), 24_000)

    async def greet(socket: ServerConnection) -> None:
        await socket.send(message_frame(rtvi("bot-llm-text", {"text": "Hello"})))
        await answering_pings(socket, lambda n: [greeting, pong(n, 1)] if n == 0 else [])

    async with peer(greet) as url:
        before_ns = CLOCK.now_ns()
        async with open_line(url, PipecatSession(), CLOCK) as line:
            await line.clock_offset()
            after_ns = CLOCK.now_ns()
            (text_ns, text), (audio_ns, audio) = await received(line, 2)
    assert text == ReplyText("Hello")
    assert isinstance(audio, AudioChunk)
    assert before_ns < text_ns <= audio_ns < after_ns


async def test_a_message_is_stamped_when_it_arrives_however_late_it_is_taken() -> None:
    sent = asyncio.Event()

    async def say(socket: ServerConnection) -> None:
        await socket.send(READY)
        await socket.send(message_frame(rtvi("bot-llm-text", {"text": "now"})))
        sent.set()
        await socket.wait_closed()

    async with peer(say) as url, open_line(url, PipecatSession(), CLOCK) as line:
        await sent.wait()
        for _ in range(10):  # in which the event loop reads the socket, whenever it gets to run
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(10))
        arrived_by_ns = CLOCK.now_ns()
        await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(20))
        ((at_ns, _),) = await received(line, 1)
    assert at_ns < arrived_by_ns


async def test_a_line_that_closes_while_it_is_received_says_why() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        await socket.close(4000, "bye")

    async with peer(leave) as url, open_line(url, PipecatSession(), CLOCK) as line:
        with pytest.raises(AgentError, match=r"closed by the agent with code 4000 \(bye\)"):
            await line.receive(lambda *_: None)
        await line.send_audio(np.zeros(320, np.int16))  # for `receive` to report, as it did
        await line.send_waiting()


# --- clocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shift_ms", [0.0, 12_345.0, -86_400_000.0])
async def test_the_agents_clock_is_found_within_its_bound(shift_ms: float) -> None:
    async with (
        ScriptedAgent(script=Script(clock_shift_ms=shift_ms)) as agent,
        open_line(agent.url, PipecatSession(), CLOCK) as line,
    ):
        offset = await line.clock_offset()
    assert offset.n == 12
    assert offset.offset_ns is not None
    assert offset.bound_ns is not None
    assert 0 < offset.bound_ns < ms_to_ns(100)
    assert abs(offset.offset_ns - ms_to_ns(shift_ms)) <= offset.bound_ns


async def test_the_quickest_exchange_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngap.caller.connection.PINGS", 3)
    monkeypatch.setattr("turngap.caller.connection.PING_WAIT_S", PATIENCE_S)

    async def lag(socket: ServerConnection) -> None:
        async for message in socket:
            payload = payload_of(parse(message))
            if payload["type"] == "client-ready":
                await socket.send(READY)
                continue
            number = payload["data"]["d"]["ping"]
            at_ns = CLOCK.now_ns()
            if number != 1:  # the way back takes long: midpoints are off by half of it
                await CLOCK.sleep_until_ns(at_ns + ms_to_ns(400))
            await socket.send(pong(number, at_ns))

    async with peer(lag) as url, open_line(url, PipecatSession(), CLOCK) as line:
        offset = await line.clock_offset()
    assert offset.offset_ns is not None
    assert offset.bound_ns is not None
    assert abs(offset.offset_ns) <= offset.bound_ns < ms_to_ns(200)


async def test_an_agent_that_knows_no_pings_has_no_offset() -> None:
    async def ignore(socket: ServerConnection) -> None:
        await answering_pings(socket, lambda n: [])

    async with peer(ignore) as url, open_line(url, PipecatSession(), CLOCK) as line:
        offset = await line.clock_offset()
    assert (offset.offset_ns, offset.bound_ns, offset.n) == (None, None, 0)


async def test_an_answer_to_another_ping_is_none() -> None:
    async def confuse(socket: ServerConnection) -> None:
        await answering_pings(socket, lambda n: [pong(n - 1, 0), pong(n, CLOCK.now_ns())])

    async with peer(confuse) as url, open_line(url, PipecatSession(), CLOCK) as line:
        offset = await line.clock_offset()
    assert offset.offset_ns is not None
    assert abs(offset.offset_ns) < ms_to_ns(100)


async def test_a_line_lost_while_clocks_are_compared_is_an_error() -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        await socket.recv()
        await socket.close(1011, "broken")

    async with peer(leave) as url, open_line(url, PipecatSession(), CLOCK) as line:
        with pytest.raises(AgentError, match="code 1011"):
            await line.clock_offset()


# --- a peer that reads slowly, or sends without end ---------------------------------------------


async def turns(count: int = 1) -> None:
    """Let the event loop go around, so that other tasks get as far as they can."""
    for _ in range(count):
        await others_first()


class Slow:
    """A peer whose socket takes messages, and has room only after `room` is set."""

    crossings = None

    def __init__(self) -> None:
        self.arrived_ns = 0
        self.taken: list[Message] = []
        self.room = asyncio.Event()
        self.room.set()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()

    async def send(self, message: Message) -> None:
        self.taken.append(message)
        await self.room.wait()

    async def recv(self) -> Message:
        return await self.sent.get()


class Echoes(PipecatSession):
    """A dialect that says what it is told to, and answers each message with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Message] = []

    def receive_data(self, message: Message) -> list[Incoming]:
        self.waiting.append(message)
        return [] if message == "nothing" else [ReplyText(str(message))]

    def send_audio(self, pcm: bytes) -> None:
        self.waiting.append("audio")

    def data_to_send(self) -> list[Message]:
        waiting, self.waiting = self.waiting, []
        return waiting


async def test_messages_keep_their_order_whoever_sends_them_and_none_is_lost() -> None:
    peer, session = Slow(), Echoes()
    line = Line(peer, session, CLOCK)
    peer.room.clear()
    session.waiting = ["1", "2", "3"]
    first = asyncio.create_task(line.send_waiting())
    await turns()
    session.waiting = ["4", "5"]
    second = asyncio.create_task(line.send_waiting())
    await turns()
    assert peer.taken == ["1"]
    first.cancel()
    await asyncio.wait({first})
    peer.room.set()
    await second
    assert peer.taken == ["1", "2", "3", "4", "5"]


async def test_messages_are_handed_on_while_the_peer_does_not_read() -> None:
    peer, session = Slow(), Echoes()
    line = Line(peer, session, CLOCK)
    peer.room.clear()
    for n in range(5):
        peer.sent.put_nowait(str(n))
    got = await received(line, 5)
    assert [incoming for _, incoming in got] == [ReplyText(str(n)) for n in range(5)]
    peer.room.set()
    await line.send_audio(np.zeros(320, np.int16))
    assert peer.taken == ["0", "1", "2", "3", "4", "audio"]


async def test_answers_to_who_does_not_read_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngap.caller.connection.MOST_UNSENT", 3)
    peer = Slow()
    line = Line(peer, Echoes(), CLOCK)
    peer.room.clear()
    for n in range(50):
        peer.sent.put_nowait(str(n))
    receiving = asyncio.create_task(line.receive(lambda *_: None))
    await turns(200)
    assert peer.sent.qsize() > 40
    peer.room.set()
    while not peer.sent.empty():
        await turns()
    receiving.cancel()
    await asyncio.wait({receiving})
    await line.send_waiting()
    assert peer.taken == [str(n) for n in range(50)]


@pytest.mark.parametrize("bound", ["MOST_CONVERSATION_MESSAGES", "MOST_LINE_BYTES"])
async def test_messages_that_say_nothing_end_the_conversation_too(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(intake, bound, 10)
    peer = Slow()
    line = Line(peer, Echoes(), CLOCK)
    for _ in range(20):
        peer.sent.put_nowait("nothing")
    with pytest.raises(AgentError, match="the agent sent more than") as raised:
        await line.receive(lambda *_: None)
    assert raised.value.kind == "agent.too_much"


class Parting(PipecatSession):
    """A dialect that fails to say goodbye."""

    def close(self) -> None:
        raise RuntimeError("no goodbye")


async def test_the_socket_is_closed_though_the_goodbye_fails() -> None:
    closed = asyncio.Event()

    async def stay(socket: ServerConnection) -> None:
        await socket.send(READY)
        await socket.wait_closed()
        closed.set()

    async with peer(stay) as url:
        with pytest.raises(RuntimeError, match="no goodbye"):
            async with open_line(url, Parting(), CLOCK):
                pass
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()


async def test_a_peer_that_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("connection", "opening"):
        monkeypatch.setattr(f"turngap.caller.{where}.CLOSE_TIMEOUT_S", 0.1)

    gone = asyncio.Event()

    async def deaf(socket: ServerConnection) -> None:
        await socket.send(READY)
        transport = cast("asyncio.Transport", socket.transport)
        transport.pause_reading()
        await gone.wait()
        transport.abort()  # it would wait 10 s for a goodbye that it does not read

    class Chatty(PipecatSession):
        def send_audio(self, pcm: bytes) -> None:
            super().send_audio(bytes(2**20))

    async with peer(deaf) as url:
        async with asyncio.timeout(20):
            async with open_line(url, Chatty(), CLOCK) as line:
                sending = asyncio.create_task(_send_for_ever(line))
                socket = cast("Socket", line._peer)
                while not socket.transport.get_write_buffer_size():
                    await turns()
                sending.cancel()
                await asyncio.wait({sending})
        assert socket.state is State.CLOSED
        gone.set()


async def _send_for_ever(line: Line) -> None:
    while True:
        await line.send_audio(np.zeros(320, np.int16))

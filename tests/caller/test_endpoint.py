"""Addresses of agents: variables, headers, keys, and dialects found out."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import trustme
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from turngap.caller.connection import Line, Peer
from turngap.caller.dialects import registry
from turngap.caller.dialects.pipecat import SPEC, audio_frame
from turngap.caller.dialects.registry import DialectSpec, Key
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.dialects.session import Session
from turngap.caller.endpoint import Endpoint
from turngap.caller.identify import _answers, identify
from turngap.caller.opening import Request as Opening
from turngap.caller.opening import connect
from turngap.caller.said import AudioChunk, Incoming
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.wire import message_frame
from turngap.testing.agent import Script, ScriptedAgent, converse
from turngap.testing.memory import End, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

CLOCK = MonotonicClock()
T = TypeVar("T")
URL = "ws://127.0.0.1:9/ws"

Answer = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def server(
    answer: Answer, process: Callable[[ServerConnection, Request], Response | None] | None = None
) -> AsyncIterator[str]:
    async with serve(answer, "127.0.0.1", 0, process_request=process) as listening:
        yield f"ws://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}"


async def _nobody(socket: ServerConnection) -> None:
    raise AssertionError("nobody gets here")


async def _until_closed(socket: ServerConnection) -> None:
    async for _ in socket:
        pass


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> DialectSpec:
    """A dialect of a public service that wants a key, beside pipecat."""
    key = Key("CLOUD_KEY", "header", "Authorization", "Bearer ")
    spec = replace(SPEC, name="cloud", hosts=("cloud.example",), key=key, tried=None)
    monkeypatch.setattr(registry, "dialects", lambda: {"cloud": spec, "pipecat": SPEC})
    return spec


# --- what is filled in ------------------------------------------------------------------------


def test_variables_are_filled_in_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s/e&c")
    endpoint = Endpoint(f"{URL}?key=${{MY_KEY}}", headers=("X-Key: a ${MY_KEY}",))
    url, headers, subprotocols = endpoint.opening()
    assert url == f"{URL}?key=s%2Fe%26c"
    assert headers == {"X-Key": "a s/e&c"}
    assert subprotocols == ()
    assert "s/e&c" not in repr(endpoint)


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(InputError, match="NOT_THERE is not set"):
        Endpoint(URL, headers=("Authorization: Bearer ${NOT_THERE}",)).check()


@pytest.mark.parametrize("header", ["", "no colon", ": value", "two words: x", "a: x\r\nb: y"])
def test_what_is_no_header_is_refused(header: str) -> None:
    with pytest.raises(InputError, match="begins no HTTP header"):
        Endpoint(URL, headers=(header,)).check()


@pytest.mark.parametrize(
    ("dialect", "what"), [("nonesuch", "no dialect"), ("pipecat,colour=red", "unknown key")]
)
def test_an_unknown_dialect_or_setting_is_refused(dialect: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        Endpoint(URL, dialect).check()


def test_a_key_goes_to_its_service_and_to_nobody_else(
    keyed: DialectSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_KEY", "k")
    assert Endpoint("wss://eu.cloud.example/v1").opening()[1] == {"Authorization": "Bearer k"}
    own = Endpoint("wss://cloud.example/v1", headers=("authorization: mine",))
    assert own.opening()[1] == {"authorization": "mine"}
    for url in (URL, "wss://cloud.example.evil/", "wss://notcloud.example/"):
        assert Endpoint(url, keyed.name).opening()[1] == {}


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("wss://cloud.example/v1?access_token=short"),
        Endpoint("wss://cloud.example/v1?agent_id=1&conversation_signature=short"),
        Endpoint(
            "wss://cloud.example/v1",
            headers=("Sec-WebSocket-Protocol: realtime, insecure-api-key.short",),
        ),
        Endpoint("wss://cloud.example/v1", headers=("AUTHORIZATION: Bearer short",)),
    ],
)
def test_a_key_does_not_go_out_beside_a_token(
    keyed: DialectSpec, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    monkeypatch.setenv("CLOUD_KEY", "long-lived")
    assert "long-lived" not in repr(endpoint.opening())


def test_a_service_may_be_public(keyed: DialectSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUD_KEY", raising=False)
    endpoint = Endpoint("wss://cloud.example/v1?agent_id=1")
    endpoint.check()
    assert endpoint.opening() == (endpoint.url, {}, ())


async def test_a_service_that_lets_nobody_in_names_its_variable() -> None:
    async with server(_nobody, lambda connection, _: connection.respond(401, "no")) as url:
        with pytest.raises(AgentError, match="wants a key") as raised:
            await connect(Opening(url, {}, (), 5.0, url, "CLOUD_KEY"), CLOCK)
    assert "is CLOUD_KEY set" in raised.value.hint


async def test_headers_and_subprotocols_arrive() -> None:
    got: list[Request] = []

    async def answer(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(message_frame(rtvi("bot-ready", {})))
        await socket.wait_closed()

    def process(_: ServerConnection, request: Request) -> None:
        got.append(request)

    async with server(answer, process) as url:
        endpoint = Endpoint(url, "pipecat", ("X-Tenant: me", "sec-websocket-protocol: one, two"))
        async with endpoint.open(CLOCK):
            pass
    assert got[0].headers["X-Tenant"] == "me"
    assert got[0].headers["Sec-WebSocket-Protocol"] == "one, two"


# --- what is found out ------------------------------------------------------------------------


async def test_a_pipecat_bot_is_found_out() -> None:
    tried: list[str] = []
    async with ScriptedAgent() as agent:
        endpoint = Endpoint(agent.url)
        found = await identify(endpoint, CLOCK, tried.append)
    assert found == replace(endpoint, dialect="pipecat")
    assert tried == ["pipecat"]


async def test_a_dialect_that_is_named_is_not_tried() -> None:
    named = Endpoint(URL, "pipecat")
    assert await identify(named, CLOCK) is named


async def test_a_knock_is_no_call() -> None:
    calls: list[ServerConnection] = []

    def process(connection: ServerConnection, _: Request) -> None:
        calls.append(connection)

    async def answer(_: ServerConnection) -> None:
        raise AssertionError("it was called")

    async with server(answer, process) as url:
        await Endpoint(url, "pipecat").knock()
    assert calls == []
    with pytest.raises(AgentError) as raised:
        await Endpoint("ws://127.0.0.1:1/", "pipecat").knock()
    assert raised.value.kind == "agent.unreachable"


async def test_where_nobody_is_nothing_is_tried_twice() -> None:
    tried: list[str] = []
    with pytest.raises(AgentError) as raised:
        await identify(Endpoint("ws://127.0.0.1:1/"), CLOCK, tried.append)
    assert raised.value.kind == "agent.unreachable"
    assert tried == ["pipecat"]


def virtually(
    monkeypatch: pytest.MonkeyPatch,
    agent: Callable[[str, End, Clock], Coroutine[Any, Any, None]],
    course: Coroutine[Any, Any, T],
) -> T:
    """Run `course` in virtual time, in which every URL is one of `agent`: silence costs nothing."""

    @asynccontextmanager
    async def opened(url: str, session: Session, clock: Clock, **_: object) -> AsyncIterator[Line]:
        async with line_to(partial(agent, url), session, clock) as line:
            yield line

    monkeypatch.setattr("turngap.caller.endpoint.open_line", opened)
    return in_virtual_time(course)


def test_a_bot_without_rtvi_is_told_and_measured_by_ear(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: str, end: End, clock: Clock) -> None:
        while True:
            await end.recv()
            await end.send(audio_frame(bytes(640), 16_000))

    async def course() -> Incoming:
        clock = LoopClock()
        with pytest.raises(AgentError) as raised:
            await identify(Endpoint(URL), clock)
        assert raised.value.kind == "agent.unready"
        assert "--dialect pipecat,rtvi=false" in raised.value.hint
        async with Endpoint(URL, "pipecat,rtvi=false").open(clock) as line:
            assert (await line.clock_offset()).n == 0
            await line.send_audio(np.zeros(320, np.int16))
            (_, (heard,)) = await line.next()
        return heard

    assert isinstance(virtually(monkeypatch, answer, course()), AudioChunk)


async def test_what_nobody_knows_is_told_with_what_each_attempt_met() -> None:
    async def answer(socket: ServerConnection) -> None:
        await socket.close(4000, "speak Klingon")

    async with server(answer) as url:
        with pytest.raises(AgentError) as raised:
            await identify(Endpoint(url), CLOCK)
    error = raised.value
    assert error.kind == "agent.unknown_protocol"
    assert "speak Klingon" in error.message
    assert "--dialect" in error.hint
    assert "telnyx" in error.hint


@pytest.mark.parametrize("code", [1012, 1013])
async def test_an_agent_that_takes_no_new_calls_says_so_itself(code: int) -> None:
    async def answer(socket: ServerConnection) -> None:
        await socket.close(code, "shutting down")

    async with server(answer) as url:
        with pytest.raises(AgentError) as raised:
            await identify(Endpoint(url), CLOCK)
    assert raised.value.kind == "agent.takes_no_calls"
    assert raised.value.message == f"the agent at {url} takes no new calls: shutting down"


def test_a_phone_bot_that_greets_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    script = replace(Script(welcome_ms=200), dialect="twilio")
    tried: list[str] = []

    async def answer(_: str, end: End, clock: Clock) -> None:
        try:
            await converse(script, end, clock, None)
        except (ValueError, KeyError):  # another protocol's message: its server hangs up
            end.die()

    found = virtually(monkeypatch, answer, identify(Endpoint(URL), LoopClock(), tried.append))
    assert found == Endpoint(URL, dialect="twilio")
    assert tried[0] == "pipecat"


async def test_nothing_goes_on_listening_after_a_search_that_fails() -> None:
    class Failing(Line):
        async def next(self) -> tuple[int, Sequence[Incoming]]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send_audio(self, pcm: Pcm) -> None:
            raise RuntimeError("broken")

    line = Failing(cast("Peer", None), SPEC.session(), CLOCK)
    with pytest.raises(RuntimeError, match="broken"):
        await _answers(line, CLOCK)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_takes_everything_in_silence_is_not_taken_for_a_phone_bot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(_: str, end: End, clock: Clock) -> None:
        while True:
            await end.recv()

    with pytest.raises(AgentError) as raised:
        virtually(monkeypatch, answer, identify(Endpoint(URL), LoopClock()))
    assert "took twilio's messages and did not answer" in raised.value.message
    assert "try --dialect twilio" in raised.value.hint


def test_a_runner_that_listens_beside_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(url: str, end: End, clock: Clock) -> None:
        message = await end.recv()
        if url.endswith("/ws-client") and isinstance(message, bytes):
            await end.send(message_frame(rtvi("bot-ready", {})))
        else:
            end.die()

    with pytest.raises(AgentError) as raised:
        virtually(monkeypatch, answer, identify(Endpoint(URL), LoopClock()))
    assert raised.value.kind == "agent.path"
    assert "--agent ws://127.0.0.1:9/ws-client" in raised.value.hint


class _Runner:
    """pipecat's development runner, as it was seen to answer, with a bot that does `call`."""

    def __init__(self, call: Answer) -> None:
        self.call = call

    def process(self, socket: ServerConnection, request: Request) -> Response | None:
        if request.path == "/status":
            return socket.respond(200, json.dumps({"status": "ready", "transports": ["webrtc"]}))
        return None if request.path == "/ws-client" else socket.respond(403, "")

    async def fails(self, path: str, dialect: str = "") -> AgentError:
        async with server(self.call, self.process) as url:
            with pytest.raises(AgentError) as raised:
                named = await identify(Endpoint(f"{url}{path}", dialect), CLOCK)
                async with named.open(CLOCK):
                    pass
        assert raised.value.kind == "agent.no_transport"
        return raised.value


LINES = "serializer=ProtobufFrameSerializer()"


async def _dies(socket: ServerConnection) -> None:
    socket.transport.abort()


@pytest.mark.parametrize("dialect", ["", "pipecat"])
async def test_a_quickstart_bot_without_a_websocket_entry_is_told_what_to_paste(
    dialect: str,
) -> None:
    error = await _Runner(_dies).fails("/ws-client", dialect)
    assert "has no `websocket` entry in its `transport_params`" in error.message
    assert LINES in error.hint


async def test_what_hangs_up_at_its_path_is_no_runner_unless_its_status_says_so() -> None:
    async with server(_dies, lambda *_: None) as url:
        with pytest.raises(AgentError) as raised:
            async with Endpoint(f"{url}/ws-client", "pipecat").open(CLOCK):
                pass
    assert "websocket` entry" not in f"{raised.value.message}{raised.value.hint}"


async def test_a_quickstart_bot_without_a_serializer_is_told_what_to_paste() -> None:
    error = await _Runner(_until_closed).fails("/ws-client", "pipecat,open_s=0.3")
    assert "has no serializer" in error.message
    assert (LINES in error.hint, "rtvi=false" in error.hint) == (True, True)


@pytest.mark.parametrize(
    ("path", "hint"), [("/", "--agent ws://{}/ws-client"), ("/ws", "'POST http://{}/start'")]
)
async def test_a_runner_that_lets_nobody_in_says_where_it_does(path: str, hint: str) -> None:
    error = await _Runner(_nobody).fails(path)
    where = error.message.partition(" answers at ")[2].partition(",")[0]
    assert hint.format(where) in error.hint


# --- what stays secret ------------------------------------------------------------------------

SECRET = "my-s3cret-value"


async def test_a_redirect_is_named_and_gets_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK", SECRET)
    reached: list[Request] = []

    def note(connection: ServerConnection, request: Request) -> Response:
        reached.append(request)
        return connection.respond(500, "no")

    async with server(_nobody, note) as other:

        def point(connection: ServerConnection, _: Request) -> Response:
            response = connection.respond(302, "there")
            response.headers["Location"] = f"{other}/there?key={SECRET}"
            return response

        async with server(_nobody, point) as url:
            with pytest.raises(AgentError) as raised:
                await identify(Endpoint(f"{url}/", headers=("X-Api-Key: ${SK}",)), CLOCK)
    assert reached == []
    assert raised.value.kind == "agent.redirected"
    assert f"to {other}/there," in raised.value.message
    assert raised.value.hint.endswith(f"--agent {other}/there")
    assert SECRET not in f"{raised.value.message} {raised.value.hint}"


@pytest.mark.parametrize("location", ["http://[", "//:port", "/a/../b", "mailto:x", "\u20ac"])
async def test_a_redirect_to_anywhere_is_an_error(location: str) -> None:
    def point(connection: ServerConnection, _: Request) -> Response:
        response = connection.respond(307, "there")
        response.headers["Location"] = location
        response.headers["Location"] = "/other"
        return response

    async with server(_nobody, point) as url:
        with pytest.raises(AgentError, match=r"redirects are not followed|as a WebSocket"):
            await identify(Endpoint(f"{url}/"), CLOCK)


@pytest.mark.parametrize(
    "url",
    [
        "ws://127.0.0.1:1/p?key=${SK}#x",
        "http://127.0.0.1:1/p?key=${SK}",
        "ws://127.0.0.1:port/p?key=${SK}",
        "ws://127.0.0.1:${SK}/",
        "ws://[::1/${SK}",
        "ws://${SK}..b/",
        "ws://:${SK}/",
        "${SK}://127.0.0.1/",
        "ws://127.0.0.1:1/${SK}",
        "wss://u:${SK}@127.0.0.1:1/",
        *(f"HERE/{status}?key=${{SK}}" for status in (200, 302, 307, 401, 403, 404, 500)),
        "HERE/302/${SK}",
        "HERE/101?key=${SK}",
    ],
)
async def test_no_error_has_the_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK", SECRET)

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        status = int(request.path.strip("/")[:3])
        if status == 101:
            return None
        response = connection.respond(status, "no")
        if 300 <= status < 400:
            response.headers["Location"] = request.path.replace("302", "303")
        return response

    async def leave(socket: ServerConnection) -> None:
        await socket.close(4000, "no")

    async with server(leave, answer) as here:
        endpoint = Endpoint(url.replace("HERE", here), headers=("X-Key: ${SK}",))
        for attempt in (endpoint, replace(endpoint, dialect="pipecat")):
            with pytest.raises((AgentError, InputError)) as raised:
                async with (await identify(attempt, CLOCK)).open(CLOCK):
                    pass
            assert SECRET not in f"{raised.value.message} {raised.value.hint}"


# --- what is wrong with the way there ---------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "hint"),
    [
        (401, "agent.key", "--header 'Authorization: Bearer"),
        (403, "agent.key", "--header"),
        (404, "agent.path", "/ws-client"),
        (500, "agent.no_websocket", "port and path"),
    ],
)
async def test_each_refusal_has_its_own_sentence(
    status: int, kind: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "mine")

    async def answer(socket: ServerConnection) -> None:
        raise AssertionError("nobody gets here")

    def process(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(status, json.dumps({"error": "no"}))

    async with server(answer, process) as url:
        with pytest.raises(AgentError) as raised:
            await identify(Endpoint(f"{url}/?key=${{MY_KEY}}"), CLOCK)
    assert (raised.value.kind, str(status) in raised.value.message) == (kind, True)
    assert hint in raised.value.hint
    assert "${MY_KEY}" in raised.value.message  # as it was given, not as it was filled in


async def test_a_certificate_of_ones_own_is_told_with_what_helps() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def answer(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with serve(answer, "127.0.0.1", 0, ssl=context) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        with pytest.raises(AgentError) as raised:
            await identify(Endpoint(f"wss://127.0.0.1:{port}/"), CLOCK)
    assert raised.value.kind == "agent.certificate"
    assert "SSL_CERT_FILE=" in raised.value.hint


async def test_tls_to_a_server_without_it_is_told() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(AgentError) as raised:
            await identify(Endpoint(f"wss://127.0.0.1:{port}/"), CLOCK)
    assert raised.value.kind == "agent.certificate"
    assert f"ws://127.0.0.1:{port}/" in raised.value.hint

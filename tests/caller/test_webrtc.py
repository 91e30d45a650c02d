"""The dialects of WebRTC: their sessions, their addresses, and the HTTP that makes a call."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from turngap.caller.connection import Line
from turngap.caller.dialects import SPECS, webrtc
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.dialects.session import Session
from turngap.caller.dialects.webrtc import SmallWebRtcSettings
from turngap.caller.endpoint import Endpoint
from turngap.caller.identify import identify
from turngap.caller.opening import Request
from turngap.caller.rtc.opus import OpusDecoder
from turngap.caller.rtc.peer import NO_SDP, RtcPeer
from turngap.caller.rtc.rtp import FRAME, Datagram, RtpPacket
from turngap.caller.rtc.signalling import calling, offer_url, servers_of
from turngap.caller.said import (
    AudioChunk,
    Flush,
    Incoming,
    LeftOut,
    NotSpokenError,
    Pong,
    Ready,
    ReplyDone,
)
from turngap.clocks import MonotonicClock
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.testing.rtc import answering

CLOCK = MonotonicClock()
HEARD = "heard"


def datagram(packed: bytes, arrived_ns: int = 1_000_000_000) -> Datagram:
    return Datagram.at(packed, arrived_ns)


def packed(session: Any, frames: int = 3) -> list[bytes]:
    noise = np.random.default_rng(1).integers(-9000, 9000, FRAME * frames, dtype=np.int16)
    return [session.prepare(part.tobytes()) for part in noise.reshape(frames, FRAME)]


# --- the sessions ---------------------------------------------------------------------------------


def pipecat(**settings: Any) -> Session:
    return webrtc.SPEC.session(settings)


def openai(**settings: Any) -> Session:
    return webrtc.OPENAI.session(settings)


@pytest.mark.parametrize("session", [pipecat(), openai()])
def test_audio_goes_out_and_comes_in_as_packets_of_opus(session: Any) -> None:
    assert (session.rate, session.lead) == (48_000, 312)
    packets = packed(session)
    for packet in packets:
        session.send_audio(packet)
    assert [m for m in session.data_to_send() if isinstance(m, bytes)] == packets
    heard = [i for n, p in enumerate(packets) for i in session.receive_data(datagram(p, n * 20))]
    assert [type(each) for each in heard] == [AudioChunk] * 3
    assert all(len(each.pcm) == FRAME and each.packet is not None for each in heard)
    decoded = OpusDecoder().decode(RtpPacket.parse(packets[0]).payload)
    assert np.array_equal(heard[0].pcm, decoded)


@pytest.mark.parametrize("session", [pipecat(), openai()])
@pytest.mark.parametrize("damaged", [b"", b"\x80", bytes(12), b"\x80\x6f" + bytes(10) + b"\xff"])
def test_a_damaged_packet_is_left_out(session: Session, damaged: bytes) -> None:
    assert all(isinstance(each, LeftOut) for each in session.receive_data(datagram(damaged)))


def test_rtvi_comes_over_the_data_channel_and_the_transports_own_messages_are_passed_over() -> None:
    session = pipecat()
    assert session.open() == []
    (ready,) = session.data_to_send()
    assert json.loads(ready)["type"] == "client-ready"

    def read(payload: Any) -> list[Incoming]:
        return session.receive_data(json.dumps(payload))

    assert read(rtvi("bot-ready", {"version": "2.2.0"})) == [Ready()]
    for own in ({"type": "peerLeft"}, {"type": "renegotiate"}):
        assert read({"type": "signalling", "message": own}) == []
    assert read({"anything": 1}) == []
    assert read({"label": "mine", "type": "bot-interrupted"}) == []
    assert read(rtvi("bot-interrupted")) == [Flush()]
    with pytest.raises(NotSpokenError):
        session.receive_data("no JSON")
    assert session.ping(7)
    assert json.loads(session.data_to_send()[0])["data"]["d"] == {"ping": 7}
    pong = {"turngap": "pong", "ping": 7, "agent_ns": 5}
    assert read(rtvi("server-message", pong)) == [Pong(7, 5)]


def test_a_bot_without_rtvi_is_heard_alone() -> None:
    session = pipecat(rtvi=False)
    assert (session.open(), session.data_to_send(), session.ping(1)) == ([Ready()], [], False)


def test_openais_session_is_asked_for_without_formats_and_its_reply_ends_when_it_was_played() -> (
    None
):
    session = openai(voice="marin", commit_ms=0)
    assert session.open() == []

    def read(kind: str, **more: Any) -> list[Incoming]:
        return session.receive_data(json.dumps({"type": kind, **more}))

    told = {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}
    assert read("session.created", session=told) == []
    (update,) = session.data_to_send()
    audio = json.loads(update)["session"]["audio"]
    assert (audio["input"], audio["output"]) == ({"turn_detection": None}, {"voice": "marin"})
    assert read("session.updated", session=told) == [Ready()]
    session.user_ends(FRAME)
    for packet in packed(session, 2):
        session.send_audio(packet)
    texts = [json.loads(m)["type"] for m in session.data_to_send() if isinstance(m, str)]
    assert texts == ["input_audio_buffer.commit", "response.create"]

    made = {"response": {"id": "r1", "status": "completed", "output": []}}
    read("response.created", **made)
    read("output_audio_buffer.started", response_id="r1")
    assert not any(isinstance(each, ReplyDone) for each in read("response.done", **made))
    assert read("output_audio_buffer.stopped") == [ReplyDone()]
    read("response.created", **made)
    read("output_audio_buffer.started")
    read("input_audio_buffer.speech_started")
    assert read("output_audio_buffer.cleared") == [Flush()]
    assert any(isinstance(each, ReplyDone) for each in read("response.done", **made))
    assert read("response.output_audio.delta", delta="AAAA") == []


def test_a_server_that_does_not_say_what_it_plays_drops_it_when_it_hears_the_person() -> None:
    session = openai()
    for event in ({"type": "session.created"}, {"type": "session.updated"}):
        session.receive_data(json.dumps(event))
    speech = json.dumps({"type": "input_audio_buffer.speech_started"})
    assert session.receive_data(speech) == [Flush()]


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "dialect", "offered_at"),
    [
        ("http://127.0.0.1:7860", "webrtc", "http://127.0.0.1:7860/api/offer"),
        ("http://bot.example/client/", "webrtc", "http://bot.example/api/offer"),
        ("https://bot.example/offer?x=1", "webrtc", "https://bot.example/offer?x=1"),
        ("HTTPS://h/v1/realtime/calls", "webrtc-openai", "https://h/v1/realtime/calls"),
        (
            "https://api.openai.com/v1/realtime/calls",
            "webrtc-openai",
            "https://api.openai.com/v1/realtime/calls",
        ),
    ],
)
async def test_an_http_url_is_called_over_webrtc(url: str, dialect: str, offered_at: str) -> None:
    endpoint = Endpoint(url)
    assert endpoint.spec().name == dialect
    assert (await identify(endpoint, CLOCK)).dialect == dialect
    assert offer_url(url).lower() == offered_at
    assert endpoint.host_and_port[0] == url.lower().split("/")[2].partition(":")[0]


@pytest.mark.parametrize(
    ("url", "dialect", "hint"),
    [
        ("https://h/ws", "twilio", "did you mean wss://h/ws?"),
        ("ws://h:7860/", "webrtc", "as http://HOST:7860"),
    ],
)
def test_a_url_of_the_other_transport_is_refused(url: str, dialect: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        Endpoint(url, dialect).check()
    assert raised.value.kind == "agent.url"
    assert hint in raised.value.hint


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(AgentError, match="needs aiortc") as raised:
        Endpoint("http://127.0.0.1:9").check()
    assert raised.value.hint == "pip install 'turngap[webrtc]'"


def test_a_relay_and_its_password_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURN_PASSWORD", "s3cret-of-turn")
    given = "stun=stun:s.example,turn=turn:t.example:3478,turn_username=me"
    endpoint = Endpoint("http://h", f"webrtc,{given},turn_password=${{TURN_PASSWORD}}")
    endpoint.check()
    settings = endpoint.settings()
    assert isinstance(settings, SmallWebRtcSettings)
    stun, turn = servers_of(settings)
    assert (stun.urls, turn.urls) == ("stun:s.example", "turn:t.example:3478")
    assert (turn.username, turn.credential) == ("me", "s3cret-of-turn")
    assert "s3cret" not in f"{endpoint.flags} {text_without_secrets('it said s3cret-of-turn')}"
    assert servers_of(SmallWebRtcSettings()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *("stun=s.example", "stun=stun:h:abc", "stun=stun:a:b:c", "stun=stun:h:99999"),
        *(
            "turn=http://t",
            "turn=turn:h:0",
            "turn=turns:h?transport=udp",
            "turn=turn:h?transport=x",
        ),
        *("buffer=-1", "buffer=big"),
    ],
)
def test_a_setting_of_a_call_that_is_wrong_is_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=wrong.partition("=")[0]):
        Endpoint("http://h", f"webrtc,{wrong}").check()


@pytest.mark.parametrize("spec", [each for each in SPECS if each.transport == "webrtc"])
def test_each_buffer_can_be_named(spec: Any) -> None:
    for name in ("40", "60", "80", "adaptive"):
        Endpoint("http://h", f"{spec.name},buffer={name}").check()


def test_openais_key_goes_to_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-k")
    _, headers, _ = Endpoint("https://api.openai.com/v1/realtime/calls").opening()
    assert headers == {"Authorization": "Bearer sk-k"}
    for url in ("http://api.openai.com/v1/realtime/calls", "https://h/v1/realtime/calls"):
        assert Endpoint(url).opening()[1] == {}


# --- the request that makes a call ----------------------------------------------------------------


@dataclass
class Asked:
    """An HTTP request."""

    path: str
    headers: dict[str, str]
    body: str


Answer = Callable[[Asked], Awaitable[tuple[int, str]]]


@asynccontextmanager
async def serving(answer: Answer, more: str = "") -> AsyncIterator[str]:
    """Serve HTTP on loopback: each request gets the status and the text of `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = (line.partition(": ")[::2] for line in head[1:] if line)
        headers = {name.lower(): value for name, value in named}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        status, text = await answer(Asked(head[0].split(" ")[1], headers, body.decode()))
        writer.write(f"HTTP/1.1 {status} x\r\n{more}Content-Length: {len(text)}\r\n\r\n".encode())
        writer.write(text.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def refused(answer: Answer, path: str = "", dialect: str = "", more: str = "") -> AgentError:
    async with serving(answer, more) as url:
        with pytest.raises(AgentError) as raised:
            async with Endpoint(f"{url}{path}", dialect).open(CLOCK):
                pass
    return raised.value


@pytest.mark.parametrize(
    ("status", "text", "kind", "told"),
    [
        (404, '{"detail":"Not Found"}', "agent.path", "takes no WebRTC calls at /api/offer"),
        (405, "", "agent.path", "HTTP status 405"),
        (401, "", "agent.key", "wants a key"),
        (400, '{"error":{"message":"no such model"}}', "agent.refused", "no such model"),
        (500, "oh no", "agent.refused", "HTTP status 500 (oh no)"),
        (200, "<html>", NO_SDP, "not with the `sdp` of a call: '<html>'"),
        (200, '{"ok": true}', NO_SDP, "not with the `sdp` of a call"),
        (200, '{"sdp": "v=0"}', "agent.no_opus", "no audio coded with Opus"),
        (302, "", "agent.redirected", "redirects are not followed"),
    ],
)
async def test_what_answers_in_place_of_a_call_is_named(
    status: int, text: str, kind: str, told: str
) -> None:
    async def answer(_: Asked) -> tuple[int, str]:
        return status, text

    error = await refused(answer, more="Location: http://192.0.2.1/\r\n" if status == 302 else "")
    assert error.kind == kind
    assert told in error.message
    assert error.hint or kind == "agent.no_opus"


async def test_where_nothing_listens_nothing_is_called() -> None:
    for call in (Endpoint("http://127.0.0.1:1").knock(), _opened("http://127.0.0.1:1")):
        with pytest.raises(AgentError) as raised:
            await call
        assert raised.value.kind == "agent.unreachable"


async def _opened(url: str) -> None:
    async with Endpoint(url).open(CLOCK):
        pass


async def test_an_offer_that_is_not_answered_in_time_says_so() -> None:
    over = asyncio.Event()

    async def answer(_: Asked) -> tuple[int, str]:
        await over.wait()
        return 500, ""

    async with serving(answer) as url:
        with pytest.raises(AgentError, match="took the offer, and did not answer it") as raised:
            async with Endpoint(url, "webrtc,open_s=0.2").open(CLOCK):
                pass
        over.set()
    assert raised.value.kind == "agent.not_open"


async def test_a_runner_without_webrtc_says_what_it_has() -> None:
    async def answer(asked: Asked) -> tuple[int, str]:
        has = json.dumps({"status": "ready", "transports": ["websocket"]})
        return (200, has) if asked.path == "/status" else (404, "")

    error = await refused(answer)
    assert error.kind == "agent.no_transport"
    assert "was started without WebRTC; it has websocket" in error.message
    assert "/ws-client" in error.hint


@dataclass
class Bot:
    """A bot that takes one call, in either form, and does as it is told."""

    course: Callable[[RtcPeer], Awaitable[None]]
    asked: list[Asked] = field(default_factory=list)
    peers: list[RtcPeer] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def answer(self, asked: Asked) -> tuple[int, str]:
        self.asked.append(asked)
        form = asked.headers["content-type"]
        offer = json.loads(asked.body)["sdp"] if "json" in form else asked.body
        if "multipart" in form:
            offer = offer[offer.index("v=0") : offer.index("\r\n--")]
        peer, answer = await answering(offer, CLOCK)
        self.peers.append(peer)
        self.tasks.append(asyncio.create_task(self._call(peer)))
        if "json" not in form:
            return 201, answer
        return 200, json.dumps({"sdp": answer, "type": "answer", "pc_id": "1"})

    async def _call(self, peer: RtcPeer) -> None:
        await peer.connect(30)
        await self.course(peer)

    async def close(self) -> None:
        for peer in self.peers:
            await peer.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def _pipecat(peer: RtcPeer) -> None:
    assert json.loads(await peer.recv())["type"] == "client-ready"
    await peer.send(json.dumps(rtvi("bot-ready", {"version": "2.2.0"})))
    while True:
        message = await peer.recv()
        if isinstance(message, bytes):
            peer.send_now(message)  # the echo of what it hears
        elif "ping" in message:
            ping = json.loads(message)["data"]["d"]["ping"]
            pong = {"turngap": "pong", "ping": ping, "agent_ns": CLOCK.now_ns()}
            await peer.send(json.dumps(rtvi("server-message", pong)))
        elif message == HEARD:
            await peer.close()


async def test_a_call_is_made_heard_compared_and_hung_up() -> None:
    bot = Bot(_pipecat)
    async with serving(bot.answer) as url:
        async with Endpoint(url, headers=("X-Tenant: me",)).open(CLOCK) as line:
            offset = await line.clock_offset()
            assert (offset.n, offset.bound_ns is not None) == (12, True)
            for samples in (FRAME + 50, 3, 2 * FRAME - 50):  # as a page's microphone gives them
                await line.send_audio(np.zeros(samples, dtype=np.int16))
            heard: list[AudioChunk] = []
            while len(heard) < 3:
                heard += [e for e in (await line.next())[1] if isinstance(e, AudioChunk)]
            assert [len(each.pcm) for each in heard] == [FRAME] * 3
            await bot.peers[0].send("not JSON")
            (said,) = (await line.next())[1]
            assert "does not speak the webrtc dialect" in getattr(said, "why", "")
        with pytest.raises(ConnectionClosed):
            while True:
                await bot.peers[0].recv()
        await bot.close()
    (asked,) = bot.asked
    assert (asked.path, asked.headers["x-tenant"]) == ("/api/offer", "me")


async def test_a_session_is_started_where_the_path_says_so() -> None:
    bot = Bot(_pipecat)

    async def answer(asked: Asked) -> tuple[int, str]:
        if asked.path == "/public/mine/start":
            assert json.loads(asked.body) == {"transport": "webrtc"}
            return 200, '{"sessionId": "a/b"}'
        return await bot.answer(asked)

    async with serving(answer) as url:
        async with Endpoint(f"{url}/public/mine/start").open(CLOCK) as line:
            assert line.dialect == "webrtc"
        await bot.close()
    assert bot.asked[0].path == "/public/mine/sessions/a%2Fb/api/offer"


@pytest.mark.parametrize("model", ["", "gpt-x"])
async def test_openais_form_carries_the_offer_alone_or_with_a_model(model: str) -> None:
    async def course(peer: RtcPeer) -> None:
        await peer.send(json.dumps({"type": "session.created", "session": {}}))
        assert json.loads(await peer.recv())["type"] == "session.update"
        await peer.send(json.dumps({"type": "session.updated", "session": {}}))

    bot = Bot(course)
    dialect = f"webrtc-openai,model={model}" if model else ""
    async with serving(bot.answer) as url:
        async with Endpoint(f"{url}/v1/realtime/calls", dialect).open(CLOCK) as line:
            assert line.dialect == "webrtc-openai"
        await bot.close()
    (asked,) = bot.asked
    form = asked.headers["content-type"]
    assert form.startswith("multipart/form-data; boundary=") if model else form == "application/sdp"
    assert ('"model": "gpt-x"' in asked.body) == bool(model)


async def test_a_bot_that_hangs_up_before_it_is_ready() -> None:
    async def leaves(peer: RtcPeer) -> None:
        await peer.recv()
        await peer.close()

    bot = Bot(leaves)
    error = await refused(bot.answer)
    await bot.close()
    assert error.kind == "agent.line_lost"


async def test_a_bot_that_never_says_that_it_is_ready() -> None:
    async def silent(peer: RtcPeer) -> None:
        await peer.recv()

    bot = Bot(silent)
    async with serving(bot.answer) as url:
        request = Request(url, {}, (), 30.0, url)
        async with calling(request, SmallWebRtcSettings(), CLOCK) as peer:
            with pytest.raises(AgentError) as raised:
                await Line(peer, pipecat(), CLOCK).handshake(0.1)
        await bot.close()
    assert raised.value.kind == "agent.not_ready"

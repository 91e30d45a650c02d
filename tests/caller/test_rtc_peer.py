"""Two ends of a WebRTC call on loopback: order and structure, and that nothing outlives a call."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiortc import RTCIceServer, RTCSctpTransport
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK

from turngap.caller import arrival
from turngap.caller.dialects import webrtc
from turngap.caller.rtc import peer as module
from turngap.caller.rtc.audio import RtpMouth
from turngap.caller.rtc.peer import (
    NO_CHANNEL,
    NO_DTLS,
    NO_OPUS,
    NO_RELAY,
    NO_ROUTE,
    NO_SDP,
    OPUS,
    Remote,
    RtcPeer,
    offering,
)
from turngap.caller.rtc.rtp import FRAME, Datagram, RtpPacket
from turngap.caller.said import LeftOut, Message
from turngap.clocks import MonotonicClock, others_first
from turngap.core.errors import AgentError
from turngap.testing.rtc import answering

CLOCK = MonotonicClock()
PATIENCE_S = 30.0


def sockets() -> set[str]:
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(each.readlink()))
    return {link for link in found if link.startswith("socket:")}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    threads, open_ = set(threading.enumerate()), sockets()
    yield
    assert {t for t in threading.enumerate() if not t.name.startswith("asyncio_")} <= threads
    assert sockets() <= open_


def no_tasks_are_left() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


@asynccontextmanager
async def call(
    changed: Callable[[str], str] = lambda answer: answer, timeout_s: float = PATIENCE_S
) -> AsyncIterator[tuple[RtcPeer, RtcPeer]]:
    """Make a call; `changed` changes its answer on the way."""
    ends: list[RtcPeer] = []
    tasks: list[asyncio.Task[None]] = []

    async def exchange(offer: str) -> str:
        agent, answer = await answering(offer, CLOCK)
        ends.append(agent)
        tasks.append(asyncio.create_task(agent.connect(timeout_s)))
        return changed(answer)

    try:
        async with offering(exchange, CLOCK, loopback=True, timeout_s=timeout_s) as caller:
            await tasks[0]
            yield caller, ends[0]
    finally:
        for agent in ends:
            await agent.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        no_tasks_are_left()


def rtp(number: int) -> bytes:
    return RtpPacket(0, number, number * FRAME, 0, b"\xf8sound", marker=number == 0).pack()


SDP = """v=0
o=- 1 2 IN IP4 127.0.0.1
a=group:BUNDLE 0 1
m=audio 9 UDP/TLS/RTP/SAVPF 111 0
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
m=video 9 UDP/TLS/RTP/SAVPF 96
c=IN IP4 0.0.0.0
a=mid:0
a=mid:1
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=rtpmap:96 VP8/90000
a=fmtp:111 minptime=10
a=sctp-port:5000
a=candidate:1 1 udp 2130706431 127.0.0.1 9 typ host
a=ice-ufrag:abcd
a=ice-pwd:0123456789012345678901
a=fingerprint:sha-256 00:11
a=setup:active"""
LINES = SDP.split("\n")


async def test_texts_and_packets_arrive_in_order_with_their_instants() -> None:
    async with call() as (caller, agent):
        for sends, hears in ((caller, agent), (agent, caller)):
            await sends.send("hello")
            assert await hears.recv() == "hello"
            instants = [hears.arrived_ns]
            for number in range(4):
                assert sends.send_now(rtp(number))
                datagram = await hears.recv()
                assert isinstance(datagram, Datagram)
                packet = RtpPacket.parse(datagram)
                assert (packet.payload_type, packet.sequence) == (OPUS, number)
                assert (packet.timestamp, packet.payload) == (number * FRAME, b"\xf8sound")
                assert packet.marker == (number == 0)
                assert hears.arrived_ns == datagram.arrived_ns
                instants.append(hears.arrived_ns)
                assert packet.ssrc != RtpPacket.parse(rtp(0)).ssrc
            assert instants[1:] == sorted(instants[1:])


async def test_an_end_from_which_nothing_comes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNHEARD", 50)
    async with call() as (caller, agent):
        for number in range(60):  # its packets are answered by none
            caller.send_now(rtp(number))
            if not number:
                agent.send_now(rtp(0))
                await caller.recv()
        with pytest.raises(ConnectionClosedError, match="nothing has come"):
            await caller.recv()


async def test_an_arrival_is_the_kernels_and_not_the_reading() -> None:
    async with call() as (caller, agent):
        agent.send_now(rtp(0))
        sent_ns = CLOCK.now_ns()
        while CLOCK.now_ns() < sent_ns + 50_000_000:  # nothing is read meanwhile
            pass
        heard = await caller.recv()
        assert isinstance(heard, Datagram)
        assert heard.is_stamped
        assert caller.arrived_ns < sent_ns + 50_000_000


async def test_messages_are_taken_as_they_arrive_and_refused_ones_wait() -> None:
    async with call() as (caller, agent):
        taken: list[Message] = []

        def takes(message: Message) -> bool:
            taken.append(message)
            return message in ("a", "b")

        caller.takes = takes
        for text in "abcd":
            await agent.send(text)
        assert [await caller.recv(), await caller.recv()] == ["c", "d"]
        assert taken[:3] == ["a", "b", "c"]


@pytest.mark.parametrize("who", ["caller", "agent"])
async def test_the_other_end_learns_that_one_has_hung_up(who: str) -> None:
    async with call() as ends:
        leaves, stays = ends if who == "caller" else ends[::-1]
        await leaves.send("last")
        assert await stays.recv() == "last"
        await leaves.close()
        for peer in (stays, leaves):
            with pytest.raises(ConnectionClosedOK):
                await peer.recv()
            assert not peer.send_now(rtp(0))
            with pytest.raises(ConnectionClosed):
                await peer.send("more")
        await leaves.close()


async def test_what_nobody_reads_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EARLY", 3)
    async with call() as (caller, agent):
        for text in "abcde":
            await agent.send(text)
        await agent.send("last")
        while caller.send_now("x"):
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        assert [await caller.recv() for _ in range(4)] == list("abcd")
        with pytest.raises(ConnectionClosed, match="wait to be read"):
            await caller.recv()


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (lambda answer: answer.replace("opus/48000/2", "PCMU/8000"), NO_OPUS),
        (lambda answer: answer.replace("m=application 9", "m=application 0"), NO_CHANNEL),
        (lambda answer: answer.replace("a=ice-pwd", "a=x"), NO_SDP),
        (lambda answer: "<html>", NO_OPUS),
        (lambda answer: "v=0\r\nm=audio", NO_SDP),
        (lambda answer: "", NO_OPUS),
        (lambda answer: answer + "a=x\r\n" * 20_000, NO_SDP),
    ],
)
async def test_an_answer_that_cannot_be_used_is_refused(
    changed: Callable[[str], str], kind: str
) -> None:
    with pytest.raises(AgentError) as raised:
        async with call(changed):
            pass
    assert raised.value.kind == kind


async def test_an_agent_that_cannot_be_reached_names_the_settings() -> None:
    async def exchange(offer: str) -> str:
        agent, answer = await answering(offer, CLOCK)
        await agent.close()
        return answer

    with pytest.raises(AgentError, match="UDP does not get through") as raised:
        async with offering(exchange, CLOCK, loopback=True, timeout_s=0.3):
            pass
    assert raised.value.kind == NO_ROUTE
    assert "stun=stun:HOST:PORT" in raised.value.hint
    assert "the agent host 127.0.0.1" in raised.value.hint
    no_tasks_are_left()


async def test_an_agent_with_another_certificate_is_not_talked_to() -> None:
    def forged(answer: str) -> str:
        return answer.replace("a=fingerprint:sha-256 ", "a=fingerprint:sha-256 00:", 2)

    with pytest.raises(AgentError) as raised:
        async with call(forged):
            pass
    assert raised.value.kind == NO_DTLS


async def test_a_data_channel_that_does_not_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(RTCSctpTransport, "start", start)
    with pytest.raises(AgentError, match="its data channel did not open") as raised:
        async with call():
            pass
    assert raised.value.kind == NO_CHANNEL


async def test_a_caller_that_gives_up_half_way_leaves_nothing() -> None:
    asked = asyncio.Event()

    async def exchange(offer: str) -> str:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    async def calls() -> None:
        async with offering(exchange, CLOCK, loopback=True):
            pass

    task = asyncio.create_task(calls())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    no_tasks_are_left()


@pytest.mark.parametrize("steps", range(1, 4))
async def test_a_hang_up_that_is_cancelled_leaves_nothing(steps: int) -> None:
    async with call() as (caller, _):
        hang_up = asyncio.create_task(caller.close())
        for _ in range(steps):
            await others_first()
        hang_up.cancel()
        await asyncio.wait([hang_up])
        assert caller._ice.state == "closed"
    no_tasks_are_left()


async def test_a_packet_that_cannot_be_decrypted_is_empty() -> None:
    """libsrtp refuses a packet that is repeated, and one that another made."""
    async with call() as (caller, agent):
        came: list[bytes] = []

        def received(data: bytes, component: int) -> None:
            came.append(data)
            caller._received(data, component)

        caller._connection.data_received = received
        agent.send_now(rtp(0))
        assert await caller.recv()
        for data in (came[-1], rtp(1) + bytes(16)):
            caller._received(data, 1)
            assert await caller.recv() == b""


async def test_without_the_kernels_stamp_a_turns_notes_say_so() -> None:
    """A relay's packets come without it, and so do all where an event loop hides its sockets."""
    arrival.stamp_udp(cast("asyncio.BaseTransport", SimpleNamespace()), CLOCK, Datagram.at)
    async with call() as (caller, agent):
        received = caller._received
        caller._connection.data_received = lambda data, _: received(bytes(data), 1)
        agent.send_now(RtpMouth().pack(bytes(2 * FRAME)))
        datagram = await caller.recv()
    assert isinstance(datagram, Datagram)
    assert not datagram.is_stamped
    assert webrtc.SPEC.session().receive_data(datagram)[-1:] == [LeftOut(webrtc.READ)]


async def test_a_relay_that_does_not_answer_is_named() -> None:
    relay = RTCIceServer("turn:127.0.0.1:1?transport=tcp", "me", "secret")
    with pytest.raises(AgentError, match=r"the TURN server 127\.0\.0\.1:1 gave no relay") as raised:
        async with offering(no_exchange, CLOCK, servers=[relay], loopback=True):
            pass
    assert raised.value.kind == NO_RELAY
    no_tasks_are_left()


async def test_a_caller_that_gives_up_while_a_server_is_asked_leaves_nothing() -> None:
    peer = RtcPeer(CLOCK, [RTCIceServer("turn:127.0.0.1:1", "me", "secret")], loopback=True)
    plain = peer._connection.get_component_candidates

    def candidates(component: int, addresses: list[str], timeout: int = 5) -> Any:
        return plain(component, addresses, 0.1)  # in place of seconds

    peer._connection.get_component_candidates = candidates
    task = asyncio.create_task(peer.offer("chat"))
    while not any("relayed_candidate" in repr(each) for each in asyncio.all_tasks()):
        await others_first()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await peer.close()
    no_tasks_are_left()


async def no_exchange(offer: str) -> str:
    raise AssertionError(offer)


@given(st.data())
@settings(max_examples=60)
def test_whatever_an_answer_says_it_is_read_or_refused(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(LINES), max_size=40))
    cut = data.draw(st.integers(0, 8))
    text = "\r\n".join(line[: len(line) - cut] if cut < 4 else line for line in lines)
    with suppress(AgentError):
        Remote(text)

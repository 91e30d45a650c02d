"""One end of a WebRTC call, on aiortc's ICE, DTLS and SCTP, without its tracks and buffers.

RTP is decrypted as it is read and stamped with its arrival by the kernel's clock; what is sent goes
out at once, without a switch of tasks.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiortc import (
    RTCCertificate,
    RTCDataChannel,
    RTCDataChannelParameters,
    RTCDtlsTransport,
    RTCIceGatherer,
    RTCIceServer,
    RTCIceTransport,
    RTCSctpTransport,
)
from aiortc.sdp import SessionDescription, candidate_to_sdp
from pylibsrtp import Error as SrtpError
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from turngap.caller.arrival import stamp_udp
from turngap.caller.intake import MOST_EARLY, MOST_MESSAGE_BYTES
from turngap.caller.line.running import Crossings
from turngap.caller.line.spec import LineSpec
from turngap.caller.line.transport import RESET
from turngap.caller.rtc.lined import LinedUdp
from turngap.caller.rtc.rtp import Datagram
from turngap.caller.said import Message
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.untrusted import MOST_SENTENCE, printable

# The payload type that is offered for Opus: what browsers offer.
OPUS = 111
LOOPBACK = "127.0.0.1"
# Of a description: real ones have 2 to 10 kB, and a few candidates. aiortc's reader takes a time in
# proportion to the square of the length.
MOST_SDP_CHARACTERS, MOST_CANDIDATES = 2**16, 50
CLOSE_TIMEOUT_S = 2.0
# This many packets of 20 ms are sent to an end from which nothing comes, neither sound nor reports
# on what it gets: a process that was killed says no goodbye, and ICE needs half a minute.
MOST_UNHEARD = 450
_DTLS, _RTP = range(20, 64), range(128, 192)
_RTCP = range(192, 224)

NO_SDP, NO_OPUS = "agent.no_sdp", "agent.no_opus"
NO_ROUTE, NO_DTLS, NO_CHANNEL = "agent.no_route", "agent.no_dtls", "agent.no_channel"
NO_RELAY = "agent.no_relay"


class RtcPeer:
    """One end of a call: texts by its data channel, and the packets of one stream of Opus.

    `send` takes a text, or an RTP packet, whose payload type and source are filled in. `recv`
    returns texts and `Datagram`s; one that cannot be decrypted is empty. Make one with `offering`.

    This uses names inside aiortc and aioice, whose versions are therefore pinned.

    Attributes:
        takes: receives each message as it arrives; if it returns False, `recv` returns it.
        arrived_ns: the arrival of the last message from `recv`, or passed to `takes`.
        crossings: what crossed the line; None without one.
    """

    takes: Callable[[Message], bool] | None = None
    arrived_ns = 0
    crossings: Crossings | None = None

    def __init__(
        self,
        clock: Clock,
        servers: Sequence[RTCIceServer],
        *,
        loopback: bool,
        line: LineSpec | None = None,
        call: str = "",
    ) -> None:
        self._clock = clock
        self._line, self._call = line, call
        self._lined: LinedUdp | None = None
        self._ice = RTCIceTransport(RTCIceGatherer(list(servers)))
        self._dtls = RTCDtlsTransport(self._ice, [RTCCertificate.generateCertificate()])
        self._sctp = RTCSctpTransport(self._dtls)
        self._connection: Any = self._ice._connection
        self._passed_on = self._connection.data_received
        self._connection.data_received = self._received
        if loopback:
            self._add_loopback()
        self._channel: RTCDataChannel | None = None
        self._remote: Remote | None = None
        self._source = secrets.token_bytes(4)
        self._inbox: deque[tuple[int, Message]] = deque()
        self._inbox_bytes = 0
        self._last_ns = 0  # the arrival of the last datagram
        self._unheard = 0  # packets that were sent since the last datagram came
        self._came = asyncio.Event()
        self._ended: ConnectionClosed | None = None
        self._open = asyncio.Event()
        self._dtls.on("statechange", self._dtls_changed)

    # Making a call

    async def offer(self, label: str) -> str:
        """Return the SDP that offers a call with a data channel of this name."""
        self._connection.ice_controlling = True
        self._use(RTCDataChannel(self._sctp, RTCDataChannelParameters(label=label)))
        await self._gather()
        return self._described("actpass", "0", "1", OPUS)

    async def connect(self, timeout_s: float, answer: str | None = None) -> None:
        """Reach the other end and wait until the data channel is open.

        Raises:
            AgentError: the answer cannot be used, or a step fails or takes too long.
        """
        if answer is not None:
            self._remote = Remote(answer)
            self._dtls._set_role("client" if self._remote.dtls.role == "server" else "server")
        remote = self._remote
        assert remote is not None
        step = (NO_ROUTE, "UDP does not get through to it (ICE)", self._no_route(remote))
        try:
            async with asyncio.timeout(timeout_s):
                for candidate in remote.candidates:
                    await self._ice.addRemoteCandidate(candidate)
                if answer is not None:
                    await self._ice.addRemoteCandidate(None)
                await self._ice.start(remote.ice)
                if self._ice.state != "completed":
                    raise _failed(*step)
                step = (NO_DTLS, "no encryption was agreed with it (DTLS)", "")
                await self._dtls.start(remote.dtls)
                if self._dtls.state != "connected":
                    raise _failed(*step)
                step = (NO_CHANNEL, "its data channel did not open", "")
                await self._sctp.start(remote.capabilities, remote.port)
                await self._open.wait()
        except TimeoutError as e:
            raise _failed(*step, within_s=timeout_s) from e
        except ConnectionError as e:
            raise _failed(*step) from e
        if self._ended is not None:
            raise _failed(*step)

    async def _gather(self) -> None:
        await _finished(self._ice.iceGatherer.gather())
        for each in self._connection._protocols:
            stamp_udp(each.transport, self._clock, Datagram.at)
        if self._line is not None:
            self._lined = LinedUdp(self._line, self._call, self._clock, self._on_reset)
            self.crossings = self._lined.crossings
            for each in self._connection._protocols:
                self._lined.lead(each)
        turn = self._connection.turn_server
        if turn and not any(c.type == "relay" for c in self._candidates()):
            raise AgentError(
                NO_RELAY,
                f"the TURN server {turn[0]}:{turn[1]} gave no relay: it cannot be reached, or does "
                "not let this side in",
                hint="check turn, turn_username and turn_password of --dialect",
            )

    def _add_loopback(self) -> None:
        """Offer this machine's own address too, which aioice leaves out."""
        plain = self._connection.get_component_candidates

        def candidates(component: int, addresses: list[str], timeout: int = 5) -> Awaitable[Any]:
            return plain(component, [LOOPBACK, *addresses], timeout)

        self._connection.get_component_candidates = candidates

    def _described(self, setup: str, audio: str, data: str, opus: int) -> str:
        """Return the SDP of this end, whose audio and data channel have these names."""
        ice = self._ice.iceGatherer.getLocalParameters()
        prints = self._dtls.getLocalParameters().fingerprints
        transport = [
            "c=IN IP4 0.0.0.0",
            *(f"a=candidate:{candidate_to_sdp(c)}" for c in self._candidates()),
            "a=end-of-candidates",
            *(f"a=ice-ufrag:{ice.usernameFragment}", f"a=ice-pwd:{ice.password}"),
            *(f"a=fingerprint:{p.algorithm} {p.value}" for p in prints if "256" in p.algorithm),
            f"a=setup:{setup}",
        ]
        lines = ["v=0", f"o=- {secrets.randbits(62)} 2 IN IP4 {LOOPBACK}", "s=-", "t=0 0"]
        lines += [f"a=group:BUNDLE {audio} {data}", "a=msid-semantic: WMS *"]
        lines += [f"m=audio 9 UDP/TLS/RTP/SAVPF {opus}", *transport]
        lines += [f"a=mid:{audio}", "a=sendrecv", "a=rtcp:9 IN IP4 0.0.0.0", "a=rtcp-mux"]
        lines += [f"a=rtpmap:{opus} opus/48000/2", f"a=fmtp:{opus} minptime=10"]
        lines += ["a=msid:turngap turngap-audio"]
        lines += [f"a=ssrc:{int.from_bytes(self._source)} cname:turngap"]
        lines += ["m=application 9 UDP/DTLS/SCTP webrtc-datachannel", *transport]
        lines += [f"a=mid:{data}", f"a=sctp-port:{self._sctp.port}"]
        lines += [f"a=max-message-size:{self._sctp.getCapabilities().maxMessageSize}"]
        return "\r\n".join(lines) + "\r\n"

    def _candidates(self) -> list[Any]:
        return self._ice.iceGatherer.getLocalCandidates()

    def _no_route(self, remote: "Remote") -> str:
        """Return what to do where no pair of addresses works."""
        ours = ", ".join(dict.fromkeys(f"{c.type} {c.ip}" for c in self._candidates()))
        theirs = ", ".join(dict.fromkeys(f"{c.type} {c.ip}" for c in remote.candidates))
        tried = f"this side offered {ours or 'no address'}, the agent {theirs or 'none'}"
        return printable(
            f"{tried}; UDP must get through between them, or name a server: --dialect "
            "webrtc,stun=stun:HOST:PORT or turn=turn:HOST:PORT,turn_username=NAME,"
            "turn_password='${PASSWORD}'",
            2 * MOST_SENTENCE,
        )

    def _use(self, channel: RTCDataChannel) -> None:
        if self._channel is not None:
            return  # the agent may open others for itself
        self._channel = channel
        channel.on("message", self._text)
        channel.on("close", lambda: self._end(_in_due_form()))
        channel.on("open", self._open.set)
        if channel.readyState == "open":
            self._open.set()

    # Receiving

    def _received(self, data: bytes, component: int) -> None:
        """Take a datagram that is no STUN: RTP at once, DTLS by way of aiortc."""
        self._unheard = 0
        first = data[0] if data else 0
        if first in _DTLS:
            self._passed_on(data, component)
        srtp, remote = self._dtls._rx_srtp, self._remote
        if first not in _RTP or len(data) < 2 or data[1] in _RTCP or srtp is None or remote is None:
            return
        is_stamped = isinstance(data, Datagram) and data.is_stamped
        now_ns = data.arrived_ns if isinstance(data, Datagram) else self._clock.now_ns()
        try:
            packet = srtp.unprotect(data)
        except SrtpError:
            packet = b""  # repeated or forged: it is counted
        if len(packet) >= 12 and packet[1] & 0x7F not in (OPUS, remote.opus):
            packet = bytes((packet[0] & 0xC0,)) + packet[1:12]  # it has a number and no sound
        self._last_ns = max(self._last_ns, now_ns)
        datagram = Datagram.at(packet, self._last_ns)
        datagram.is_stamped = is_stamped
        self._deliver(self._last_ns, datagram)

    def _text(self, message: str | bytes) -> None:
        now_ns = self._clock.now_ns()
        if isinstance(message, bytes):
            message = message.decode(errors="replace")
        self._deliver(now_ns, message)

    def _deliver(self, arrived_ns: int, message: Message) -> None:
        if self._ended is not None:
            return
        if not self._inbox and self.takes is not None:
            self.arrived_ns = arrived_ns
            if self.takes(message):
                return
        self._inbox.append((arrived_ns, message))
        self._inbox_bytes += len(message)
        if len(self._inbox) > MOST_EARLY or self._inbox_bytes > MOST_MESSAGE_BYTES:
            self._end(_lost(f"more than {MOST_EARLY:,} messages wait to be read"))
        self._came.set()

    async def recv(self) -> Message:
        """Return the next message and set `arrived_ns`.

        Raises:
            ConnectionClosed: the call is over.
        """
        while not self._inbox:
            if self._ended is not None:
                raise self._ended
            self._came.clear()
            await self._came.wait()
        self.arrived_ns, message = self._inbox.popleft()
        self._inbox_bytes -= len(message)
        return message

    # Sending

    def send_now(self, message: Message) -> bool:
        """Send a message; return False if the call is over."""
        if self._ended is not None or self._channel is None or self._channel.readyState != "open":
            return False
        if isinstance(message, str):
            if self._channel.bufferedAmount > MOST_MESSAGE_BYTES:
                self._end(_lost("it does not read what it is sent"))
                return False
            self._channel.send(message)
            return True
        pair, srtp = self._connection._nominated.get(1), self._dtls._tx_srtp
        if pair is not None and srtp is not None and self._remote is not None:
            kind = message[1] & 0x80 | self._remote.opus
            head = message[:1] + bytes((kind,)) + message[2:8] + self._source
            pair.protocol.transport.sendto(srtp.protect(head + message[12:]), pair.remote_addr)
            self._unheard += 1
            if self._unheard > MOST_UNHEARD:
                self._end(_lost(f"nothing has come from it for {MOST_UNHEARD // 50} s"))
        return True

    async def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            ConnectionClosed: the call is over.
        """
        if not self.send_now(message):
            raise self._ended or _lost("not connected")

    # The end

    def _dtls_changed(self) -> None:
        if self._dtls.state in ("closed", "failed"):
            # aioice has dropped the pair before, if the other end no longer answers it.
            lost = not self._connection._nominated
            self._end(_lost("it no longer answers") if lost else _in_due_form())

    def _on_reset(self) -> None:
        self._end(_lost(RESET))

    def _end(self, error: ConnectionClosed) -> None:
        self._ended = self._ended or error
        self._open.set()
        self._came.set()

    async def close(self) -> None:
        """Hang up; nothing of the call outlives this, though it is cancelled."""
        self._end(_in_due_form())
        try:
            if self._lined is not None:
                await self._lined.watch()
        finally:
            await _finished(self._stop())

    async def _stop(self) -> None:
        reading = self._dtls._task
        line = [self._lined.stop] if self._lined is not None else []
        for stop in (self._sctp.stop, self._dtls.stop, *line, self._ice.stop):
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await stop()
        if reading is not None:
            await asyncio.wait([reading])


@asynccontextmanager
async def offering(
    exchange: Callable[[str], Awaitable[str]],
    clock: Clock,
    *,
    label: str = "chat",
    servers: Sequence[RTCIceServer] = (),
    loopback: bool = False,
    timeout_s: float = 10.0,
    line: LineSpec | None = None,
    call: str = "",
) -> AsyncIterator[RtcPeer]:
    """Call an agent: `exchange` sends it an offer (SDP) and returns its answer.

    `loopback`: the agent is on this machine. `label` names the data channel. All datagrams cross
    `line`, if there is one, as it is for this `call`.

    Raises:
        AgentError: the answer cannot be used, or the agent is not reached.
    """
    peer = RtcPeer(clock, servers, loopback=loopback, line=line, call=call)
    try:
        offer = await peer.offer(label)
        await peer.connect(timeout_s, await exchange(offer))
        yield peer
    finally:
        await peer.close()


class Remote:
    """The other end, as its SDP describes it."""

    def __init__(self, sdp: str) -> None:
        if len(sdp) > MOST_SDP_CHARACTERS:
            raise _no_sdp(f"{len(sdp):,} characters are too many")
        try:
            media = [each for each in SessionDescription.parse(sdp).media if each.port]
            audio = [each for each in media if each.kind == "audio"]
            data = [each for each in media if each.kind == "application"]
            codecs = audio[0].rtp.codecs if audio else []
            opus = [c.payloadType for c in codecs if c.mimeType.lower() == "audio/opus"]
        except Exception as e:
            raise _no_sdp(repr(printable(sdp, 80))) from e
        if not opus:
            why = "it has no audio coded with Opus, which every WebRTC end has to offer"
            raise AgentError(NO_OPUS, f"{_ITS_SDP}: {why}")
        if not data:
            raise AgentError(NO_CHANNEL, f"{_ITS_SDP}: it has no data channel")
        ice, dtls = audio[0].ice, audio[0].dtls
        if not (ice and ice.usernameFragment and ice.password and dtls and dtls.fingerprints):
            raise _no_sdp("it has no ICE password or no DTLS fingerprint")
        self.opus = opus[0] or OPUS
        self.audio, self.data = (str(each.rtp.muxId) for each in (audio[0], data[0]))
        self.ice, self.dtls = ice, dtls
        self.candidates = (audio[0].ice_candidates or data[0].ice_candidates)[:MOST_CANDIDATES]
        self.capabilities, self.port = data[0].sctpCapabilities, data[0].sctp_port or 5000


_ITS_SDP = "the other end's SDP cannot be used"


def _no_sdp(why: str) -> AgentError:
    return AgentError(NO_SDP, f"{_ITS_SDP}: {why}")


async def _finished(course: Coroutine[Any, Any, None]) -> None:
    """Await a course to its end; cancellation is passed on then, and not to it."""
    task = asyncio.create_task(course)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _failed(kind: str, what: str, hint: str, within_s: float = 0.0) -> AgentError:
    after = f" within {within_s:g} s" if within_s else ""
    return AgentError(kind, f"the agent answered the call, but {what}{after}", hint=hint)


def _in_due_form() -> ConnectionClosed:
    close = Close(1000, "")
    return ConnectionClosedOK(close, close, rcvd_then_sent=True)


def _lost(why: str) -> ConnectionClosed:
    return ConnectionClosedError(None, Close(1006, why))

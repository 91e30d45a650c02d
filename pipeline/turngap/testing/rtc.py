"""A scripted agent on WebRTC: pipecat's SmallWebRTC on loopback, without a track of aiortc.

Its mouth is a stream of packets that never stops, and a reply may begin at any sample of it. The
line may drop packets and delay them, the same ones for the same seed.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import numpy as np
from websockets.exceptions import ConnectionClosed

from turngap.caller.connection import PromptPeer
from turngap.caller.rtc.audio import RtpHearing, RtpMouth
from turngap.caller.rtc.opus import LOOKAHEAD
from turngap.caller.rtc.peer import Remote, RtcPeer
from turngap.caller.rtc.playout import FixedBuffer
from turngap.caller.rtc.rtp import FRAME, FRAME_MS, RATE, Datagram
from turngap.caller.said import AudioChunk, Message
from turngap.caller.stream import Rest, Sender, UserStream
from turngap.clocks import MonotonicClock, others_first
from turngap.core.audio import Pcm, SpeechEnd, SpeechStart
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.errors import AgentError
from turngap.testing.agent import (
    Account,
    AgentSession,
    Answer,
    Mortal,
    Reply,
    Script,
    Truth,
    converse,
    pad_samples,
    tone,
)
from turngap.testing.dialects import AgentHalf

_FRAME_NS = ms_to_ns(FRAME_MS)
CONNECT_TIMEOUT_S = 10.0
# Of words that lost a packet of this, half were placed wrongly (n = 49).
FIRST_MS = 2 * FRAME_MS

# The end of a tone is looked for this far from where its level says it is.
_NEAR = RATE // 100
_TONE = tone(RATE).astype(np.float64)
_SIZE = 1 << (len(_TONE) + 2 * _NEAR).bit_length()
_TONE_SPECTRUM = np.conj(np.fft.rfft(_TONE, _SIZE))
# Less likeness than this, and it was no such tone.
_ALIKE = 0.9


def faults_ns(loss: float, jitter_ms: float, seed: int) -> Iterator[int | None]:
    """Yield for each packet how late it is sent; None if it is dropped."""
    rng = np.random.default_rng(seed)
    while True:
        lost, late = rng.random(2).tolist()
        yield None if lost < loss else ms_to_ns(late * jitter_ms)


class AgentStream(UserStream):
    """The agent's side of the line, on which speech may stop."""

    def cut(self, sample: int) -> None:
        """Drop all speech from a sample on."""
        self._placed = [
            replace(clip, pcm=clip.pcm[: max(0, sample - clip.start)]) for clip in self._placed
        ]


class AgentMouth:
    """The agent's mouth: packets on absolute deadlines, over a line that may have faults.

    Attributes:
        sent_ns: when each packet was handed to the line; dropped ones are in `dropped`.
    """

    def __init__(
        self,
        peer: Mortal,
        clock: Clock,
        faults_ns: Iterator[int | None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._peer, self._clock, self._faults_ns, self._spawn = peer, clock, faults_ns, spawn
        self._stream = AgentStream(clock.now_ns(), RATE)
        packer = RtpMouth()
        self._sender = Sender(
            self._stream, clock, self._send, lambda pcm: packer.pack(pcm.tobytes()), LOOKAHEAD
        )
        self._packets = 0
        self.sent_ns: dict[int, int] = {}
        self.dropped: set[int] = set()

    async def run(self) -> None:
        """Send until cancelled, or until the line is lost."""
        with suppress(ConnectionClosed):
            await self._sender.run(lambda _: None)

    def place(self, pcm: Pcm, at_ns: int) -> int:
        """Let speech begin to arrive at an instant, or as soon as can be; return its start."""
        soonest = self._sender.next_sample + FRAME + LOOKAHEAD
        start = max(soonest, self._stream.sample_at(at_ns - _FRAME_NS))
        return self._stream.place(pcm, start, phase=start % self._stream.grid)

    def cut(self, at_ns: int) -> None:
        """Let no more speech arrive from an instant on."""
        self._stream.cut(self._stream.sample_at(at_ns - _FRAME_NS))

    def due_ns(self, sample: int) -> int:
        """Return when a sample arrives without jitter."""
        return self._stream.instant_ns(sample) + _FRAME_NS

    async def arrival_ns(self, sample: int) -> int | None:
        """Return when a sample arrived, once that is known; None if its packet was dropped."""
        packet, offset = divmod(sample, FRAME)
        while packet not in self.sent_ns and packet not in self.dropped:
            await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(1))
        sent_ns = self.sent_ns.get(packet)
        return None if sent_ns is None else sent_ns + samples_to_ns(offset, RATE)

    def _send(self, data: bytes) -> Rest:
        number, self._packets = self._packets, self._packets + 1
        late_ns = next(self._faults_ns)
        if late_ns is None:
            self.dropped.add(number)
        elif late_ns:
            due_ns = self._stream.instant_ns((number + 1) * FRAME) + late_ns
            self._spawn(self._send_at(due_ns, number, data))
        else:
            return self._send_now(number, data)
        return None

    async def _send_at(self, due_ns: int, number: int, data: bytes) -> None:
        await self._clock.sleep_until_ns(due_ns)
        with suppress(ConnectionClosed):
            await (self._send_now(number, data) or others_first())

    def _send_now(self, number: int, data: bytes) -> Rest:
        self.sent_ns[number] = self._clock.now_ns()
        if isinstance(self._peer, PromptPeer) and self._peer.send_now(data):
            return None
        return self._peer.send(data)


class RtpSession(AgentSession):
    """One connection: RTVI over the data channel, and audio in RTP packets."""

    # A packet is read one ahead, with the encoder's look-ahead, and leaves when it has sounded.
    ahead_ns = 3 * _FRAME_NS
    # Of a louder one, what Opus lets sound before its beginning is audible for up to 2 ms.
    voice_dbfs = -14.0

    def __init__(
        self, script: Script, peer: Mortal, clock: Clock, account: Account, half: AgentHalf
    ) -> None:
        super().__init__(script, peer, clock, account, half)
        faults = faults_ns(script.loss, script.jitter_ms, script.seed)
        self._mouth = AgentMouth(peer, clock, faults, self._spawn)
        self._hearing = RtpHearing(FixedBuffer(0))
        self._recent = np.zeros(0, dtype=np.int16)
        self._came = 0  # samples, up to the end of `_recent`

    async def run(self) -> None:
        self._spawn(self._mouth.run())
        await super().run()

    async def _on_message(self, now_ns: int, message: Message) -> None:
        if isinstance(message, str):
            await super()._on_message(now_ns, message)
            return
        assert isinstance(message, Datagram)
        for heard in self._hearing.read(message):
            if isinstance(heard, AudioChunk) and heard.packet is not None:
                self._recent = np.concatenate((self._recent, heard.pcm))[-RATE:]
                self._came += len(heard.pcm)
                self._on_audio(heard.packet.arrived_ns, heard.pcm)

    def _placed(self, event: SpeechStart | SpeechEnd) -> int:
        """Return the sample of an end without the codec's blur, if it is that of a known tone."""
        first = event.sample + 1 - len(_TONE) - _NEAR - (self._came - len(self._recent))
        near = self._recent[max(0, first) : first + len(_TONE) + 2 * _NEAR].astype(np.float64)
        if isinstance(event, SpeechStart) or first < 0 or len(near) < len(_TONE) + 2 * _NEAR:
            return event.sample
        alike = np.fft.irfft(np.fft.rfft(near, _SIZE) * _TONE_SPECTRUM, _SIZE)[: 2 * _NEAR + 1]
        best = int(alike.argmax())
        within = near[best : best + len(_TONE)]
        whole = np.linalg.norm(_TONE) * np.linalg.norm(within)
        return event.sample - _NEAR + best if alike[best] > _ALIKE * whole else event.sample

    async def _speak(
        self, answer: Answer, reply: Reply, chunks: list[bytes], user_end_ns: int | None = None
    ) -> None:
        pcm = np.frombuffer(b"".join(chunks), dtype="<i2")
        if reply.action in ("break_off", "die_midway"):
            pcm = pcm[: len(pcm) // 2]
        now_ns = self._clock.now_ns()
        begins_ns = now_ns if user_end_ns is None else user_end_ns + ms_to_ns(reply.delay_ms)
        start = self._mouth.place(pcm, begins_ns)
        answer.marks.update(tts_first_audio=now_ns, sent=self._mouth.due_ns(start))
        await self._clock.sleep_until_ns(self._mouth.due_ns(start + len(pcm)))
        await self._mouth.arrival_ns(start + len(pcm) - 1)
        if reply.action == "die_midway":
            self._peer.die()
        if reply.action in ("die_midway", "break_off"):
            return
        if user_end_ns is not None:
            self._account.add(await self._truth(answer.turn, reply, start, user_end_ns))
        await self._finish(answer)

    async def _truth(self, turn: int, reply: Reply, start: int, user_end_ns: int) -> Truth:
        pad = pad_samples(reply, RATE)
        onset = start + pad
        onset_ns = await self._mouth.arrival_ns(onset)
        first = range(onset // FRAME, (onset + FIRST_MS * RATE // 1000) // FRAME + 1)
        dropped = [str(n) for n, packet in enumerate(first, 1) if packet in self._mouth.dropped]
        return Truth(
            turn,
            None if onset_ns is None else onset_ns - user_end_ns,
            ms_to_ns(reply.delay_ms) + samples_to_ns(pad, RATE),
            self._mouth.due_ns(onset) - user_end_ns,
            f"packet {' and '.join(dropped)} of the first {len(first)}" if dropped else "",
        )

    async def _yield(self, answers: Sequence[Answer], at_ns: int) -> None:
        """Be silent at this instant; the report comes before, as of a track with a queue."""
        await self._clock.sleep_until_ns(at_ns - self.ahead_ns)
        if any(answer.running for answer in answers):
            self._mouth.cut(at_ns)
        await super()._yield(answers, at_ns - self.ahead_ns)


class MortalPeer(RtcPeer):
    """The agent's end of a call, which can die as `Mortal`s do."""

    async def answer(self, offer: str) -> str:
        """Return the SDP that answers an offer of audio and a data channel, in this order."""
        self._remote = remote = Remote(offer)
        self._connection.ice_controlling = remote.ice.iceLite
        self._dtls._set_role("client")
        self._sctp.on("datachannel", self._use)
        await self._gather()
        return self._described("active", remote.audio, remote.data, remote.opus)

    def die(self) -> None:
        os._exit(17)


async def answering(offer: str, clock: Clock) -> tuple[MortalPeer, str]:
    """Answer a call; return the peer and its answer (SDP).

    When the answer is on its way, await `peer.connect(timeout_s)`; `peer.close()` in any case.

    Raises:
        AgentError: the offer cannot be used.
    """
    peer = MortalPeer(clock, (), loopback=True)
    try:
        return peer, await peer.answer(offer)
    except BaseException:
        await peer.close()
        raise


class RtcAgent:
    """Serves a `Script` at `POST /api/offer`, as pipecat's runner does; each call starts it."""

    def __init__(self, *, script: Script, account: Account | None = None, port: int = 0) -> None:
        self.script, self.account = script, account or Account()
        self._port = port
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.script.half()  # or it is refused before the first call
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    @property
    def url(self) -> str:
        """Return where the agent takes calls."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            status, document = await self._answer(head.partition(" HTTP/")[0], body)
            content = json.dumps(document).encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
                + content
            )
            await writer.drain()
            writer.close()

    async def _answer(self, request: str, body: bytes) -> tuple[str, dict[str, str]]:
        if request.partition("?")[0] != "POST /api/offer":
            return "404 Not Found", {"detail": "a call begins with POST /api/offer"}
        clock = MonotonicClock(precise=True)
        try:
            peer, answer = await answering(json.loads(body)["sdp"], clock)
        except (AgentError, ValueError, KeyError, TypeError) as e:
            return "400 Bad Request", {"detail": str(e)}
        call = asyncio.create_task(self._talk(peer, clock))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return "200 OK", {"sdp": answer, "type": "answer", "pc_id": f"turngap-{id(peer)}"}

    async def _talk(self, peer: MortalPeer, clock: Clock) -> None:
        try:
            with suppress(ConnectionClosed, AgentError):
                await peer.connect(CONNECT_TIMEOUT_S)
                await converse(self.script, peer, clock, self.account)
        finally:
            await peer.close()

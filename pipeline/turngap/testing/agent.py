"""A scripted agent: speaks any dialect, answers at known instants, fails on demand.

It has no models. It finds the end of the user's speech in the audio itself and answers a chosen
time after its last audible sample, so what a caller measures can be compared with the truth.

    async with ScriptedAgent([Reply(delay_ms=300), Reply(delay_ms=500, pad_ms=150)]) as agent:
        ...  # play a conversation against agent.url

As a process of its own: `python -m turngap.testing.agent '{"dialect": "pipecat", "replies":
[{"delay_ms": 300}]}'` prints one JSON line with its url and serves until it is terminated. With
`"truths": "FILE"` it appends the gaps that it injects to this file, one JSON line each.
"""

import asyncio
import json
import os
import socket
import sys
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from turngap.caller.arrival import StampedSocket, arrived_ns
from turngap.caller.connection import Peer
from turngap.caller.opening import PromptSends
from turngap.caller.said import Message
from turngap.children import end_with_parent
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm, SpeechDetector, SpeechEnd, SpeechStart, dbfs_to_amplitude
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.errors import InputError
from turngap.testing.dialects import (
    WEBRTC,
    AgentHalf,
    Begun,
    FromCaller,
    Pinged,
    Spoken,
    make_half,
)


@dataclass(frozen=True, slots=True)
class Truth:
    """The gap that the agent injected after the person's utterance number `turn`.

    Attributes:
        gap_ns: it ends when the first loud sample was handed to the line, coded; None if it was
            `lost`.
        due_gap_ns: the same without jitter and loss, if the line has packets.
        lost: which of the first packets were dropped; empty if none.
    """

    turn: int
    gap_ns: int | None
    intended_gap_ns: int
    due_gap_ns: int | None = None
    lost: str = ""


class Account:
    """An account of the agent's actions, and of the caller's words.

    If a `file` is given, each truth is also one JSON line in it. A reply's truth is written after
    the whole reply has been sent and before the agent reports its end, when no gap is measured.

    Attributes:
        truths: one for each completed reply.
        events: the caller's messages other than audio, with their instants of arrival.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.truths: list[Truth] = []
        self.events: list[tuple[int, FromCaller]] = []

    def add(self, truth: Truth) -> None:
        self.truths.append(truth)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(truth)) + "\n")


def read_truths(file: Path) -> dict[int, Truth]:
    """Return the agent's written truths, by the number of the utterance."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines()
    return {truth.turn: truth for truth in (Truth(**json.loads(line)) for line in lines)}


# Imported for its dialect only, because it needs an extra.
_RTC = "turngap.testing.rtc"

VOICE_HZ = 120.0
VOICE_DBFS = -2.0  # its peaks, 18 dB over its RMS
SYLLABLE_MS = 200.0
TONE_MS = 100
IDLE_MS = 20.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The agent's actions after one utterance of the user.

    Attributes:
        delay_ms: from the user's last audible sample to the first sample sent. Must exceed the
            agent's `hold_ms`, by which it knows that the user has ended.
        pad_ms: inaudible audio before the speech; digital silence, or noise at `pad_dbfs`.
        chunk_ms: how much audio a message holds.
        paced: send in real time, one chunk ahead (as pipecat does), or all at once.
        action: a failure instead: no answer; the agent falls silent in the middle of its answer and
            reports nothing; its process dies before or during the answer; or it sends something
            unintelligible.
    """

    delay_ms: float = 300.0
    pad_ms: float = 0.0
    pad_dbfs: float | None = None
    speech_ms: float = 400.0
    chunk_ms: float = 20.0
    paced: bool = True
    text: str = "scripted reply"
    action: Literal["answer", "silence", "break_off", "die", "die_midway", "garbage"] = "answer"


@dataclass(frozen=True, slots=True)
class Script:
    """All settings of a scripted agent. It gives its replies in order, over and over.

    Attributes:
        hold_ms: silence after which the user's speech counts as ended.
        yield_ms: how long after the user's first audible sample a reply, begun or about to begin,
            is flushed; None: it is not flushed, and the next reply follows it. Less than a packet
            and a window of detection (30 ms) cannot be kept.
        dialect: the name of its dialect.
        rate: of the audio sent, Hz; None: the dialect's own. `pipecat` alone leaves the choice.
        marks: report the marks that a scripted agent has: endpoint, tts_first_audio, sent.
        clock_shift_ms: added to every instant that the agent reports, to test clock comparison.
        greets: report that it is ready, once the caller has opened the conversation.
        welcome_ms: how long it speaks, unasked, `welcome_after_ms` after it is ready.
        idle_dbfs: level of the noise that it sends while it says nothing, as agents on telephone
            lines do; None: it sends nothing then.
        wav: put a WAV header before each chunk, as pipecat's `add_wav_header` does; `pipecat` only.
        loss: the share of its packets that is dropped; `webrtc` only, as the next two. It sends its
            packets of 20 ms all the time, whatever `rate`, `idle_dbfs` and the replies' chunks are.
        jitter_ms: a packet is sent up to this much late, so that packets also overtake each other.
        seed: of the loss and the jitter.
    """

    replies: tuple[Reply, ...] = (Reply(),)
    dialect: str = "pipecat"
    hold_ms: float = 100.0
    yield_ms: float | None = 200.0
    rate: int | None = None
    marks: bool = True
    clock_shift_ms: float = 0.0
    greets: bool = True
    welcome_ms: float = 0.0
    welcome_after_ms: float = 0.0
    idle_dbfs: float | None = None
    wav: bool = False
    loss: float = 0.0
    jitter_ms: float = 0.0
    seed: int = 1

    def half(self) -> AgentHalf:
        """Make the agent's half of the dialect, for one connection.

        Raises:
            InputError: no scripted agent speaks this dialect.
        """
        chosen = {"rate": self.rate} if self.rate is not None else {}
        return make_half(self.dialect, **chosen, **({"wav": True} if self.wav else {}))


def script_to_json(script: Script, truths: Path | None = None) -> str:
    """Dump a script, and where to write its truths, for `python -m turngap.testing.agent`."""
    return json.dumps(asdict(script) | ({"truths": str(truths)} if truths else {}))


class ScriptedAgent:
    """Serves a `Script` on loopback; each connection starts it from the beginning.

    `dialect` replaces the script's; `account` records what happens, on all connections.
    """

    def __init__(
        self,
        replies: Sequence[Reply] = (Reply(),),
        *,
        script: Script | None = None,
        dialect: str | None = None,
        account: Account | None = None,
        port: int = 0,
    ) -> None:
        script = script or Script(replies=tuple(replies))
        self.script = replace(script, dialect=dialect or script.dialect)
        if self.script.dialect == WEBRTC:
            what = "ScriptedAgent serves WebSockets, which webrtc has none of"
            raise InputError("script.dialect", what, hint=f"take {_RTC}.RtcAgent")
        self.account = account or Account()
        self._port = port
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        listener = StampedSocket(type=socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._server = await serve(
            self._session, sock=listener, compression=None, create_connection=Socket
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("enter the agent first: async with ScriptedAgent() as agent")
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}"

    async def _session(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Socket)
        with suppress(ConnectionClosed):
            await converse(self.script, connection, connection.clock, self.account)


class Mortal(Peer, Protocol):
    """The agent's connection to the caller, which can die."""

    def die(self) -> None:
        """End the agent without a closing handshake."""


async def converse(
    script: Script,
    peer: Mortal,
    clock: Clock,
    account: Account | None = None,
    half: AgentHalf | None = None,
) -> None:
    """Act as the agent of `script` on one connection until it is closed or this is cancelled.

    `half` replaces the half of the script's dialect, for example to break its rules.
    """
    kind: type[AgentSession] = AgentSession
    if script.dialect == WEBRTC:
        kind = resolve_name(f"{_RTC}:RtpSession")
    await kind(script, peer, clock, account or Account(), half or script.half()).run()


class Socket(PromptSends, ServerConnection):
    """A socket that knows when bytes last arrived, so that no truth includes this loop's delays."""

    clock = MonotonicClock(precise=True)
    arrived_ns = 0

    def data_received(self, data: bytes) -> None:
        self.arrived_ns = arrived_ns(self.transport, self.clock, self.arrived_ns)
        super().data_received(data)

    def die(self) -> None:
        os._exit(17)  # as a crash does


@dataclass(slots=True)
class Answer:
    """A reply in progress, and its marks so far."""

    turn: int
    marks: dict[str, int] = field(default_factory=dict[str, int])
    task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def speaking(self) -> bool:
        return self.running and "sent" in self.marks


class AgentSession:
    """One connection.

    Attributes:
        ahead_ns: how long before its first sample sounds a reply must be handed over.
        voice_dbfs: the level of the voice's peaks.
    """

    ahead_ns = 0
    voice_dbfs = VOICE_DBFS

    def __init__(
        self, script: Script, peer: Mortal, clock: Clock, account: Account, half: AgentHalf
    ) -> None:
        self._script = script
        self._peer = peer
        self._clock = clock
        self._account = account
        self._half = half
        self._rate = 0  # of the detector, which is made once the caller's opening has settled it
        self._received: list[int] = []  # samples in all, after each packet
        self._arrived_ns: list[int] = []  # of each packet
        self._turn = 0
        self._answers: list[Answer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await self._send(self._half.opens())
        if self._script.idle_dbfs is not None:
            self._spawn(self._idle(self._script.idle_dbfs))
        try:
            while True:
                message = await self._peer.recv()
                await self._on_message(self._peer.arrived_ns, message)
        finally:
            for task in self._tasks:
                task.cancel()

    def _spawn(self, course: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(course)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _idle(self, dbfs: float) -> None:
        """Send noise in real time while there is no speech."""
        noise = _noise(round(self._half.out_rate * IDLE_MS / 1000), dbfs)
        packet = np.rint(noise).astype(np.int16).tobytes()
        due_ns = self._clock.now_ns()
        while True:
            if not any(a.speaking for a in self._answers):
                await self._send(self._half.audio(packet))
            due_ns += ms_to_ns(IDLE_MS)
            await self._clock.sleep_until_ns(due_ns)

    async def _on_message(self, now_ns: int, message: Message) -> None:
        said, answers = self._half.receive_data(message)
        await self._send(answers)
        for heard in said:
            if isinstance(heard, Spoken):
                self._on_audio(now_ns, heard.pcm)
            else:
                self._account.events.append((now_ns, heard))
                await self._on_word(now_ns, heard)

    async def _on_word(self, now_ns: int, heard: FromCaller) -> None:
        match heard:
            case Begun() if self._script.greets:
                await self._send(self._half.ready())
                if self._script.welcome_ms:
                    answer = Answer(turn=0)
                    self._start(answer, self._greet(answer, now_ns))
            case Pinged(number):
                pong = {"turngap": "pong", "ping": number, "agent_ns": self._shown(now_ns)}
                await self._send(self._half.own_message(pong))
            case _:
                pass

    async def _greet(self, answer: Answer, ready_ns: int) -> None:
        await self._clock.sleep_until_ns(ready_ns + ms_to_ns(self._script.welcome_after_ms))
        welcome = Reply(speech_ms=self._script.welcome_ms)
        await self._speak(answer, welcome, self._chunks(welcome))

    def _on_audio(self, now_ns: int, pcm: Pcm) -> None:
        if self._rate != self._half.in_rate:
            self._rate = self._half.in_rate
            self._detector = SpeechDetector(self._rate, gap_ms=self._script.hold_ms)
            self._received, self._arrived_ns = [], []
        self._received.append((self._received[-1] if self._received else 0) + len(pcm))
        self._arrived_ns.append(now_ns)
        for event in self._detector.feed(pcm):
            # A packet left when its last sample had sounded.
            sample = self._placed(event)
            packet = bisect_right(self._received, sample)
            behind = self._received[packet] - sample
            at_ns = self._arrived_ns[packet] - samples_to_ns(behind, self._rate)
            running = [a for a in self._answers if a.running]
            if isinstance(event, SpeechEnd):
                reply = self._script.replies[self._turn % len(self._script.replies)]
                self._turn += 1
                answer = Answer(self._turn)
                self._start(answer, self._answer(answer, reply, at_ns, running))
            elif running and self._script.yield_ms is not None:
                silent_ns = at_ns + ms_to_ns(self._script.yield_ms)
                self._spawn(self._yield(running, silent_ns))

    def _placed(self, event: SpeechStart | SpeechEnd) -> int:
        """Return the sample, of all that came, at which the person began or ended."""
        return event.sample

    def _start(self, answer: Answer, course: Coroutine[Any, Any, None]) -> None:
        self._answers = [*(a for a in self._answers if a.running), answer]
        answer.task = self._spawn(course)

    async def _yield(self, answers: Sequence[Answer], at_ns: int) -> None:
        """Drop the reply that is being spoken; its report follows, as from a real agent."""
        await self._clock.sleep_until_ns(at_ns)
        dropped = [a for a in answers if a.running]
        for answer in dropped:
            if answer.task is not None:
                answer.task.cancel()
        await self._send(self._half.flush())
        for answer in dropped:
            await self._finish(answer)

    async def _answer(
        self, answer: Answer, reply: Reply, user_end_ns: int, before: Sequence[Answer]
    ) -> None:
        answer.marks["endpoint"] = self._clock.now_ns()
        if reply.action == "die":
            self._peer.die()
        if reply.action in ("die", "silence"):
            return
        await self._send(self._half.turn_over(f"utterance {answer.turn}"))
        await self._send(self._half.reply_text(reply.text))
        if reply.action == "garbage":
            await self._send(["this is no message of any dialect"])
            return
        chunks = self._chunks(reply)
        begins_ns = user_end_ns + ms_to_ns(reply.delay_ms)
        await self._clock.sleep_until_ns(begins_ns - self.ahead_ns)
        if tasks := [a.task for a in before if a.task is not None]:
            await asyncio.wait(tasks)
        await self._speak(answer, reply, chunks, user_end_ns)

    def _chunks(self, reply: Reply) -> list[bytes]:
        rate = self._half.out_rate
        return _chunks(_audio(reply, rate, self.voice_dbfs), reply.chunk_ms, rate)

    async def _speak(
        self,
        answer: Answer,
        reply: Reply,
        chunks: list[bytes],
        user_end_ns: int | None = None,
    ) -> None:
        # Coding the first chunk is no part of the line, and takes up to half a millisecond.
        first = self._half.audio(chunks[0]) if chunks else []
        first_ns = self._clock.now_ns()
        answer.marks.update(tts_first_audio=first_ns, sent=first_ns)
        await self._send_chunks(reply, chunks, first, first_ns)
        if reply.action == "die_midway":
            self._peer.die()
        if reply.action in ("die_midway", "break_off"):
            return
        if user_end_ns is not None:
            rate = self._half.out_rate
            pad_ns = samples_to_ns(pad_samples(reply, rate), rate)
            intended_ns = ms_to_ns(reply.delay_ms) + pad_ns
            self._account.add(Truth(answer.turn, first_ns + pad_ns - user_end_ns, intended_ns))
        await self._finish(answer)

    async def _finish(self, answer: Answer) -> None:
        if self._script.marks and answer.turn:
            shown = {name: self._shown(at) for name, at in answer.marks.items()}
            data = {"turngap": "marks", "turn": answer.turn, "marks": shown}
            await self._send(self._half.own_message(data))
        await self._send(self._half.reply_done())

    async def _send_chunks(
        self, reply: Reply, chunks: list[bytes], first: list[Message], first_ns: int
    ) -> None:
        for index, chunk in enumerate(chunks):
            if reply.action in ("break_off", "die_midway") and index == len(chunks) // 2:
                return
            if reply.paced and index > 1:
                due_ns = first_ns + (index - 1) * ms_to_ns(reply.chunk_ms)
                await self._clock.sleep_until_ns(due_ns)
            await self._send(self._half.audio(chunk) if index else first)
        if not reply.paced:
            total_ms = reply.pad_ms + reply.speech_ms
            await self._clock.sleep_until_ns(first_ns + ms_to_ns(total_ms))

    async def _send(self, messages: Sequence[Message]) -> None:
        with suppress(ConnectionClosed):
            for message in messages:
                await self._peer.send(message)

    def _shown(self, at_ns: int) -> int:
        return at_ns + ms_to_ns(self._script.clock_shift_ms)


def pad_samples(reply: Reply, rate: int) -> int:
    """Return the length of a reply's inaudible beginning."""
    return round(reply.pad_ms * rate / 1000)


def _audio(reply: Reply, rate: int, dbfs: float) -> Pcm:
    """Build the pad, then a voice whose very first sample is loud: its onset is exact."""
    pad = np.zeros(pad_samples(reply, rate))
    if reply.pad_dbfs is not None:
        pad = _noise(len(pad), reply.pad_dbfs)
    speech = voice(reply.speech_ms, rate, dbfs)
    return np.concatenate((np.rint(pad).astype(np.int16), speech))


def voice(ms: float, rate: int, dbfs: float = VOICE_DBFS) -> Pcm:
    """Make a voice that a speech detector takes for one: "ah-ee-ah", with peaks of `dbfs`.

    Its first and its last sample are peaks, and each one between them is loud.
    """
    samples = np.resize(_syllable(rate), round(ms * rate / 1000)) * dbfs_to_amplitude(dbfs)
    samples[-1:] = samples[:1]
    return np.rint(samples).astype(np.int16)


def tone(rate: int) -> Pcm:
    """Make the person's utterance for a measurement: sharp edges, loud to its last sample."""
    t = np.arange(TONE_MS * rate // 1000) / rate
    samples = np.cos(2 * np.pi * 250 * t)
    samples[-1] = 1.0
    return np.rint(samples * dbfs_to_amplitude(-12)).astype(np.int16)


@cache
def _syllable(rate: int) -> NDArray[np.float64]:
    """Make one syllable, peaks at 1.0, which ends as it begins, so that it can be repeated."""
    t = np.arange(round(SYLLABLE_MS * rate / 1000)) / rate
    course = 2 * np.pi * t * 1000 / SYLLABLE_MS
    closing = (1 - np.cos(course)) / 2
    pulse = 2 * np.pi * VOICE_HZ * t + VOICE_HZ * 0.004 * np.sin(course)
    formants = ((700 - 350 * closing, 1.0), (1220 + 700 * closing, 0.6), (2600, 0.3))
    made = np.zeros(len(t))
    for harmonic in range(1, 28):
        hz = harmonic * VOICE_HZ
        level = 0.02 + sum(loud / (1 + ((hz - at) / 120) ** 2) for at, loud in formants)
        made += level * np.cos(harmonic * pulse)
    made *= (1 - 0.8 * closing) / made[0]
    return np.copysign(np.maximum(np.abs(made), 0.03), made)


def _noise(samples: int, dbfs: float) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal(samples) * dbfs_to_amplitude(dbfs)


def _chunks(pcm: Pcm, chunk_ms: float, rate: int) -> list[bytes]:
    size = max(1, round(chunk_ms * rate / 1000))
    return [pcm[i : i + size].tobytes() for i in range(0, len(pcm), size)]


async def _serve(script: Script, truths: Path | None) -> None:
    kind = ScriptedAgent
    if script.dialect == WEBRTC:
        kind = resolve_name(f"{_RTC}:RtcAgent")
    async with kind(script=script, account=Account(truths)) as agent:
        sys.stdout.write(json.dumps({"ready": True, "url": agent.url}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    end_with_parent()
    values = json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")
    values["replies"] = tuple(Reply(**reply) for reply in values.get("replies", [{}]))
    truths = values.pop("truths", None)
    asyncio.run(_serve(Script(**values), truths and Path(truths)))

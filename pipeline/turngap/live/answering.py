"""Agents behind the live page: a stack of our own, or a foreign agent at a URL."""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from fastapi import FastAPI
from starlette.websockets import WebSocket

from turngap.agent.access import Seats
from turngap.agent.server import ServeSettings, create_app, plain_app
from turngap.agent.stack import Chosen, stand_ins_of
from turngap.caller import said
from turngap.caller.connection import Line
from turngap.caller.dialects.pipecat import audio_frame, interruption_frame, parse, payload_of
from turngap.caller.dialects.rtvi import RTVI_VERSION, rtvi
from turngap.caller.endpoint import Endpoint
from turngap.caller.identify import identify
from turngap.caller.intake import Intake
from turngap.core.audio import audible_onset
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.errors import AgentError, InputError
from turngap.core.run_record import OffsetRecord
from turngap.core.secrets import text_without_secrets
from turngap.core.wire import PING, message_frame, refusal
from turngap.live import wire
from turngap.live.keeping import Delays, Held, Keeping
from turngap.scenario.library import Domain

if TYPE_CHECKING:
    from turngap.agent.session import Assembly


# The page answers a flush within a block of its audio; one that does not is not waited for longer.
FLUSH_S = 0.5
# Audio of a call over WebRTC that waited here for longer does not go to the page, nor silence that
# would have to wait there.
STALE_NS = ms_to_ns(40)
# The page's resampler keeps so much of the last chunk for what may follow. It never sounds, so
# a wait for the end of the audio must not include it.
HELD_SAMPLES, PAGE_RATE = 16, 48_000

# Messages of the page that both the relay and the server need.
SEEN = frozenset({wire.PLAYED, wire.TURN})


class PageSocket(Protocol):
    """The page's end: a WebSocket that checks every message."""

    async def receive(self) -> Any: ...

    async def send_bytes(self, data: bytes) -> None: ...


@dataclass(slots=True)
class Playback:
    """Progress of the page through the agent's audio, in the agent's samples.

    Attributes:
        sent: how many samples went to the page.
        played: how many of them have sounded or were dropped.
        dropped: how many of the played samples will never sound.
    """

    sent: int = 0
    played: int = 0
    dropped: int = 0
    _held: int = 0
    # What was left out and never went to the page: after which sample, and how much; and how much
    # of it lies behind the playhead.
    _left_out: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    _passed: int = 0

    def send(self, samples: int, rate: int) -> None:
        self.sent += samples
        self._held = HELD_SAMPLES * max(rate, PAGE_RATE) // PAGE_RATE

    def leave_out(self, samples: int) -> None:
        """Note that this many samples of the agent do not go to the page."""
        before = 0
        if self._left_out and self._left_out[-1][0] == self.sent:
            _, before = self._left_out.pop()
        self._left_out.append((self.sent, before + samples))

    def progress(self) -> tuple[int, int]:
        """Return how much is played or dropped, and how much of it is dropped."""
        while self._left_out and self._left_out[0][0] <= self.played:
            self._passed += self._left_out.popleft()[1]
        return self.played + self._passed, self.dropped + self._passed

    def report(self, message: wire.Played) -> None:
        """Take the page's report of how far it has played, and dropped the audio after that."""
        ends = (sample + samples for sample, samples, _ in message.played)
        self.played = max(self.played, min(self.sent, max(ends, default=0)))
        if message.dropped_to is not None:
            self.drop(message.dropped_to)
        elif self.sent - self.played <= self._held:
            self.played = self.sent

    def drop(self, upto: int) -> None:
        """Note that the samples before `upto` that have not sounded will never sound."""
        rest = max(0, min(upto, self.sent) - self.played)
        self.played, self.dropped = self.played + rest, self.dropped + rest


class Relay:
    """One conversation with a foreign agent, from when the line is open until the page leaves.

    To the page it is an agent that speaks pipecat's protobuf. To the agent it is a caller whose
    microphone and loudspeaker are the page's. The page captures at the line's own rate and takes
    the agent's audio at any rate, so nothing is resampled here and only the sockets cause waits.

    Args:
        line: to the agent, its handshake done.
        socket: the page's.
        offset: the agent's clock minus this process's, if the agent has sent it.
    """

    def __init__(
        self, line: Line, socket: PageSocket, clock: Clock, offset: OffsetRecord, delays: Delays
    ) -> None:
        self._line = line
        self._socket = socket
        self._clock = clock
        self._offset_ns = offset.offset_ns
        self._delays = delays
        self._playback = Playback()
        self._intake = Intake(endless=True)
        self._odd: set[str] = set()
        self._plays_to_ns = 0  # until when the page plays what it has of a call over WebRTC
        self._ready = asyncio.Event()
        # Up to which sample the page is to drop what it has not played, and that it has.
        self._drops_to = 0
        self._dropped = asyncio.Event()
        # Where in the agent's audio its reply ends, once it has said that it does.
        self._done_at: int | None = None

    async def run(self) -> None:
        """Pass on everything until the page leaves.

        Raises:
            AgentError: the line was lost, or the agent sends too much.
        """
        tasks = [asyncio.create_task(self._from_page()), asyncio.create_task(self._from_agent())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    # The page's messages

    async def _from_page(self) -> None:
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            since_ns = self._clock.now_ns()
            frame = parse(message["bytes"])
            if frame.WhichOneof("frame") == "audio":
                await self._line.send_audio(np.frombuffer(frame.audio.audio, dtype="<i2"))
                self._delays.to_agent.append(self._clock.now_ns() - since_ns)
            else:
                await self._on_rtvi(since_ns, payload_of(frame))

    async def _on_rtvi(self, at_ns: int, payload: dict[str, Any]) -> None:
        kind, data = payload.get("type"), payload.get("data")
        if kind == "client-ready":
            await self._tell("bot-ready", {"version": RTVI_VERSION, "about": {"relay": "turngap"}})
            self._ready.set()
        if kind != "client-message" or not isinstance(data, dict):
            return
        kind, details = str(data.get("t")), data.get("d")
        if kind == PING and isinstance(details, dict):
            pong = {"turngap": "pong", "ping": details.get("ping"), "agent_ns": at_ns}
            await self._tell("server-message", pong)
        elif kind == wire.TURN:
            self._intake.begin_turn()
        elif kind == wire.PLAYED:
            with suppress(InputError):  # the server has refused it
                played = wire.parsed(wire.Played, details)
                self._playback.report(played)
                # An answer that comes late, to an earlier flush, ends the wait for no later one.
                if played.dropped_to is not None and played.dropped_to >= self._drops_to:
                    self._dropped.set()
                await self._say_played()
        else:
            no = InputError(
                "relay.cannot", f"this agent's dialect has no message for {kind[:40]!r}"
            )
            await self._tell("server-message", refusal(kind[:40], no))

    # The agent's messages

    async def _from_agent(self) -> None:
        await self._ready.wait()
        async for arrived_ns, incoming in self._line.messages():
            unplayed = self._playback.sent - self._playback.played
            if why := self._intake.refuses(incoming, 2 * unplayed):
                await self._odd_once(why)
                if isinstance(incoming, said.AudioChunk):
                    self._playback.leave_out(len(incoming.pcm))
                    await self._say_played()
                if too_much := self._intake.is_over():
                    raise AgentError("agent.too_much", f"the agent sent {too_much}")
            else:
                await self._hand_on(arrived_ns, incoming)

    async def _hand_on(self, arrived_ns: int, incoming: said.Incoming) -> None:
        match incoming:
            case said.AudioChunk(pcm, packet=said.Packet()) if self._is_stale(arrived_ns, incoming):
                self._playback.leave_out(len(pcm))
            case said.AudioChunk(pcm, rate):
                self._playback.send(len(pcm), rate)
                await self._socket.send_bytes(audio_frame(pcm.tobytes(), rate))
                self._delays.to_page.append(self._clock.now_ns() - arrived_ns)
            case said.Flush():
                await self._flush()
            case said.TurnOver():
                await self._tell("user-stopped-speaking")
            case said.ReplyDone():
                self._done_at = self._playback.sent
                await self._say_done()
            case said.Transcript(text):
                about = {"text": text, "final": True, "user_id": "", "timestamp": ""}
                await self._tell("user-transcription", about)
            case said.ReplyText(text):
                await self._tell("bot-llm-text", {"text": text})
            case said.Marks():
                await self._tell("server-message", self._marks(incoming))
            case said.NoReply(why):
                silent = {"turngap": "marks", "turn": 0, "marks": {}, "no_reply": why}
                await self._tell("server-message", silent)
            case said.Fault(text, fatal, refuses):
                kind = "error-response" if refuses else "error"
                await self._tell(kind, {"error": text_without_secrets(text), "fatal": fatal})
            case said.LeftOut(why) | said.Unreadable(why):
                await self._odd_once(why)
            case _:
                pass

    def _is_stale(self, arrived_ns: int, chunk: said.AudioChunk) -> bool:
        """Return whether audio of a stream that never stops is left out.

        What waited here, as before the page was ready, or came after a stop with all that it held
        up, would keep the page behind for the rest of the call.
        """
        now_ns = self._clock.now_ns()
        begins_ns = max(now_ns, self._plays_to_ns)
        waits = begins_ns - now_ns > STALE_NS and audible_onset(chunk.pcm, chunk.rate) is None
        if waits or now_ns - arrived_ns > STALE_NS:
            return True
        self._plays_to_ns = begins_ns + samples_to_ns(len(chunk.pcm), chunk.rate)
        return False

    async def _flush(self) -> None:
        """Make the page drop audio that it has not played, and report that to the agent.

        The agent's next message waits for this, so only audio that came before it is dropped.
        """
        self._drops_to, self._plays_to_ns = self._playback.sent, 0
        self._dropped.clear()
        await self._socket.send_bytes(interruption_frame())
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._dropped.wait()
        self._playback.drop(self._drops_to)
        await self._say_played()

    async def _say_played(self) -> None:
        """Tell the agent how far the page has played, and the page whether the reply is over."""
        self._line.played(*self._playback.progress())
        await self._line.send_waiting()
        await self._say_done()

    async def _say_done(self) -> None:
        """Tell the page that a reply is over, once it has been played or dropped.

        An agent may have sent all of it long before, and the page would take a pause for its end.
        """
        if self._done_at is not None and self._playback.played >= self._done_at:
            self._done_at = None
            await self._tell("bot-stopped-speaking")

    def _marks(self, marks: said.Marks) -> dict[str, Any]:
        """Build the page's message of an agent's marks, on this machine's clock.

        Marks of an agent that sends no clock cannot be placed.
        """
        message: dict[str, Any] = {
            "turngap": "marks",
            "turn": marks.agent_turn,
            "marks": dict(marks.placed(self._offset_ns, 0).marks),
            "counts": dict(marks.counts),
            "why": marks.why,
            "error": marks.error,
        }
        if marks.calls is not None:
            message["calls"] = [
                {"name": c.name, "arguments": c.arguments, "ms": c.ms}
                | {"result": c.result, "error": c.error}
                for c in marks.calls
            ]
        return message

    async def _odd_once(self, why: str) -> None:
        if why not in self._odd and len(self._odd) < wire.MOST_VIEW:
            self._odd.add(why)
            about = {"error": text_without_secrets(why), "fatal": False, "relay": True}
            await self._tell("error", about)

    async def _tell(self, kind: str, data: Any = None) -> None:
        await self._socket.send_bytes(message_frame(rtvi(kind, data)))


# As many as fit a phone's first view.
MOST_TOPICS, MOST_EXAMPLES = 6, 5


class OwnStack:
    """A stack of our own, in this process.

    Attributes:
        name: its name on the page.
        rates: of the person's audio and of the agent's, Hz; the latter is None if it may change.
        foreign: whether the agent is not turngap's own; the page then cannot type or switch its
            LLM.
        seen: the page's own messages that both the agent and the server get.
    """

    foreign = False
    seen: Collection[str] = ()

    def __init__(self, assembly: "Assembly") -> None:
        # The page draws a turn with its stages as soon as it is heard.
        self._assembly = dataclasses.replace(assembly, eager=True)
        self._callers = assembly
        audio = assembly.stack.audio
        self.clock = assembly.clock
        self.name = assembly.stack.name
        self.rates: tuple[int, int | None] = (audio.in_sample_rate, audio.out_sample_rate)

    def app(self, serve: ServeSettings, seats: Seats) -> FastAPI:
        """Build the application, with the routes of callers other than the page."""
        return create_app(self._callers, serve, seats)

    def sayable(self) -> dict[str, Any]:
        """Return the page's advice on what to say: `say` and `examples`."""
        closed, narrow = self._assembly.closed, self._assembly.offers.first.narrow
        domain = self._assembly.domain if closed or narrow else None
        examples = [] if domain is None else list(domain.examples[:MOST_EXAMPLES])
        return {"say": _introduction(domain, closed=closed), "examples": examples}

    def chosen(self) -> Chosen:
        """Return the models that were found when the agent was prepared."""
        return self._assembly.chosen()

    def begin(self, keeping: Keeping) -> Held:
        """Begin a conversation."""
        stack = self._assembly.stack
        return Held(
            keeping,
            name=f"{stack.name}-live",
            agent={"stack": stack.name, **stack.model_dump(exclude={"name"})},
            stand_ins=stand_ins_of(self._assembly.engines.values()),
            chosen=self.chosen(),
            simulated=self._assembly.offers.simulated,
            in_rate=self.rates[0],
        )

    async def converse(self, socket: WebSocket, held: Held) -> None:
        """Answer the page until it leaves.

        Raises:
            AgentError: the agent cannot be reached, or its line was lost.
        """
        from turngap.agent.session import converse

        await converse(self._assembly, socket)


async def reach(endpoint: Endpoint, clock: Clock) -> "ForeignAgent":
    """Open a line to a foreign agent and hang up, to check that it answers and find its dialect.

    Raises:
        InputError, AgentError: as `identify` and `Endpoint.open`.
    """
    named = await identify(endpoint, clock)
    if getattr(named.settings(), "commit_ms", None) is not None:
        raise InputError(
            "talk.commit",
            "this page does not know when you have ended, so it cannot commit your audio",
            hint="measure this server with turngap replay",
        )
    async with named.open(clock) as line:
        return ForeignAgent(endpoint, line.dialect, line.rate, clock)


class ForeignAgent:
    """An agent at a URL, with a line of its own for each conversation; see `OwnStack`.

    Args:
        dialect: the name of the dialect in which it was reached.
        rate: of the line, Hz.
    """

    foreign = True
    seen: Collection[str] = SEEN

    def __init__(self, endpoint: Endpoint, dialect: str, rate: int, clock: Clock) -> None:
        # What was found out once is not tried again for each conversation.
        self._endpoint = dataclasses.replace(endpoint, dialect=endpoint.dialect or dialect)
        self.clock = clock
        self.rates: tuple[int, int | None] = (rate, None)
        self._url, self._dialect = text_without_secrets(endpoint.url), dialect
        self.name = f"{self._url} ({self._dialect})"

    def app(self, serve: ServeSettings, seats: Seats) -> FastAPI:
        # Its health is open to everyone, so it does not name a host of our network.
        return plain_app(self._dialect, seats)

    def sayable(self) -> dict[str, Any]:
        words = "Say what this agent understands. No examples are known: it is not turngap’s own."
        return {"say": words, "examples": []}

    def chosen(self) -> Chosen:
        return Chosen()

    def begin(self, keeping: Keeping) -> Held:
        held = Held(
            keeping,
            name="remote-live",
            agent={"url": self._url, "dialect": text_without_secrets(self._endpoint.dialect)},
            in_rate=self.rates[0],
            flags=self._endpoint.flags,
        )
        session = self._endpoint.spec().create(self._endpoint.settings())
        held.conversation.connection.tracker.tells_flushes = getattr(session, "tells_flushes", True)
        return held

    async def converse(self, socket: WebSocket, held: Held) -> None:
        async with self._endpoint.open(self.clock) as line:
            if line.rate != self.rates[0]:
                raise AgentError(
                    "agent.rate",
                    f"the agent now wants audio at {line.rate:,} Hz, not {self.rates[0]:,}",
                    hint="start turngap talk again",
                )
            offset = await line.clock_offset()
            held.line_bound_ns = offset.bound_ns or 0
            await Relay(line, socket, self.clock, offset, held.delays).run()


Answering = OwnStack | ForeignAgent


def _introduction(domain: Domain | None, *, closed: bool) -> str:
    """Describe in a sentence or two what the agent understands.

    `domain` is None if anything can be said. `closed` says whether the recogniser knows nothing
    else; if not, the language model is the part that knows nothing else.
    """
    if domain is None:
        return (
            "Say anything, in English. A language model makes the answers, and some will be wrong."
        )
    named = ", ".join([*list(domain.topics)[:MOST_TOPICS], "and more"])
    topics = f" about {named}" if domain.topics else ""
    if closed:
        return f"This agent knows only some sentences{topics}. Read one aloud, for example:"
    return (
        "The project's own language model makes the answers, and it "
        f"knows only some sentences{topics}. Read one aloud, for example:"
    )

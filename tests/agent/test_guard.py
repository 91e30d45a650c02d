"""What passes a guard, what it drops, and what ends the connection, message by message."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from fake_engines import fake_assembly
from foreign_messages import websocket_message
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.frames.protobufs import frames_pb2

from turngap.agent import guard as guards
from turngap.agent import session as sessions
from turngap.agent.guard import REASON_BYTES, Guard
from turngap.agent.limits import HangUpError, Limits, Throttle
from turngap.agent.protocol import RTVI_TYPES
from turngap.caller.dialects.pipecat import audio_frame, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.core.clock import NS_PER_S
from turngap.core.frames import message_frame
from turngap.testing import ManualClock

RATE = 16_000
AUDIO = audio_frame(bytes(640), RATE)


class Line:
    """A guard's two ends: what the client sends, and what the agent and the client got."""

    def __init__(self, *messages: bytes | str, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.guard = Guard(limits or Limits(), self.clock, RATE)
        self.agent_got: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self.client_got: list[bytes] = []
        self.stays = False
        self._left = list(messages)

    async def receive(self) -> dict[str, Any]:
        if self._left and self.closed is None:
            message = self._left.pop(0)
            return {
                "type": "websocket.receive",
                "text" if isinstance(message, str) else "bytes": message,
            }
        if self.stays and self.closed is None:
            await asyncio.Event().wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.closed = (message["code"], message["reason"])
        else:
            self.client_got.append(message["bytes"])

    async def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def converse(assembly: Any, socket: Any, *given: Any) -> None:
            while (message := await socket.receive())["type"] == "websocket.receive":
                self.agent_got.append(message["bytes"])

        monkeypatch.setattr(sessions, "converse", converse)
        scope = {"type": "websocket", "headers": [], "path": "/ws"}
        await self.guard.run(fake_assembly(), scope, self.receive, self.send)  # type: ignore[arg-type]


async def test_only_what_rtvi_clients_may_send_reaches_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = [message_frame(rtvi(kind, {})) for kind in sorted(RTVI_TYPES)]
    dropped = [
        message_frame(rtvi("send-file", {"file": {"source": {"url": "http://10.0.0.1/"}}})),
        message_frame(rtvi("raw-audio", {"base64Audio": "AAAA"})),
        message_frame(rtvi("llm-function-call-result", {})),
        message_frame({"label": "other", "type": "client-ready"}),
        message_frame({"label": "rtvi-ai", "type": ["client-ready"]}),
        message_frame([]),  # pyright: ignore[reportArgumentType]
    ]
    line = Line(*dropped, *passed, AUDIO)
    await line.play(monkeypatch)
    assert line.agent_got == [*passed, AUDIO]
    assert line.closed is None


async def test_a_reason_fits_its_frame_and_is_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(AUDIO)

    def heard(_: object) -> None:
        raise RuntimeError("\x1b[2J" + "ö" * 500)

    line.guard.heard = heard  # type: ignore[method-assign]
    await line.play(monkeypatch)
    assert line.closed is not None
    code, reason = line.closed
    assert code == 1011
    assert reason.startswith("the server failed: RuntimeError")
    assert reason.isprintable()
    assert len(reason.encode()) <= REASON_BYTES


async def test_a_pipeline_that_does_not_come_down_gives_its_seat_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, cancelled = Line(AUDIO), asyncio.Event()

    async def converse(assembly: Any, socket: Any, *given: Any) -> None:
        while (await socket.receive())["type"] == "websocket.receive":
            pass
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    monkeypatch.setattr(sessions, "converse", converse)
    monkeypatch.setattr(guards, "COMES_DOWN_S", 0.05)
    scope = {"type": "websocket", "headers": [], "path": "/ws"}
    left_before_it_came_down: list[bool] = []

    def leave() -> None:
        left_before_it_came_down.append(not cancelled.is_set())

    async with asyncio.timeout(20):
        await line.guard.run(fake_assembly(), scope, line.receive, line.send, leave=leave)  # type: ignore[arg-type]
    assert cancelled.is_set()
    assert left_before_it_came_down == [True]


async def test_an_agent_that_cancels_itself_is_said_to_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line()

    async def converse(assembly: Any, socket: Any, *given: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(sessions, "converse", converse)
    scope = {"type": "websocket", "headers": [], "path": "/ws"}
    await line.guard.run(fake_assembly(), scope, line.receive, line.send)  # type: ignore[arg-type]
    assert line.closed is not None
    assert line.closed[0] == 1011


async def test_what_rtvi_clients_may_not_send_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(message_frame({"label": "rtvi-ai", "type": "send-file\x1b", "id": "7", "data": {}}))
    await line.play(monkeypatch)
    payload = payload_of(frames_pb2.Frame.FromString(line.client_got[0]))  # type: ignore[attr-defined]
    assert (payload["type"], payload["id"]) == ("error-response", "7")
    assert payload["data"]["error"].startswith("not taken: send-file; taken: [")


async def test_a_client_that_leaves_before_its_answer_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(message_frame(rtvi("send-file", {})))

    async def send(message: Any) -> None:
        raise OSError

    line.send = send  # type: ignore[method-assign]
    await line.play(monkeypatch)
    assert line.guard.ended is None


@asynccontextmanager
async def staying(line: Line, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A client that stays, whatever it sends."""
    line.stays = True
    playing = asyncio.create_task(line.play(monkeypatch))
    yield
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


async def seconds_pass(line: Line, seconds: int) -> None:
    for _ in range(seconds):
        await line.clock.advance(NS_PER_S)


async def test_a_muted_client_stays_until_nobody_has_spoken_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(AUDIO)
    async with staying(line, monkeypatch):
        await seconds_pass(line, 290)
        assert line.closed is None
        await seconds_pass(line, 20)
        assert line.closed == (4408, "nobody spoke for 5 minutes")


async def test_a_person_has_a_minute_to_allow_the_microphone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line()
    async with staying(line, monkeypatch):
        await seconds_pass(line, 55)
        assert line.closed is None
        await seconds_pass(line, 10)
        assert line.closed == (4408, "no message came for 60 seconds")


@pytest.mark.parametrize("kind", ["user-started-speaking", "user-transcription", "bot-llm-text"])
async def test_whoever_speaks_is_not_idle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(AUDIO)
    said = {"type": "websocket.send", "bytes": message_frame(rtvi(kind, {"text": "yes"}))}
    async with staying(line, monkeypatch):
        for _ in range(4):
            await seconds_pass(line, 100)
            await line.guard._checked_send(said)  # pyright: ignore[reportPrivateUsage]
        assert line.closed is None


@pytest.mark.parametrize(("level", "closed"), [(0, True), (8000, False)])
async def test_audio_that_nobody_hears_is_nobody_who_speaks(
    level: int, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(AUDIO)
    audio = audio_frame(np.full(480, level, np.int16).tobytes(), 24_000)
    async with staying(line, monkeypatch):
        for _ in range(4):
            await seconds_pass(line, 100)
            await line.guard._checked_send(  # pyright: ignore[reportPrivateUsage]
                {"type": "websocket.send", "bytes": audio}
            )
        assert (line.closed is not None) == closed


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=300), st.text(max_size=50), st.randoms()), max_size=20)
)
def test_no_message_makes_a_guard_fail(messages: list[Any]) -> None:
    made = [m if isinstance(m, bytes | str) else websocket_message(m) for m in messages]
    with pytest.MonkeyPatch.context() as monkeypatch:
        wide = Limits(messages_per_s=1e9, speed=1e9, audio_rate=1e9)
        line = Line(*made, limits=wide)
        asyncio.run(line.play(monkeypatch))
    assert line.closed is None or line.closed[0] != 1011
    for message in line.agent_got:
        frame = frames_pb2.Frame.FromString(message)  # type: ignore[attr-defined]
        assert frame.WhichOneof("frame") in ("audio", "message")
        if frame.WhichOneof("frame") == "message":
            assert json.loads(frame.message.data)["type"] in RTVI_TYPES


# --- throttle ---------------------------------------------------------------------------------


def test_a_line_that_stalled_catches_up_at_four_times_real_time() -> None:
    throttle, now_ns = Throttle(Limits()), 0
    for _ in range(750):  # 15 s of packets at once
        now_ns = throttle.next_ns(0.02, now_ns)
    assert 3.4 <= now_ns / NS_PER_S <= 3.75


@given(jitter_ns=st.lists(st.integers(0, 100_000_000), min_size=1, max_size=200))
def test_an_ordinary_caller_never_waits(jitter_ns: list[int]) -> None:
    throttle, now_ns = Throttle(Limits()), 0
    for number, late_ns in enumerate(jitter_ns):
        now_ns = max(now_ns, number * 20_000_000 + late_ns)
        assert throttle.next_ns(0.02, now_ns) == now_ns


def test_a_client_that_sends_each_block_of_an_audioworklet_is_not_too_fast() -> None:
    throttle, block_s = Throttle(Limits()), 128 / 48_000
    for number in range(375 * 60):
        now_ns = round(number * block_s * NS_PER_S)
        assert throttle.next_ns(block_s, now_ns) == now_ns


def test_as_many_messages_of_another_kind_are() -> None:
    throttle, now_ns = Throttle(Limits()), 0
    with pytest.raises(HangUpError, match="more than 200 messages"):
        for number in range(375 * 60):
            now_ns = max(now_ns, number * NS_PER_S // 375)
            throttle.next_ns(0.0, now_ns)

"""The guard, message by message: passed, dropped, or the end of the connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from foreign_messages import websocket_message
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.frames.protobufs import frames_pb2
from starlette.websockets import WebSocket

from turngap.agent import guard as guards
from turngap.agent.access import Limits
from turngap.agent.guard import REASON_BYTES, RTVI_TYPES, Corked, Guard
from turngap.caller.dialects.pipecat import audio_frame, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.clocks import others_first
from turngap.core.clock import NS_PER_S
from turngap.core.wire import message_frame
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

    async def play(self) -> None:
        async def converse(socket: WebSocket) -> None:
            while (message := await socket.receive())["type"] == "websocket.receive":
                self.agent_got.append(message["bytes"])

        await self.run(converse)

    async def run(self, converse: Any) -> None:
        scope = {"type": "websocket", "headers": [], "path": "/ws"}
        await self.guard.run(converse, (scope, self.receive, self.send))  # type: ignore[arg-type]


async def test_only_what_rtvi_clients_may_send_reaches_the_agent() -> None:
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
    await line.play()
    assert line.agent_got == [*passed, AUDIO]
    assert line.closed is None


async def test_a_reason_fits_its_frame_and_is_printable() -> None:
    line = Line(AUDIO)

    def heard(_: object) -> None:
        raise RuntimeError("\x1b[2J" + "ö" * 500)

    line.guard.heard = heard  # type: ignore[method-assign]
    await line.play()
    assert line.closed is not None
    code, reason = line.closed
    assert code == 1011
    assert reason.startswith("the agent failed: RuntimeError")
    assert reason.isprintable()
    assert len(reason.encode()) <= REASON_BYTES


async def test_a_pipeline_that_does_not_come_down_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, cancelled = Line(AUDIO), asyncio.Event()

    async def converse(socket: WebSocket) -> None:
        while (await socket.receive())["type"] == "websocket.receive":
            pass
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    monkeypatch.setattr(guards, "COMES_DOWN_S", 0.05)
    async with asyncio.timeout(20):
        await line.run(converse)
    assert cancelled.is_set()


async def test_an_agent_that_cancels_itself_is_said_to_have_failed() -> None:
    line = Line()

    async def converse(socket: WebSocket) -> None:
        raise asyncio.CancelledError

    await line.run(converse)
    assert line.closed is not None
    assert line.closed[0] == 1011


async def test_what_rtvi_clients_may_not_send_is_answered() -> None:
    line = Line(message_frame({"label": "rtvi-ai", "type": "send-file\x1b", "id": "7", "data": {}}))
    await line.play()
    payload = payload_of(frames_pb2.Frame.FromString(line.client_got[0]))  # type: ignore[attr-defined]
    assert (payload["type"], payload["id"]) == ("error-response", "7")
    assert payload["data"]["error"].startswith("not taken: send-file; taken: [")


async def test_a_client_that_leaves_before_its_answer_has_not_failed() -> None:
    line = Line(message_frame(rtvi("send-file", {})))

    async def send(message: Any) -> None:
        raise OSError

    line.send = send  # type: ignore[method-assign]
    await line.play()
    assert line.guard.ended is None


@asynccontextmanager
async def staying(line: Line) -> AsyncIterator[None]:
    """A client that stays, whatever it sends."""
    line.stays = True
    playing = asyncio.create_task(line.play())
    yield
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


async def seconds_pass(line: Line, seconds: int) -> None:
    for _ in range(seconds):
        await line.clock.advance(NS_PER_S)


async def test_a_muted_client_stays_until_nobody_has_spoken_for_long() -> None:
    line = Line(AUDIO)
    async with staying(line):
        await seconds_pass(line, 290)
        assert line.closed is None
        await seconds_pass(line, 20)
        assert line.closed == (4408, "no one spoke for 5 minutes")


async def test_a_person_has_a_minute_to_allow_the_microphone() -> None:
    line = Line()
    async with staying(line):
        await seconds_pass(line, 55)
        assert line.closed is None
        await seconds_pass(line, 10)
        assert line.closed == (4408, "no message came for 60 seconds")


@pytest.mark.parametrize("kind", ["user-started-speaking", "user-transcription", "bot-llm-text"])
async def test_whoever_speaks_is_not_idle(kind: str) -> None:
    line = Line(AUDIO)
    said = {"type": "websocket.send", "bytes": message_frame(rtvi(kind, {"text": "yes"}))}
    async with staying(line):
        for _ in range(4):
            await seconds_pass(line, 100)
            await line.guard._checked_send(said)  # pyright: ignore[reportPrivateUsage]
        assert line.closed is None


@pytest.mark.parametrize(("level", "closed"), [(0, True), (8000, False)])
async def test_audio_that_nobody_hears_is_nobody_who_speaks(level: int, closed: bool) -> None:
    line = Line(AUDIO)
    audio = audio_frame(np.full(480, level, np.int16).tobytes(), 24_000)
    async with staying(line):
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
    line = Line(*made)
    asyncio.run(line.play())
    assert line.closed is None or line.closed[0] != 1011
    for message in line.agent_got:
        frame = frames_pb2.Frame.FromString(message)  # type: ignore[attr-defined]
        assert frame.WhichOneof("frame") in ("audio", "message")
        if frame.WhichOneof("frame") == "message":
            assert json.loads(frame.message.data)["type"] in RTVI_TYPES


async def test_what_is_written_in_one_step_goes_out_as_one_piece() -> None:
    class Kernel:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []
            self.closing = False

        def write(self, data: bytes) -> None:
            self.pieces.append(data)

        def get_write_buffer_size(self) -> int:
            return 0

        def is_closing(self) -> bool:
            return self.closing

        def close(self) -> None:
            self.closing = True

    kernel = Kernel()
    corked = Corked(kernel, asyncio.get_running_loop())
    corked.write(b"a")
    corked.write(b"bc")
    assert (kernel.pieces, corked.get_write_buffer_size()) == ([], 3)
    await others_first()
    assert (kernel.pieces, corked.get_write_buffer_size()) == ([b"abc"], 0)
    corked.write(b"bye")
    corked.close()
    assert (kernel.pieces, corked.is_closing()) == ([b"abc", b"bye"], True)
    corked.write(b"too late")
    await others_first()
    assert kernel.pieces == [b"abc", b"bye"]

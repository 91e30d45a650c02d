"""OpenAI's Realtime API: each event, a conversation in virtual time, and the SDK's own client."""

import asyncio
import base64
import json
from typing import Any, Literal

import numpy as np
import pytest
import quiet
from fake_engines import FakeLLM, fake_assembly, served
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMContextFrame,
    OutputAudioRawFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pydantic import TypeAdapter

from helpers.guarded_line import guarded
from turngap.agent.limits import HangUpError
from turngap.agent.protocols.base import Taken
from turngap.agent.protocols.openai_realtime import OpenAIRealtime
from turngap.clocks import MonotonicClock
from turngap.core.messages import ANSWER, CANCEL, SAY
from turngap.testing import in_virtual_time
from turngap.testing.virtual import virtual_clocks

EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
SPOKEN = np.rint(np.sin(np.arange(480) / 5) * 9000).astype("<i2").tobytes()  # 20 ms
CLOCK = MonotonicClock()


def session() -> OpenAIRealtime:
    return OpenAIRealtime(16_000, "fake")


def message(kind: str, **fields: Any) -> dict[str, Any]:
    text = json.dumps({"type": kind, **fields})
    return {"type": "websocket.receive", "text": text}


def append(audio: bytes) -> str:
    encoded = base64.b64encode(audio).decode()
    return message("input_audio_buffer.append", audio=encoded)["text"]


def read(data: str | bytes) -> dict[str, Any]:
    """An event, which the SDK's own types must know with all its fields."""
    event = json.loads(data)
    model = EVENT.validate_json(data)
    assert model.type == event["type"]
    return event


def answers(taken: Taken) -> list[dict[str, Any]]:
    return [read(answer) for answer in taken.answers]


async def said(protocol: OpenAIRealtime, frame: Any) -> list[dict[str, Any]]:
    data = await protocol.serializer.serialize(frame)
    return [] if data is None else [read(each) for each in protocol.messages(data)]


def rtvi(kind: str, **data: Any) -> OutputTransportMessageUrgentFrame:
    return OutputTransportMessageUrgentFrame({"label": "rtvi-ai", "type": kind, "data": data})


async def refused(protocol: OpenAIRealtime, kind: str, **fields: Any) -> dict[str, Any]:
    taken = await protocol.take(message(kind, event_id="mine", **fields))
    (event,) = answers(taken)
    assert event["type"] == "error"
    assert event["error"]["type"] == "invalid_request_error"
    assert event["error"]["event_id"] == "mine"
    assert not taken.passes
    return event["error"]


# --- what a client sends ----------------------------------------------------------------------


def test_a_session_is_told_at_once() -> None:
    (opening,) = session().opening()
    event = read(opening)
    assert event["type"] == "session.created"
    assert event["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert event["session"]["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert event["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert event["session"]["model"] == "fake"


async def test_an_update_is_answered_with_what_holds() -> None:
    protocol = session()
    wanted = {
        "type": "realtime",
        "instructions": "be brief",
        "voice": "alloy",
        "audio": {
            "input": {"format": {"type": "audio/pcmu"}, "turn_detection": {"type": "semantic_vad"}},
            "output": {"format": {"type": "audio/pcma"}},
        },
    }
    (event,) = answers(await protocol.take(message("session.update", session=wanted)))
    assert event["type"] == "session.updated"
    held = event["session"]
    assert held["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    assert held["audio"]["output"]["format"] == {"type": "audio/pcma"}
    assert held["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert held["instructions"] == ""


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "transcription"}, "session.type"),
        ({}, "session.type"),
        ({"type": "realtime", "output_modalities": ["text"]}, "session.output_modalities"),
        (
            {"type": "realtime", "audio": {"input": {"turn_detection": None}}},
            "session.audio.input.turn_detection",
        ),
        (
            {"type": "realtime", "audio": {"input": {"format": {"type": "audio/opus"}}}},
            "session.audio.input.format",
        ),
        (
            {"type": "realtime", "audio": {"output": {"format": {"type": ["audio/pcm"]}}}},
            "session.audio.output.format",
        ),
        (
            {
                "type": "realtime",
                "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}},
            },
            "session.audio.input.format",
        ),
        ({"type": "realtime", "audio": []}, "session.audio"),
        ({"type": "realtime", "audio": {"input": 7}}, "session.audio.input"),
    ],
)
async def test_what_cannot_be_had_is_refused_and_nothing_of_it_applied(
    wanted: dict[str, Any], param: str
) -> None:
    protocol = session()
    error = await refused(protocol, "session.update", session=wanted)
    assert error["param"] == param
    kept = message("session.update", session={"type": "realtime"})
    (event,) = answers(await protocol.take(kept))
    assert event["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}


async def test_audio_reaches_the_pipeline_at_its_rate() -> None:
    protocol = session()
    total = 0
    for _ in range(10):
        taken = await protocol.take({"text": append(SPOKEN)})
        assert (taken.passes, taken.audio_s) == (True, 0.02)
        frame = await protocol.serializer.deserialize("")
        assert isinstance(frame, InputAudioRawFrame)
        assert (frame.sample_rate, frame.num_channels) == (16_000, 1)
        total += frame.num_frames
    assert 3200 - 17 <= total <= 3200  # what is not there yet is in the resampler


@pytest.mark.parametrize(
    ("kind", "silence"), [("audio/pcmu", b"\xff" * 160), ("audio/pcma", b"\xd5" * 160)]
)
async def test_a_telephone_codec_is_taken(kind: str, silence: bytes) -> None:
    protocol = session()
    audio = {"input": {"format": {"type": kind}}}
    await protocol.take(message("session.update", session={"type": "realtime", "audio": audio}))
    taken = await protocol.take({"text": append(silence)})
    assert taken.audio_s == 0.02
    frame = await protocol.serializer.deserialize("")
    assert isinstance(frame, InputAudioRawFrame)
    assert np.abs(np.frombuffer(frame.audio, "<i2")).max() < 16  # of 32,768


@pytest.mark.parametrize("audio", ["????", "AAA", base64.b64encode(b"odd").decode(), 7, None])
async def test_audio_that_is_none_is_refused(audio: Any) -> None:
    error = await refused(session(), "input_audio_buffer.append", audio=audio)
    assert error["message"] == "expected audio/pcm in base64"


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "[" * 100_000, "{}", '{"type": ["x"]}'])
async def test_what_is_no_event_is_answered(text: str) -> None:
    (event,) = answers(await session().take({"text": text}))
    assert event["type"] == "error"


async def test_bytes_end_the_connection() -> None:
    with pytest.raises(HangUpError, match="expected OpenAI Realtime's JSON in text messages"):
        await session().take({"bytes": b"\x00"})


async def test_the_names_of_the_beta_are_refused_with_those_that_are_taken() -> None:
    error = await refused(session(), "transcription_session.update")
    assert "conversation.item.truncate" in error["message"]


def item(text: Any, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


async def test_a_typed_text_is_remembered_at_once_and_answered_when_a_response_is_asked_for() -> (
    None
):
    protocol = session()
    await refused(protocol, "response.create")
    taken = await protocol.take(message("conversation.item.create", item=item("hi there")))
    added, done = answers(taken)
    assert (added["type"], done["type"]) == ("conversation.item.added", "conversation.item.done")
    assert done["item"]["content"] == [{"type": "input_text", "text": "hi there"}]
    assert (taken.passes, taken.asks) == (True, None)
    frame = await protocol.serializer.deserialize("")
    assert isinstance(frame, InputTransportMessageFrame)
    assert frame.message["data"] == {"t": SAY, "d": {"text": "hi there", "answer": False}}
    taken = await protocol.take(message("response.create"))
    assert answers(taken)[0]["type"] == "response.created"
    assert (taken.passes, taken.asks) == (True, "")
    frame = await protocol.serializer.deserialize("")
    assert isinstance(frame, InputTransportMessageFrame)
    assert frame.message["data"] == {"t": ANSWER, "d": {}}
    await refused(protocol, "response.create")


async def test_of_typed_texts_nothing_is_cut_and_an_answer_makes_room_for_more() -> None:
    protocol = session()

    def typed(text: str) -> dict[str, Any]:
        return message("conversation.item.create", item=item(text))

    assert (await protocol.take(typed("a" * 1500))).passes
    long = {"item": item("b" * 1500)}
    assert (await refused(protocol, "conversation.item.create", **long))["param"] == "item.content"
    assert (await protocol.take(typed("b" * 500))).passes
    await said(protocol, rtvi("bot-llm-started"))  # whoever asked for it
    assert (await protocol.take(typed("c" * 2000))).passes


@pytest.mark.parametrize(
    "wanted",
    [
        item("", "user"),
        item("x" * 2001),
        item("hello", "system"),
        {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AA"}]},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "message"},
        None,
        "hi",
    ],
)
async def test_other_items_are_refused(wanted: Any) -> None:
    await refused(session(), "conversation.item.create", item=wanted)


async def test_no_more_texts_are_kept_than_are_sensible() -> None:
    protocol = session()
    for _ in range(16):
        assert (
            len((await protocol.take(message("conversation.item.create", item=item("a")))).answers)
            == 2
        )
    await refused(protocol, "conversation.item.create", item=item("a"))


async def test_what_the_server_does_by_itself_is_said() -> None:
    protocol = session()
    (event,) = answers(await protocol.take(message("input_audio_buffer.clear")))
    assert event["type"] == "input_audio_buffer.cleared"
    error = await refused(protocol, "input_audio_buffer.commit")
    assert "finds the end of a turn itself" in error["message"]
    assert (await refused(protocol, "response.cancel"))["code"] == "response_cancel_not_active"
    wanted = {"conversation": "none"}
    assert (await refused(protocol, "response.create", response=wanted))["param"] == "response"


# --- what it is told --------------------------------------------------------------------------


async def test_speech_is_told_from_what_the_session_says_besides() -> None:
    protocol = session()
    told: dict[str, bool] = {}
    for frame in (
        rtvi("user-started-speaking"),
        rtvi("bot-started-speaking"),
        OutputAudioRawFrame(bytes(480), 24_000, 1),
    ):
        data = await protocol.serializer.serialize(frame)
        for each in () if data is None else protocol.messages(data):
            told[json.loads(each)["type"]] = protocol.is_speech(each)
    assert told["input_audio_buffer.speech_started"]
    assert told["response.output_audio.delta"]
    assert not told["response.created"]
    (created,) = protocol.opening()
    assert not protocol.is_speech(created)


async def test_a_turn_and_its_reply_are_told_in_order() -> None:
    protocol = session()
    told: list[dict[str, Any]] = []
    for frame in (
        rtvi("user-started-speaking"),
        rtvi("user-input", text="hel", final=False, input_type="transcription"),
        rtvi("user-input", text="hello", final=True, input_type="transcription"),
        rtvi("user-stopped-speaking"),
        rtvi("server-message", turngap="marks"),
        rtvi("bot-llm-started"),
        rtvi("bot-llm-text", text="Well"),
        rtvi("bot-llm-stopped"),
        rtvi("bot-started-speaking"),
        OutputAudioRawFrame(bytes(480), 24_000, 1),
        rtvi("bot-stopped-speaking"),
    ):
        told += await said(protocol, frame)
    assert [event["type"] for event in told] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    by = {event["type"]: event for event in told}
    completed = by["conversation.item.input_audio_transcription.completed"]
    assert completed["transcript"] == "hello"
    assert base64.b64decode(by["response.output_audio.delta"]["delta"]) == bytes(480)
    done = by["response.done"]["response"]
    assert done["status"] == "completed"
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Well"}]
    assert len({event["event_id"] for event in told}) == len(told)


async def test_a_reply_ends_with_its_voice_and_its_words_in_whatever_order_they_are_told() -> None:
    def audio() -> OutputAudioRawFrame:
        return OutputAudioRawFrame(bytes(480), 24_000, 1)

    # An answer that was begun before the turn was over is told after its first audio.
    late = [audio(), rtvi("bot-llm-started"), rtvi("bot-llm-text", text="Well")]
    late += [rtvi("bot-llm-stopped"), rtvi("bot-started-speaking"), audio()]
    # A voice that runs dry in the middle of a reply goes on with it.
    dry = [rtvi("bot-llm-started"), rtvi("bot-llm-text", text="Well"), audio()]
    dry += [rtvi("bot-started-speaking"), rtvi("bot-stopped-speaking"), audio()]
    dry += [rtvi("bot-started-speaking"), rtvi("bot-llm-stopped"), audio()]
    for frames in (late, dry):
        protocol = session()
        told = [event for frame in frames for event in await said(protocol, frame)]
        assert [e["type"] for e in told].count("response.created") == 1
        assert "response.done" not in [e["type"] for e in told]
        told = await said(protocol, rtvi("bot-stopped-speaking"))
        assert told[-1]["response"]["status"] == "completed"
    # An LLM that says so only after its last word was heard.
    slow = [rtvi("bot-llm-started"), rtvi("bot-llm-text", text="Well"), audio()]
    slow += [rtvi("bot-started-speaking"), rtvi("bot-stopped-speaking")]
    protocol = session()
    for frame in slow:
        assert "response.done" not in [e["type"] for e in await said(protocol, frame)]
    told = await said(protocol, rtvi("bot-llm-stopped"))
    assert told[-1]["response"]["status"] == "completed"


async def test_an_interruption_is_first_told_as_speech() -> None:
    protocol = session()
    await said(protocol, OutputAudioRawFrame(bytes(4800), 24_000, 1))
    told = await said(protocol, InterruptionFrame())
    assert told[0]["type"] == "input_audio_buffer.speech_started"
    assert told[-1]["response"]["status_details"]["reason"] == "turn_detected"
    assert await said(protocol, rtvi("user-started-speaking")) == []
    # What is left of the reply in a queue begins no other.
    assert await said(protocol, rtvi("bot-llm-text", text="late")) == []
    reply = told[-1]["response"]["output"][0]["id"]
    for end_ms, kind in ((60, "conversation.item.truncated"), (200, "error"), (-1, "error")):
        asked = {"item_id": reply, "content_index": 0, "audio_end_ms": end_ms}
        (event,) = answers(await protocol.take(message("conversation.item.truncate", **asked)))
        assert event["type"] == kind
    unknown = {"item_id": "item_99", "content_index": 0, "audio_end_ms": 1}
    assert (await refused(protocol, "conversation.item.truncate", **unknown))["param"] == "item_id"
    assert (await refused(protocol, "conversation.item.truncate"))["code"] == "invalid_value"


async def test_a_cancelled_reply_is_told_as_the_client_s_own() -> None:
    protocol = session()
    await said(protocol, OutputAudioRawFrame(bytes(4800), 24_000, 1))
    taken = await protocol.take(message("response.cancel"))
    assert taken.passes
    frame = await protocol.serializer.deserialize("")
    assert isinstance(frame, InputTransportMessageFrame)
    assert frame.message["data"]["t"] == CANCEL
    told = await said(protocol, InterruptionFrame())
    assert told[-1]["response"]["status_details"]["reason"] == "client_cancelled"
    assert "input_audio_buffer.speech_started" not in [event["type"] for event in told]


@pytest.mark.parametrize("is_fatal", [True, False])
async def test_a_failure_is_an_error_event_and_ends_the_reply_if_it_is_fatal(
    is_fatal: bool,
) -> None:
    protocol = session()
    await said(protocol, OutputAudioRawFrame(bytes(4800), 24_000, 1))
    told = await said(protocol, rtvi("error", error="the voice\x1b broke", fatal=is_fatal))
    assert told[0]["error"]["message"].startswith("the voice")
    assert "\x1b" not in told[0]["error"]["message"]
    if is_fatal:
        assert told[-1]["response"]["status"] == "failed"
        return
    assert len(told) == 1
    (more,) = await said(protocol, OutputAudioRawFrame(bytes(480), 24_000, 1))
    assert more["type"] == "response.output_audio.delta"
    told = await said(protocol, rtvi("bot-stopped-speaking"))
    assert told[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize(("error", "status"), [("", "completed"), ("no voice", "failed")])
async def test_a_reply_of_which_nothing_is_heard_ends(error: str, status: str) -> None:
    protocol = session()
    await said(protocol, rtvi("bot-llm-started"))
    await said(protocol, rtvi("bot-llm-text", text="*"))
    assert not protocol.due(0)
    if error:
        await said(protocol, rtvi("error", error=error, fatal=False))
    await said(protocol, rtvi("bot-llm-stopped"))
    second = 1_000_000_000
    assert not protocol.due(5 * second)
    assert not protocol.due(14 * second)
    ended = [read(data) for data in protocol.due(15 * second)]
    assert ended[-1]["response"]["status"] == status
    await protocol.take(message("conversation.item.create", item=item("hi")))
    assert (await protocol.take(message("response.create"))).passes


async def test_the_end_of_a_voice_that_was_interrupted_does_not_end_the_next_reply() -> None:
    protocol = session()
    audio = OutputAudioRawFrame(bytes(480), 24_000, 1)
    await said(protocol, rtvi("bot-started-speaking"))
    for frame in (audio, InterruptionFrame(), audio):
        await said(protocol, frame)
    assert not await said(protocol, rtvi("bot-stopped-speaking"))
    await said(protocol, rtvi("bot-started-speaking"))
    told = await said(protocol, rtvi("bot-stopped-speaking"))
    assert told[-1]["response"]["status"] == "completed"


async def test_the_last_of_a_reply_is_sent_with_it_and_not_with_the_next() -> None:
    protocol = session()
    audio = {"output": {"format": {"type": "audio/pcmu"}}}
    await protocol.take(message("session.update", session={"type": "realtime", "audio": audio}))
    await said(protocol, rtvi("bot-started-speaking"))
    loud = OutputAudioRawFrame(np.full(2400, 20_000, "<i2").tobytes(), 24_000, 1)
    told = await said(protocol, loud) + await said(protocol, rtvi("bot-stopped-speaking"))
    deltas = [e["delta"] for e in told if e["type"] == "response.output_audio.delta"]
    assert sum(len(base64.b64decode(delta)) for delta in deltas) == 800  # 100 ms
    assert told[-1]["type"] == "response.done"
    told = await said(protocol, OutputAudioRawFrame(bytes(2400), 24_000, 1))
    assert set(base64.b64decode(told[-1]["delta"])) == {0xFF}


@pytest.mark.parametrize(("kind", "silence"), [("audio/pcmu", 0xFF), ("audio/pcma", 0xD5)])
async def test_a_telephone_codec_is_sent(kind: str, silence: int) -> None:
    protocol = session()
    audio = {"output": {"format": {"type": kind}}}
    await protocol.take(message("session.update", session={"type": "realtime", "audio": audio}))
    told = [
        event
        for _ in range(10)
        for event in await said(protocol, OutputAudioRawFrame(bytes(480), 24_000, 1))
    ]
    sent = b"".join(
        base64.b64decode(e["delta"]) for e in told if e["type"] == "response.output_audio.delta"
    )
    assert set(sent) == {silence}
    assert 800 - 17 <= len(sent) <= 800


# --- a conversation ---------------------------------------------------------------------------


def test_a_conversation_with_an_interruption_a_typed_turn_and_a_cancellation() -> None:
    async def play() -> list[tuple[float, dict[str, Any]]]:
        async with guarded(fake_assembly(), session()) as client:
            await client.wait(200)
            for k in range(200):  # speech, its answer, speech into the answer, its answer
                client.send(append(SPOKEN if k < 40 or 75 < k < 120 else bytes(960)))
                await client.wait(20)
            client.send(message("conversation.item.create", item=item("hi"))["text"])
            client.send(message("response.create")["text"])
            await client.wait(300)
            client.send(message("response.cancel")["text"])
            await client.wait(300)
        return [(ns / 1e6, read(data)) for ns, data in client.got]

    with virtual_clocks():
        told = in_virtual_time(play())
    done = [e["response"] for _, e in told if e["type"] == "response.done"]
    assert [(d["status"], d["status_details"].get("reason")) for d in done] == [
        ("cancelled", "turn_detected"),
        ("completed", None),
        ("cancelled", "client_cancelled"),
    ]
    kinds = [e["type"] for _, e in told]
    assert kinds.count("input_audio_buffer.speech_started") == 2
    assert kinds.count("conversation.item.input_audio_transcription.completed") == 2
    assert kinds.count("error") == 0
    assert done[1]["output"][0]["content"][0]["transcript"] == "Well hello, you there."
    # Nothing of a reply comes once it is over, and it comes at the speed of speech.
    begun_ms, audio_ms, open_ = 0.0, 0.0, False
    for at_ms, event in told:
        if event["type"] == "response.created":
            begun_ms, audio_ms, open_ = at_ms, 0.0, True
        elif event["type"] == "response.done":
            open_ = False
        elif event["type"] == "response.output_audio.delta":
            assert open_
            audio_ms += len(base64.b64decode(event["delta"])) / 48
            assert audio_ms <= at_ms - begun_ms + 80


def test_a_typed_text_is_taken_into_account_by_the_answer_to_speech(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_by_llm: list[Any] = []
    process = FakeLLM.process_frame

    async def reading(self: FakeLLM, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMContextFrame):
            read_by_llm[:] = [m for m in frame.context.get_messages() if isinstance(m, dict)]
        await process(self, frame, direction)

    async def play() -> None:
        async with guarded(fake_assembly(), session()) as client:
            await client.wait(200)
            for text in ("my name is Ann", "I have a dog"):
                client.send(message("conversation.item.create", item=item(text))["text"])
            for k in range(100):
                client.send(append(SPOKEN if k < 40 else bytes(960)))
                await client.wait(20)

    monkeypatch.setattr(FakeLLM, "process_frame", reading)
    with virtual_clocks():
        in_virtual_time(play())
    said = [m["content"] for m in read_by_llm if m["role"] == "user"]
    assert said[:2] == ["my name is Ann", "I have a dog"]
    assert len(said) == 3


@pytest.mark.parametrize("wait_ms", [0, 5, 20])
def test_a_typed_turn_that_is_cancelled_before_its_first_word_is_not_spoken(wait_ms: int) -> None:
    async def play() -> list[dict[str, Any]]:
        async with guarded(fake_assembly(), session()) as client:
            await client.wait(200)
            client.send(message("conversation.item.create", item=item("hi"))["text"])
            client.send(message("response.create")["text"])
            await client.wait(wait_ms)
            client.send(message("response.cancel")["text"])
            await client.wait(2000)
        return [read(data) for _, data in client.got]

    with virtual_clocks():
        told = in_virtual_time(play())
    done = [e["response"] for e in told if e["type"] == "response.done"]
    assert [(d["status"], d["status_details"].get("reason")) for d in done] == [
        ("cancelled", "client_cancelled")
    ]
    kinds = [e["type"] for e in told]
    assert kinds.count("error") == 0
    assert "response.output_audio.delta" not in kinds


# --- software not written here ----------------------------------------------------------------


@pytest.mark.realtime
async def test_the_sdk_s_own_client_talks_to_us() -> None:
    async with served(fake_assembly()) as agent, asyncio.timeout(30):
        client = AsyncOpenAI(api_key="unused", websocket_base_url=f"ws://127.0.0.1:{agent.port}/v1")
        async with client.realtime.connect(model="fake") as connection:
            kinds: list[str] = [(await connection.recv()).type]
            fmt: dict[Literal["type", "rate"], Any] = {"type": "audio/pcm", "rate": 24_000}
            await connection.session.update(
                session={"type": "realtime", "audio": {"output": {"format": fmt}}}  # type: ignore[typeddict-item]
            )
            kinds.append((await connection.recv()).type)
            begun_ns = CLOCK.now_ns()
            for k in range(30):
                audio = SPOKEN if k < 20 else bytes(960)
                await connection.input_audio_buffer.append(audio=base64.b64encode(audio).decode())
                await CLOCK.sleep_until_ns(begun_ns + k * 20_000_000)
            audio_bytes = 0
            async for event in connection:
                kinds.append(event.type)
                if event.type == "response.output_audio.delta":
                    audio_bytes += len(base64.b64decode(event.delta))
                if event.type == "response.done":
                    # Whoever is kept from sending seems to pause, and then to interrupt.
                    with quiet.measured():
                        assert event.response.status == "completed"
                    break
    assert kinds[:2] == ["session.created", "session.updated"]
    assert "conversation.item.input_audio_transcription.completed" in kinds
    assert audio_bytes >= 2 * 24_000 * 0.7  # two clauses of 350 ms

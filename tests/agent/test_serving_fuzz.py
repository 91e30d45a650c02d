"""Whatever JSON a client sends, a served protocol takes it, answers it, or ends the connection."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engines import fake_assembly
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.guarded_line import guarded
from turngap.agent.limits import CODE_FAILED, HangUpError
from turngap.agent.protocols.base import WireProtocol
from turngap.agent.protocols.openai_realtime import OpenAIRealtime
from turngap.agent.protocols.pipecat_eval import PipecatEval
from turngap.agent.protocols.twilio import TwilioStream
from turngap.testing import in_virtual_time
from turngap.testing.virtual import virtual_clocks

ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
INPUT = {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": {"type": "server_vad"}}
AUDIO = {"base64Audio": "AAAA", "sampleRate": 16_000, "numChannels": 1}


def asked(kind: str, details: Any) -> dict[str, Any]:
    data = {"t": kind, "d": details}
    return {"label": "rtvi-ai", "type": "client-message", "id": "1", "data": data}


KNOWN: dict[str, tuple[Callable[[], WireProtocol], list[Any]]] = {
    "twilio": (
        TwilioStream,
        [
            {"event": "start", "streamSid": "MZ1", "start": {"mediaFormat": {"channels": 1}}},
            {"event": "media", "media": {"payload": "AAAA"}},
            {"event": "mark", "mark": {"name": "x"}},
        ],
    ),
    "openai-realtime": (
        lambda: OpenAIRealtime(16_000, "fake"),
        [
            {"type": "session.update", "session": {"type": "realtime", "audio": {"input": INPUT}}},
            {"type": "input_audio_buffer.append", "audio": "AAAA", "event_id": "1"},
            {"type": "conversation.item.create", "item": ITEM},
            {"type": "conversation.item.truncate", "item_id": "a", "audio_end_ms": 1},
            {"type": "response.create", "response": {"conversation": "auto", "input": []}},
            {"type": "response.cancel", "response_id": "resp_1"},
        ],
    ),
    "pipecat-eval": (
        lambda: PipecatEval(16_000, traced=True),
        [
            {"label": "rtvi-ai", "type": "raw-audio", "data": AUDIO},
            *(
                {
                    "label": "rtvi-ai",
                    "type": "client-message",
                    "id": "1",
                    "data": {"t": kind, "d": d},
                }
                for kind, d in (
                    ("eval-connect", {"skip_tts": True}),
                    ("eval-context", {"messages": [{"role": "user", "content": "hi"}]}),
                    ("eval-configure", {"function_call_report_level": {"*": "full"}}),
                    ("eval-image", {"image": "AA"}),
                    ("turngap.say", {"text": "hi"}),
                )
            ),
        ],
    ),
}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
NUMBERS = st.sampled_from([1.0, 8000.0, 16_000.0, 24_000.0, -1, 2**64])
KEYS = st.text(max_size=4)
COUNTS = st.integers(0, 2)
VALUES = st.recursive(
    SCALARS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


def mutated(data: st.DataObject, value: Any) -> Any:
    """The value with one of its parts, at any depth, replaced by anything or left out."""
    if not isinstance(value, dict) or not value or data.draw(st.integers(0, 3)) == 0:
        return data.draw(VALUES)
    key = data.draw(st.sampled_from(sorted(value)))
    if data.draw(st.integers(0, 3)) == 0:
        return {k: v for k, v in value.items() if k != key}
    return {**value, key: mutated(data, value[key])}


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_json_breaks_a_protocol(name: str, data: st.DataObject) -> None:
    make, known = KNOWN[name]
    protocol = make()

    async def take() -> None:
        rates: Any = SimpleNamespace(audio_in_sample_rate=16_000, audio_out_sample_rate=24_000)
        await protocol.serializer.setup(rates)  # of which it reads no more
        for _ in range(data.draw(st.integers(1, 4))):
            payload = data.draw(st.sampled_from(known))
            if data.draw(st.booleans()):
                payload = mutated(data, payload)
            text = json.dumps(payload)
            try:
                taken = await protocol.take({"type": "websocket.receive", "text": text})
            except HangUpError as e:
                assert e.reason
                return
            assert taken.audio_s >= 0
            if taken.passes:
                await protocol.serializer.deserialize(text)  # what passes is there to be fetched

    asyncio.run(take())


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_json_makes_a_conversation_fail(name: str, data: st.DataObject) -> None:
    make, known = KNOWN[name]
    sent = [mutated(data, payload) for payload in known for _ in range(data.draw(COUNTS))]
    sent = data.draw(st.permutations([*known, *sent]))

    async def play() -> tuple[int, str] | None:
        async with guarded(fake_assembly(), make()) as client:
            await client.wait(100)
            for payload in sent:
                client.send(json.dumps(payload))
                await client.wait(20)
            await client.wait(500)
        return client.closed

    with virtual_clocks():
        closed = in_virtual_time(play())
    assert closed is None or (closed[0] != CODE_FAILED and closed[1])

"""The openai-realtime dialect: the specification's JSON, and what servers make of it."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_messages import hear, sent
from openai.types.beta.realtime import RealtimeServerEvent as BetaServerEvent
from openai.types.beta.realtime.session_update_event import SessionUpdateEvent as BetaSessionUpdate
from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent
from pydantic import TypeAdapter

from turngap.caller.dialects.openai_realtime import MOST_DEAD, MOST_WAITING, SPEC
from turngap.caller.dialects.registry import find_dialect
from turngap.caller.dialects.session import Session
from turngap.caller.said import (
    AudioChunk,
    Fault,
    Flush,
    Incoming,
    NotSpokenError,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
    TurnOver,
    UnplayableError,
)
from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.core.untrusted import MOST_JSON
from turngap.core.wire import A_LAW, MU_LAW
from turngap.testing.dialects import Begun, Spoken, Truncated
from turngap.testing.dialects.services import OpenAIRealtimeHalf

CLIENT = TypeAdapter[Any](RealtimeClientEvent)
SERVER = TypeAdapter[Any](RealtimeServerEvent)
BETA_SERVER = TypeAdapter[Any](BetaServerEvent)

# What OpenAI's server sends first, as its reference shows it, without what nobody needs.
CREATED: dict[str, Any] = {
    "type": "session.created",
    "event_id": "event_C9G5RJeJ2gF77mV7f2B1j",
    "session": {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_C9G5QPteg4UIbotdKLoYQ",
        "model": "gpt-realtime-2025-08-28",
        "output_modalities": ["audio"],
        "instructions": "Your knowledge cutoff is 2023-10.",
        "tools": [],
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.5,
                    "prefix_padding_ms": 300,
                    "silence_duration_ms": 200,
                    "idle_timeout_ms": None,
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "voice": "marin",
                "speed": 1,
            },
        },
    },
}
BETA_CREATED: dict[str, Any] = {
    "type": "session.created",
    "event_id": "event_1",
    "session": {
        "id": "sess_1",
        "object": "realtime.session",
        "model": "gpt-4o-realtime-preview",
        "modalities": ["audio", "text"],
        "voice": "alloy",
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "input_audio_transcription": None,
        "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 200},
    },
}
SPEECH_STARTED = {
    "type": "input_audio_buffer.speech_started",
    "event_id": "event_1516",
    "audio_start_ms": 1000,
    "item_id": "msg_003",
}


def session(**settings: Any) -> Session:
    return SPEC.session(settings)


def opened(**settings: Any) -> Session:
    """A session whose server is ready."""
    dialect = session(**settings)
    assert dialect.open() == []
    assert hear(dialect, CREATED) == []
    (update,) = sent(dialect)
    about: dict[str, Any] = CREATED["session"]
    told = CREATED | {"type": "session.updated"}
    told["session"] = about | {"audio": update["session"]["audio"]}
    assert hear(dialect, told) == [Ready()]
    return dialect


def pcm(samples: int, value: int = 1) -> Pcm:
    return np.full(samples, value, dtype=np.int16)


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def delta(samples: int, *, reply: str = "resp_001", item: str = "msg_008") -> dict[str, Any]:
    return {
        "type": "response.output_audio.delta",
        "event_id": "event_4950",
        "response_id": reply,
        "item_id": item,
        "output_index": 0,
        "content_index": 0,
        "delta": coded(pcm(samples).tobytes()),
    }


def created(reply: str = "resp_001") -> dict[str, Any]:
    response = {"object": "realtime.response", "id": reply, "status": "in_progress", "output": []}
    return {"type": "response.created", "event_id": "event_2930", "response": response}


def done(reply: str = "resp_001", status: str = "completed", **about: Any) -> dict[str, Any]:
    response = {"object": "realtime.response", "id": reply, "status": status, "output": [], **about}
    return {"type": "response.done", "event_id": "event_3132", "response": response}


def heard(said: list[Incoming]) -> int:
    """Return the number of samples of audio to play."""
    return sum(len(each.pcm) for each in said if isinstance(each, AudioChunk))


def truncations(dialect: Session) -> list[tuple[str, int]]:
    events = sent(dialect)
    assert all(event["type"] == "conversation.item.truncate" for event in events)
    return [(event["item_id"], event["audio_end_ms"]) for event in events]


# --- the opening ------------------------------------------------------------------------------


def test_the_session_is_asked_for_in_the_specifications_json() -> None:
    dialect = session()
    assert dialect.open() == []
    assert dialect.data_to_send() == []  # the server speaks first, and shows which form it speaks
    assert hear(dialect, CREATED) == []
    pcm_24k = {"type": "audio/pcm", "rate": 24000}
    assert sent(dialect) == [
        {
            "type": "session.update",
            "event_id": "turngap-update",
            # The turn detection that the server has is the one to be measured.
            "session": {
                "type": "realtime",
                "audio": {"input": {"format": pcm_24k}, "output": {"format": pcm_24k}},
            },
        }
    ]
    assert hear(dialect, CREATED | {"type": "session.updated"}) == [Ready()]
    assert hear(dialect, CREATED | {"type": "session.updated"}) == []
    assert (dialect.name, dialect.rate) == ("openai-realtime", 24_000)


def test_what_is_given_is_asked_for() -> None:
    dialect = session(
        model="gpt-realtime-2",
        voice="cedar",
        instructions="Be brief.",
        transcription="gpt-4o-mini-transcribe",
        format="pcmu",
        threshold="0.6",
        prefix_padding_ms="200",
        silence_duration_ms="350",
    )
    hear(dialect, CREATED)
    (update,) = sent(dialect)
    assert update["session"] == {
        "type": "realtime",
        "model": "gpt-realtime-2",
        "instructions": "Be brief.",
        "audio": {
            "input": {
                "format": {"type": "audio/pcmu"},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.6,
                    "prefix_padding_ms": 200,
                    "silence_duration_ms": 350,
                },
            },
            "output": {"format": {"type": "audio/pcmu"}, "voice": "cedar"},
        },
    }
    assert dialect.rate == 8_000


@pytest.mark.parametrize("setting", [{"voices": "marin"}, {"format": "mp3"}, {"rate": 1}])
def test_settings_that_are_none_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="dialect 'openai-realtime'"):
        session(**setting)


@pytest.mark.parametrize("told", [None, {}, {"audio": {"input": {"turn_detection": None}}}])
def test_a_server_that_tells_of_no_turn_detection_is_asked_for_it(told: Any) -> None:
    # vLLM-Omni begins without one, and would never answer.
    dialect = session()
    hear(dialect, {"type": "session.created", "session": told})
    (update,) = sent(dialect)
    assert update["session"]["audio"]["input"]["turn_detection"] == {"type": "server_vad"}


@pytest.mark.parametrize("beta", [False, True])
def test_the_caller_ends_the_turns_of_a_server_that_finds_none(beta: bool) -> None:
    none: Any = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    none = {"modalities": [], "turn_detection": None} if beta else none
    made = session()
    hear(made, {"type": "session.created", "session": none})
    (fault,) = hear(made, {"type": "session.updated", "session": none})
    assert isinstance(fault, Fault)
    assert (fault.error_kind, "commit_ms=500" in fault.error) == ("agent.no_turns", True)

    made = session(commit_ms=20)
    hear(made, {"type": "session.created", "session": none})
    (update,) = sent(made)
    source = update["session"] if beta else update["session"]["audio"]["input"]
    assert source["turn_detection"] is None
    assert hear(made, {"type": "session.updated", "session": none}) == [Ready()]
    made.user_ends(480)  # 20 ms of 24 kHz, so that it is due with the second packet
    for types in (["append"], ["append", "commit", "response.create"], ["append"]):
        made.send_audio(bytes(960))
        assert [each["type"].removeprefix("input_audio_buffer.") for each in sent(made)] == types


def test_the_beta_is_recognized_by_its_flat_session() -> None:
    dialect = session(voice="alloy", silence_duration_ms=300)
    hear(dialect, BETA_CREATED)
    (update,) = sent(dialect)
    assert update["session"] == {
        "voice": "alloy",
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
    }
    assert hear(dialect, BETA_CREATED | {"type": "session.updated"}) == [Ready()]
    BetaSessionUpdate.model_validate(update)


def test_the_beta_can_be_asked_for() -> None:
    dialect = session(beta=True, format="pcma")
    hear(dialect, {"type": "session.created", "session": {}})
    (update,) = sent(dialect)
    assert update["session"] == {
        "input_audio_format": "g711_alaw",
        "output_audio_format": "g711_alaw",
        "turn_detection": {"type": "server_vad"},
    }


@pytest.mark.parametrize("first", ["conversation.created", "session.updated"])
def test_a_server_may_begin_with_another_event(first: str) -> None:
    dialect = session()
    assert hear(dialect, {"type": first, "conversation": {"id": "conv_1"}}) == []
    (update,) = sent(dialect)
    assert update["type"] == "session.update"
    assert hear(dialect, {"type": "session.updated"}) == [Ready()]


def test_a_server_that_begins_with_a_conversation_is_asked_as_xai_documents_it() -> None:
    dialect = session(voice="eve")
    hear(dialect, {"type": "conversation.created", "conversation": {"id": "conv_1"}})
    (update,) = sent(dialect)
    assert update["session"]["turn_detection"] == {"type": "server_vad"}
    assert update["session"]["voice"] == "eve"
    pcm_24k = {"format": {"type": "audio/pcm", "rate": 24000}}
    assert update["session"]["audio"] == {"input": pcm_24k, "output": pcm_24k}


def test_an_update_is_asked_for_once() -> None:
    dialect = session()
    hear(dialect, CREATED)
    hear(dialect, {"type": "conversation.created", "conversation": {"id": "conv_1"}})
    assert len(sent(dialect)) == 1


def test_an_error_before_it_is_ready_is_a_refusal() -> None:
    dialect = session(voice="nobody")
    hear(dialect, CREATED)
    error = {
        "type": "error",
        "event_id": "event_890",
        "error": {
            "type": "invalid_request_error",
            "code": "invalid_value",
            "message": "Invalid value: 'nobody'.",
            "param": "session.audio.output.voice",
            "event_id": "turngap-update",
        },
    }
    assert hear(dialect, error) == [Fault("Invalid value: 'nobody'.", fatal=True)]


def test_a_server_that_takes_other_audio_than_asked_for_is_refused() -> None:
    dialect = session(format="pcmu")
    hear(dialect, CREATED)
    (fault,) = hear(dialect, CREATED | {"type": "session.updated"})
    assert isinstance(fault, Fault)
    assert fault.fatal
    assert "pcm at 24000 Hz" in fault.error
    assert "pcmu at 8000 Hz" in fault.error


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("pcm16", "it takes pcm, and was asked for pcmu at 8000 Hz"),
        ({"type": "audio/pcm"}, "it takes pcm, and was asked for pcmu at 8000 Hz"),
        ({"type": "audio/pcma"}, "it takes pcma at 8000 Hz, and was asked for pcmu at 8000 Hz"),
        ("opus", "it takes 'opus', and was asked for pcmu at 8000 Hz"),
    ],
)
def test_a_codec_that_a_server_refuses_is_not_taken_for_one_that_it_does_not_tell(
    told: Any, why: str
) -> None:
    def updated(source: Any, sink: Any) -> list[Incoming]:
        dialect = session(format="pcmu")
        hear(dialect, CREATED)
        audio = {"input": {"format": source}, "output": {"format": sink}}
        return hear(dialect, {"type": "session.updated", "session": {"audio": audio}})

    assert updated(told, told) == [Fault(why, fatal=True)]
    mu_law = {"type": "audio/pcmu"}
    assert updated(mu_law, told) == [Fault(why.replace("takes", "sends"), fatal=True)]
    assert updated(None, None) == updated(mu_law, mu_law) == [Ready()]


def test_a_server_of_the_beta_that_ignores_the_format_is_refused() -> None:
    dialect = session(format="pcmu")
    hear(dialect, BETA_CREATED)
    (fault,) = hear(dialect, BETA_CREATED | {"type": "session.updated"})
    assert fault == Fault("it takes pcm, and was asked for pcmu at 8000 Hz", fatal=True)


@pytest.mark.parametrize(("rate", "fault"), [(16_000, ""), (7, "it sends pcm at 7 Hz")])
def test_replies_may_come_at_another_rate_of_pcm(rate: int, fault: str) -> None:
    dialect = session()
    hear(dialect, CREATED)
    audio = {"output": {"format": {"type": "audio/pcm", "rate": rate}}}
    (said,) = hear(dialect, {"type": "session.updated", "session": {"audio": audio}})
    assert isinstance(said, Fault if fault else Ready)
    assert not isinstance(said, Fault) or fault in said.error


# --- audio ------------------------------------------------------------------------------------


def test_the_persons_audio() -> None:
    dialect = opened()
    dialect.send_audio(np.array([0, 1, -1], dtype="<i2").tobytes())
    assert dialect.data_to_send() == ['{"type": "input_audio_buffer.append", "audio": "AAABAP//"}']


@pytest.mark.parametrize(("kind", "law"), [("pcmu", MU_LAW), ("pcma", A_LAW)])
def test_the_telephones_codecs_in_both_directions(kind: str, law: Any) -> None:
    dialect = opened(format=kind)
    samples = np.array([0, 1000, -1000, 32767], dtype=np.int16)
    dialect.send_audio(samples.tobytes())
    (append,) = sent(dialect)
    assert base64.b64decode(append["audio"]) == law.encode(samples)
    (chunk,) = hear(dialect, delta(0) | {"delta": coded(law.encode(samples))})
    assert isinstance(chunk, AudioChunk)
    assert chunk.rate == 8_000
    np.testing.assert_array_equal(chunk.pcm, law.decode(law.encode(samples)))


@pytest.mark.parametrize("name", ["response.output_audio.delta", "response.audio.delta"])
def test_a_replys_audio_under_both_names(name: str) -> None:
    (chunk,) = hear(opened(), delta(480) | {"type": name})
    assert isinstance(chunk, AudioChunk)
    assert (len(chunk.pcm), chunk.rate) == (480, 24_000)


def test_the_rate_of_replies_is_the_one_that_the_server_tells() -> None:
    dialect = session(reply_rate=16_000)
    hear(dialect, {"type": "session.created"})
    hear(dialect, {"type": "session.updated"})
    (chunk,) = hear(dialect, delta(10))
    assert isinstance(chunk, AudioChunk)
    assert chunk.rate == 16_000
    told = {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 48_000}}}}
    dialect = session()
    hear(dialect, {"type": "session.created"})
    hear(dialect, {"type": "session.updated", "session": told})
    (chunk,) = hear(dialect, delta(10))
    assert isinstance(chunk, AudioChunk)
    assert chunk.rate == 48_000


@pytest.mark.parametrize("audio", ["%%%", "AAA", "é", coded(b"\0\0\0"), coded(b"OggS" + b"\0" * 8)])
def test_audio_that_cannot_be_played_is_said_to_be_so(audio: str) -> None:
    with pytest.raises(UnplayableError):
        hear(opened(), delta(0) | {"delta": audio})


@pytest.mark.parametrize("audio", [None, 5, [], {}])
def test_a_delta_without_audio_is_left_out(audio: Any) -> None:
    with pytest.raises(ValueError, match="audio in base64"):
        hear(opened(), delta(0) | {"delta": audio})


def test_a_reply_may_come_in_one_message() -> None:
    long = delta(3 * 60 * 24_000)
    assert len(json.dumps(long)) > MOST_JSON
    assert heard(hear(opened(), long)) == 3 * 60 * 24_000


# --- turns and texts --------------------------------------------------------------------------


def test_the_events_of_a_turn() -> None:
    dialect = opened()
    item, buffer = "conversation.item", "input_audio_buffer"
    events: list[tuple[dict[str, Any], list[Incoming]]] = [
        (SPEECH_STARTED, []),
        ({"type": f"{buffer}.speech_stopped", "audio_end_ms": 9, "item_id": "a"}, [TurnOver()]),
        ({"type": f"{buffer}.committed", "previous_item_id": None, "item_id": "a"}, []),
        ({"type": f"{item}.added", "item": {"id": "a"}}, []),
        (created(), [ReplyDue()]),
        (
            {"type": f"{item}.input_audio_transcription.completed", "transcript": "Hello"},
            [Transcript("Hello")],
        ),
        ({"type": "response.output_item.added", "item": {"id": "msg_008"}}, []),
        ({"type": "response.content_part.added", "part": {"type": "audio"}}, []),
        (
            {"type": "response.output_audio_transcript.delta", "item_id": "b", "delta": "Hi"},
            [ReplyText("Hi")],
        ),
        (
            {"type": "response.output_audio_transcript.done", "item_id": "b", "transcript": "Hi"},
            [],
        ),
        ({"type": "response.output_audio.done"}, []),
        (done(), [ReplyText(" "), ReplyDone()]),
        ({"type": "rate_limits.updated", "rate_limits": []}, []),
        ({"type": "something.new"}, []),
    ]
    for event, said in events:
        assert hear(dialect, event) == said, event["type"]
    assert dialect.data_to_send() == []


def test_a_buffer_that_is_committed_without_more_ends_the_turn() -> None:
    assert hear(opened(), {"type": "input_audio_buffer.committed"}) == [TurnOver()]


def test_a_text_without_pieces_is_taken_whole() -> None:
    text = {"type": "response.audio_transcript.done", "item_id": "b", "transcript": "Hi there"}
    assert hear(opened(), text) == [ReplyText("Hi there")]


def test_a_reply_that_calls_tools_is_not_over() -> None:
    call = {"type": "function_call", "name": "weather"}
    assert hear(opened(), done(output=[call])) == []


def test_a_reply_that_failed() -> None:
    error = {"type": "server_error", "message": "The model is overloaded."}
    said = hear(opened(), done(status="failed", status_details={"error": error}))
    assert said[0] == Fault("The model is overloaded.", fatal=False)
    assert said[-1] == ReplyDone()


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"type": "server_error", "message": "broken"}, Fault("broken", fatal=False)),
        (
            {"type": "x", "code": "too_short", "event_id": "turngap-truncate-1"},
            Fault("too_short", fatal=False, refuses=True),
        ),
        (
            {"type": "invalid_request_error", "message": "no such event"},
            Fault("no such event", fatal=False, refuses=True),
        ),
        ("just a text", Fault("unspecified", fatal=False)),
    ],
)
def test_errors(error: Any, fault: Fault) -> None:
    assert hear(opened(), {"type": "error", "error": error}) == [fault]


# --- interruptions ----------------------------------------------------------------------------


def test_what_was_heard_of_a_dropped_item_is_told_to_the_millisecond() -> None:
    dialect = opened()
    hear(dialect, created())
    hear(dialect, delta(24_000))
    dialect.audio_played(12_000)
    assert hear(dialect, SPEECH_STARTED) == [Flush()]
    # Played on for a while until the line flushes: 12,035 samples are 501.458 ms.
    dialect.audio_dropped(24_000 - 12_035)
    dialect.audio_played(24_000)
    assert sent(dialect) == [
        {
            "type": "conversation.item.truncate",
            "event_id": "turngap-truncate-1",
            "item_id": "msg_008",
            "content_index": 0,
            "audio_end_ms": 501,
        }
    ]


def test_nothing_is_dropped_if_nothing_waits() -> None:
    dialect = opened()
    assert hear(dialect, SPEECH_STARTED) == []
    hear(dialect, created())
    hear(dialect, delta(480))
    hear(dialect, done())
    dialect.audio_played(480)
    assert hear(dialect, SPEECH_STARTED) == []
    assert dialect.data_to_send() == []


def test_what_an_interrupted_reply_still_sends_is_not_heard() -> None:
    dialect = opened()
    hear(dialect, created())
    hear(dialect, delta(480))
    assert hear(dialect, SPEECH_STARTED) == [Flush()]
    text = {"type": "response.output_audio_transcript.delta", "response_id": "resp_001"}
    assert hear(dialect, delta(480)) == []
    assert hear(dialect, text | {"item_id": "msg_008", "delta": "unheard"}) == []
    assert hear(dialect, done(status="cancelled"))[-1] == ReplyDone()
    hear(dialect, created("resp_002"))
    assert heard(hear(dialect, delta(480, reply="resp_002", item="msg_009"))) == 480


def test_a_reply_that_is_interrupted_before_its_audio_is_not_heard() -> None:
    dialect = opened()
    hear(dialect, created())
    assert hear(dialect, SPEECH_STARTED) == []  # there is nothing to drop
    assert hear(dialect, delta(480)) == []


def test_a_server_may_use_one_id_for_all_replies_or_none() -> None:
    for reply in ("resp", ""):
        dialect = opened()
        for _ in range(3):
            hear(dialect, created(reply))
            assert heard(hear(dialect, delta(480, reply=reply, item="one"))) == 480
            assert hear(dialect, SPEECH_STARTED) == [Flush()]
            assert hear(dialect, delta(480, reply=reply, item="one")) == []
            dialect.audio_dropped(480)
            dialect.audio_played(480)
            hear(dialect, done(reply, "cancelled"))


def test_each_item_of_a_reply_is_told_of_by_itself() -> None:
    dialect = opened()
    for item in ("first", "second", "third"):
        hear(dialect, delta(2400, item=item))
    dialect.audio_played(2400)
    dialect.audio_played(3000)
    hear(dialect, SPEECH_STARTED)
    dialect.audio_dropped(7200 - 3000)
    assert truncations(dialect) == [("second", 25), ("third", 0)]


def test_an_item_is_counted_from_its_first_sample_though_it_came_in_drips() -> None:
    dialect = opened()
    for number in range(10):
        hear(dialect, delta(480))
        dialect.audio_played(480 * number)
    dialect.audio_played(4800)
    hear(dialect, delta(480))
    hear(dialect, SPEECH_STARTED)
    dialect.audio_dropped(240)
    assert truncations(dialect) == [("msg_008", 5040 // 24)]


def test_a_server_may_cancel_before_it_says_that_it_heard_the_person() -> None:
    # Hugging Face's speech-to-speech 1.1.0 sends the two in this order.
    dialect = opened()
    hear(dialect, created())
    hear(dialect, delta(480))
    assert hear(dialect, done(status="cancelled")) == [Flush(), ReplyText(" "), ReplyDone()]
    dialect.audio_dropped(480)
    dialect.audio_played(480)
    assert truncations(dialect) == [("msg_008", 0)]
    assert hear(dialect, SPEECH_STARTED) == []
    assert hear(dialect, delta(480)) == []


def test_a_reply_that_follows_on_a_cancelled_one_is_not_dropped_with_it() -> None:
    dialect = opened()
    hear(dialect, delta(480))
    hear(dialect, created("resp_002"))
    hear(dialect, delta(480, reply="resp_002", item="msg_009"))
    assert Flush() not in hear(dialect, done(status="cancelled"))


def test_a_server_that_is_not_interrupted_by_speech_keeps_its_voice() -> None:
    dialect = session()
    told: dict[str, Any] = json.loads(json.dumps(CREATED))
    told["session"]["audio"]["input"]["turn_detection"]["interrupt_response"] = False
    hear(dialect, told)
    hear(dialect, told | {"type": "session.updated"})
    hear(dialect, delta(480))
    assert hear(dialect, SPEECH_STARTED) == []
    assert heard(hear(dialect, delta(480))) == 480


# --- our own other half, and the library's types ----------------------------------------------


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("kind", ["pcm", "pcmu", "pcma"])
def test_both_halves_agree_and_say_what_the_library_knows(*, beta: bool, kind: str) -> None:
    dialect, half = session(format=kind), OpenAIRealtimeHalf(beta=beta)
    server = BETA_SERVER if beta else SERVER
    said: list[Incoming] = []
    told: list[Any] = []

    def down(*messages: Any) -> None:
        for message in messages:
            assert server.validate_json(message).type
            said.extend(dialect.receive_data(message))
            for answer in dialect.data_to_send():
                if not beta:
                    CLIENT.validate_json(answer)
                what, answers = half.receive_data(answer)
                told.extend(what)
                down(*answers)

    rate = 24_000 if kind == "pcm" else 8_000
    down(*half.opens())
    assert told == [Begun()]
    assert (half.in_rate, half.out_rate, dialect.rate) == (rate, rate, rate)
    down(*half.ready())
    assert said == [Ready()]
    dialect.send_audio(pcm(160, 1000).tobytes())
    for answer in dialect.data_to_send():
        (spoken,), _ = half.receive_data(answer)
        assert isinstance(spoken, Spoken)
        assert len(spoken.pcm) == 160
    said.clear()
    down(*half.turn_over("hello"), *half.reply_text("hi"), *half.audio(pcm(rate).tobytes()))
    types = [TurnOver, Transcript, ReplyDue, ReplyText, AudioChunk]
    assert [type(each) for each in said] == types
    said.clear()
    down(*half.flush())
    assert said == [Flush(), ReplyText(" "), ReplyDone()]
    dialect.audio_dropped(rate // 2)
    dialect.audio_played(rate)
    told.clear()
    down()
    for answer in dialect.data_to_send():
        what, answers = half.receive_data(answer)
        told.extend(what)
        down(*answers)
    assert told == [Truncated(500)]
    assert half.reply_done() == []
    said.clear()
    down(*half.reply_text("again"), *half.audio(pcm(80).tobytes()), *half.reply_done())
    assert said[-1] == ReplyDone()
    assert heard(said) == 80


def test_the_half_refuses_to_have_been_heard_for_longer_than_it_spoke() -> None:
    half = OpenAIRealtimeHalf()
    half.receive_data(json.dumps({"type": "session.update", "session": {"type": "realtime"}}))
    half.audio(pcm(2400).tobytes())
    truncate = {"type": "conversation.item.truncate", "item_id": "item_reply_1", "content_index": 0}
    for end_ms, fits in [(100, True), (101, False)]:
        what, (answer,) = half.receive_data(json.dumps(truncate | {"audio_end_ms": end_ms}))
        assert (what != []) == fits
        assert (json.loads(answer)["type"] == "error") == (not fits)


def test_it_is_listed_and_its_service_is_known_by_its_host() -> None:
    assert find_dialect("openai-realtime") is SPEC
    assert SPEC.key is not None
    assert (SPEC.hosts, SPEC.key.env) == (("api.openai.com",), "OPENAI_API_KEY")


# --- what no server sends ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    ["", "hello", b"\xff\xfe", "[]", "5", "null", "{}", '{"type": 5}', '{"event": "start"}'],
)
def test_what_is_no_event_is_refused(message: Any) -> None:
    with pytest.raises(NotSpokenError):
        session().receive_data(message)


def test_json_in_bytes_is_read() -> None:
    assert session().receive_data(b'{"type": "session.created"}') == []


def test_many_values_are_refused_before_they_are_parsed() -> None:
    flood = '{"type": "x", "of": [' + "[]," * 500_000 + "[]]}"
    assert len(flood) > MOST_JSON
    with pytest.raises(NotSpokenError, match="not JSON"):
        session().receive_data(flood)


def test_floods_of_items_and_replies_take_bounded_memory() -> None:
    dialect = opened()
    for number in range(MOST_WAITING):
        hear(dialect, delta(1, item=f"item{number}"))
    with pytest.raises(ValueError, match="items that wait"):
        hear(dialect, delta(1, item="one more"))
    assert hear(dialect, SPEECH_STARTED) == [Flush()]
    dialect.audio_dropped(MOST_WAITING)
    dialect.audio_played(MOST_WAITING)
    assert len(sent(dialect)) == MOST_WAITING
    for number in range(3 * MOST_DEAD):
        hear(dialect, created(f"reply{number}"))
        hear(dialect, SPEECH_STARTED)
    assert hear(dialect, delta(1, reply=f"reply{3 * MOST_DEAD - 1}")) == []
    assert heard(hear(dialect, delta(1, reply="reply0"))) == 1  # forgotten long ago


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "type", "audio", "input", "format", "rate", "status", "error"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
TYPES = st.sampled_from(
    [
        *("session.created", "session.updated", "conversation.created", "error"),
        *("response.created", "response.output_audio.delta", "response.done"),
        *("response.audio_transcript.delta", "response.audio_transcript.done"),
        *("input_audio_buffer.speech_started", "input_audio_buffer.committed"),
        "conversation.item.input_audio_transcription.completed",
    ]
)
PARTS = ("session", "response", "error", "delta", "transcript", "item_id", "response_id")
EVENTS = st.fixed_dictionaries({"type": TYPES}, optional=dict.fromkeys(PARTS, ANYTHING))


@given(st.lists(EVENTS | st.sampled_from([delta(480), created(), done(), SPEECH_STARTED])))
def test_any_events_are_read_or_refused_and_what_is_told_adds_up(events: list[Any]) -> None:
    dialect = session()
    dialect.open()
    end = 0
    for event in events:
        try:
            said = hear(dialect, event)
        except (NotSpokenError, ValueError) as e:
            assert str(e)
            continue
        end += heard(said)
        if Flush() in said:
            dialect.audio_dropped(end // 3)
        dialect.audio_played(end)
        for message in sent(dialect):
            if message["type"] == "conversation.item.truncate":
                assert 0 <= message["audio_end_ms"] <= end * 1000


@pytest.mark.parametrize("output", [5, True, {"type": "function_call"}, "function_call"])
def test_a_reply_whose_items_are_no_list_has_called_no_tools(output: Any) -> None:
    dialect = opened()
    hear(dialect, created())
    assert ReplyDone() in hear(dialect, done(output=output))

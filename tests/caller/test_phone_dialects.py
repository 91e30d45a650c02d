"""The dialects of phone companies, in the exact messages of their documents."""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_messages import sent

from turngap.caller.dialects.registry import find_dialect
from turngap.caller.dialects.telephony import MOST_MARK, MOST_MARKS, PhoneSession
from turngap.caller.said import AudioChunk, Flush, NotSpokenError, Ready
from turngap.core.errors import InputError
from turngap.core.untrusted import MOST_JSON
from turngap.core.wire import A_LAW, MU_LAW

PHONES = ("twilio", "telnyx", "plivo", "exotel", "vonage")
PACKET = (np.arange(160) * 100).astype(np.int16)

CALL = "CA0123456789abcdef0123456789abcdef"
ACCOUNT = "AC00000000000000000000000000000000"


def session(dialect: str, **settings: Any) -> Any:
    return find_dialect(dialect).session(settings)


def opened(dialect: str, **settings: Any) -> Any:
    """A session whose opening has been sent."""
    made = session(dialect, **settings)
    assert made.open() == [Ready()]
    made.data_to_send()
    return made


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def samples(incoming: Sequence[Any]) -> list[int]:
    (chunk,) = incoming
    assert isinstance(chunk, AudioChunk)
    return chunk.pcm.tolist()


# --- each in its own words --------------------------------------------------------------------


def test_twilio_up() -> None:
    made = session("twilio", call_sid=CALL, parameters={"lang": "en"})
    assert (made.name, made.rate) == ("twilio", 8000)
    assert made.open() == [Ready()]
    assert not made.ping(1)
    for _ in range(2):
        made.send_audio(PACKET.tobytes())
    made.close()
    connected, start, *media, stop = made.data_to_send()
    assert connected == '{"event": "connected", "protocol": "Call", "version": "1.0.0"}'
    stream = json.loads(start)["streamSid"]
    assert re.fullmatch("MZ[0-9a-f]{32}", stream)
    assert json.loads(start) == {
        "event": "start",
        "sequenceNumber": "1",
        "start": {
            "accountSid": ACCOUNT,
            "streamSid": stream,
            "callSid": CALL,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {"lang": "en"},
        },
        "streamSid": stream,
    }
    assert [json.loads(m) for m in media] == [
        {
            "event": "media",
            "sequenceNumber": str(number + 1),
            "media": {
                "track": "inbound",
                "chunk": str(number),
                "timestamp": str(20 * (number - 1)),
                "payload": coded(MU_LAW.encode(PACKET)),
            },
            "streamSid": stream,
        }
        for number in (1, 2)
    ]
    assert json.loads(stop) == {
        "event": "stop",
        "sequenceNumber": "4",
        "stop": {"accountSid": ACCOUNT, "callSid": CALL},
        "streamSid": stream,
    }


def test_twilio_down() -> None:
    made = session("twilio")
    assert made.open() == [Ready()]
    _, start = sent(made)
    stream = start["streamSid"]
    media = {"event": "media", "streamSid": stream, "media": {"payload": "gID/f4AA"}}
    assert samples(made.receive_data(json.dumps(media))) == [32124, 32124, 0, 0, 32124, -32124]
    mark = {"event": "mark", "streamSid": stream, "mark": {"name": "my label"}}
    assert made.receive_data(json.dumps(mark)) == []
    made.audio_played(5)
    assert sent(made) == []
    made.audio_played(6)
    assert sent(made) == [
        {
            "event": "mark",
            "sequenceNumber": "2",
            "mark": {"name": "my label"},
            "streamSid": stream,
        }
    ]
    clear = {"event": "clear", "streamSid": stream}
    assert made.receive_data(json.dumps(clear)) == [Flush()]


def test_telnyx_up() -> None:
    made = session("telnyx", call_control_id="v3:call", parameters={"customer_id": "customer_123"})
    assert made.open() == [Ready()]
    made.send_audio(PACKET.tobytes())
    made.close()
    connected, start, media, stop = sent(made)
    assert connected == {"event": "connected", "version": "1.0.0"}
    stream, session_id = start["stream_id"], start["start"].pop("call_session_id")
    assert len(stream) == len(session_id) == 36
    user = "00000000-0000-0000-0000-000000000000"
    assert start == {
        "event": "start",
        "sequence_number": "1",
        "stream_id": stream,
        "start": {
            "user_id": user,
            "call_control_id": "v3:call",
            "from": "+15550100000",
            "to": "+15550100001",
            "client_state": None,
            "custom_parameters": {"customer_id": "customer_123"},
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        },
    }
    assert media == {
        "event": "media",
        "sequence_number": "2",
        "stream_id": stream,
        "media": {
            "track": "inbound",
            "chunk": "1",
            "timestamp": "0",
            "payload": coded(MU_LAW.encode(PACKET)),
        },
    }
    assert stop == {
        "event": "stop",
        "sequence_number": "3",
        "stream_id": stream,
        "stop": {"user_id": user, "call_control_id": "v3:call"},
    }


def test_telnyx_down_without_an_id_and_in_a_law() -> None:
    made = session("telnyx", encoding="PCMA")
    made.open()
    assert sent(made)[1]["start"]["media_format"]["encoding"] == "PCMA"
    made.send_audio(PACKET.tobytes())
    assert sent(made)[0]["media"]["payload"] == coded(A_LAW.encode(PACKET))
    media = json.dumps({"event": "media", "media": {"payload": coded(bytes([0xAA, 0x2A]))}})
    assert samples(made.receive_data(media)) == [32256, -32256]
    made.receive_data('{"event":"mark","mark":{"name":"said"}}')
    assert made.receive_data('{"event":"clear"}') == [Flush()]
    made.audio_dropped(2)
    made.audio_played(2)
    assert [(m["event"], m["mark"]) for m in sent(made)] == [("mark", {"name": "said"})]


def test_plivo_up() -> None:
    made = session("plivo", call_id="12345678-1234-1234-1234-123456789abc", parameters={"a": "b"})
    assert made.open() == [Ready()]
    made.send_audio(PACKET.tobytes())
    made.close()
    start, media = sent(made)
    stream = start["streamId"]
    assert start == {
        "event": "start",
        "sequenceNumber": 1,
        "streamId": stream,
        "start": {
            "callId": "12345678-1234-1234-1234-123456789abc",
            "streamId": stream,
            "accountId": "MA000000000000000000",
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        },
        "extra_headers": "a=b",
    }
    assert media["media"] == {
        "track": "inbound",
        "chunk": 1,
        "timestamp": "0",
        "payload": coded(MU_LAW.encode(PACKET)),
    }
    assert (media["sequenceNumber"], media["streamId"]) == (2, stream)


def plays(kind: str, rate: Any, data: bytes) -> str:
    media = {"contentType": kind, "sampleRate": rate, "payload": coded(data)}
    return json.dumps({"event": "playAudio", "media": media})


def test_plivo_down_in_each_format() -> None:
    made = opened("plivo")
    (chunk,) = made.receive_data(plays("audio/x-mulaw", 8000, bytes([0x80])))
    assert (chunk.pcm.tolist(), chunk.rate) == ([32124], 8000)
    (chunk,) = made.receive_data(plays("audio/x-l16", "16000", b"\x01\x00\xff\xff"))
    assert (chunk.pcm.tolist(), chunk.rate) == ([1, -1], 16_000)
    for kind, rate in (("audio/x-mulaw", 16_000), ("audio/mpeg", 8000), ("audio/x-l16", 1e999)):
        with pytest.raises(ValueError, match="which plivo does not play"):
            made.receive_data(plays(kind, rate, b"\x00\x00"))


def test_plivo_answers_a_checkpoint_that_was_played_and_forgets_one_that_was_not() -> None:
    made = opened("plivo")
    for name in ("first", "second"):
        made.receive_data(plays("audio/x-mulaw", 8000, bytes(4)))
        made.receive_data(json.dumps({"event": "checkpoint", "name": name}))
    made.audio_played(5)
    assert made.receive_data('{"event": "clearAudio"}') == [Flush()]
    made.audio_dropped(2)
    made.audio_played(8)
    made.receive_data(json.dumps({"event": "checkpoint", "name": "nothing waits"}))
    played, cleared, after = sent(made)
    assert (played["event"], played["name"]) == ("playedStream", "first")
    assert cleared["event"] == "clearedAudio"
    assert (after["event"], after["name"]) == ("playedStream", "nothing waits")


def test_exotel_both_ways() -> None:
    made = session("exotel", call_sid="call", parameters={"key1": "value1"})
    assert made.open() == [Ready()]
    made.send_audio(PACKET.tobytes())
    made.close()
    connected, start, media, stop = sent(made)
    stream = start["stream_sid"]
    assert connected == {"event": "connected"}
    assert start == {
        "event": "start",
        "sequence_number": "1",
        "stream_sid": stream,
        "start": {
            "stream_sid": stream,
            "call_sid": "call",
            "account_sid": "turngap",
            "from": "+15550100000",
            "to": "+15550100001",
            "custom_parameters": {"key1": "value1"},
            "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", "bit_rate": "16"},
        },
    }
    assert media["media"]["payload"] == coded(PACKET.tobytes())
    assert (media["sequence_number"], media["media"]["chunk"]) == ("2", "1")
    assert stop["stop"] == {"call_sid": "call", "account_sid": "turngap", "reason": "callended"}

    heard = json.dumps(
        {"event": "media", "stream_sid": stream, "media": {"payload": coded(PACKET.tobytes())}}
    )
    assert samples(made.receive_data(heard)) == PACKET.tolist()
    clear = json.dumps({"event": "clear", "stream_sid": stream})
    assert made.receive_data(clear) == [Flush()]


def test_exotel_at_another_rate() -> None:
    made = session("exotel", rate=16_000)
    assert made.rate == 16_000
    made.open()
    assert sent(made)[1]["start"]["media_format"]["sample_rate"] == "16000"


def test_vonage_both_ways() -> None:
    made = session("vonage", parameters={"caller": "+15550100000"})
    assert (made.open(), made.rate) == ([Ready()], 16_000)
    made.send_audio(PACKET.tobytes())
    assert sent(made) == [
        {
            "event": "websocket:connected",
            "content-type": "audio/l16;rate=16000",
            "caller": "+15550100000",
        },
        PACKET.tobytes(),
    ]
    assert samples(made.receive_data(PACKET.tobytes())) == PACKET.tolist()
    made.receive_data('{"action": "notify", "payload": {"customKey": "customValue"}}')
    made.audio_played(160)
    assert made.receive_data('{"action": "clear"}') == [Flush()]
    made.close()
    assert sent(made) == [
        {"event": "websocket:notify", "payload": {"customKey": "customValue"}},
        {"event": "websocket:cleared"},
    ]
    assert session("vonage", rate=8000).rate == 8000


# --- marks ------------------------------------------------------------------------------------


def media(count: int) -> str:
    return json.dumps({"event": "media", "media": {"payload": coded(bytes(count))}})


def mark(name: Any) -> str:
    return json.dumps({"event": "mark", "mark": {"name": name}})


def marks(made: Any) -> list[str]:
    return [m["mark"]["name"] for m in sent(made)]


def test_marks_come_back_in_order_each_after_the_last_sample_before_it() -> None:
    made = opened("twilio")
    for message in (mark("none"), media(100), mark("a"), mark("b"), media(60), mark("c")):
        made.receive_data(message)
    assert marks(made) == ["none"]
    made.audio_played(99)
    assert marks(made) == []
    made.audio_played(159)
    assert marks(made) == ["a", "b"]
    made.audio_played(160)
    assert marks(made) == ["c"]


def test_the_marks_of_what_was_cleared_come_back_and_later_ones_do_not() -> None:
    made = opened("twilio")
    for message in (media(100), mark("a"), media(60), mark("b")):
        made.receive_data(message)
    made.audio_played(30)
    assert made.receive_data('{"event": "clear"}') == [Flush()]
    assert marks(made) == []
    # What comes after it is queued before the loudspeaker has told that it dropped the rest.
    made.receive_data(media(50))
    made.receive_data(mark("after"))
    made.audio_dropped(130)
    made.audio_played(160)
    assert marks(made) == ["a", "b"]
    made.audio_played(210)
    assert marks(made) == ["after"]


def test_no_more_marks_wait_than_a_reply_has() -> None:
    made = opened("twilio")
    made.receive_data(media(100))
    for number in range(MOST_MARKS):
        made.receive_data(mark(str(number)))
    with pytest.raises(ValueError, match="more than 1000 marks"):
        made.receive_data(mark("one more"))
    made.audio_played(100)
    assert len(marks(made)) == MOST_MARKS


@given(st.lists(st.integers(1, 400) | st.sampled_from(["mark", "clear"]), max_size=40))
def test_every_mark_comes_back_once_and_in_order(course: list[int | str]) -> None:
    made = opened("twilio")
    queued = played = number = 0
    for step in course:
        if step == "mark":
            made.receive_data(mark(str(number)))
            number += 1
        elif step == "clear":
            made.receive_data('{"event": "clear"}')
            if queued > played:
                made.audio_dropped(queued - played)
            played = queued
            made.audio_played(played)
        else:
            made.receive_data(media(int(step)))
            queued += int(step)
            played = min(queued, played + 160)
            made.audio_played(played)
    made.audio_played(queued)
    assert marks(made) == [str(n) for n in range(number)]


# --- what agents send wrong -------------------------------------------------------------------


@pytest.mark.parametrize("dialect", PHONES)
@pytest.mark.parametrize("message", ["", "hello", "[]", "null", "{}", '{"event": 5}', '"event"'])
def test_what_is_no_message_is_of_no_dialect(dialect: str, message: str) -> None:
    with pytest.raises(NotSpokenError):
        opened(dialect).receive_data(message)


@pytest.mark.parametrize("dialect", ["twilio", "telnyx", "plivo", "exotel"])
def test_binary_is_of_none_of_the_dialects_in_json(dialect: str) -> None:
    with pytest.raises(NotSpokenError, match="a binary message of 3 bytes"):
        opened(dialect).receive_data(b"\x00\x01\x02")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"event": "media"}, "without the object 'media'"),
        ({"event": "media", "media": []}, "without the object 'media'"),
        ({"event": "media", "media": {}}, "without a payload"),
        ({"event": "media", "media": {"payload": 5}}, "without a payload"),
        ({"event": "media", "media": {"payload": ""}}, "without audio"),
        ({"event": "media", "media": {"payload": "!!!"}}, "no base64"),
        ({"event": "media", "media": {"payload": "é"}}, "no base64"),
        ({"event": "mark"}, "without the object 'mark'"),
        ({"event": "mark", "mark": {}}, "without a name"),
        ({"event": "mark", "mark": {"name": 5}}, "without a name"),
        ({"event": "mark", "mark": {"name": "x" * MOST_MARK}}, "a mark of 1002 characters"),
        ({"event": "clear", "streamSid": "MZ1"}, "for another stream"),
        ({"event": "hangup"}, "the event 'hangup', which twilio does not take"),
    ],
)
def test_a_part_that_is_missing_is_left_out_with_a_reason(said: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        opened("twilio").receive_data(json.dumps(said))


def test_what_is_too_long_is_left_out() -> None:
    with pytest.raises(ValueError, match="characters, expected at most 1,048,576"):
        opened("twilio").receive_data(" " * (MOST_JSON + 1))


@pytest.mark.parametrize("dialect", ["exotel", "vonage"])
def test_half_a_sample_is_left_out(dialect: str) -> None:
    message = media(3) if dialect == "exotel" else bytes(3)
    with pytest.raises(ValueError, match="no whole samples"):
        opened(dialect).receive_data(message)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"action": "stop"}, "the action 'stop', which vonage does not take"),
        ({"action": "notify"}, "without the object 'payload'"),
        ({"action": "notify", "payload": {"x": "y" * MOST_MARK}}, "characters"),
    ],
)
def test_what_vonage_does_not_take(said: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        opened("vonage").receive_data(json.dumps(said))


def test_a_notification_that_cannot_be_sent_back_is_left_out() -> None:
    made = opened("vonage")
    for value in ("NaN", "[" * 900 + "]" * 900):
        with pytest.raises(ValueError, match=r"compliant|characters|nested"):
            made.receive_data('{"action": "notify", "payload": {"x": ' + value + "}}")


@given(st.sampled_from(PHONES), st.recursive(st.none() | st.text(), st.lists, max_leaves=3))
def test_any_value_says_something_or_is_refused(dialect: str, value: Any) -> None:
    made = opened(dialect)
    for event in ("media", "mark", "playAudio", "checkpoint", "notify"):
        for key in ("media", "mark", "payload", "name", "streamSid"):
            for body in (value, {"payload": value}, {"name": value}):
                try:
                    made.receive_data(json.dumps({key: body, "event": event, "action": event}))
                except (NotSpokenError, ValueError) as e:
                    assert str(e)
    made.audio_played(10**9)
    for message in made.data_to_send():
        assert isinstance(json.loads(message), dict)


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", PHONES)
def test_two_calls_have_ids_of_their_own(dialect: str) -> None:
    openings: list[str] = []
    for _ in range(2):
        made = session(dialect)
        assert isinstance(made, PhoneSession)
        made.open()  # pyright: ignore[reportAttributeAccessIssue]
        openings.append(str(made.data_to_send()))
    assert (openings[0] == openings[1]) == (dialect == "vonage")  # which tells no ids by itself


@pytest.mark.parametrize(
    ("dialect", "settings"),
    [
        ("twilio", {"parameters": {"a": 5}}),
        ("twilio", {"callsid": "CA"}),
        ("telnyx", {"encoding": "OPUS"}),
        ("vonage", {"rate": 44_100}),
    ],
)
def test_settings_that_no_company_has_are_refused(dialect: str, settings: Any) -> None:
    with pytest.raises(InputError, match=f"dialect '{dialect}'"):
        session(dialect, **settings)

"""The gpt-live dialect: the specification's JSON, and what no server sends."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_messages import hear, sent
from openai.types.live import ClientEvent, ServerEvent
from pydantic import TypeAdapter

from turngap.caller.dialects.gpt_live import SPEC
from turngap.caller.dialects.openai_realtime import SPEC as REALTIME
from turngap.caller.dialects.registry import dialect_of_host, find_dialect
from turngap.caller.dialects.session import Session
from turngap.caller.endpoint import Endpoint
from turngap.caller.said import (
    AudioBytes,
    Fault,
    Incoming,
    NotSpokenError,
    Ready,
    ReplyText,
    Transcript,
    UnplayableError,
)
from turngap.core.errors import InputError
from turngap.core.untrusted import MOST_TEXT
from turngap.testing.dialects import Begun, HungUp, Spoken
from turngap.testing.dialects.services import GptLiveHalf

CLIENT = TypeAdapter[Any](ClientEvent)
SERVER = TypeAdapter[Any](ServerEvent)
STARTED = {
    "type": "session.started",
    "event_id": "event_1",
    "session": {"id": "live_1", "expires_at": 1, "model": "gpt-live-1", "status": "active"},
}


def session(**settings: Any) -> Session:
    return SPEC.session(settings)


def opened(**settings: Any) -> Session:
    dialect = session(**settings)
    dialect.open()
    dialect.data_to_send()
    assert hear(dialect, STARTED) == [Ready()]
    return dialect


def test_the_session_is_started_in_the_specifications_json() -> None:
    dialect = session()
    assert dialect.open() == []
    start = {
        "type": "session.start",
        "session": {
            "model": "gpt-live-1",
            "audio": {"format": {"type": "audio/pcm", "rate": 24000}},
            "delegation": {"type": "client"},
        },
    }
    assert sent(dialect) == [start]
    assert hear(dialect, STARTED) == [Ready()]
    assert hear(dialect, STARTED) == []
    assert (dialect.name, dialect.rate) == ("gpt-live", 24_000)


def test_what_is_given_is_asked_for() -> None:
    dialect = session(model="gpt-live-2", voice="cedar", instructions="Be brief.", format="pcma")
    dialect.open()
    (start,) = sent(dialect)
    assert start["session"] == {
        "model": "gpt-live-2",
        "instructions": "Be brief.",
        "delegation": {"type": "client"},
        "audio": {"format": {"type": "audio/pcma", "rate": 8000}, "output": {"voice": "cedar"}},
    }
    assert dialect.rate == 8_000
    CLIENT.validate_python(start)


def test_audio_and_texts() -> None:
    dialect = opened(rate=16_000)
    dialect.send_audio(np.array([0, 1, -1], dtype="<i2").tobytes())
    assert dialect.data_to_send() == ['{"type": "session.input_audio.append", "audio": "AAABAP//"}']
    delta = {"type": "session.output_audio.delta", "delta": "AAABAP//"}
    assert hear(dialect, delta) == [AudioBytes(b"\x00\x00\x01\x00\xff\xff", 16_000)]
    times = {"event_id": "event_2", "start_ms": 0, "end_ms": 400}
    said = {"type": "session.input_transcript.delta", "delta": "Hello", **times}
    assert hear(dialect, said) == []  # "Hellos" may come of it
    reply = {"type": "session.output_transcript.delta", "delta": " Hi", **times}
    assert hear(dialect, reply) == [Transcript("Hello"), ReplyText(" Hi")]
    assert hear(dialect, reply) == [ReplyText(" Hi")]
    for kind in ("session.usage.updated", "info", "session.delegation.created", "something.new"):
        assert hear(dialect, {"type": kind}) == []
    # Nothing is ever dropped, and the server is told nothing of what was played.
    dialect.audio_played(3)
    assert not dialect.ping(1)
    assert dialect.data_to_send() == []
    dialect.close()
    assert dialect.data_to_send() == ['{"type": "session.close"}']


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"type": "audio/pcmu", "rate": 8000}, "pcmu at 8000 Hz"),
        ({"type": "audio/pcm", "rate": 24000}, "pcm at 24000 Hz"),
        ({"type": "audio/opus"}, "'audio/opus'"),
    ],
)
def test_a_server_that_settles_on_another_format_is_refused(told: Any, words: str) -> None:
    def started(audio_format: Any) -> list[Incoming]:
        dialect = session(rate=16_000)
        about: dict[str, Any] = STARTED["session"]
        return hear(dialect, STARTED | {"session": about | {"audio": {"format": audio_format}}})

    why = f"it uses {words}, and was asked for pcm at 16000 Hz"
    assert started(told) == [Fault(why, fatal=True)]
    assert started({"type": "audio/pcm", "rate": 16000}) == started(None) == [Ready()]


@pytest.mark.parametrize("rate", [8_000, 48_000])
def test_rates_that_the_specification_does_not_have_are_refused(rate: int) -> None:
    with pytest.raises(InputError, match="dialect 'gpt-live'"):
        session(rate=rate)


@pytest.mark.parametrize(
    "pieces",
    [["Hel", "lo wor", "ld"], ["Hello", " world"], ["Hello ", "wo", "rld"], ["Hello world "]],
)
def test_the_words_of_a_transcript_are_whole_wherever_its_pieces_end(pieces: list[str]) -> None:
    dialect = opened()
    deltas = [{"type": "session.input_transcript.delta", "delta": piece} for piece in pieces]
    ended = {"type": "session.output_transcript.delta", "delta": ""}
    said = [each for event in (*deltas, ended) for each in hear(dialect, event)]
    words = [each.text for each in said if isinstance(each, Transcript)]
    assert " ".join(words) == "Hello world"  # as `TurnTracker` joins them


def test_a_word_that_never_ends_is_bounded() -> None:
    dialect = opened()
    for _ in range(3):
        hear(dialect, {"type": "session.input_transcript.delta", "delta": "a" * MOST_TEXT})
    closed = hear(dialect, {"type": "session.closed"})
    assert [len(each.text) for each in closed if isinstance(each, Transcript)] == [MOST_TEXT]


def test_errors() -> None:
    error = {"type": "invalid_request_error", "code": "unknown_parameter", "message": "No voice."}
    event = {"type": "error", "event_id": "event_3", "error": error}
    assert hear(session(), event) == [Fault("No voice.", fatal=True)]
    assert hear(opened(), event) == [Fault("No voice.", fatal=False, refuses=True)]
    closed = {"type": "session.closed", "reason": "expired"}
    why = "the server ended the session: expired"
    assert hear(opened(), closed) == [Fault(why, fatal=False)]
    assert hear(session(), closed) == [Fault(why, fatal=True)]


@pytest.mark.parametrize("kind", ["pcm", "pcmu", "pcma"])
def test_both_halves_agree_and_say_what_the_library_knows(kind: str) -> None:
    dialect, half = session(format=kind), GptLiveHalf()
    rate = 24_000 if kind == "pcm" else 8_000

    def up() -> list[Any]:
        told: list[Any] = []
        for message in dialect.data_to_send():
            CLIENT.validate_json(message)
            what, answers = half.receive_data(message)
            told += what
            for answer in answers:
                SERVER.validate_json(answer)
        return told

    def down(messages: list[Any]) -> list[Incoming]:
        for message in messages:
            SERVER.validate_json(message)
        return [each for message in messages for each in dialect.receive_data(message)]

    assert half.opens() == []
    dialect.open()
    assert up() == [Begun()]
    assert (half.in_rate, half.out_rate, dialect.rate) == (rate, rate, rate)
    assert down(half.ready()) == [Ready()]
    dialect.send_audio(bytes(320))
    (spoken,) = up()
    assert isinstance(spoken, Spoken)
    assert len(spoken.pcm) == 160
    assert down(half.turn_over("hello")) == []
    assert down(half.reply_text("hi")) == [Transcript("hello"), ReplyText("hi")]
    (audio,) = down(half.audio(np.full(160, 1000, dtype="<i2").tobytes()))
    assert isinstance(audio, AudioBytes)
    assert (len(audio.data), audio.rate) == (320 if audio.law is None else 160, rate)
    assert half.flush() + half.reply_done() + half.own_message({}) == []
    dialect.close()
    assert up() == [HungUp()]


def test_one_service_speaks_both_and_its_paths_tell_them_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_dialect("gpt-live") is SPEC
    live = "wss://api.openai.com/v1/live/sessions"
    assert dialect_of_host(live) is SPEC
    assert dialect_of_host("wss://api.openai.com/v1/live") is SPEC
    assert dialect_of_host("wss://eu.api.openai.com/v1/live/sessions") is SPEC
    for url in ("wss://api.openai.com/v1/realtime?model=x", "wss://api.openai.com/v1/lively"):
        assert dialect_of_host(url) is REALTIME
    assert dialect_of_host("wss://example.com/api.openai.com/v1/live") is None
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    for dialect in ("gpt-live", ""):
        _, headers, _ = Endpoint(live, dialect).opening()
        assert headers == {"Authorization": "Bearer sk-test"}
    _, headers, _ = Endpoint("wss://example.com/v1/live", "gpt-live").opening()
    assert headers == {}


@pytest.mark.parametrize("message", ["", "hello", b"\xff", "[]", "{}", '{"type": null}'])
def test_what_is_no_event_is_refused(message: Any) -> None:
    with pytest.raises(NotSpokenError):
        session().receive_data(message)


def test_audio_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UnplayableError):
        hear(opened(), {"type": "session.output_audio.delta", "delta": "%%"})
    with pytest.raises(ValueError, match="audio in base64"):
        hear(opened(), {"type": "session.output_audio.delta"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
TYPES = st.sampled_from(
    [
        *("session.started", "session.closed", "session.output_audio.delta", "error"),
        *("session.input_transcript.delta", "session.output_transcript.delta"),
    ]
)


@given(
    st.fixed_dictionaries(
        {"type": TYPES}, optional=dict.fromkeys(("delta", "error", "reason", "session"), ANYTHING)
    )
)
def test_any_event_is_read_or_refused(event: Any) -> None:
    dialect = opened()
    try:
        hear(dialect, event)
    except (NotSpokenError, ValueError) as e:
        assert str(e)
    assert dialect.data_to_send() == []

"""RTVI in its old and new words, and as JSON: `pipecat-eval`."""

import base64
import json
from typing import Any

import pytest
from pipecat.evals.serializer import EvalSerializer, parse_eval_connect
from pipecat.frames.frames import (
    InputTransportMessageFrame,
    OutputAudioRawFrame,
    OutputTransportMessageFrame,
)
from pipecat.processors.frameworks.rtvi import models

from turngap.caller.dialects.pipecat import PipecatSession, interruption_frame
from turngap.caller.dialects.pipecat_eval import PipecatEvalSession
from turngap.caller.dialects.rtvi import RtviReader, rtvi
from turngap.caller.said import (
    AudioBytes,
    Flush,
    Incoming,
    NotSpokenError,
    Pong,
    Ready,
    ReplyDone,
    ReplyText,
    Transcript,
    TurnOver,
    UnplayableError,
)
from turngap.core.wire import message_frame

HEARD = {"text": "hello", "user_id": "", "timestamp": "now", "final": True}
INPUT = {"text": "hello", "input_type": "transcription", "timestamp": "now", "final": True}
NEXT = ReplyText(" ")


def read(*messages: tuple[str, Any]) -> list[Incoming]:
    """Return the events in one conversation's messages."""
    reader = RtviReader()
    return [said for kind, data in messages for said in reader.read(rtvi(kind, data))]


LLM: list[tuple[str, Any]] = [("bot-llm-started", None), ("bot-llm-text", {"text": "Hi"})]


def text(words: str) -> dict[str, str]:
    return {"text": words}


def output(segment: int, words: str, status: str) -> tuple[str, dict[str, Any]]:
    """`bot-output` as pipecat's own model writes it."""
    data = models.BotOutputMessageData(
        text=words,
        output_type="sentence",
        segment_id=segment,
        will_be_spoken=True,
        spoken_status=status,  # pyright: ignore[reportArgumentType]
    )
    return "bot-output", data.model_dump(exclude_none=True)


# --- the same text by several names -----------------------------------------------------------


@pytest.mark.parametrize(
    "together",
    [
        [("user-transcription", HEARD)],  # up to 1.12
        [("user-input", INPUT), ("user-transcription", HEARD)],  # 1.13 and 1.14
        [("user-input", INPUT), ("stt-raw-text", HEARD), ("user-transcription", HEARD)],
        [("stt-raw-text", HEARD), ("user-transcription", HEARD)],
        [("user-input", INPUT)],
    ],
)
def test_what_the_person_said_counts_once(together: list[tuple[str, Any]]) -> None:
    assert read(*together) == [Transcript("hello")]
    assert read(*together, *together) == [Transcript("hello")] * 2


@pytest.mark.parametrize(
    "piece",
    [
        lambda words: [("bot-llm-text", text(words))],  # up to 1.12, and until 2.0
        lambda words: [("llm-raw-text", text(words)), ("bot-llm-text", text(words))],
        lambda words: [("llm-raw-text", text(words))],
    ],
)
def test_a_reply_counts_once(piece: Any) -> None:
    said = read(*piece("Good "), *piece("day."), output(7, "Good day.", "new"))
    assert said == [ReplyText("Good "), ReplyText("day.")]


def test_a_reply_that_comes_as_bot_output_alone_counts_each_sentence_once() -> None:
    said = read(
        output(7, "Good day.", "new"),
        output(9, "Who is it?", "new"),
        output(7, "Good day.", "in-progress"),
        output(7, "Good day.", "completed"),
        output(9, "Who is it?", "completed"),
    )
    assert said == [ReplyText("Good day."), NEXT, ReplyText("Who is it?"), NEXT]


def test_a_greeting_without_a_model_is_told_and_the_reply_after_it_once() -> None:
    said = read(
        output(3, "Welcome.", "new"),
        ("bot-llm-text", text("Good day.")),
        output(7, "Good day.", "new"),
    )
    assert said == [ReplyText("Welcome."), NEXT, ReplyText("Good day.")]


def test_what_was_typed_or_said_while_the_bot_talks_is_no_turn() -> None:
    assert read(("user-input", {**INPUT, "input_type": "chat"})) == []
    assert read(("user-input", {**INPUT, "input_type": "backchannel"})) == []
    assert read(("user-input", {**INPUT, "final": False})) == []


def test_new_messages_are_read_as_pipecats_models_write_them() -> None:
    heard = models.UserInputMessage(data=models.UserInputMessageData.model_validate(INPUT))
    raw = models.LLMRawTextMessage(data=models.TextMessageData(text="Yes."))
    stt = models.STTRawTextMessage(data=models.STTRawTextMessageData.model_validate(HEARD))
    assert RtviReader().read(heard.model_dump()) == [Transcript("hello")]
    assert RtviReader().read(raw.model_dump()) == [ReplyText("Yes.")]
    assert RtviReader().read(stt.model_dump()) == [Transcript("hello")]


# --- interruptions ----------------------------------------------------------------------------

BARGE_IN = [("user-started-speaking", None), ("bot-stopped-speaking", None)]


def test_a_bot_of_rtvi_1_that_stops_while_the_person_speaks_has_been_interrupted() -> None:
    ready = ("bot-ready", {"version": "1.2.0"})
    assert read(ready, *BARGE_IN) == [Ready(), Flush(), ReplyDone()]
    over = ("user-stopped-speaking", None)
    assert read(ready, BARGE_IN[0], over, BARGE_IN[1]) == [Ready(), TurnOver(), ReplyDone()]


@pytest.mark.parametrize("version", ["2.0.0", "2.2.0", None, 5])
def test_a_bot_of_rtvi_2_says_so_itself(version: Any) -> None:
    assert read(("bot-ready", {"version": version}), *BARGE_IN) == [Ready(), ReplyDone()]


@pytest.mark.parametrize(
    ("messages", "done"),
    [
        ([], [ReplyDone(whole=False)]),  # nothing but that it has stopped
        ([*LLM, ("bot-llm-stopped", None)], [ReplyDone(whole=True)]),
        (LLM, []),
        ([LLM[0], ("bot-llm-stopped", None)], []),  # a tool was called in place of a text
        ([*LLM, ("llm-function-call-in-progress", {}), ("bot-llm-stopped", None)], []),
        ([*LLM, ("bot-llm-stopped", None), ("llm-function-call-stopped", {})], []),
        # the last turn's LLM had answered; in this one, something else was spoken so far
        (
            [*LLM, ("bot-llm-stopped", None), ("user-started-speaking", None)],
            [ReplyDone(whole=False)],
        ),
    ],
)
def test_what_has_stopped_may_go_on_unless_its_llm_has_ended(
    messages: list[tuple[str, Any]], done: list[Incoming]
) -> None:
    said = read(*messages, ("bot-stopped-speaking", None))
    found = [each for each in said if isinstance(each, ReplyDone)]
    assert [each.whole for each in found] == [
        each.whole for each in done if isinstance(each, ReplyDone)
    ]


def test_an_interruption_that_was_told_is_not_guessed_a_second_time() -> None:
    # pipecat 1.1 to 1.3: RTVI 1.2.0, and an interruption in protobuf.
    session = PipecatSession()
    ready = message_frame(rtvi("bot-ready", {"version": "1.2.0"}))
    began, stopped = (message_frame(rtvi(*message)) for message in BARGE_IN)
    said = [session.receive_data(m) for m in (ready, began, interruption_frame(), stopped)]
    assert said == [[Ready()], [], [Flush()], [ReplyDone()]]


def test_the_word_for_it_in_rtvi_2_repeats_the_protobuf_one() -> None:
    session = PipecatSession()
    assert session.receive_data(message_frame(rtvi("bot-interrupted"))) == []


# --- pipecat-eval -----------------------------------------------------------------------------


def opened() -> tuple[PipecatEvalSession, list[str]]:
    session = PipecatEvalSession()
    assert session.open() == []
    return session, [str(message) for message in session.data_to_send()]


def test_it_opens_as_the_harness_does() -> None:
    _, (connect, ready) = opened()
    assert json.loads(connect) == {
        "label": "rtvi-ai",
        "type": "client-message",
        "id": "eval-connect",
        "data": {
            "t": "eval-connect",
            "d": {"skip_tts": False, "capture_bot_audio": True, "capture_bot_images": False},
        },
    }
    flags = parse_eval_connect(json.loads(connect))
    assert flags is not None
    assert (flags.skip_tts, flags.capture_bot_audio) == (False, True)
    assert models.Message.model_validate_json(ready).type == "client-ready"


async def test_a_bot_reads_the_callers_audio_and_pings() -> None:
    session, _ = opened()
    session.send_audio(b"\x01\x00\xff\x7f")
    assert session.ping(7)
    audio, ping = session.data_to_send()
    frame = await EvalSerializer().deserialize(audio)
    assert isinstance(frame, InputTransportMessageFrame)
    message = models.Message.model_validate(frame.message)
    assert message.type == "raw-audio"
    assert message.data == {"base64Audio": "AQD/fw==", "sampleRate": 16_000, "numChannels": 1}
    frame = await EvalSerializer().deserialize(ping)
    assert isinstance(frame, InputTransportMessageFrame)
    assert frame.message["data"] == {"t": "turngap.ping", "d": {"ping": 7}}


async def test_a_bots_audio_and_messages_are_read_as_its_serializer_writes_them() -> None:
    bot = EvalSerializer()
    bot.set_capture_audio(True)
    session, _ = opened()
    audio = await bot.serialize(OutputAudioRawFrame(b"\x01\x00\xff\x7f", 24_000, 1))
    assert audio is not None
    assert audio == json.dumps(
        {
            "label": "rtvi-ai",
            "type": "eval-bot-audio",
            "data": {"audio": "AQD/fw==", "sampleRate": 24000},
        }
    )
    assert session.receive_data(audio) == [AudioBytes(b"\x01\x00\xff\x7f", 24_000)]
    for model, said in (
        (models.BotReady(id="1", data=models.BotReadyData(version="2.2.0")), [Ready()]),
        (models.BotInterruptedMessage(), [Flush()]),
        (models.UserStoppedSpeakingMessage(), [TurnOver()]),
        (models.BotStoppedSpeakingMessage(), [ReplyDone()]),
        (models.BotStartedSpeakingMessage(), []),
        (models.ServerMessage(data={"turngap": "pong", "ping": 1, "agent_ns": 2}), [Pong(1, 2)]),
    ):
        frame = OutputTransportMessageFrame(message=model.model_dump(exclude_none=True))
        message = await bot.serialize(frame)
        assert message is not None
        assert session.receive_data(message) == said


@pytest.mark.parametrize(
    "message",
    ["", "hello", "[]", "5", "null", '{"type": "bot-ready"}', '{"event": "media"}', b"\x00\xff"],
)
def test_what_is_no_rtvi_message_is_refused(message: str | bytes) -> None:
    with pytest.raises(NotSpokenError):
        opened()[0].receive_data(message)


@pytest.mark.parametrize("audio", ["no base64!", "AAA", "\u00fc"])
def test_audio_that_cannot_be_read_is_unplayable(audio: Any) -> None:
    message = rtvi("eval-bot-audio", {"audio": audio, "sampleRate": 24_000})
    with pytest.raises(UnplayableError, match="no base64"):
        opened()[0].receive_data(json.dumps(message))


@pytest.mark.parametrize("audio", [None, 5, []])
def test_a_message_without_audio_is_left_out(audio: Any) -> None:
    message = rtvi("eval-bot-audio", {"audio": audio, "sampleRate": 24_000})
    with pytest.raises(ValueError, match="expected audio in base64"):
        opened()[0].receive_data(json.dumps(message))


@pytest.mark.parametrize("rate", [None, "24000", 1.5, 10**400])
def test_audio_without_a_rate_is_left_out(rate: Any) -> None:
    data = {"audio": base64.b64encode(b"\0\0").decode(), "sampleRate": rate}
    with pytest.raises(ValueError, match="whole number"):
        opened()[0].receive_data(json.dumps(rtvi("eval-bot-audio", data)))

"""The dialects of Deepgram, ElevenLabs and Google, message by message as in their documents."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_messages import sent

from turngap.caller.dialects.deepgram_agent import DeepgramAgentSession, DeepgramSettings
from turngap.caller.dialects.elevenlabs import ElevenLabsSession
from turngap.caller.dialects.gemini_live import GeminiLiveSession, GeminiSettings
from turngap.caller.dialects.registry import dialect_of_host, dialects
from turngap.caller.dialects.session import Session
from turngap.caller.endpoint import Endpoint
from turngap.caller.intake import MOST_MESSAGE_BYTES
from turngap.caller.said import (
    AudioBytes,
    Fault,
    Flush,
    Incoming,
    NotSpokenError,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
    UnplayableError,
)
from turngap.core.untrusted import MOST_TEXT
from turngap.core.wire import MU_LAW

PCM = b"\x01\x00\xff\x7f"
BASE64 = "AQD/fw=="
NEXT = ReplyText(" ")


def tell(session: Session, *messages: Any) -> list[Incoming]:
    """Return the session's events for the agent's messages; objects are sent as JSON."""
    said: list[Incoming] = []
    for message in messages:
        raw = message if isinstance(message, str | bytes) else json.dumps(message)
        said += session.receive_data(raw)
    return said


# --- Deepgram ---------------------------------------------------------------------------------

WELCOME = {"type": "Welcome", "request_id": "fc553ec9-5874-49ca-a47c-b670d525a4b1"}


def deepgram(settings: DeepgramSettings | None = None) -> DeepgramAgentSession:
    session = DeepgramAgentSession(settings)
    assert session.open() == []
    assert sent(session) == []  # nothing before the welcome
    assert tell(session, WELCOME) == []
    return session


def test_deepgram_sends_its_settings_after_the_welcome_and_is_ready_when_they_are_applied() -> None:
    session = deepgram(DeepgramSettings(prompt="Be brief."))
    assert sent(session) == [
        {
            "type": "Settings",
            "audio": {
                "input": {"encoding": "linear16", "sample_rate": 16000},
                "output": {"encoding": "linear16", "sample_rate": 24000, "container": "none"},
            },
            "agent": {
                "listen": {"provider": {"type": "deepgram", "model": "nova-3"}},
                "think": {
                    "provider": {"type": "open_ai", "model": "gpt-4o-mini"},
                    "prompt": "Be brief.",
                },
                "speak": {"provider": {"type": "deepgram", "model": "aura-2-thalia-en"}},
            },
        }
    ]
    assert tell(session, {"type": "SettingsApplied"}) == [Ready()]
    session.send_audio(PCM)
    assert sent(session) == [PCM]


def test_deepgram_takes_an_agent_that_is_configured_there() -> None:
    (settings,) = sent(deepgram(DeepgramSettings(agent="3fa85f64")))
    assert settings["agent"] == "3fa85f64"


def test_deepgrams_turn() -> None:
    turn = [
        {"type": "UserStartedSpeaking"},
        {"type": "ConversationText", "role": "user", "content": "What time is it?"},
        {"type": "AgentThinking", "content": "…"},
        {"type": "ConversationText", "role": "assistant", "content": "Noon."},
        {"type": "ConversationText", "role": "assistant", "content": "Sharp."},
        {
            "type": "AgentStartedSpeaking",
            "total_latency": 0.6,
            "tts_latency": 0.2,
            "ttt_latency": 0.3,
        },
        PCM,
        {"type": "AgentAudioDone"},
        {"type": "SomethingNew"},
    ]
    assert tell(deepgram(), *turn) == [
        Flush(),
        Transcript("What time is it?"),
        ReplyText("Noon."),
        NEXT,
        ReplyText("Sharp."),
        NEXT,
        AudioBytes(PCM, 24_000),
        ReplyDone(),
    ]


def test_deepgrams_errors_end_a_conversation_and_warnings_do_not() -> None:
    error = {"type": "Error", "description": "no such model", "code": "UNPARSABLE"}
    warning = {"type": "Warning", "description": "slow", "code": "SLOW"}
    assert tell(deepgram(), error, warning) == [
        Fault("no such model: UNPARSABLE", fatal=True),
        Fault("slow: SLOW", fatal=False, refuses=True),
    ]
    refused = DeepgramAgentSession()
    assert tell(refused, error) == [Fault("no such model: UNPARSABLE", fatal=True)]


def test_deepgram_is_told_that_the_caller_has_no_functions() -> None:
    session = deepgram()
    sent(session)
    call = {"id": "fc_1", "name": "book", "arguments": "{}"}
    calls = [{**call, "client_side": True}, {**call, "client_side": False}, 5]
    # What it says meanwhile is not the whole reply.
    told = ({"type": "FunctionCallRequest", "functions": calls}, {"type": "AgentAudioDone"})
    assert tell(session, *told) == [ReplyDue()]
    spoken = {"type": "ConversationText", "role": "assistant", "content": "Noon."}
    assert tell(session, spoken, {"type": "AgentAudioDone"})[-1] == ReplyDone()
    content = "this caller has no functions"
    answer = {"type": "FunctionCallResponse", "id": "fc_1", "name": "book", "content": content}
    assert sent(session) == [answer]


# --- ElevenLabs -------------------------------------------------------------------------------


def metadata(agent: Any = "pcm_16000", user: Any = "pcm_16000") -> dict[str, Any]:
    return {
        "type": "conversation_initiation_metadata",
        "conversation_initiation_metadata_event": {
            "conversation_id": "conv_123456789",
            "agent_output_audio_format": agent,
            "user_input_audio_format": user,
        },
    }


def audio(number: Any, data: Any = BASE64) -> dict[str, Any]:
    return {"type": "audio", "audio_event": {"audio_base_64": data, "event_id": number}}


def interruption(number: int) -> dict[str, Any]:
    return {"type": "interruption", "interruption_event": {"event_id": number}}


def elevenlabs(agent: str = "pcm_16000", user: str = "pcm_16000") -> ElevenLabsSession:
    session = ElevenLabsSession()
    assert session.open() == []
    assert sent(session) == [{"type": "conversation_initiation_client_data"}]
    assert tell(session, metadata(agent, user)) == [Ready()]
    return session


def test_elevenlabs_names_the_rates_when_it_is_ready() -> None:
    session = elevenlabs(agent="pcm_44100", user="pcm_8000")
    assert session.rate == 8_000
    assert tell(session, audio(1)) == [AudioBytes(PCM, 44_100)]
    session.send_audio(PCM)
    assert sent(session) == [{"user_audio_chunk": BASE64}]
    assert tell(session, metadata(user="pcm_48000")) == []
    assert session.rate == 8_000  # a conversation's rate stays


def test_elevenlabs_may_speak_mu_law() -> None:
    session = elevenlabs(agent="ulaw_8000", user="ulaw_8000")
    assert session.rate == 8_000
    assert tell(session, audio(1)) == [AudioBytes(PCM, 8_000, law=MU_LAW)]
    session.send_audio(MU_LAW.decode(b"\x01\x00").tobytes())
    assert sent(session) == [{"user_audio_chunk": "AQA="}]


@pytest.mark.parametrize("form", ["mp3_44100", "pcm_", "pcm_1", "pcm_9999999", "opus", 5, [], {}])
def test_elevenlabs_audio_in_another_format_is_refused(form: Any) -> None:
    with pytest.raises(UnplayableError, match="neither PCM16 nor ulaw_8000"):
        tell(ElevenLabsSession(), metadata(agent=form))


def test_an_interruption_drops_audio_up_to_its_number_also_what_comes_later() -> None:
    said = tell(elevenlabs(), audio(1), audio(2), interruption(4), audio(3), audio(4), audio(5))
    heard = AudioBytes(PCM, 16_000)
    assert said == [heard, heard, Flush(), heard]


def test_an_interruption_without_a_number_drops_what_has_come() -> None:
    plain = {"type": "interruption", "interruption_event": {}}
    said = tell(elevenlabs(), audio(7), plain, audio(7), audio(8))
    heard = AudioBytes(PCM, 16_000)
    assert said == [heard, Flush(), heard]


def test_elevenlabs_turn() -> None:
    session = elevenlabs()
    correction = {"original_agent_response": "Noon.", "corrected_agent_response": "No"}
    turn = [
        {"type": "ping", "ping_event": {"event_id": 12, "ping_ms": 50}},
        {"type": "vad_score", "vad_score_event": {"vad_score": 0.9}},
        {"type": "user_transcript", "user_transcription_event": {"user_transcript": "What time?"}},
        {"type": "agent_response", "agent_response_event": {"agent_response": "Noon."}},
        {"type": "agent_response_correction", "agent_response_correction_event": correction},
        {"type": "agent_response_complete"},
    ]
    assert tell(session, *turn) == [Transcript("What time?"), ReplyText("Noon."), NEXT, ReplyDone()]
    assert sent(session) == [{"type": "pong", "event_id": 12}]


def test_elevenlabs_is_told_that_the_caller_has_no_tools() -> None:
    session = elevenlabs()
    call = {"tool_name": "book", "tool_call_id": "t_1", "parameters": {}}
    told = {"type": "client_tool_call", "client_tool_call": call}
    assert tell(session, told, {"type": "agent_tool_response"}) == [ReplyDue(), ReplyDue()]
    (answer,) = sent(session)
    assert (answer["type"], answer["tool_call_id"]) == ("client_tool_result", "t_1")
    assert answer["is_error"] is True


@pytest.mark.parametrize("tool", ["client_tool_call", "agent_tool_request", "agent_tool_response"])
def test_a_hold_phrase_of_elevenlabs_is_not_the_whole_reply(tool: str) -> None:
    hold = {"type": "agent_response", "agent_response_event": {"agent_response": "One moment."}}
    complete = {"type": "agent_response_complete"}
    said = tell(elevenlabs(), hold, {"type": tool}, complete, hold, complete)
    words = [ReplyText("One moment."), NEXT]
    assert said == [*words, ReplyDue(), *words, ReplyDone()]


# --- Gemini -----------------------------------------------------------------------------------


def content(**values: Any) -> bytes:
    """A message as the server sends it, JSON in bytes."""
    return json.dumps({"serverContent": values}).encode()


def blob(mime: Any = "audio/pcm;rate=24000", data: Any = BASE64) -> dict[str, Any]:
    return {"parts": [{"inlineData": {"mimeType": mime, "data": data}}]}


def gemini() -> GeminiLiveSession:
    session = GeminiLiveSession(GeminiSettings(model="gemini-x", prompt="Be brief."))
    assert session.open() == []
    assert sent(session) == [
        {
            "setup": {
                "model": "models/gemini-x",
                "generationConfig": {"responseModalities": ["AUDIO"]},
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "inputAudioTranscription": {},
                "outputAudioTranscription": {},
            }
        }
    ]
    assert tell(session, b'{"setupComplete": {}}\n') == [Ready()]
    return session


def test_gemini_is_ready_when_it_is_set_up_and_takes_audio_at_16_khz() -> None:
    session = gemini()
    session.send_audio(PCM)
    audio = {"mimeType": "audio/pcm;rate=16000", "data": BASE64}
    assert sent(session) == [{"realtimeInput": {"audio": audio}}]


def test_geminis_turn() -> None:
    turn = [
        content(inputTranscription={"text": "What "}),
        content(inputTranscription={"text": "time?"}),
        content(modelTurn=blob()),
        content(outputTranscription={"text": "Noon"}),
        content(modelTurn=blob("audio/pcm"), outputTranscription={"text": "."}),
        content(generationComplete=True),
        {"usageMetadata": {"totalTokenCount": 5}, "serverContent": {"turnComplete": True}},
        {"sessionResumptionUpdate": {}},
    ]
    assert tell(gemini(), *turn) == [
        Transcript("What time?"),
        AudioBytes(PCM, 24_000),
        ReplyText("Noon"),
        AudioBytes(PCM, 24_000),
        ReplyText("."),
        ReplyDone(),
        NEXT,
    ]


def test_geminis_audio_may_be_written_in_the_base64_of_urls() -> None:
    said = tell(gemini(), content(modelTurn=blob(data=BASE64.replace("/", "_"))))
    assert said == [AudioBytes(PCM, 24_000)]


def test_a_reply_of_geminis_that_calls_a_tool_is_not_over() -> None:
    assert tell(gemini(), {"toolCall": {"functionCalls": []}}) == [ReplyDue()]


def test_geminis_interruption() -> None:
    turn = [content(modelTurn=blob()), content(interrupted=True), content(turnComplete=True)]
    assert tell(gemini(), *turn) == [AudioBytes(PCM, 24_000), Flush(), ReplyDone(), NEXT]


def test_a_transcript_ends_where_gemini_says_so() -> None:
    said = tell(gemini(), content(inputTranscription={"text": "Hello", "finished": True}))
    assert said == [Transcript("Hello")]


def test_geminis_transcript_is_bounded() -> None:
    session = gemini()
    for _ in range(50):
        tell(session, content(inputTranscription={"text": "x" * 5_000}))
    (heard, _) = tell(session, content(generationComplete=True))
    assert isinstance(heard, Transcript)
    assert len(heard.text) == MOST_TEXT


@pytest.mark.parametrize("mime", ["audio/mp3", "audio/pcm;rate=x", "image/png", 5, [1]])
def test_geminis_audio_of_another_type_is_unplayable(mime: Any) -> None:
    with pytest.raises(UnplayableError):
        tell(gemini(), content(modelTurn=blob(mime)))


def test_a_model_may_be_named_in_full() -> None:
    session = GeminiLiveSession(GeminiSettings(model="publishers/google/models/x"))
    session.open()
    assert sent(session)[0]["setup"]["model"] == "publishers/google/models/x"


# --- what none of them sends ------------------------------------------------------------------

SERVICES = {"deepgram-agent": deepgram, "elevenlabs": elevenlabs, "gemini-live": gemini}


@pytest.mark.parametrize("name", [*SERVICES, "pipecat-eval"])
@pytest.mark.parametrize("message", ["", "hello", "[1]", "null", "{", '{"event": "media"}'])
def test_another_protocol_is_told_before_the_agent_is_ready(name: str, message: str) -> None:
    session = dialects()[name].session()
    session.open()
    with pytest.raises(NotSpokenError):
        session.receive_data(message)


@pytest.mark.parametrize("name", [*SERVICES, "pipecat-eval"])
def test_json_that_is_too_long_or_too_deep_is_refused(name: str) -> None:
    for text in ('{"x": "' + "x" * MOST_MESSAGE_BYTES + '"}', "[" * 100_000):
        with pytest.raises(NotSpokenError):
            dialects()[name].session().receive_data(text)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *("conversation_initiation_metadata_event", "audio_event", "interruption_event"),
        *("ping_event", "client_tool_call", "user_transcription_event", "agent_response_event"),
        *("client_error_event", "functions", "role", "content", "description", "serverContent"),
    ]
)
PARTS = st.sampled_from(
    [
        *("event_id", "audio_base_64", "agent_output_audio_format", "user_transcript", "message"),
        *("agent_response", "modelTurn", "parts", "inlineData", "inputTranscription", "text"),
        *("outputTranscription", "interrupted", "turnComplete", "id", "name", "client_side"),
    ]
)
KINDS = st.sampled_from(
    [
        *("audio", "interruption", "ping", "client_tool_call", "user_transcript", "agent_response"),
        *("client_error", "conversation_initiation_metadata", "ConversationText", "Error"),
        *("Warning", "FunctionCallRequest", "Welcome", "SettingsApplied"),
    ]
)
EVENTS = st.builds(
    lambda kind, event: {"type": kind, **event},
    KINDS,
    st.dictionaries(
        NAMES, ANY | st.dictionaries(PARTS, ANY | st.dictionaries(PARTS, ANY)), max_size=4
    ),
)


@pytest.mark.parametrize("name", SERVICES)
@given(events=st.lists(EVENTS | ANY, max_size=6), raw=st.binary(max_size=30))
def test_any_messages_are_read_or_refused(name: str, events: list[Any], raw: bytes) -> None:
    session = SERVICES[name]()
    for message in [*map(json.dumps, events), raw, raw.decode("latin-1")]:
        try:
            session.receive_data(message)
        except (NotSpokenError, ValueError) as e:
            assert str(e)
    for waiting in session.data_to_send():
        assert len(waiting) < 100_000


# --- hosts and keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name", "variable", "header"),
    [
        (
            "wss://agent.deepgram.com/v1/agent/converse",
            "deepgram-agent",
            "DEEPGRAM_API_KEY",
            ("Authorization", "Token s3cret"),
        ),
        (
            "wss://api.eu.residency.elevenlabs.io/v1/convai/conversation?agent_id=a",
            "elevenlabs",
            "ELEVENLABS_API_KEY",
            ("xi-api-key", "s3cret"),
        ),
        (
            "wss://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1beta"
            ".GenerativeService.BidiGenerateContent",
            "gemini-live",
            "GEMINI_API_KEY",
            None,
        ),
    ],
)
def test_a_service_is_known_by_its_host_and_gets_its_key(
    url: str, name: str, variable: str, header: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "s3cret")
    assert dialect_of_host(url) is dialects()[name]
    opened, headers, _ = Endpoint(url).opening()
    assert headers == (dict([header]) if header else {})
    assert opened == (url if header else f"{url}?key=s3cret")

"""Secrets by name and by value, in settings, arguments, URLs, names and texts."""

import json
from typing import Any

import pytest
from made_records import make_turn

from turngap.caller.endpoint import Endpoint
from turngap.cli.shared import print_json
from turngap.core.events import ToolCall
from turngap.core.results import Turn
from turngap.core.secrets import (
    REMOVED,
    remember,
    remember_arguments,
    remember_secrets,
    text_without_secrets,
    texts_without_secrets,
    without_secrets,
)
from turngap.core.untrusted import text_of
from turngap.store.documents import encode, parse_document

SECRET = "Xq7zW2pLm9"


@pytest.mark.parametrize(
    "text",
    [
        "https://me:{}@host/repo.git",
        "wss://host/x?access_token={}&voice=f3",
        "wss://host/twilio/{}",
        "openai-insecure-api-key.{}",
        "wss://host/x?api_key=${{K}}&token={}",
        "api_key=${{K}}{}",
        "https://b.example/a?X-Amz-Signature={}&X-Amz-Expires=60",
        "https://b.example/a?X-Amz-Credential=AKIDEXAMPLE/{}/s3",
        "https://b.example/a?X-Goog-Signature={}",
        "https://b.example/a?se=2027-01-01&sig={}",
        "https://b.example/a?Expires=1&Signature={}&Key-Pair-Id=K2",
        "https://b.example/a?Policy={}",
        "https://b.example/a#access_token={}&token_type=bearer",
        "llm.api_key={}",
        "LLM_API_KEY={}",
        'llm.headers={{Authorization="Bearer {}"}}',
        "llm.extra_body={{\"api_key\": \"{}\"}}",
        '{{"outer": "{{\\"api_key\\": \\"{}\\"}}"}}',
        "serve --api-key {} --port 1",
        "serve --api-key={} --port 1",
        "serve --token '{}'",
        "Authorization: Bearer {}",
        "Authorization: Token {}",
        "client_secret = '{}'",
        "hfToken={}",
        "accesstoken={}",
        "error: password={}",
        "Error: api_key={}",
        "INFO: secret={}",
        "{{'error': 'token={}'}}",
        "api_key: {}",
        "Cookie: sid={}",
        "wss://host/x?token=-{}",
        "password=$u{}",
    ],
)  # fmt: skip
def test_a_secret_in_a_text_is_removed(text: str) -> None:
    cleaned = text_without_secrets(text.format(SECRET))
    assert SECRET not in cleaned
    assert text_without_secrets(cleaned) == cleaned


@pytest.mark.parametrize(
    "settings",
    [
        {"serve_args": ["--api-key", SECRET, "--port", "1"]},
        {"serve_args": [f"--api-key={SECRET}"]},
        {"headers": [["Authorization", SECRET]]},
        {"serve_env": {"HF_TOKEN": SECRET}},
        {"extra_body": {"auth": {"user": SECRET}}},
        {"sets": [f"llm.api_key={SECRET}"]},
    ],
)
def test_a_secret_in_settings_is_removed_and_a_users_is_echoed_nowhere(
    settings: dict[str, Any],
) -> None:
    assert SECRET not in repr(without_secrets(settings))
    assert text_without_secrets(SECRET) == SECRET
    remember_secrets(settings)
    echo = f"401: {SECRET} is not valid"
    assert text_without_secrets(echo) == f"401: {REMOVED} is not valid"
    assert texts_without_secrets({"a": [echo]}) == {"a": [f"401: {REMOVED} is not valid"]}


@pytest.mark.parametrize(
    "argument", ["--api-key lamb-chop", "--api-key=lamb-chop", "API_KEY=lamb-chop"]
)
def test_what_a_command_is_given_is_remembered(argument: str) -> None:
    remember_arguments(["bot", *argument.split(), "--port", "8765", "plain-word"])
    text = "lamb-chop at 8765, plain-word"
    assert text_without_secrets(text) == f"{REMOVED} at 8765, plain-word"


def test_what_an_agent_is_given_is_remembered_but_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOME_HOST", "OF_URL", "OF_HEADER"):
        monkeypatch.setenv(name, f"{name.lower()}-value")
    url = "ws://${SOME_HOST}:8765/ws?room=${OF_URL}"
    Endpoint(url, headers=("X-Team: ${OF_HEADER}", "X-Api-Key: mutton-pie")).opening()
    text = text_without_secrets("some_host-value of_url-value of_header-value mutton-pie")
    assert text == f"some_host-value {REMOVED} {REMOVED} {REMOVED}"


def test_secrets_of_the_environment_are_remembered_and_paths_are_not() -> None:
    remember_secrets({"MY_API_KEY": "9f8e7d6c5b", "SSH_AUTH_SOCK": "/tmp/agent.1", "LANG": "C.1"})
    text = "9f8e7d6c5b in /tmp/agent.1, C.1"
    assert text_without_secrets(text) == f"{REMOVED} in /tmp/agent.1, C.1"


@pytest.mark.parametrize(
    "value",
    [
        *("example.com", "voice1.example.com:8080", "https://login.example/v2", "./keys/v1.pem"),
        *("oauth2", "eu-west-1", "django-auth-v2", "password-file"),
    ],
)
def test_what_may_stand_anywhere_is_not_remembered(value: str) -> None:
    remember_secrets({"COOKIE_DOMAIN": value})
    assert text_without_secrets(f"at {value} it was") == f"at {value} it was"


@pytest.mark.parametrize("said", ["The password: blue7 it is", "Cookie: chocolate=2nd"])
def test_speech_loses_no_word(said: str) -> None:
    assert texts_without_secrets({"transcript": said}) == {"transcript": said}


def test_the_arguments_of_a_tool_are_known_by_their_names() -> None:
    event = {"event": "AgentMarks", "calls": [{"arguments": {"password": "hunter2xyz", "n": 1}}]}
    (call,) = texts_without_secrets(event)["calls"]
    assert call == {"arguments": {"password": REMOVED, "n": 1}}


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=200, first_token_ms: 120, llm_first_token 350 ms",
        "turngap replay --set llm.first_token_ms=80 --set llm.max_tokens=200",
        "unknown key: llm.foo; known: ttft_ms",
        "Unexpected token: end of input",
        "the Bearer token is missing; basic authentication",
        "key=coffee-order, keys: two",
        "serve with --token TOKEN or --api-key KEY",
        "api_key_env=VLLM_API_KEY",
        "wss://host/x?voice=f3&model=a%20b#top",
        "I'd like a large oat latte to go",
        "at 12:30: sk-learn, hf_hub, eyJ",
        "password: (removed)",
        '{"max_tokens": 200, "key": "coffee-order"}',
        "The password: it is reset",
        "your secret: rainbow",
        "Cookie: chocolate chip, two dozen",
        "wss://host/x?api_key=${MY_KEY_2024}&room=${ROOM}",
        "wss://me:${MY_KEY_2024}@host/twilio/${TOKEN}",
        "api_key=${MY_KEY_2024}, --token ${TOKEN}",
        "Authorization: Bearer ${MY_KEY_2024}",
        "X-Api-Key: ${MY_KEY_2024}",
        "openai-insecure-api-key.${TOKEN}",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert text_without_secrets(text) == text


def test_settings_that_only_look_like_secrets_stay() -> None:
    settings = {
        "max_tokens": 200,
        "first_token_ms": 120.5,
        "scenario": {"key": "coffee-order"},
        "api_key_env": "VLLM_API_KEY",
        "args": ["--max-tokens", "200", "--model", "small"],
        "pairs": [["temperature", "0.7"]],
    }
    assert without_secrets(settings) == settings


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "a.",
            "-a.",
            "sk-",
            "eyJ-",
            "a\\",
            "--a ",
            "a=",
            "Bearer ",
            "x:",
            '"a": ',
            "cookie:",
        ),
        *("token:", "token=", "token=1", "x:token:", "x-token: (removed "),
    ],
)
def test_a_long_text_takes_no_longer_than_it_is(piece: str) -> None:
    """In the square of its length, each would take minutes."""
    for end in ("", "(removed)", "a1b2c3d4"):
        text_without_secrets(piece * (200_000 // len(piece)) + end)


def test_a_path_of_a_phone_bot_is_no_secret_but_a_token_in_it_is() -> None:
    for path in ("twilio/media", "twilio/ws", "twilio/stream/7"):
        assert text_without_secrets(f"wss://host/{path}") == f"wss://host/{path}"
    told = text_without_secrets("wss://host/twilio/Hq3vZ9sKw0aTb7LmXy2R4g")
    assert told == "wss://host/twilio/(removed)"


def test_a_key_in_place_of_its_variables_name_is_removed() -> None:
    assert without_secrets({"api_key_env": SECRET, "key": SECRET}) == {
        "api_key_env": REMOVED,
        "key": REMOVED,
    }
    assert without_secrets({"api_key_env": "MY_KEY_2"}) == {"api_key_env": "MY_KEY_2"}


def test_what_an_agent_or_a_document_names_is_removed_there_and_nowhere_else() -> None:
    named = {
        "arguments": {"password": "3f9a1c27d4", "url": "http://a:b1c2d3e4f5@h/?sig=a9b8c7d6e5"}
    }
    assert texts_without_secrets(named) == {
        "arguments": {"password": REMOVED, "url": f"http://h/?sig={REMOVED}"}
    }
    without_secrets({"api_key": "0123456789abcdef"})
    said = "3f9a1c27d4 b1c2d3e4f5 a9b8c7d6e5 0123456789abcdef"
    assert text_without_secrets(said) == said


def test_a_secret_is_known_as_it_stands_in_a_path() -> None:
    remember("a/8c7b6a5d4e+x")
    assert text_without_secrets("at /a/8c7b6a5d4e%2Bx") == f"at /{REMOVED}"


def test_a_value_with_spaces_around_it_is_removed_without_them() -> None:
    remember(" 8c7b6a5d4e\n")
    assert text_without_secrets("it is 8c7b6a5d4e.") == f"it is {REMOVED}."


def test_a_cut_leaves_no_first_part_of_a_secret() -> None:
    remember(SECRET)
    for most in range(1, len(SECRET)):
        assert "Xq" not in text_of(f"- {SECRET}", 2 + most)
    assert text_of(f"{SECRET} and more", 13) == f"{REMOVED} and…"


def test_a_secret_in_two_pieces_of_a_reply_is_not_stored() -> None:
    remember(SECRET)
    pieces = ["It is ", SECRET[:4], SECRET[4:] + ".", " Bye."]
    events = tuple({"event": "AgentText", "at_ns": 1, "text": piece} for piece in pieces)
    turn = make_turn(reply="".join(pieces), events=events)
    stored = encode(turn).decode()
    assert SECRET[:4] not in stored
    assert SECRET[4:] not in stored
    assert [bool(event["text"].strip()) for event in turn.events] == [True] * 4


@pytest.mark.parametrize("word", ["caller", "answered", "at_ns_", "arguments", "schema_version"])
def test_a_document_stays_readable_whatever_word_is_a_secret(word: str) -> None:
    remember(word)
    call = ToolCall("book", {"x": f"{word}!", word: 1})
    turn = make_turn(calls=(call,), counts={f"n {word}": 1.0})
    read = parse_document(encode(turn), Turn, "here")
    assert read == turn
    assert read.counts == {f"n {REMOVED}": 1.0}
    assert read.calls is not None
    assert read.calls[0].arguments["x"] == f"{REMOVED}!"


def test_a_word_of_the_schema_alone_is_no_word_of_turngaps() -> None:
    remember("string")
    event = {"event": "AgentText", "at_ns": 1, "text": "x"}
    stored = encode(make_turn(say="string", events=(event,)))
    assert b'"string"' not in stored
    assert b'"AgentText"' in stored
    remember("AgentText")
    assert encode(parse_document(stored, Turn, "here")) == stored


def test_a_number_that_is_spelled_as_a_secret_is_none_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    remember("424242")
    print_json({"gap_ms": 14242421.5, "pin": 424242, "pins": [424242.0, "is 424242"], "424242": 1})
    assert json.loads(capsys.readouterr().out) == {
        "gap_ms": 14242421.5,
        "pin": REMOVED,
        "pins": [REMOVED, f"is {REMOVED}"],
        "424242": 1,
    }

"""Random and mutated messages for each endpoint of a server, from a seed."""

import json
import random
from typing import Any

from pipecat.frames.protobufs import frames_pb2

from turngap.caller.dialects.pipecat import audio_frame, interruption_frame
from turngap.caller.dialects.rtvi import rtvi
from turngap.core.wire import message_frame

# Which share of the messages is of a kind for which a client is closed. With more, a connection
# would be over before anything else is tried.
CLOSING = 0.03

NAMES = ("turngap.turn", "turngap.played", "turngap.calibrated", "turngap.ping", "turngap.x")
KINDS = ("client-ready", "client-message", "send-file", "raw-audio", "ui-event", "dtmf", "x", "")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), "",
    "x" * 5000, "\ud800", "\x1b[2J", "\u202e", [], {}, [[]] * 50, [None] * 1200, {"": {}},
    {"t": "turngap.turn"},
)  # fmt: skip


def websocket_message(rng: random.Random) -> bytes | str:
    """Make a message for `/ws` or `/live`."""
    if rng.random() < CLOSING:
        return rng.choice((_noise, _text, _audio, _interruption))(rng)
    return rng.choice((_silence, _silence, _message, _page_message, _page_message))(rng)


def http_request(rng: random.Random) -> bytes:
    """Make a whole request, or what is left of one."""
    method = rng.choice(("GET", "GET", "POST", "HEAD", "PUT", "", "\0", "OPTIONS"))
    path = rng.choice(
        ("/", "/healthz", "/page/main.js", "/page/../../x", "/api/about", "/api/runs/x.zip",
         "/api/runs/x/scenario", "/ws", "/live", "/%00", "/" + "a" * rng.randrange(9000), "*")
    )  # fmt: skip
    head = "".join(f"X-{n}: {rng.random()}\r\n" for n in range(rng.choice((0, 1, 5, 150))))
    more = rng.choice(
        ("", "", "Content-Length: 5\r\n", "Content-Length: -1\r\n", "Upgrade: websocket\r\n",
         "Transfer-Encoding: chunked\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n",
         "Cookie: " + "=;" * 500 + "\r\n", "Origin: null\r\n")
    )  # fmt: skip
    body = rng.choice(("", "hello", '{"name": "' + "x" * rng.randrange(6000) + '"}', "0\r\n\r\n"))
    request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{head}{more}\r\n{body}".encode()
    return _mutated(rng, request) if rng.random() < 0.3 else request


def _silence(rng: random.Random) -> bytes:
    return audio_frame(bytes(2 * rng.randrange(400)), 16_000)


def _audio(rng: random.Random) -> bytes:
    frame = frames_pb2.Frame()  # type: ignore[attr-defined]  # made by protoc at import
    frame.audio.audio = rng.randbytes(rng.randrange(2000))
    frame.audio.sample_rate = rng.choice((0, 1, 8_000, 48_000, 2**32 - 1))
    frame.audio.num_channels = rng.choice((0, 1, 2, 2**32 - 1))
    return frame.SerializeToString()


def _interruption(rng: random.Random) -> bytes:
    return interruption_frame()


def _noise(rng: random.Random) -> bytes:
    return _mutated(rng, rng.choice((_silence, _message, _page_message))(rng))


def _text(rng: random.Random) -> str:
    return json.dumps({"event": rng.choice(("start", "media", "stop"))})


def _message(rng: random.Random) -> bytes:
    payload = rtvi(rng.choice(KINDS), _value(rng))
    for key in list(payload):
        if rng.random() < 0.1:
            payload[key] = _value(rng)
    return message_frame(payload)


def _page_message(rng: random.Random) -> bytes:
    stretch = {"onset_ns": 10**9, "received_ns": 10**9, "end_ns": 2 * 10**9}
    report: dict[str, Any] = {
        "turn": rng.randrange(4), "connection": 1, "input": "voice", "start_ns": 0,
        "end_ns": 5 * 10**8,
        "agent": [stretch], "flushed_ns": [], "ended_ns": 3 * 10**9, "ended": "reply_done",
        "text": "", "view": {}, "offset": {"offset_ns": 0, "bound_ns": 1, "n": 1},
        "played": [[0, 100, 10**9]], "round_trip_ms": 20, "n": 1, "ping": 1,
    }  # fmt: skip
    for key in list(report):
        if rng.random() < 0.15:
            report[key] = _value(rng)
    data = report if rng.random() < 0.9 else _value(rng)
    return message_frame(rtvi("client-message", {"t": rng.choice(NAMES), "d": data}))


def _value(rng: random.Random) -> Any:
    return rng.choice(VALUES)


def _mutated(rng: random.Random, data: bytes) -> bytes:
    """Change, drop or repeat some of the bytes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(3):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                del changed[at : at + rng.randrange(1, 40)]
            case _:
                changed[at:at] = changed[at : at + rng.randrange(1, 40)]
    return bytes(changed)

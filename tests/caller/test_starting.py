"""A URL for each call: what a server that starts calls answers to `POST http://HOST/start`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from turngap.caller.endpoint import Endpoint
from turngap.caller.starting import start_call
from turngap.clocks import MonotonicClock
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.play.target import AgentChoice
from turngap.setup import Chosen

CLOCK = MonotonicClock()


class Starter:
    """An HTTP server that gives `answer` with a new token for each question."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | int = {}
        self.asked: list[tuple[str, dict[str, str], str]] = []
        self.tokens: list[str] = []
        self.url = ""


@contextmanager
def starter() -> Iterator[Starter]:
    known = Starter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            known.asked.append((self.path, dict(self.headers), body))
            if isinstance(known.answer, int):
                self.send_error(known.answer, "no such customer")
                return
            known.tokens.append(f"token-{len(known.asked)}-{id(known)}")
            data = json.dumps(known.answer).replace("TOKEN", known.tokens[-1]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object, **__: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    known.url = f"http://127.0.0.1:{server.server_address[1]}/start"
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


async def test_each_call_gets_a_url_and_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "of-the-service-1")
    let_in: list[str | None] = []

    async def answer(socket: ServerConnection) -> None:
        assert socket.request is not None
        let_in.append(socket.request.headers.get("Authorization"))
        await socket.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        with starter() as known:
            port = next(iter(server.sockets)).getsockname()[1]
            known.answer = {"wsUrl": f"ws://127.0.0.1:{port}/ws", "token": "TOKEN"}
            key = "Authorization: Bearer ${API_KEY}"
            endpoint = Endpoint(f"POST {known.url}", "twilio", (key,))
            await endpoint.knock()
            assert not known.asked  # being there costs no token
            for _ in range(2):
                async with endpoint.open(CLOCK):
                    pass
    assert [json.loads(body) for _, _, body in known.asked] == [{"transport": "twilio"}] * 2
    assert {head["Authorization"] for _, head, _ in known.asked} == {"Bearer of-the-service-1"}
    assert let_in == [f"Bearer {token}" for token in known.tokens]
    assert known.tokens[0] not in text_without_secrets(f"closed ({known.tokens[0]})")


async def test_a_url_is_taken_from_wherever_it_lies_in_the_answer() -> None:
    with starter() as known:
        known.answer = {"id": "1", "call": {"joinUrl": "wss://media.example/c?k=TOKEN"}, "n": [2]}
        given = {"X-API-Key": "k", "Content-Type": "application/json"}
        url, headers = await start_call(f'POST {known.url} {{"a": 1}}', "pipecat", given, 10)
        assert known.asked[0][2] == '{"a": 1}'
        # No key goes to another host.
        assert (url, headers) == (f"wss://media.example/c?k={known.tokens[0]}", {})
        # pipecat's runner says wss of its own port, which has just been spoken to without TLS.
        known.answer = {"wsUrl": known.url.replace("http", "wss").replace("start", "ws-client")}
        url, headers = await start_call(f"POST {known.url}", "pipecat", given, 10)
    assert json.loads(known.asked[1][2]) == {"transport": "websocket"}
    assert url == known.url.replace("http", "ws").replace("start", "ws-client")
    assert headers == {"X-API-Key": "k"}


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        (401, "agent.start", "HTTP status 401"),
        (307, "agent.start", "HTTP status 307"),
        ({"sessionId": "1"}, "agent.start", "without a ws:// URL (it has sessionId)"),
    ],
)
async def test_a_start_that_fails_says_why(answer: Any, kind: str, why: str) -> None:
    with starter() as known:
        known.answer = answer
        with pytest.raises(AgentError) as raised:
            await start_call(f"POST {known.url}", "pipecat", {}, 10)
    assert (raised.value.kind, why in raised.value.message) == (kind, True)
    if "sessionId" in why:
        assert f"over WebRTC: --agent {known.url}\n" in str(raised.value.hint)
    with pytest.raises(AgentError) as raised:
        await start_call("POST http://127.0.0.1:9/start", "pipecat", {}, 10)
    assert raised.value.kind == "agent.unreachable"


def test_what_is_asked_for_a_url_is_checked_and_shown_like_one() -> None:
    with pytest.raises(InputError, match="is not JSON"):
        Endpoint("POST http://127.0.0.1:9/start {no", "twilio").check()
    with pytest.raises(InputError, match="not a WebSocket URL"):
        Endpoint("PUT http://127.0.0.1:9/start", "twilio").check()
    asked = 'POST https://agents.example:7860/start?k=1 {"a": 1}'
    assert Endpoint(asked).host_and_port == ("agents.example", 7860)
    assert AgentChoice(asked).shown == "agents.example:7860/start"
    assert Chosen(asked).is_elsewhere
    assert not Chosen("POST http://localhost:7860/start").is_elsewhere

"""Between two steps an agent of ours says when its sessions are over, and nobody waits for ever."""

from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from turngap.caller.endpoint import Endpoint
from turngap.core.clock import NS_PER_S
from turngap.load.steps import LONGEST_ENDING_S, sessions_over
from turngap.testing.virtual import LoopClock, in_virtual_time


class _Health(BaseHTTPRequestHandler):
    def __init__(self, answers: list[bytes], *args: object) -> None:
        self._answers = answers
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        assert self.path == "/healthz"
        body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def answers() -> list[bytes]:
    return []


@pytest.fixture
def endpoint(answers: list[bytes]) -> Iterator[Endpoint]:
    with HTTPServer(("127.0.0.1", 0), partial(_Health, answers)) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Endpoint(f"ws://127.0.0.1:{server.server_port}/ws")
        server.shutdown()
        thread.join()


def waited_s(endpoint: Endpoint) -> float:
    async def main() -> int:
        clock = LoopClock()
        await sessions_over(endpoint, clock)
        return clock.now_ns()

    return in_virtual_time(main()) / NS_PER_S


def test_it_waits_until_the_last_session_is_over(endpoint: Endpoint, answers: list[bytes]) -> None:
    answers += [b'{"sessions": 3}', b'{"sessions": 1}', b'{"sessions": 0}']
    assert waited_s(endpoint) == pytest.approx(0.5)


def test_it_does_not_wait_for_ever(endpoint: Endpoint, answers: list[bytes]) -> None:
    answers.append(b'{"sessions": 3}')
    assert waited_s(endpoint) == pytest.approx(LONGEST_ENDING_S)


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b'{"sessions": "many"}', b"{", b"\xff", b"1" * 9999]
)
def test_it_does_not_wait_for_who_does_not_say(
    endpoint: Endpoint, answers: list[bytes], answer: bytes
) -> None:
    answers.append(answer)
    assert waited_s(endpoint) == 0

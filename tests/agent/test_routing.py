"""Where a connection goes, from whatever bytes it begins with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.agent.connections import HEAD_BYTES
from turngap.agent.routing import Route, path_of, route

UPGRADE = b"Host: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n"

PIECES = st.sampled_from(
    b"GET |/ws|/twilio/|/live| HTTP/1.1|\r\n|\n|\n\n|?|%| |Connection: upgrade\r\n|"
    b"Upgrade: websocket\r\n|: |\x00|\xff|%2Fws".split(b"|")
)
WHATEVER = st.lists(PIECES | st.binary(max_size=50), max_size=40).map(b"".join)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (b"GET /ws HTTP/1.1", Route.CALL),
        (b"GET /ws?token=x HTTP/1.1", Route.CALL),
        (b"GET /%77s HTTP/1.1", Route.CALL),
        (b"GET /twilio HTTP/1.1", Route.CALL),
        (b"GET /twilio/token HTTP/1.1", Route.CALL),
        (b"GET /v1/realtime?model=x HTTP/1.1", Route.CALL),
        (b"GET /live?resume=x HTTP/1.1", Route.LIVE),
        (b"GET / HTTP/1.1", Route.PAGE),
        (b"GET /wsx HTTP/1.1", Route.PAGE),
        (b"GET /page/main.js HTTP/1.1", Route.PAGE),
        (b"GET  /ws HTTP/1.1", Route.PAGE),
        (b"GET http://x/ws HTTP/1.1", Route.PAGE),
        (b"GET /\xe9 HTTP/1.1", Route.PAGE),
        (b"", Route.PAGE),
    ],
)
def test_calls_go_anywhere_and_all_else_to_the_page(line: bytes, where: Route) -> None:
    assert route(line + b"\r\n" + UPGRADE) is where


@pytest.mark.parametrize(
    "headers",
    [
        b"Host: x\r\n\r\n",
        b"Connection: upgrade\r\n\r\n",
        b"Upgrade: websocket\r\n\r\n",
        b"Connection: close\r\nUpgrade: websocket\r\n\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_what_opens_no_websocket_is_no_call(headers: bytes) -> None:
    assert route(b"GET /ws HTTP/1.1\r\n" + headers) is Route.PAGE


@given(cut=st.integers(0, 120))
def test_a_request_in_pieces_goes_where_the_whole_one_goes(cut: int) -> None:
    request = b"GET /ws?a=b HTTP/1.1\r\n" + UPGRADE
    assert route(request[:cut]) is (None if cut < len(request) else Route.CALL)


@given(head=WHATEVER)
def test_any_bytes_go_somewhere_once_they_are_as_long_as_a_head(head: bytes) -> None:
    assert route(head.ljust(HEAD_BYTES, b"x")) is not None


@given(head=WHATEVER, more=WHATEVER)
def test_what_comes_later_does_not_change_where_it_goes(head: bytes, more: bytes) -> None:
    where = route(head)
    assert where is None or route(head + more) is where


@given(line=WHATEVER)
def test_a_path_is_read_from_any_line(line: bytes) -> None:
    assert isinstance(path_of(line), str)

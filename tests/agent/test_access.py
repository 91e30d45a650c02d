"""Admission of callers: by address, by origin, by token, and by seats."""

import asyncio
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from turngap.agent.access import Access, HangUpError, Limits, Seats
from turngap.core.errors import InputError
from turngap.core.untrusted import is_loopback

TOKEN = "a-token-that-is-long-enough"
HERE = Access()
ELSEWHERE = Access(loopback=False, token=TOKEN)


def asked(host: str = "127.0.0.1:7860", query: str = "", **headers: str) -> HTTPConnection:
    named = {"host": host} | {k.replace("_", "-"): v for k, v in headers.items()}
    scope: dict[str, Any] = {
        "type": "http",
        "path": "/",
        "scheme": "http",
        "server": ("127.0.0.1", 7860),
        "query_string": query.encode(),
        "headers": [(k.encode(), v.encode()) for k, v in named.items()],
    }
    return HTTPConnection(scope)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("192.168.1.5", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_the_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:1234", "[::1]:7860", "localhost"])
def test_this_machine_may_ask_for_itself(host: str) -> None:
    assert HERE.refusal(asked(host)) is None
    assert HERE.refusal(asked(host, origin=f"http://{host}")) is None


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:7860", "", "[::1", "a b"])
def test_a_name_that_only_resolves_to_this_machine_is_refused(host: str) -> None:
    # DNS rebinding: the browser believes that the page and the agent are of one origin.
    refusal = HERE.refusal(asked(host, origin=f"http://{host}"))
    assert refusal is not None
    assert (refusal.code, refusal.kind) == (4403, "access.host")


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:9999", "file://", "http://", "http://[", ""],
)
def test_another_origin_is_refused(origin: str) -> None:
    refusal = HERE.refusal(asked(origin=origin))
    assert refusal is not None
    assert refusal.kind == "access.origin"


def test_a_program_sends_no_origin_and_passes() -> None:
    assert HERE.refusal(asked()) is None


def test_an_allowed_origin_and_its_host_pass() -> None:
    access = Access.for_host("127.0.0.1", None, ("https://Talk.example.org",))
    assert access.refusal(asked("talk.example.org", origin="https://talk.example.org")) is None
    assert access.refusal(asked(origin="https://talk.example.org")) is None
    assert access.refusal(asked("other.example.org")) is not None


@pytest.mark.parametrize(
    "request_",
    [
        asked("box.lan:7860", f"token={TOKEN}"),
        asked("box.lan:7860", authorization=f"Bearer {TOKEN}"),
        asked("box.lan:7860", authorization=f"bearer {TOKEN}"),
        asked("box.lan:7860", cookie=f"a=b; turngap-7860={TOKEN}"),
    ],
)
def test_the_token_opens_in_each_of_its_places(request_: HTTPConnection) -> None:
    assert ELSEWHERE.refusal(request_) is None


@pytest.mark.parametrize(
    "request_",
    [
        asked("box.lan:7860"),
        asked("box.lan:7860", "token="),
        asked("box.lan:7860", f"token={TOKEN}x"),
        asked("box.lan:7860", f"token={TOKEN[:-1]}"),
        asked("box.lan:7860", "token=ü"),
        asked("box.lan:7860", authorization=TOKEN),
        asked("box.lan:7860", cookie=f"turngap-7861={TOKEN}"),
        asked("box.lan:7860", cookie="turngap-7860"),
        asked("box.lan:7860", cookie='";;=,'),
    ],
)
def test_nothing_else_opens(request_: HTTPConnection) -> None:
    refusal = ELSEWHERE.refusal(request_)
    assert refusal is not None
    assert refusal.code == 4401
    assert TOKEN not in refusal.message + refusal.hint


def test_the_token_does_not_excuse_another_origin() -> None:
    refusal = ELSEWHERE.refusal(asked("box.lan", f"token={TOKEN}", origin="https://evil.example"))
    assert refusal is not None
    assert refusal.kind == "access.origin"


def test_a_token_is_made_where_one_is_needed_and_only_there() -> None:
    assert Access.for_host("127.0.0.1").token is None
    made = {Access.for_host("0.0.0.0").token for _ in range(3)}
    assert len(made) == 3
    assert all(token is not None and len(token) >= 20 for token in made)
    assert Access.for_host("127.0.0.1", TOKEN).token == TOKEN


@pytest.mark.parametrize(
    "token", ["", "short", "with spaces in it all", "x" * 300, "ünsäglich-lang-aber"]
)
def test_a_token_that_is_not_safe_is_refused(token: str) -> None:
    with pytest.raises(InputError) as raised:
        Access.for_host("0.0.0.0", token)
    assert raised.value.kind == "serve.token"
    if token:
        assert token not in raised.value.message


@pytest.mark.parametrize("origin", ["talk.example.org", "ftp://x", "https://", "https://x/path"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(InputError) as raised:
        Access.for_host("127.0.0.1", None, (origin,))
    assert raised.value.kind == "serve.origin"


def test_an_ordinary_page_stays_far_below_its_limits() -> None:
    limits = Limits()
    packet_bytes, packets_per_s = 700, 50
    assert limits.message_bytes > 10 * packet_bytes
    assert limits.messages_per_s > 2 * packets_per_s
    assert limits.vanished_s > 2 * 5


def test_a_dead_client_is_gone_within_10_s_and_a_stalled_one_stays() -> None:
    limits, lost_s, repeated_s = Limits(), 3.0, 6.0
    assert limits.ping_s + limits.pong_s < 9.5
    assert lost_s < limits.unread_s <= 10
    assert limits.pong_s > repeated_s


async def test_a_call_waits_a_moment_for_a_seat_that_is_being_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seats = Seats(1)
    async with seats.seat():
        waiting = asyncio.create_task(_sits(seats))
        done, _ = await asyncio.wait({waiting}, timeout=0.01)
        assert not done
    assert await waiting == 1
    assert seats.taken == 0
    monkeypatch.setattr("turngap.agent.access.SEAT_S", 0.01)
    async with seats.seat():
        with pytest.raises(HangUpError, match="full: 1 of 1 conversations; try again"):
            await _sits(seats)
    assert await _sits(seats) == 1


async def _sits(seats: Seats) -> int:
    async with seats.seat():
        return seats.taken

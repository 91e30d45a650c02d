"""`turngap doctor` on the agent of the repository's file: does something listen where it says?"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngap.play.doctor import Check, examine_agent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNGAP_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def port() -> Iterator[int]:
    """One at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    """One at which nobody can listen, as it is bound and does not."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def found(folder: Path, text: str, *elsewhere: int) -> Check:
    (folder / "turngap.toml").write_text(text)
    (check,) = examine_agent(lambda: elsewhere)
    assert not check.needed  # a bot that does not run says nothing of the machine
    return check


def test_an_agent_that_is_served_is_said_to_be(folder: Path, port: int) -> None:
    check = found(folder, f'agent = "ws://127.0.0.1:{port}/ws"\n')
    assert check.ok
    assert check.detail == f"127.0.0.1:{port} is served (turngap.toml:1)"


def test_nobody_listens_and_where_something_else_does(folder: Path, port: int, closed: int) -> None:
    check = found(folder, f'agent = "ws://localhost:{closed}/ws"\n', port, closed)
    assert (check.ok, check.detail) == (
        False,
        f"nothing listens at localhost:{closed} (turngap.toml:1)",
    )
    assert "start your bot; or add start = " in check.remedy
    assert f"Something else listens at port {port}. Is that" in check.remedy
    assert f"port {closed}" not in check.remedy


def test_what_is_started_needs_no_listener(folder: Path, port: int, closed: int) -> None:
    start = 'start = "python bot.py"\n'
    check = found(folder, f'agent = "ws://127.0.0.1:{closed}/ws"\n{start}', port)
    assert check.ok
    assert "`python bot.py` is started for each run (turngap.toml:2)" in check.detail
    assert f"so nothing has to listen at 127.0.0.1:{closed} now" in check.detail
    check = found(folder, f'agent = "ws://127.0.0.1:{port}/ws"\n{start}')
    assert not check.ok
    assert f"but 127.0.0.1:{port} is in use already" in check.detail
    assert "remove `start` from turngap.toml" in check.remedy


@pytest.mark.parametrize(
    ("start", "says"),
    [("nosuchprogram bot.py", "there is no program 'nosuchprogram'")],
)
def test_a_command_that_cannot_be_run_is_a_finding(
    folder: Path, closed: int, start: str, says: str
) -> None:
    check = found(folder, f'agent = "ws://127.0.0.1:{closed}/ws"\nstart = "{start}"\n')
    assert not check.ok
    assert says in check.detail


def test_another_machine_is_not_mistaken_for_this_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fails_with(monkeypatch, ConnectionRefusedError(111, "Connection refused"))
    check = found(folder, 'agent = "wss://bot.invalid/ws"\n', 8000)
    assert (check.ok, asked) == (False, [("bot.invalid", 443)])
    assert "8000" not in check.remedy


def fails_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[tuple[str, int]]:
    """Let every connection fail so; the addresses that were asked for come in the list."""
    asked: list[tuple[str, int]] = []

    def fail(address: tuple[str, int], *_: object) -> None:
        asked.append(address)
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    return asked


@pytest.mark.parametrize(
    ("error", "said", "remedy"),
    [
        (
            ConnectionRefusedError(111, "Connection refused"),
            "nothing listens at ",
            "start your bot",
        ),
        (socket.gaierror(-2, "unknown"), "no address is known for the host bot.invalid", "the URL"),
        (UnicodeError("label too long"), "no address is known for the host bot.inv", "the URL"),
        (TimeoutError("timed out"), "bot.invalid:443 did not answer within 2 s", "firewall"),
        (OSError(113, "No route to host"), "443 cannot be reached: No route to host", "firewall"),
        (OverflowError("too large"), "443 cannot be reached: too large", "firewall"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_why_nobody_answered_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str, remedy: str
) -> None:
    fails_with(monkeypatch, error)
    check = found(folder, 'agent = "wss://bot.invalid/ws"\n')
    assert not check.ok
    assert said in check.detail
    assert ("nothing listens" in check.detail) == isinstance(error, ConnectionRefusedError)
    assert remedy in check.remedy


@pytest.mark.parametrize("text", [None, "", 'agent = "stock"\n'])
def test_without_an_address_there_is_nothing_to_look_at(folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "turngap.toml").write_text(text)
    assert list(examine_agent(lambda: ())) == []


def test_a_file_that_cannot_be_used_is_a_finding(folder: Path) -> None:
    assert "unknown key" in found(folder, 'agnet = "x"\n').detail
    assert "does not say where" in found(folder, 'agent = "ws:///"\n').detail

"""`--start`: what is measured is what was started, and nobody who serves in its place."""

import os
import shlex
import socket
import subprocess
import sys
import textwrap
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from turngap.core.errors import AgentError, InputError
from turngap.play import command as commands
from turngap.play.command import started
from turngap.play.listeners import Listener, is_here, listeners_at
from turngap.play.process import child

# A link to it must not be a link to a link: it would take the environment for its own.
PYTHON = os.path.realpath(sys.executable)

WAITS = "import time; time.sleep(600)"
SERVES = """
    import socket, sys, time
    server = socket.create_server(("127.0.0.1", {port}), reuse_port=True)
    print("up", flush=True)
    time.sleep(600)
"""
# What serves is nobody's child any more, in a session of its own.
DAEMON = """
    import subprocess, sys, time
    serves = [sys.executable, "-c", {serves!r}]
    begins = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run([sys.executable, "-c", begins, *serves])
    time.sleep(600)
"""
# The first connection is turngap's look.
SERVES_ONE_CALL = """
    import socket, sys
    server = socket.create_server(("127.0.0.1", {port}))
    server.accept()
    server.accept()
    sys.exit("one call is enough")
"""


@pytest.fixture
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def code(text: str, **values: object) -> str:
    return textwrap.dedent(text).format(**values)


def python(text: str, **values: object) -> str:
    return shlex.join([sys.executable, "-c", code(text, **values)])


def url_of(port: int, host: str = "127.0.0.1") -> str:
    return f"ws://{host}:{port}/ws"


@pytest.fixture
def serve(port: int) -> Iterator[Callable[..., object]]:
    """Begin to serve at the port, as somebody whom no command started."""
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(socket.create_server(("127.0.0.1", port), **how))


@pytest.fixture
def another(serve: Callable[..., object]) -> Callable[[str], None]:
    """Somebody else, who begins to serve at the port just after it was found free."""

    def begin(said: str) -> None:
        serve()

    return begin


@pytest.fixture
def started_processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """What was started, to wait for its end."""
    found: list[Process] = []

    @asynccontextmanager
    async def seen(*arguments: Any) -> AsyncIterator[Process]:
        async with child(*arguments) as process:
            found.append(process)
            yield process

    monkeypatch.setattr(commands, "child", seen)
    return found


async def test_who_serves_in_place_of_the_command_is_not_measured(
    tmp_path: Path, port: int, another: Callable[[str], None]
):
    with pytest.raises(AgentError, match="your agent would not be what is measured") as e:
        async with started(python(WAITS), url_of(port), tmp_path / "log", another):
            raise AssertionError("another one serves")
    assert e.value.kind == "agent.another_serves"
    assert f"(process {os.getpid()}) serves at 127.0.0.1:{port}" in e.value.message
    assert "leave out --start" in e.value.hint


async def test_a_command_that_finds_its_port_taken_and_ends_says_both(
    tmp_path: Path,
    port: int,
    another: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    @asynccontextmanager
    async def ended(*arguments: Any) -> AsyncIterator[Process]:
        async with child(*arguments) as process:
            await process.wait()
            yield process

    monkeypatch.setattr(commands, "child", ended)
    with pytest.raises(AgentError) as e:
        async with started(
            python(SERVES_ONE_CALL, port=port), url_of(port), tmp_path / "log", another
        ):
            raise AssertionError("another one serves")
    assert e.value.kind == "agent.another_serves"
    assert f"has ended, but 127.0.0.1:{port} is served by" in e.value.message
    assert f"(process {os.getpid()}) (exit code 1):" in e.value.message
    assert "in use" in e.value.message  # the end of its log


async def test_who_takes_the_place_of_an_ended_command_is_found_out_at_the_end(
    tmp_path: Path,
    port: int,
    serve: Callable[..., object],
    started_processes: list[Process],
):
    with pytest.raises(AgentError, match=r"has ended, but .* one call is enough") as e:
        async with started(python(SERVES_ONE_CALL, port=port), url_of(port), tmp_path / "log"):
            socket.create_connection(("127.0.0.1", port)).close()
            await started_processes[0].wait()
            serve()
    assert e.value.kind == "agent.another_serves"


async def test_a_bot_may_end_after_its_last_call(
    tmp_path: Path, port: int, started_processes: list[Process]
):
    async with started(python(SERVES_ONE_CALL, port=port), url_of(port), tmp_path / "log"):
        socket.create_connection(("127.0.0.1", port)).close()
        await started_processes[0].wait()
    assert started_processes[0].returncode == 1


async def test_who_shares_the_port_is_found_out_at_the_end(
    tmp_path: Path, port: int, serve: Callable[..., object]
):
    with pytest.raises(AgentError, match="would not be what is measured"):
        async with started(python(SERVES, port=port), url_of(port), tmp_path / "log"):
            serve(reuse_port=True)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a daemon is nobody's")
async def test_a_daemon_of_the_command_is_the_command_s(tmp_path: Path, port: int):
    command = python(DAEMON, serves=code(SERVES, port=port))
    async with started(command, url_of(port), tmp_path / "log") as stands_in:
        assert stands_in is None


@pytest.mark.parametrize(("name", "let_through"), [("docker-proxy", True), ("yesterday", False)])
async def test_a_container_s_port_may_stand_for_the_command(
    tmp_path: Path, port: int, name: str, let_through: bool
):
    link = tmp_path / name
    link.symlink_to(PYTHON)
    others: list[subprocess.Popen[bytes]] = []

    def begin(said: str) -> None:
        told.append(said)
        if not others:
            argv = [link, "-S", "-c", code(SERVES, port=port)]
            others.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
            assert others[0].stdout is not None
            others[0].stdout.readline()

    told: list[str] = []
    found: str | None = None
    failure: AgentError | None = None
    try:
        async with started(python(WAITS), url_of(port), tmp_path / "log", begin) as stands_in:
            found = stands_in
    except AgentError as e:
        failure = e
    for other in others:
        with other:
            other.kill()
    assert (failure is None) == let_through
    if let_through:
        assert found is not None
        assert found.startswith("docker-proxy, which the command did not start itself")
        assert told[-1] == found
    else:
        assert "yesterday (process" in str(failure)


def listening(pid: int | None, port: int, host: str = "127.0.0.1") -> Any:
    address = type("Address", (), {"ip": host, "port": port})
    return type("Found", (), {"status": psutil.CONN_LISTEN, "laddr": address, "pid": pid})


async def test_a_process_of_another_user_may_stand_for_the_command(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [listening(None, port)])
    async with started(python(SERVES, port=port), url_of(port), tmp_path / "log") as stands_in:
        assert stands_in is not None
        assert stands_in.startswith("a process of another user, which")


async def test_where_the_system_does_not_tell_who_listens_the_run_goes_on(
    tmp_path: Path, port: int, another: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    def refused(kind: str) -> Any:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refused)
    async with started(python(WAITS), url_of(port), tmp_path / "log", another) as stands_in:
        assert stands_in is None


@pytest.fixture
def both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which `localhost` is ::1 and 127.0.0.1, in this order."""
    asked = socket.getaddrinfo
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as e:
        pytest.skip(f"no IPv6 here: {e}")

    def both(host: Any, *rest: Any, **named: Any) -> Any:
        hosts = ["::1", "127.0.0.1"] if host == "localhost" else [host]
        return [each for one in hosts for each in asked(one, *rest, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", both)


@pytest.mark.usefixtures("both_versions")
async def test_a_bot_at_one_version_of_ip_is_found_by_its_machine_s_name(tmp_path: Path, port: int):
    six = SERVES.replace('("127.0.0.1", {port})', '("::1", {port}), family=socket.AF_INET6')
    for serves in (six, SERVES):
        log = tmp_path / "log"
        async with started(python(serves, port=port), url_of(port, "localhost"), log) as stands_in:
            assert stands_in is None


@pytest.mark.usefixtures("both_versions")
def test_a_port_that_is_taken_at_the_other_version_of_ip_is_refused(port: int):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(InputError, match=f"in use already by .*process {os.getpid()}"),
    ):
        commands.require_free("python bot.py", url_of(port, "localhost"))


@pytest.mark.usefixtures("both_versions")
def test_the_most_specific_listener_takes_a_connection(port: int):
    here = os.getpid()
    with socket.create_server(("127.0.0.1", port)):
        with socket.create_server(("::1", port), family=socket.AF_INET6):
            assert listeners_at("127.0.0.1", port) == (Listener("127.0.0.1", port, here),)
            assert listeners_at("::1", port) == (Listener("::1", port, here),)
        assert listeners_at("::1", port) == ()
    with socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True):
        assert listeners_at("127.0.0.1", port) == (Listener("::", port, here),)
        assert listeners_at("::ffff:127.0.0.1", port) == (Listener("::", port, here),)
        # Not of this machine (RFC 5737), though a socket here has that port.
        assert listeners_at("192.0.2.1", port) == ()


def test_names_of_this_machine():
    assert is_here("127.0.0.1")
    assert is_here("0.0.0.0")
    assert not is_here("192.0.2.1")
    assert not is_here("in-memory.invalid")
    assert not is_here("x" * 70)

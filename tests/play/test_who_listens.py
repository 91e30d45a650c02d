"""`--start`: what is measured is what was started, and nobody who serves in its place."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
from reserved_ports import reserved_port

from turngap.core.errors import AgentError, InputError
from turngap.play import command as commands
from turngap.play import listeners
from turngap.play.command import started
from turngap.play.listeners import Listener, addresses_of, listeners_at, strangers_at
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
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


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
    async with started(command, url_of(port), tmp_path / "log") as note:
        assert note is None


@pytest.mark.parametrize(
    ("name", "let_through"),
    [("docker-proxy", True), ("conmon", True), ("yesterday", False)],
)
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
        async with started(python(WAITS), url_of(port), tmp_path / "log", begin) as note:
            found = note
    except AgentError as e:
        failure = e
    for other in others:
        with other:
            other.kill()
    assert (failure is None) == let_through
    if let_through:
        assert found is not None
        assert found.startswith(f"{name} listens at the agent's port. The command did not start")
        assert told[-1] == found
    else:
        assert "yesterday (process" in str(failure)


def listening(pid: int | None, port: int, host: str = "127.0.0.1") -> Any:
    address = type("Address", (), {"ip": host, "port": port})
    return type("Found", (), {"status": psutil.CONN_LISTEN, "laddr": address, "pid": pid})


async def test_nothing_is_claimed_of_a_process_that_the_system_does_not_name(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [listening(None, port)])
    async with started(python(SERVES, port=port), url_of(port), tmp_path / "log") as note:
        assert note is not None
        assert note.startswith("the system does not say which process listens")
        assert note.endswith("so it is not known whether the command started it")


async def test_a_command_that_leaves_its_server_to_a_daemon_is_told_to_keep_it(
    tmp_path: Path, port: int, serve: Callable[..., object], started_processes: list[Process]
):
    once = SERVES_ONE_CALL.replace('sys.exit("one call is enough")', "")
    with pytest.raises(AgentError, match="has ended, but") as e:
        async with started(python(once, port=port), url_of(port), tmp_path / "log"):
            socket.create_connection(("127.0.0.1", port)).close()
            assert await started_processes[0].wait() == 0
            serve()
    assert e.value.hint.startswith("let it serve in the foreground (docker run without -d")


# It begins what serves, and waits for it.
BEGINS = """
    import subprocess, sys
    subprocess.run([sys.executable, "-c", {serves!r}])
"""


@contextmanager
def begun(*argv: str | Path) -> Iterator[psutil.Process]:
    """A process that has begun one that serves, as the leader of a session."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([*argv], **how) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield psutil.Process(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def in_conmon(tmp_path: Path, port: int) -> Iterator[psutil.Process]:
    """Something that serves at the port, below a process named as podman's monitor is."""
    link = tmp_path / "conmon"
    link.symlink_to(PYTHON)
    serves = code(BEGINS, serves=code(SERVES, port=port)).replace("sys.executable", repr(PYTHON))
    with begun(link, "-S", "-c", serves) as process:
        assert process.name() == "conmon"
        yield process


@pytest.mark.usefixtures("in_conmon")
def test_what_descends_from_a_container_s_monitor_stands_for_another(port: int):
    (listener,) = listeners_at("127.0.0.1", port)
    assert listener.name != "conmon"
    assert listener.stands_for_another


def test_a_container_around_turngap_too_makes_nobody_stand_for_another(
    port: int, in_conmon: psutil.Process, monkeypatch: pytest.MonkeyPatch
):
    (listener,) = listeners_at("127.0.0.1", port)
    around = psutil.Process().parent()
    assert around is not None
    assert around in in_conmon.parents()
    monkeypatch.setattr(listeners, "_OF_CONTAINERS", (around.name(),))
    assert not listener.stands_for_another


def test_who_is_in_the_session_of_the_command_is_no_stranger(
    port: int, monkeypatch: pytest.MonkeyPatch
):
    """As on macOS, where the child of a process that has ended is nobody's."""
    monkeypatch.setattr(listeners, "_family", lambda root: {root})
    serves = code(BEGINS, serves=code(SERVES, port=port))
    with begun(sys.executable, "-c", serves) as leader:
        (child,) = leader.children()
        assert strangers_at("127.0.0.1", port, leader.pid) == ()
        (stranger,) = strangers_at("127.0.0.1", port, os.getpid())
        assert stranger.pid == child.pid


async def test_where_the_system_does_not_tell_who_listens_the_run_goes_on(
    tmp_path: Path, port: int, another: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    def refused(kind: str) -> Any:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refused)
    async with started(python(WAITS), url_of(port), tmp_path / "log", another) as note:
        assert note is None


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
        async with started(python(serves, port=port), url_of(port, "localhost"), log) as note:
            assert note is None


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


def test_addresses_that_a_name_leads_to():
    assert addresses_of("127.0.0.1") == addresses_of("0.0.0.0") == {ip_address("127.0.0.1")}
    assert addresses_of("::1") == addresses_of("::") == {ip_address("::1")}
    assert addresses_of("localhost") & {ip_address("127.0.0.1"), ip_address("::1")}
    assert addresses_of("in-memory.invalid") == set()
    assert addresses_of("x" * 70) == set()

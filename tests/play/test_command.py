"""`--start`: any command is started, awaited at its port, and ended with all that it started."""

import shlex
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from reserved_ports import reserved_port

from turngap.children import QUIET_LOGURU
from turngap.core.errors import AgentError, InputError
from turngap.play import process as commands
from turngap.play.process import addresses_of, argv_of, served_by, started

# Nothing here depends on how long this takes; it only ends a test that hangs.
PATIENCE_S = 60

# Serves at the port, and leaves a child in a session of its own; both tell their process's id.
SERVES = """
    import os, signal, socket, subprocess, sys, time
    child = "import time; print('up', flush=True); time.sleep(600)"
    if {stubborn}:
        child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + child
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other = subprocess.Popen(
        [sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE
    )
    other.stdout.readline()
    print("pids", os.getpid(), other.pid, flush=True)
    with socket.create_server(("127.0.0.1", {port})):
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a command's end seen on a busy machine, too."""
    monkeypatch.setattr("turngap.play.process.ENDING_S", PATIENCE_S)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


def python(code: str, **values: object) -> str:
    return shlex.join([sys.executable, "-c", textwrap.dedent(code).format(**values)])


def url_of(port: int) -> str:
    return f"ws://127.0.0.1:{port}/ws"


def pids_in(log: Path) -> list[int]:
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("pids ")]
    return [int(pid) for pid in line.split()[1:]]


def gone(pids: list[int]) -> bool:
    """Return whether they end; zombies of a process that is not waited for have ended."""
    until_s = time.monotonic() + PATIENCE_S
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_command_serves_and_is_ended_with_its_children(
    tmp_path: Path, port: int, stubborn: bool
):
    log = tmp_path / "agent.log"
    async with started(python(SERVES, port=port, stubborn=stubborn), url_of(port), log):
        pids = pids_in(log)
        assert len(pids) == 2
        assert all(_runs(pid) for pid in pids)
        socket.create_connection(("127.0.0.1", port)).close()
    assert not any(_runs(pid) for pid in pids)


def test_it_is_ended_when_turngap_is_killed(tmp_path: Path, port: int):
    parent = f"""
        import asyncio, pathlib
        from turngap.play.process import started
        async def main():
            command = {python(SERVES, port=port, stubborn=False)!r}
            async with started(command, {url_of(port)!r}, pathlib.Path("agent.log")):
                print("serves", flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"serves\n"
    pids = pids_in(tmp_path / "agent.log")
    process.kill()
    process.wait(PATIENCE_S)
    assert gone(pids)


async def test_a_command_inherits_nothing_that_turngap_has_set_for_itself(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOGURU_AUTOINIT", "False")
    monkeypatch.setenv(QUIET_LOGURU, "1")
    shows = "import os; print(sorted(os.environ)); raise SystemExit(3)"
    with pytest.raises(AgentError):
        async with started(python(shows), url_of(port), tmp_path / "log"):
            pass
    printed = (tmp_path / "log").read_text()
    assert "'PATH'" in printed
    assert "LOGURU" not in printed


async def test_a_command_that_ends_at_once_says_so_with_the_end_of_its_log(
    tmp_path: Path, port: int
):
    code = """
        import sys
        print("\\n".join(f"line {{n}}" for n in range(9)))
        print("api_key=abcdefgh12345678")
        sys.exit(3)
    """
    log = tmp_path / "agent.log"
    with pytest.raises(AgentError) as e:
        async with started(python(code), url_of(port), log):
            raise AssertionError("it cannot have served")
    assert e.value.kind == "agent.not_started"
    assert "exit code 3" in e.value.message
    assert "line 8" in e.value.message
    assert "line 1" not in e.value.message
    assert str(log) in e.value.hint
    for text in (e.value.message, log.read_text()):
        assert "abcdefgh12345678" not in text


async def test_a_command_that_leaves_its_server_in_the_background_is_told_why(
    tmp_path: Path, port: int
):
    with pytest.raises(AgentError, match="in the background"):
        async with started("true", url_of(port), tmp_path / "agent.log"):
            raise AssertionError("it cannot have served")


async def test_a_command_that_does_not_serve_in_time_is_told_so(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
):
    told: list[str] = []

    def tell(what: str) -> None:
        told.append(what)
        if what.startswith("waiting"):
            monkeypatch.setattr(commands, "START_TIMEOUT_S", 0)

    serves = python("import time; print('loading', flush=True); time.sleep(600)")
    with pytest.raises(AgentError, match=r"does not serve at 127\.0\.0\.1:\d+ after 0 s") as e:
        async with started(serves, url_of(port), tmp_path / "agent.log", tell, 0):
            raise AssertionError("it cannot have served")
    assert e.value.kind == "agent.slow_start"
    assert told[0].startswith("starting ")
    assert f"waiting for 127.0.0.1:{port}" in told[1]


async def test_the_ports_of_a_command_without_a_url_are_found(tmp_path: Path, port: int):
    async with served_by(python(SERVES, port=port, stubborn=False), tmp_path / "log") as ports:
        assert ports == [port]


async def test_an_agent_that_ends_in_mid_conversation_is_named_as_the_cause(
    tmp_path: Path, port: int
):
    code = """
        import os, socket, sys
        server = socket.create_server(("127.0.0.1", {port}))
        server.accept()  # turngap's look
        server.accept()
        sys.stderr.write("out of cheese")
        sys.exit(7)
    """
    with pytest.raises(AgentError, match=r"line was lost.*\(exit code 7\): out of cheese") as e:
        async with started(python(code, port=port), url_of(port), tmp_path / "agent.log"):
            socket.create_connection(("127.0.0.1", port)).close()
            raise AgentError("agent.line_lost", "the line was lost")
    assert e.value.kind == "agent.ended"


async def test_a_port_that_somebody_serves_at_is_refused_before_anything_starts(tmp_path: Path):
    never = tmp_path / "started"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = url_of(server.getsockname()[1])
        with pytest.raises(InputError) as e:
            async with started(f"touch {never}", url, tmp_path / "agent.log"):
                raise AssertionError("it cannot have served")
    assert e.value.kind == "start.port_taken"
    assert not never.exists()


@pytest.mark.parametrize(
    ("command", "kind", "hint"),
    [
        ("", "start.empty", "bot.py"),
        ("python 'bot.py", "start.unreadable", ""),
        ("cd bot && python bot.py", "start.shell", "sh -c"),
        ("python bot.py >log", "start.shell", "sh -c"),
        ("python bot.py 2>log", "start.shell", "sh -c"),
        ("python bot.py <in", "start.shell", "sh -c"),
        ("cd bot; python bot.py", "start.shell", "sh -c"),
        ("python bot.py --port $PORT", "start.shell", "sh -c"),
        ('python bot.py --port "${PORT}"', "start.shell", "sh -c"),
        ("PORT=7860 python bot.py", "start.environment", "env PORT=7860 python bot.py"),
        ("no-such-program-anywhere bot.py", "start.not_found", "environment"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(command: str, kind: str, hint: str):
    with pytest.raises(InputError) as e:
        argv_of(command)
    assert e.value.kind == kind
    assert hint in e.value.hint


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'cd bot; python bot.py >log 2>&1 && echo $PORT'",
        'sh -c "import bot; bot.main();"',
        "sh bot.py '$PORT' \\$PORT ws://h/?a=1&b=2",
    ],
)
def test_what_is_quoted_is_no_shells(command: str):
    assert argv_of(command) == shlex.split(command)


@pytest.mark.parametrize("url", ["ws://", "ws://host:many/ws", "bot"])
def test_a_url_without_a_port_is_refused(url: str):
    with pytest.raises(InputError, match="does not say where"):
        commands.address_of(url)


def test_ports_of_urls():
    assert commands.address_of("wss://bot.example/ws") == ("bot.example", 443)
    assert commands.address_of("ws://[::1]/") == ("::1", 80)


def test_addresses_that_a_name_leads_to():
    assert addresses_of("127.0.0.1") == addresses_of("0.0.0.0") == {"127.0.0.1"}
    assert addresses_of("::1") == addresses_of("::") == {"::1"}
    assert addresses_of("localhost") & {"127.0.0.1", "::1"}
    assert addresses_of("in-memory.invalid") == set()
    assert addresses_of("x" * 70) == set()

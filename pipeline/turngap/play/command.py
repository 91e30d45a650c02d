"""An agent that anybody's command starts: awaited at its port, ended with its children."""

import asyncio
import re
import shlex
import shutil
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import shown
from turngap.play.process import child, ended

if TYPE_CHECKING:
    import psutil

# A bot loads its models in seconds; one that fetches them first takes minutes.
START_TIMEOUT_S = 300.0
LOOK_EVERY_MS = 100
SETTLE_MS = 300
# How often whoever waits is told so: looking at what a process listens to takes milliseconds.
TELL_EVERY_S = 2
CONNECT_TIMEOUT_S = 1.0
MOST_SHOWN = 80  # characters of a command in a message

# What a shell would make of these is not what the command gets. Quotes take it from all of them,
# but double ones not from a variable.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`")
_OF_A_SHELL = re.compile(rf"(?:^|\s)(?:[&|;<]|[0-9]?>)|;(?:\s|$)|{_EXPANDED.pattern}")

Told = Callable[[str], None]


@asynccontextmanager
async def started(
    command: str, url: str, log: Path, waits: Told = lambda what: None
) -> AsyncIterator[None]:
    """Start an agent by a command, until its URL's port is open; end it with all its children.

    What it prints goes to `log`. `waits` is told what is waited for, and for how long already.

    Raises:
        InputError: the command cannot be run, or the port is taken already.
        AgentError: it ended before it served, or does not serve in time; or it ended later, and
            the line to it was lost by that.
    """
    argv = argv_of(command)
    require_free(command, url)
    waits(f"starting {_named(command)}")
    async with child(["turngap.children", *argv], log) as process:
        await _serves(process, command, url, log, waits)
        yield


@asynccontextmanager
async def served_by(command: str, log: Path) -> AsyncIterator[list[int]]:
    """Start an agent that says nowhere where it serves; yields the ports at which it listens.

    Raises:
        InputError: the command cannot be run.
        AgentError: it ended before it listened anywhere, or does not listen in time.
    """
    async with child(["turngap.children", *argv_of(command)], log) as process:
        clock = MonotonicClock()
        begun_ns = clock.now_ns()
        while not (ports := ports_of(process.pid)):
            if (code := process.returncode) is not None:
                raise ended(f"{_named(command)}: the agent did not start", code, log)
            now_ns = clock.now_ns()
            if now_ns - begun_ns > START_TIMEOUT_S * NS_PER_S:
                raise AgentError(
                    "agent.slow_start",
                    f"{_named(command)} listens at no port after {START_TIMEOUT_S:g} s",
                )
            await clock.sleep_until_ns(now_ns + LOOK_EVERY_MS * NS_PER_MS)
        # Another server of the same process, as one for metrics, may have been the first.
        await clock.sleep_until_ns(clock.now_ns() + SETTLE_MS * NS_PER_MS)
        yield ports_of(process.pid) or ports


def argv_of(command: str) -> list[str]:
    """The words of a command, as a shell would part them.

    Raises:
        InputError: there are none, they are meant for a shell, or the program is not here.
    """
    try:
        argv = shlex.split(command)
    except ValueError as e:
        raise InputError("start.unreadable", f"--start {command!r}: {e}") from e
    if not argv:
        raise InputError(
            "start.empty", "--start names no command", hint='for example: --start "python bot.py"'
        )
    in_a_shell = f"--start {shlex.quote(f'sh -c {shlex.quote(command)}')}"
    if _OF_A_SHELL.search(_QUOTED.sub(_unquoted, command)):
        raise InputError(
            "start.shell",
            f"--start {command!r} is meant for a shell, and is run without one",
            hint=in_a_shell,
        )
    if "=" in argv[0]:
        raise InputError(
            "start.environment",
            f"--start {command!r} begins with a variable, which only a shell knows how to set",
            hint=f"--start {shlex.quote(f'env {command}')}",
        )
    if shutil.which(argv[0]) is None:
        raise InputError(
            "start.not_found",
            f"--start {command!r}: there is no program {argv[0]!r} on your PATH, or it may not be "
            "run",
            hint="activate the bot's environment, or give the program's whole path",
        )
    return argv


def _unquoted(match: re.Match[str]) -> str:
    """What is left of a quoted text for a shell to do something with."""
    return "$x" if match[0][0] == '"' and _EXPANDED.search(match[0].replace("\\$", "")) else "x"


def require_free(command: str, url: str) -> None:
    """Refuse a port at which somebody serves already: not the command would be measured.

    Raises:
        InputError: it is taken, or the URL has no host.
    """
    host, port = address_of(url)
    with suppress(OSError), socket.create_connection((host, port), CONNECT_TIMEOUT_S):
        taken = f"{host}:{port} is in use already{_by_whom(port)}"
        raise InputError(
            "start.port_taken",
            f"{taken}, so {_named(command)} cannot serve there",
            hint=f"end what serves there, or measure it without --start: --agent {url}",
        )


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a URL.

    Raises:
        InputError: it has no host, or its port is no number.
    """
    parts = urlsplit(url)
    with suppress(ValueError):
        if parts.hostname:
            return parts.hostname, parts.port or (443 if parts.scheme == "wss" else 80)
    raise InputError(
        "start.no_port",
        f"{url!r} does not say where the command of --start serves",
        hint="for example: --agent ws://127.0.0.1:8765/ws",
    )


async def _serves(process: Process, command: str, url: str, log: Path, waits: Told) -> None:
    """Wait until the port is open."""
    host, port = address_of(url)
    clock = MonotonicClock()
    begun_ns = told_ns = clock.now_ns()
    while not await _accepts(host, port):
        if (code := process.returncode) is not None:
            raise ended(_not_serving(command, host, port, code), code, log)
        now_ns = clock.now_ns()
        if now_ns - begun_ns > START_TIMEOUT_S * NS_PER_S:
            raise AgentError(
                "agent.slow_start",
                f"{_named(command)} does not serve at {host}:{port} after {START_TIMEOUT_S:g} s"
                f"{_elsewhere(process.pid)}",
                hint=f"is this the port that it serves at? Its log: {log}",
            )
        if now_ns - told_ns > TELL_EVERY_S * NS_PER_S:
            told_ns = now_ns
            waited_s = (now_ns - begun_ns) // NS_PER_S
            waits(f"waiting for {host}:{port}, {waited_s} s{_elsewhere(process.pid)}")
        await clock.sleep_until_ns(now_ns + LOOK_EVERY_MS * NS_PER_MS)


def _not_serving(command: str, host: str, port: int, code: int) -> str:
    if code == 0:
        return (
            f"{_named(command)} ended before anything served at {host}:{port} (it must not leave "
            "its server in the background), so the agent did not start"
        )
    return f"{_named(command)}: the agent did not start"


async def _accepts(host: str, port: int) -> bool:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
    return False


def _named(command: str) -> str:
    return shown(text_without_secrets(command), MOST_SHOWN)


def _by_whom(port: int) -> str:
    """The process that listens there, where the system says so."""
    import psutil

    with suppress(psutil.Error, RuntimeError):
        for found in psutil.net_connections("tcp"):
            if found.pid and found.laddr and (found.status, found.laddr.port) == ("LISTEN", port):
                return f" by {psutil.Process(found.pid).name()} (process {found.pid})"
    return ""


def _elsewhere(pid: int) -> str:
    """The ports at which a process or its children listen, in words."""
    ports = ports_of(pid)
    return f" (it listens at {', '.join(map(str, ports))})" if ports else ""


def ports_of(pid: int) -> list[int]:
    """Return the TCP ports at which a process or its children listen."""
    import psutil

    ports: set[int] = set()
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            ports.update(_listening(process))
    return sorted(ports)


def _listening(process: "psutil.Process") -> Iterator[int]:
    import psutil

    with suppress(psutil.Error):
        for found in process.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr:
                yield found.laddr.port

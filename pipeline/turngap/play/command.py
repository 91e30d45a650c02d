"""`--start`: an agent that a command starts, awaited at its port, ended with its children."""

import asyncio
import re
import shlex
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from turngap.caller.starting import place_of
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import remember_arguments, text_without_secrets
from turngap.core.untrusted import shown
from turngap.play.process import child, ended, last_lines

# A bot loads its models in seconds; one that fetches them first takes minutes.
START_TIMEOUT_S = 300.0
LOOK_EVERY_MS = 100
SETTLE_MS = 300
TELL_EVERY_S = 2.0
CONNECT_TIMEOUT_S = 1.0
MOST_SHOWN = 80  # characters of a command in a message

# What a shell would make of these is not what the command gets. Quotes take it from all of them,
# but double ones not from a variable.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`")
_OF_A_SHELL = re.compile(rf"(?:^|\s)(?:[&|;<]|[0-9]?>)|;(?:\s|$)|{_EXPANDED.pattern}")

OnWait = Callable[[str], None]


@asynccontextmanager
async def started(
    command: str,
    url: str,
    log: Path,
    on_wait: OnWait = lambda what: None,
    tell_every_s: float = TELL_EVERY_S,
) -> AsyncIterator[None]:
    """Start an agent by a command, wait until its URL's port is open, and end it afterwards.

    What it prints goes to `log`. `on_wait` gets what is waited for, every `tell_every_s`.

    Raises:
        InputError: the command cannot be run, or the port is taken already.
        AgentError: it ended before it served, or does not serve in time; or it ended later, and the
            line to it was lost by that.
    """
    argv = argv_of(command)
    require_free(command, url)
    host, port = address_of(url)
    at = shown_address(host, port)
    on_wait(f"starting {_shown(command)}")
    async with child(["turngap.children", *argv], log) as process:
        clock = MonotonicClock()
        begun_ns = clock.now_ns()
        next_s = tell_every_s
        while not await _accepts(host, port):
            _require_running(process.returncode, command, log)
            waited_s = (clock.now_ns() - begun_ns) / NS_PER_S
            if waited_s > START_TIMEOUT_S:
                raise _slow_start(f"does not serve at {at}", command, log)
            if waited_s >= next_s:
                next_s = waited_s + tell_every_s
                on_wait(f"waiting for {at}, {int(waited_s)} s")
            await clock.sleep_until_ns(clock.now_ns() + LOOK_EVERY_MS * NS_PER_MS)
        _require_running(process.returncode, command, log)
        yield


@asynccontextmanager
async def served_by(command: str, log: Path) -> AsyncIterator[list[int]]:
    """Start an agent whose port is not known; yield the ports at which it listens.

    Raises:
        InputError: the command cannot be run.
        AgentError: it ended before it listened anywhere, or does not listen in time.
    """
    async with child(["turngap.children", *argv_of(command)], log) as process:
        clock = MonotonicClock()
        begun_ns = clock.now_ns()
        while not (ports := _ports_of(process.pid)):
            _require_running(process.returncode, command, log)
            if clock.now_ns() - begun_ns > START_TIMEOUT_S * NS_PER_S:
                raise _slow_start("listens at no port", command, log)
            await clock.sleep_until_ns(clock.now_ns() + LOOK_EVERY_MS * NS_PER_MS)
        # Another server of the same process, as one for metrics, may have been the first.
        await clock.sleep_until_ns(clock.now_ns() + SETTLE_MS * NS_PER_MS)
        yield _ports_of(process.pid) or ports


def require_free(command: str, url: str) -> None:
    """Refuse a port that is in use, since not the command's agent would be measured.

    Raises:
        InputError: it is taken, or the URL has no host.
    """
    host, port = address_of(url)
    with suppress(OSError), socket.create_connection((host, port), CONNECT_TIMEOUT_S):
        raise InputError(
            "start.port_taken",
            f"{shown_address(host, port)} is in use already, so {_shown(command)} cannot serve "
            "there",
            hint=f"end what serves there, or measure it without --start: --agent {url}",
        )


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of a URL.

    Raises:
        InputError: it has no host, or its port is no number.
    """
    parts = urlsplit(place_of(url))
    with suppress(ValueError):
        if parts.hostname:
            return parts.hostname, parts.port or (443 if parts.scheme == "wss" else 80)
    raise InputError(
        "start.no_port",
        f"{url!r} does not say where the command of --start serves",
        hint="for example: --agent ws://127.0.0.1:8765/ws",
    )


def addresses_of(host: str) -> set[str]:
    """Return the IP addresses that a connection to a host reaches; none if it is not known."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        loopback = {4: "127.0.0.1", 6: "::1"}
        return {loopback[ip.version] if ip.is_unspecified else str(ip) for ip in addresses}
    return set()


def shown_address(host: str, port: int) -> str:
    """Return a host and a port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def argv_of(command: str) -> list[str]:
    """Return the words of a command, split as a shell would.

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
    remember_arguments(argv)
    if _OF_A_SHELL.search(_QUOTED.sub(_unquoted, command)):
        raise InputError(
            "start.shell",
            f"--start {command!r} is meant for a shell, and is run without one",
            hint=f"--start {shlex.quote(f'sh -c {shlex.quote(command)}')}",
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
    """Return what a shell would still look at in a quoted text."""
    return "$x" if match[0][0] == '"' and _EXPANDED.search(match[0].replace("\\$", "")) else "x"


def _require_running(code: int | None, command: str, log: Path) -> None:
    if code is None:
        return
    what = "the agent did not start"
    if code == 0:
        what = (
            "it ended before anything served (it must not leave its server in the background), so "
            f"{what}"
        )
    raise ended(f"{_shown(command)}: {what}", code, log)


def _slow_start(what: str, command: str, log: Path) -> AgentError:
    end = last_lines(log)
    return AgentError(
        "agent.slow_start",
        f"{_shown(command)} {what} after {START_TIMEOUT_S:g} s"
        + (f"; the end of its log: {end}" if end else ""),
        hint=f"is the URL's port the one that it serves at? Its log: {log}",
    )


async def _accepts(host: str, port: int) -> bool:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
    return False


def _shown(command: str) -> str:
    return shown(text_without_secrets(command), MOST_SHOWN)


def _ports_of(pid: int) -> list[int]:
    """Return the ports at which a process and its children listen."""
    ports: set[int] = set()
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                found = process.net_connections("tcp")
                ports |= {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}
    return sorted(ports)

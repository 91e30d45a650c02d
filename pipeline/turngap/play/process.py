"""Agent processes of the user's commands: start, watch, and end them with their children."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import psutil

from turngap.caller.connection import NOT_READY
from turngap.caller.endpoint import NO_TRANSPORT
from turngap.caller.opening import LINE_LOST
from turngap.caller.starting import place_of
from turngap.children import PARENT_HOLDS_STDIN
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError
from turngap.core.secrets import remember_arguments, text_without_secrets
from turngap.core.untrusted import MOST_SENTENCE, printable, shown
from turngap.store.documents import writing
from turngap.store.files import open_regular

# Loading the engines takes about 3 s warm; a vLLM that the agent starts, minutes. Engines that may
# wait for something have timeouts of their own, with a better error than this one.
READY_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 5.0
# How long the end of a process may come after that of its line: what it leaves behind ends first.
ENDING_S = 4.0
# A longer log than this is of a run of days at debug level: cleaning it would take minutes.
MOST_LOG_BYTES, MOST_END_BYTES = 2**24, 2**16
# Of a traceback the error itself, and where it happened.
LAST_LINES = 5

# Errors that the end of an agent's process may be behind, and those that its log may explain.
_LINE_ENDS = {LINE_LOST, "agent.unreachable"}
_LOGGED = {LINE_LOST, NOT_READY, NO_TRANSPORT}
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b: .+", re.MULTILINE)


@asynccontextmanager
async def running(
    argv: Sequence[str],
    log: Path,
    *,
    python: str = sys.executable,
    cwd: Path | None = None,
    on_ready: Callable[[Mapping[str, Any]], None] | None = None,
    document: Mapping[str, Any] | None = None,
) -> AsyncIterator[str]:
    """Start `python -m argv…`, wait for its ready line, yield its URL, and end it afterwards.

    The process prints one JSON line, `{"ready": true, "url": "ws://…"}`, when it serves, or else
    its error document; `on_ready` gets the whole ready line. Its stderr goes to `log`. The first
    line of its stdin is `document`, as JSON.

    Raises:
        TurngapError: the process reported an error of its own.
        AgentError: it ended or said nothing in time, or it ended later and its line was lost.
    """
    async with child(argv, log, python=python, cwd=cwd, answers=True) as process:
        if document is not None and process.stdin is not None:
            process.stdin.write(json.dumps(document).encode() + b"\n")
        ready = await _ready(process, log)
        if on_ready is not None:
            on_ready(ready)
        yield str(ready["url"])


@asynccontextmanager
async def child(
    argv: Sequence[str],
    log: Path,
    *,
    python: str = sys.executable,
    cwd: Path | None = None,
    answers: bool = False,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m argv…` for as long as the context lasts; its output goes to `log`.

    If the process `answers`, its parent reads its stdout. It ends when its stdin does, so it never
    outlives a parent that is killed.

    Raises:
        AgentError: it ended, and its line was lost.
    """
    with ExitStack() as stack:
        with writing(log):
            said = stack.enter_context(_opened(log, "ab", os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        process = await asyncio.create_subprocess_exec(
            python,
            "-P",  # a stray soundfile.py where the user stands must not take a module's place
            "-m",
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if answers else said,
            stderr=said,
            cwd=cwd,
            env={**os.environ, PARENT_HOLDS_STDIN: "1"},
            start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on, in order
        )
    try:
        yield process
    except AgentError as e:
        if e.kind in _LINE_ENDS and (code := await _exit_code(process)) is not None:
            raise ended(f"{e.message}: the agent ended in mid-conversation", code, log) from e
        if e.kind in _LOGGED and (error := last_error(log)):
            raise AgentError(e.kind, f"{e.message}. Its log has: {error}", hint=e.hint) from e
        raise
    finally:
        await _end(process)
        await asyncio.to_thread(_clean, log)


def _clean(log: Path) -> None:
    """Remove secrets that an engine wrote to its log, in its arguments or its errors.

    Of a long log, only the end is kept.
    """
    with suppress(OSError):
        text = _end_of(log, MOST_LOG_BYTES)
        with _opened(log, "wb", os.O_WRONLY | os.O_TRUNC) as kept:
            kept.write(text.encode())


def _opened(log: Path, mode: str = "rb", flags: int = os.O_RDONLY) -> IO[bytes]:
    return os.fdopen(open_regular(log, flags, below=log.parent), mode)


async def _ready(process: asyncio.subprocess.Process, log: Path) -> Mapping[str, Any]:
    if process.stdout is None:
        raise AssertionError("stdout is a pipe")
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await process.stdout.readline()
            with suppress(ValueError, KeyError, TypeError):
                ready = json.loads(line)
                str(ready["url"])
                return ready
            said = line + await process.stdout.read()
            code = await process.wait()
    except TimeoutError as e:
        raise AgentError(
            "agent.slow_start",
            f"the agent was not ready within {READY_TIMEOUT_S:g} s",
            hint=f"its log: {log}",
        ) from e
    raise _own_error(said, code) or ended("the agent did not start", code, log)


async def _exit_code(process: asyncio.subprocess.Process) -> int | None:
    """Return the exit code of the process, which is known shortly after its line is lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ENDING_S):
            return await process.wait()
    return None


def ended(what: str, code: int, log: Path) -> AgentError:
    """Build the error for a process that exited early, with the last lines of its log."""
    if code == -signal.SIGKILL:
        return AgentError(
            "agent.killed",
            f"{what} (it was killed, perhaps because memory ran out)",
            hint=f"give it more memory, or smaller models (turngap backends); its log: {log}",
        )
    return AgentError(
        "agent.not_started" if what.endswith("start") else "agent.ended",
        f"{what} (exit code {code}): {last_lines(log) or 'it said nothing'}",
        hint=f"its log: {log}",
    )


def _own_error(said: bytes, code: int) -> TurngapError | None:
    """Parse the error that the process printed as JSON, with its own exit code."""
    try:
        error = json.loads(said)["error"]
        kind = InputError if code == ExitCode.BAD_INPUT else AgentError
        return kind(str(error["kind"]), str(error["message"]), hint=str(error["hint"]))
    except (ValueError, KeyError, TypeError):
        return None


def last_error(log: Path) -> str:
    """Return the last line of the log that ends a traceback, without secrets; or an empty text."""
    return printable(next(reversed(_ERROR.findall(_end_of(log))), ""), MOST_SENTENCE)


def _end_of(log: Path, most: int = MOST_END_BYTES) -> str:
    with _opened(log) as said:
        left_out = os.fstat(said.fileno()).st_size - most
        if left_out > 0:
            said.seek(left_out)
            left_out += len(said.readline())
        text = text_without_secrets(said.read().decode(errors="replace"))
    return f"({left_out} bytes before this were left out)\n{text}" if left_out > 0 else text


def last_lines(log: Path) -> str:
    """Return the last lines of the log without secrets, indented if there are several."""
    text = _end_of(log)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
    return lines[0].strip() if len(lines) == 1 else "".join(f"\n    {line}" for line in lines)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the process's whole group to end, then kill it if it does not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
                return


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

    Its output goes to `log`. `on_wait` receives the reason for the wait, every `tell_every_s`.

    Raises:
        InputError: the command cannot be run, or the port is taken already.
        AgentError: it ended before it served, it does not serve in time, or it ended later and its
            line was lost.
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
    """Refuse a port that is in use, because another agent than the command's would be measured.

    Raises:
        InputError: the port is taken, or the URL has no host.
    """
    host, port = address_of(url)
    with suppress(OSError), socket.create_connection((host, port), CONNECT_TIMEOUT_S):
        raise InputError(
            "start.port_taken",
            f"{shown_address(host, port)} is in use already, so {_shown(command)} cannot serve "
            "there",
            hint=f"stop the server there, or measure it without --start: --agent {url}",
        )


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of a URL.

    Raises:
        InputError: the URL has no host, or its port is no number.
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
    """Return the IP addresses of a host; none if the host is unknown."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        loopback = {4: "127.0.0.1", 6: "::1"}
        return {loopback[ip.version] if ip.is_unspecified else str(ip) for ip in addresses}
    return set()


def shown_address(host: str, port: int) -> str:
    """Format a host and a port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def argv_of(command: str) -> list[str]:
    """Return the words of a command, split as a shell would.

    Raises:
        InputError: the command is empty or needs a shell, or its program is not on this machine.
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
            f"--start {command!r} needs a shell, and is run without one",
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
    """Return the part of a quoted text that a shell would still expand."""
    return "$x" if match[0][0] == '"' and _EXPANDED.search(match[0].replace("\\$", "")) else "x"


def _require_running(code: int | None, command: str, log: Path) -> None:
    if code is None:
        return
    what = "the agent did not start"
    if code == 0:
        what = (
            "it ended before it listened (it must not leave its server in the background), so "
            f"{what}"
        )
    raise ended(f"{_shown(command)}: {what}", code, log)


def _slow_start(what: str, command: str, log: Path) -> AgentError:
    end = last_lines(log)
    return AgentError(
        "agent.slow_start",
        f"{_shown(command)} {what} after {START_TIMEOUT_S:g} s"
        + (f"; the end of its log: {end}" if end else ""),
        hint=f"does it listen at the URL's port? Its log: {log}",
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

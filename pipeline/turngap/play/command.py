"""An agent that anybody's command starts: awaited at its port, ended with its children."""

import asyncio
import shlex
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import shown
from turngap.play.elsewhere import taking_calls
from turngap.play.listeners import (
    Listener,
    how_to_free,
    listeners_at,
    listeners_of,
    shown_address,
    strangers_at,
)
from turngap.play.process import child, ended, last_lines
from turngap.play.words_of import argv_of

# A bot loads its models in seconds; one that fetches them first takes minutes.
START_TIMEOUT_S = 300.0
LOOK_EVERY_MS = 100
SETTLE_MS = 300
# How often whoever waits is told so: looking at what a process listens to takes milliseconds.
TELL_EVERY_S = 2
# A bot may serve its health first, and calls as soon as its models are loaded. After this time, and
# each time it has passed again, it is tried whether it takes calls where it listens.
ELSEWHERE_S = 15.0
CONNECT_TIMEOUT_S = 1.0
MOST_SHOWN = 80  # characters of a command in a message
_IN_FRONT = "let it serve in the foreground (docker run without -d, for example)"

Told = Callable[[str], None]
Peer = tuple[str, int]  # an IP address and a port that a connection has reached


@asynccontextmanager
async def started(
    command: str,
    url: str,
    log: Path,
    waits: Told = lambda what: None,
    tell_every_s: float = TELL_EVERY_S,
) -> AsyncIterator[str | None]:
    """Start an agent by a command, until its URL's port is open; end it with all its children.

    What it prints goes to `log`. `waits` is told what is waited for, and for how long already,
    every `tell_every_s` and when the command begins to listen elsewhere. Yields a note where what
    listens there may be another than what was started, a container's port say; None where it is
    what was started, or the system tells nothing at all.

    Raises:
        InputError: the command cannot be run, or the port is taken already.
        AgentError: it ended before it served, does not serve in time, or takes calls at another
            port; or it ended later, and the line to it was lost by that; or a process that it did
            not start serves there when it should, or at the end.
    """
    argv = argv_of(command)
    require_free(command, url)
    waits(f"starting {_named(command)}")
    async with child(["turngap.children", *argv], log) as process:
        peer = await _serves(process, command, url, log, _Teller(waits, tell_every_s))
        note = await _note_of_listener(process, command, peer, log)
        if (code := process.returncode) is not None:
            raise ended(f"{_named(command)}: the agent did not start", code, log)
        if note is not None:
            waits(note)
        yield note
        # Somebody may have taken its place in between.
        await _note_of_listener(process, command, peer, log)


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
        while not (ports := _ports_of(process.pid)):
            if (code := process.returncode) is not None:
                raise ended(f"{_named(command)}: the agent did not start", code, log)
            now_ns = clock.now_ns()
            if now_ns - begun_ns > START_TIMEOUT_S * NS_PER_S:
                raise AgentError(
                    "agent.slow_start",
                    f"{_named(command)} listens at no port after {START_TIMEOUT_S:g} s"
                    f"{_last_said(log)}",
                )
            await clock.sleep_until_ns(now_ns + LOOK_EVERY_MS * NS_PER_MS)
        # Another server of the same process, as one for metrics, may have been the first.
        await clock.sleep_until_ns(clock.now_ns() + SETTLE_MS * NS_PER_MS)
        yield _ports_of(process.pid) or ports


def require_free(command: str, url: str) -> None:
    """Refuse a port at which somebody serves already: not the command would be measured.

    Raises:
        InputError: it is taken, or the URL has no host.
    """
    host, port = address_of(url)
    with suppress(OSError), socket.create_connection((host, port), CONNECT_TIMEOUT_S) as line:
        whose = next((each for each in listeners_at(*line.getpeername()[:2]) if each.pid), None)
        by_whom = f" by {whose.named}" if whose else ""
        raise InputError(
            "start.port_taken",
            f"{host}:{port} is in use already{by_whom}, so {_named(command)} cannot serve there",
            hint=f"{how_to_free(whose)}, or measure it without --start: --agent {url}",
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


class _Teller:
    """Tells what is waited for when that changes, and now and then."""

    def __init__(self, waits: Told, every_s: float) -> None:
        self._waits, self._every_s = waits, every_s
        self._elsewhere, self._next_s = "", 0.0

    def tell(self, what: str, waited_s: float, elsewhere: str) -> None:
        if waited_s >= self._next_s or elsewhere != self._elsewhere:
            self._elsewhere, self._next_s = elsewhere, waited_s + self._every_s
            self._waits(f"{what}, {int(waited_s)} s{elsewhere}")


async def _serves(process: Process, command: str, url: str, log: Path, teller: _Teller) -> Peer:
    """Wait until the port is open; return which address it is open at."""
    host, port = address_of(url)
    clock = MonotonicClock()
    begun_ns = told_ns = clock.now_ns()
    elsewhere_ns: int | None = None
    while (peer := await _accepts(host, port)) is None:
        if (code := process.returncode) is not None:
            raise ended(_not_serving(command, host, port, code), code, log)
        now_ns = clock.now_ns()
        if now_ns - begun_ns > START_TIMEOUT_S * NS_PER_S:
            raise AgentError(
                "agent.slow_start",
                f"{_named(command)} does not serve at {host}:{port} after {START_TIMEOUT_S:g} s"
                f"{_elsewhere(listeners_of(process.pid))}{_last_said(log)}",
                hint=f"is this the port that it serves at? Its log: {log}",
            )
        if now_ns - told_ns > TELL_EVERY_S * NS_PER_S:
            told_ns = now_ns
            found = listeners_of(process.pid)
            waited_s = (now_ns - begun_ns) / NS_PER_S
            teller.tell(f"waiting for {host}:{port}", waited_s, _elsewhere(found))
            elsewhere_ns = (elsewhere_ns or now_ns) if found else None
            if elsewhere_ns is not None and now_ns - elsewhere_ns > ELSEWHERE_S * NS_PER_S:
                elsewhere_ns = now_ns
                await _require_no_calls_at(found, command, url)
        await clock.sleep_until_ns(clock.now_ns() + LOOK_EVERY_MS * NS_PER_MS)
    return peer


async def _require_no_calls_at(found: Sequence[Listener], command: str, url: str) -> None:
    """Refuse to wait on where the command takes calls already, at another address.

    Raises:
        AgentError: it does; a server of its health or its metrics does not.
    """
    if (meant := await taking_calls(found, url)) is None:
        return
    host, port = address_of(url)
    shown_url, start = text_without_secrets(meant), shlex.quote(text_without_secrets(command))
    raise AgentError(
        "agent.another_port",
        f"{_named(command)} takes calls at {shown_url}, and nothing serves at {host}:{port}",
        hint=f"give that URL: --agent {shlex.quote(shown_url)} --start {start}",
    )


def _last_said(log: Path) -> str:
    said = last_lines(log)
    return f"; it last said: {said}" if said else ""


async def _note_of_listener(process: Process, command: str, peer: Peer, log: Path) -> str | None:
    """Who listens there and may, though it is not known to be what was started; else None.

    Raises:
        AgentError: it is a process that has nothing to do with the command; or the command has
            ended, so that whoever serves cannot be what it started.
    """
    strangers = strangers_at(*peer, process.pid)
    if (code := process.returncode) is not None:
        if await _accepts(*peer) is None:
            return None
        where, whose = shown_address(*peer), strangers[0].named if strangers else "somebody else"
        error = ended(f"{_named(command)} has ended, but {where} is served by {whose}", code, log)
        left = f"{_IN_FRONT}; {error.hint}" if code == 0 else error.hint
        raise AgentError("agent.another_serves", error.message, hint=left)
    # Where one of several at the same address is another's, it gets some of the calls.
    others = [each for each in strangers if each.pid and not each.stands_for_another]
    if others:
        raise AgentError(
            "agent.another_serves",
            f"{others[0].named} serves at {others[0].at}, and {_named(command)} did not start it, "
            f"so your agent would not be what is measured{_last_said(log)}",
            hint="end that process, or choose another port; if it is the agent (a system service, "
            f"say), start it yourself and leave out --start. The command's log: {log}",
        )
    if not strangers:
        return None
    known = next((each.name for each in strangers if each.pid), "")
    if known:
        return (
            f"{known} listens at the agent's port. The command did not start it itself, as with a "
            "container or a tunnel"
        )
    return (
        "the system does not say which process listens at the agent's port, as with one of another "
        "user or of a container, so it is not known whether the command started it"
    )


def _not_serving(command: str, host: str, port: int, code: int) -> str:
    if code == 0:
        return (
            f"{_named(command)} ended before anything served at {host}:{port} (it must not leave "
            "its server in the background), so the agent did not start"
        )
    return f"{_named(command)}: the agent did not start"


async def _accepts(host: str, port: int) -> Peer | None:
    """The address at which a connection is taken; None if it is not."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
        peer: Peer = writer.get_extra_info("peername")[:2]
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return peer
    return None


def _named(command: str) -> str:
    return shown(text_without_secrets(command), MOST_SHOWN)


def _elsewhere(found: Sequence[Listener]) -> str:
    """Where a process or its children listen, in words."""
    at = [listener.at for listener in found]
    return f" (it listens at {', '.join(at)})" if at else ""


def _ports_of(pid: int) -> list[int]:
    return sorted({listener.port for listener in listeners_of(pid)})

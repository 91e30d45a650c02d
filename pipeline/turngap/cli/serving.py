"""`turngap serve` and `turngap talk`."""

import json
import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import typer

from turngap.children import PARENT_HOLDS_STDIN
from turngap.cli.options import PORT
from turngap.cli.shared import print_json, say
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import is_loopback
from turngap.play.options import Asked, quoted

if TYPE_CHECKING:
    import socket

    from turngap.agent.stack import Chosen
    from turngap.core.clock import Clock
    from turngap.live.answering import Answering
    from turngap.live.keeping import Keeping
    from turngap.play.target import AgentChoice


@dataclass(frozen=True, slots=True)
class Where:
    """The address at which a server listens, and how its page is reached."""

    host: str
    port: int
    token: str | None

    @property
    def page(self) -> str:
        query = f"/?token={quote(self.token)}" if self.token else ""
        return f"http://{self.reachable}:{self.port}{query}"

    def socket(self, path: str) -> str:
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"ws://{self.reachable}:{self.port}{path}{query}"

    @property
    def reachable(self) -> str:
        """Return the host in the URL: this machine's name, if it listens on every address."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


@dataclass(frozen=True, slots=True)
class Wanted:
    """A server as the flags of `serve` and `talk` describe it.

    Attributes:
        address: host and port; without a port, the first free one from `PORT` on.
        drain_s: how long SIGTERM lets calls continue; None for the default, which depends on who
            started the server.
    """

    choice: "AgentChoice"
    address: tuple[str, int | None]
    max_sessions: int
    token: str | None
    origins: tuple[str, ...]
    drain_s: float | None = 0.0
    log_level: str = "WARNING"

    @property
    def most_drain_s(self) -> float:
        """Return the longest drain, s; by default 0 for a server that turngap starts for itself."""
        from turngap.agent.server import DRAIN_S

        if self.drain_s is not None:
            return self.drain_s
        return 0.0 if os.environ.get(PARENT_HOLDS_STDIN) else DRAIN_S


Announce = Callable[[Where, "Chosen"], None]


def serve(_: typer.Context, asked: Asked) -> None:
    """Run an agent: a page to talk to it, and a WebSocket for callers.

    /ws is for pipecat's clients (protobuf, RTVI) and `turngap replay` (docs/serving.md).
    Conversations at the page are kept as runs; `turngap report latest` shows the last one.

    Exit: 0 when you end it, 2 bad input, 4 an engine or a port cannot be had.
    """
    from turngap.agent import server
    from turngap.children import end_with_parent
    from turngap.play.target import AgentChoice

    if asked.document:  # before the parent is watched, whose end of stdin stays open
        document = json.loads(sys.stdin.readline())
        choice, asked["library"] = (
            AgentChoice.of_document(document["choice"]),
            Path(document["library"]),
        )
        asked["max_sessions"] = document["max_sessions"] or asked.max_sessions
    else:
        choice = AgentChoice.asked(asked)
    end_with_parent()
    if choice.is_url:
        raise InputError(
            "serve.url",
            f"{choice.agent} is a running agent; serve takes a stack",
            hint=f"to talk to it: turngap talk --agent {choice.agent}",
        )

    def announce(where: Where, chosen: "Chosen") -> None:
        if asked.json_:
            server.announce_json(where.socket(server.PATH), page=where.page, chosen=chosen)
            return
        say(f"{choice.agent} serves its page at {where.page}")
        say(f"and callers at {where.socket(server.PATH)} (Ctrl-C ends it)")
        say("\n".join(remarks(where, asked.max_sessions)))

    wanted = _wanted(choice, asked, asked.drain)
    host_agent(wanted, _keeping(asked), asked.library, announce)


def talk(_: typer.Context, asked: Asked) -> None:
    """Talk to an agent yourself: open a page that draws each turn against 800 ms.

    A stack is started for it. If you give the URL of a running agent, turngap passes your voice on
    to it, in any dialect, and the page measures.

    Exit: 0 when you end it, 2 bad input, 4 no agent or no port.
    """
    from turngap.play.target import AgentChoice

    choice = AgentChoice.asked(asked)

    def announce(where: Where, _: "Chosen") -> None:
        if asked.json_:
            print_json({"ready": True, "page": where.page})
            return
        say(f"talk to {text_without_secrets(choice.agent)} at {where.page} (Ctrl-C ends it)")
        say("\n".join(remarks(where, asked.max_sessions)))
        if asked.browser and not webbrowser.open(where.page):
            say("no browser could be opened here: open that address in one")

    if run := host_agent(_wanted(choice, asked, 0.0), _keeping(asked), asked.library, announce):
        say(f"your conversation is in {run}; to see it: turngap report {quoted(run)}")


def _wanted(choice: "AgentChoice", asked: Asked, drain_s: float | None) -> Wanted:
    return Wanted(
        choice,
        (asked.host, asked.port),
        asked.max_sessions,
        asked.token,
        asked.origins,
        drain_s,
        asked.get("log_level", "WARNING"),
    )


def remarks(where: Where, max_sessions: int) -> list[str]:
    """Return notes for the person who starts a server."""
    most = "1 conversation" if max_sessions == 1 else f"{max_sessions} conversations"
    lines = [f"up to {most} at once; others get an answer that it is full"]
    if where.token and not is_loopback(where.host):
        lines.append(
            "everyone who has that address may talk to it; browsers give the microphone only to"
        )
        lines.append("https and to localhost: put an https proxy before it (--origin), or")
        tunnel = f"ssh -L {where.port}:{where.reachable}:{where.port} THIS-MACHINE"
        lines.append(f"{tunnel} there, and open http://localhost:{where.port}/?token=… instead")
    return lines


def _keeping(asked: Asked) -> "Keeping":
    from turngap.live.keeping import Keeping
    from turngap.report.run import write_html
    from turngap.store.documents import DEFAULT_ROOT

    if not asked.keep and (asked.out is not None or asked.record is not None):
        raise InputError(
            "serve.keep",
            "--no-keep stores nothing, so --out and --record have no effect",
            hint="drop --no-keep, or the other two",
        )
    root = (asked.out or DEFAULT_ROOT) if asked.keep else None
    return Keeping(root, asked.record, write_html)


def host_agent(
    wanted: Wanted, keeping: "Keeping", library: Path | None, announce: Announce
) -> Path | None:
    """Serve until a signal ends it; return the run of the last conversation.

    Raises:
        InputError, AgentError: it cannot listen, or the agent cannot be made ready.
    """
    from turngap.agent import server
    from turngap.agent.access import Access, Seats
    from turngap.clocks import MonotonicClock
    from turngap.live.app import LiveServer

    server.set_log_level(wanted.log_level)
    host, port = wanted.address
    access = Access.for_host(host, wanted.token, wanted.origins)
    listener = listen(host, port)
    host, port = listener.getsockname()[:2]
    settings = server.ServeSettings(host, port, access)
    clock = MonotonicClock()
    live: LiveServer | None = None
    with listener, suppress(KeyboardInterrupt):  # the ordinary end
        with _ended_by_sigterm():
            answering = _answering(wanted.choice, library, clock)
        seats = Seats(wanted.max_sessions)
        live = LiveServer(answering, settings, keeping, seats)
        announce(Where(host, port, access.token), answering.chosen())
        running = server.Server(live.app, settings.limits, seats, wanted.most_drain_s)
        server.serve(running, listener, live.close)
    return live.conversations.last if live else None


def listen(host: str, port: int | None) -> "socket.socket":
    """Listen at the port; without one, at the first free port from `PORT` on."""
    from turngap.agent.server import ServeSettings, bind

    for free in range(PORT, PORT + 10) if port is None else ():
        with suppress(AgentError):
            return bind(ServeSettings(host, free))
    return bind(ServeSettings(host, PORT if port is None else port))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process at once while it loads: there is nothing to keep yet.

    Elsewhere SIGTERM becomes an interrupt, which would be lost in a script's background process,
    whose shell has interrupts ignored.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _answering(choice: "AgentChoice", library: Path | None, clock: "Clock") -> "Answering":
    """Prepare the agent: a stack loads its models, another's agent is reached once."""
    import asyncio

    from turngap.live.answering import OwnStack, reach
    from turngap.play.target import resolve
    from turngap.scenario.model import library_dir

    resolve(choice, library_dir(library))  # refuses what only a stack has, and engines not here
    if choice.is_url:
        return asyncio.run(reach(choice.endpoint, clock))
    from turngap.agent.session import assemble

    assembly = assemble(
        choice.stack(),
        library_dir(library),
        clock,
        traced=choice.traced,
        offer=list(choice.offers) or None,
    )
    assembly.prepare()
    return OwnStack(assembly)

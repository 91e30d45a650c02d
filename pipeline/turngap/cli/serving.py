"""`turngap serve` and `turngap talk`."""

import dataclasses
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from turngap.cli.options import (
    LLM,
    STT,
    TTS,
    Library,
    Marks,
    Out,
    Seed,
    Sets,
    agent_option,
    llm_names,
    output_option,
    stack_names,
)
from turngap.cli.shared import agent_choice, say
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from turngap.live.keeping import Keeping
    from turngap.play.target import AgentChoice

TOKEN_VARIABLE = "TURNGAP_TOKEN"

SERVER, TERMINAL = "Server", "Terminal"
Stack = Annotated[
    str,
    agent_option(
        "--agent",
        help="The agent: a stack's name or a stack file (.toml).",
        autocompletion=stack_names,
    ),
]
StackOrUrl = Annotated[
    str,
    agent_option(
        "--agent",
        help="The agent: a stack's name or a stack file (.toml); with --terminal a ws:// URL, too.",
        autocompletion=stack_names,
    ),
]
Offers = Annotated[
    list[str] | None,
    agent_option(
        "--offer",
        help="An LLM that a caller may switch to: [LABEL=]BACKEND[,KEY=VALUE…]. Repeatable. "
        "Default: every one that is installed here and needs no settings.",
        autocompletion=llm_names,
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        help="Port to listen on. 0: any free one.",
        rich_help_panel=SERVER,
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        help="Address to listen on. Beyond this machine, callers need a token.",
        rich_help_panel=SERVER,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=TOKEN_VARIABLE,
        help="What callers must know. Where one is needed and not given, it is made and printed.",
        rich_help_panel=SERVER,
    ),
]
Origins = Annotated[
    list[str] | None,
    typer.Option(
        "--origin",
        help="Let pages of this origin connect, as behind a proxy. Repeatable.",
        rich_help_panel=SERVER,
    ),
]
Record = Annotated[
    Path | None,
    output_option("--record", help="Save every conversation as a scenario in this folder."),
]
Keep = Annotated[
    bool,
    output_option("--keep/--no-keep", help="Keep conversations as runs on disk, audio included."),
]
# What a server that one person talks to has room for: the page may be open in a few windows.
MAX_SESSIONS = 8


@dataclass(frozen=True, slots=True)
class Where:
    """Where a server listens, and how its page is reached."""

    host: str
    port: int
    token: str | None

    @property
    def page(self) -> str:
        """The page's URL, its token included."""
        query = f"/?token={quote(self.token)}" if self.token else ""
        return f"http://{self.reachable}:{self.port}{query}"

    def socket(self, path: str) -> str:
        """The plain caller's URL."""
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"ws://{self.reachable}:{self.port}{path}{query}"

    @property
    def reachable(self) -> str:
        """A name for what listens on every address: this machine's own."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


def serve(
    agent: Stack = "embedded",
    llm: LLM = None,
    stt: STT = None,
    tts: TTS = None,
    set_: Sets = None,
    seed: Seed = None,
    marks: Marks = True,
    offer: Offers = None,
    library: Library = None,
    port: Port = 7860,
    host: Host = "127.0.0.1",
    token: Token = None,
    origin: Origins = None,
    max_sessions: Annotated[
        int,
        typer.Option(min=1, help="Conversations at once, at most.", rich_help_panel=SERVER),
    ] = MAX_SESSIONS,
    log_level: Annotated[
        str, typer.Option(help="DEBUG shows what happens to every frame.", rich_help_panel=SERVER)
    ] = "WARNING",
    record: Record = None,
    keep: Keep = True,
    out: Out = None,
    json_: Annotated[bool, output_option("--json", help="Print the URL as one JSON line.")] = False,
) -> None:
    """Run an agent: a page to talk to it, and a WebSocket for callers (pipecat protobuf, RTVI).

    Callers such as `turngap replay` take the address of its socket, which is printed too.
    Conversations at the page are kept as runs in ./runs: `turngap report latest`.
    """
    from turngap.agent import server
    from turngap.children import end_with_parent

    end_with_parent()
    choice = agent_choice(agent, {"llm": llm, "stt": stt, "tts": tts}, set_, seed, marks)

    def announce(where: Where) -> None:
        if json_:
            server.announce_json(where.socket(server.PATH), page=where.page)
            return
        say(f"{agent} serves its page at {where.page}")
        say(f"and callers at {where.socket(server.PATH)} (Ctrl-C ends it)")
        for line in remarks(where, max_sessions):
            say(line)

    _serve(
        _Server(choice, offer, (host, port), max_sessions, token, tuple(origin or ())),
        _keeping(out, record, keep),
        library,
        log_level,
        announce,
    )


def talk(
    agent: StackOrUrl = "embedded",
    llm: LLM = None,
    stt: STT = None,
    tts: TTS = None,
    set_: Sets = None,
    seed: Seed = None,
    offer: Offers = None,
    library: Library = None,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser/--no-browser", help="Open the page in a browser.", rich_help_panel=SERVER
        ),
    ] = True,
    port: Port = 7860,
    host: Host = "127.0.0.1",
    token: Token = None,
    origin: Origins = None,
    terminal: Annotated[
        bool,
        typer.Option(
            "--terminal",
            # `\\[`: help is markup, and would take the extra for a style.
            help="Talk here, without a browser. Needs turngap\\[audio].",
            rich_help_panel=TERMINAL,
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="Sound device. Default: the system's.", rich_help_panel=TERMINAL),
    ] = None,
    record: Record = None,
    keep: Keep = True,
    out: Out = None,
) -> None:
    """Talk to an agent yourself: serve it, open its page, and draw each turn against 800 ms.

    Exit: 0 when you end it, 2 bad input, 4 no agent, no port or no sound device.
    """
    choice = agent_choice(agent, {"llm": llm, "stt": stt, "tts": tts}, set_, seed, True)
    if terminal:
        from turngap.cli.terminal import talk_in_terminal
        from turngap.live.sound import PortAudioDevice

        keeping = _keeping(out, record, keep)
        here = dataclasses.replace(choice, offers=tuple(offer or ()))
        talk_in_terminal(here, keeping, library, PortAudioDevice(device))
        return

    def announce(where: Where) -> None:
        say(f"talk to {agent} at {where.page} (Ctrl-C ends it)")
        for line in remarks(where, MAX_SESSIONS):
            say(line)
        if browser and not webbrowser.open(where.page):
            say("no browser could be opened here: open that address in one")

    _serve(
        _Server(choice, offer, (host, port), MAX_SESSIONS, token, tuple(origin or ())),
        _keeping(out, record, keep),
        library,
        "WARNING",
        announce,
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """What the flags of both commands say of the server."""

    choice: "AgentChoice"
    offer: list[str] | None
    address: tuple[str, int]
    max_sessions: int
    token: str | None
    origins: tuple[str, ...]


def remarks(where: Where, max_sessions: int) -> list[str]:
    """What somebody who starts a server should know of it."""
    from turngap.agent.access import is_loopback

    lines = [f"up to {max_sessions} conversations at once; more are told that it is full"]
    if where.token and not is_loopback(where.host):
        lines.append(
            "whoever has that address may talk to it; browsers give the microphone only to"
        )
        lines.append("https and to localhost: put an https proxy before it (--origin), or")
        tunnel = f"ssh -L {where.port}:{where.reachable}:{where.port} THIS-MACHINE"
        lines.append(f"{tunnel} there, and open http://localhost:{where.port}/?token=… instead")
    return lines


def _keeping(out: Path | None, record: Path | None, keep: bool) -> "Keeping":
    from turngap.live.keeping import Keeping
    from turngap.report.html import write_html
    from turngap.store.documents import DEFAULT_ROOT

    if not keep and (out is not None or record is not None):
        raise InputError(
            "serve.keep",
            "--no-keep keeps nothing, --out and --record say where to",
            hint="drop one",
        )
    return Keeping((out or DEFAULT_ROOT) if keep else None, record, write_html)


def _serve(
    wanted: _Server,
    keeping: "Keeping",
    library: Path | None,
    log_level: str,
    announce: Callable[[Where], None],
) -> None:
    from turngap.agent import server
    from turngap.agent.access import Access
    from turngap.agent.session import assemble
    from turngap.clocks import MonotonicClock
    from turngap.live.app import LiveServer, LiveSettings
    from turngap.scenario.library import library_dir

    choice = wanted.choice
    if choice.is_url:
        raise InputError(
            "serve.url",
            f"{choice.agent} is a running agent; serve and talk take a stack",
            hint="its own page, if it is turngap's, is at http://HOST:PORT/",
        )
    server.set_log_level(log_level)
    host, port = wanted.address
    access = Access.for_host(host, wanted.token, wanted.origins)
    settings = server.ServeSettings(host, port, access)
    with server.bind(settings) as listener:
        assembly = assemble(
            choice.stack(),
            library_dir(library),
            MonotonicClock(),
            traced=choice.traced,
            offer=wanted.offer,
        )
        assembly.prepare()
        seats = server.Seats(wanted.max_sessions)
        live = LiveServer(assembly, settings, LiveSettings(keeping), seats)

        def ready(bound: str, port: int) -> None:
            announce(Where(bound, port, access.token))

        with suppress(KeyboardInterrupt):  # the ordinary way to end it
            server.serve(live.app, listener, ready, live.close)

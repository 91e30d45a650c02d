"""`turngap serve` and `turngap talk`."""

import dataclasses
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from turngap.cli import options
from turngap.cli.shared import say
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from turngap.agent.stack import Chosen
    from turngap.live.keeping import Keeping
    from turngap.play.target import AgentChoice

TOKEN_VARIABLE = "TURNGAP_TOKEN"

_for_server = partial(typer.Option, rich_help_panel="Server")
Stack = Annotated[
    str,
    options.for_agent(
        "--agent",
        help="The agent: a stack's name or a stack file (.toml).",
        autocompletion=options.stack_names,
    ),
]
StackOrUrl = Annotated[
    str,
    options.for_agent(
        "--agent",
        help="The agent: the name of a stack (embedded, stock, local, gpu) or a stack file "
        "(.toml); with --terminal also the ws:// URL of your bot.",
        autocompletion=options.stack_names,
    ),
]
Offers = Annotated[
    list[str] | None,
    options.for_agent(
        "--offer",
        help="An LLM that the person may switch to: [LABEL=]BACKEND[,KEY=VALUE…]. Repeatable. "
        "Default: every one that is installed here and needs no settings.",
        autocompletion=options.llm_names,
    ),
]
Port = Annotated[
    int, _for_server("--port", min=0, max=65535, help="Port to listen on. 0: any free one.")
]
Host = Annotated[
    str,
    _for_server("--host", help="Address to listen on. Beyond this machine, clients need a token."),
]
Token = Annotated[
    str | None,
    _for_server(
        "--token",
        envvar=TOKEN_VARIABLE,
        help="The token that clients must send. If one is needed and you give none, turngap makes "
        "one and prints it.",
    ),
]
Origins = Annotated[
    list[str] | None,
    _for_server(
        "--origin", help="Let pages of this origin connect, as behind a proxy. Repeatable."
    ),
]
Record = Annotated[
    Path | None,
    options.for_output("--record", help="Save every conversation as a scenario in this folder."),
]
Keep = Annotated[
    bool,
    options.for_output(
        "--keep/--no-keep", help="Keep conversations as runs on disk, audio included."
    ),
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
        query = f"/?token={quote(self.token)}" if self.token else ""
        return f"http://{self.reachable}:{self.port}{query}"

    def socket(self, path: str) -> str:
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"ws://{self.reachable}:{self.port}{path}{query}"

    @property
    def reachable(self) -> str:
        """A name for what listens on every address: this machine's own."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


def serve(
    agent: Stack = "embedded",
    llm: options.LLM = None,
    stt: options.STT = None,
    tts: options.TTS = None,
    set_: options.Sets = None,
    seed: options.Seed = None,
    marks: options.Marks = True,
    offer: Offers = None,
    library: options.Library = None,
    port: Port = 7860,
    host: Host = "127.0.0.1",
    token: Token = None,
    origin: Origins = None,
    max_sessions: Annotated[
        int, _for_server(min=1, help="Conversations at once, at most.")
    ] = MAX_SESSIONS,
    log_level: Annotated[
        str, _for_server(help="DEBUG shows what happens to every frame.")
    ] = "WARNING",
    record: Record = None,
    keep: Keep = True,
    out: options.Out = None,
    json_: Annotated[
        bool, options.for_output("--json", help="Print the URL as one JSON line.")
    ] = False,
) -> None:
    """Run an agent: a page to talk to it, and a WebSocket for callers (pipecat protobuf, RTVI).

    Callers such as `turngap replay` take the address of its socket, which is printed too.
    Conversations at the page are kept as runs in ./runs: `turngap report latest`.
    """
    from turngap.agent import server
    from turngap.children import end_with_parent
    from turngap.play.target import AgentChoice

    end_with_parent()
    choice = AgentChoice(
        agent, {"llm": llm, "stt": stt, "tts": tts}, tuple(set_ or ()), seed, marks
    )

    def announce(where: Where, chosen: "Chosen") -> None:
        if json_:
            server.announce_json(where.socket(server.PATH), page=where.page, chosen=chosen)
            return
        say(f"{agent} serves its page at {where.page}")
        say(f"and callers at {where.socket(server.PATH)} (Ctrl-C ends it)")
        say("\n".join(remarks(where, max_sessions)))

    _serve(
        _Server(choice, offer, (host, port), max_sessions, token, tuple(origin or ())),
        _keeping(out, record, keep),
        library,
        log_level,
        announce,
    )


def talk(
    agent: StackOrUrl = "embedded",
    llm: options.LLM = None,
    stt: options.STT = None,
    tts: options.TTS = None,
    set_: options.Sets = None,
    seed: options.Seed = None,
    offer: Offers = None,
    library: options.Library = None,
    browser: Annotated[
        bool, _for_server("--browser/--no-browser", help="Open the page in a browser.")
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
            rich_help_panel=options.SOUND,
        ),
    ] = False,
    device: options.Device = None,
    record: Record = None,
    keep: Keep = True,
    out: options.Out = None,
) -> None:
    """Talk to an agent yourself: serve it, open its page, and draw each turn against 800 ms.

    Exit: 0 when you end it, 2 bad input, 4 no agent, no port or no sound device.
    """
    from turngap.play.target import AgentChoice

    choice = AgentChoice(agent, {"llm": llm, "stt": stt, "tts": tts}, tuple(set_ or ()), seed)
    if terminal:
        from turngap.cli.terminal import talk_in_terminal
        from turngap.live.sound import PortAudioDevice

        keeping = _keeping(out, record, keep)
        here = dataclasses.replace(choice, offers=tuple(offer or ()))
        talk_in_terminal(here, keeping, library, PortAudioDevice(device))
        return

    def announce(where: Where, _: "Chosen") -> None:
        say(f"talk to {agent} at {where.page} (Ctrl-C ends it)")
        say("\n".join(remarks(where, MAX_SESSIONS)))
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
    from turngap.report.run import write_html
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
    announce: Callable[[Where, "Chosen"], None],
) -> None:
    from turngap.agent import server
    from turngap.agent.access import Access
    from turngap.agent.log import set_log_level
    from turngap.agent.session import assemble
    from turngap.clocks import MonotonicClock
    from turngap.live.app import LiveServer
    from turngap.scenario.library import library_dir

    choice = wanted.choice
    if choice.is_url:
        raise InputError(
            "serve.url",
            f"{choice.agent} is a running agent; serve and talk take a stack",
            hint="its own page, if it is turngap's, is at http://HOST:PORT/",
        )
    set_log_level(log_level)
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
        seats = server.Seats(wanted.max_sessions, settings.limits, assembly.clock)
        live = LiveServer(assembly, settings, keeping, seats)

        def ready(bound: str, port: int) -> None:
            announce(Where(bound, port, access.token), assembly.chosen())

        with suppress(KeyboardInterrupt):  # the ordinary way to end it
            running = server.create_server(live.app, settings.limits, seats)
            server.serve(running, listener, ready, live.close)

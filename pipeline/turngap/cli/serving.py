"""`turngap serve` and `turngap talk`."""

import dataclasses
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from turngap.cli.shared import LIBRARY, LLM, SEED, SET, STT, TTS, agent_choice, say
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from turngap.live.keeping import Keeping
    from turngap.play.target import AgentChoice

TOKEN_VARIABLE = "TURNGAP_TOKEN"

STACK = typer.Option("--agent", help="A stack's name or a stack file (.toml).")
STACK_OR_URL = typer.Option(
    "--agent", help="A stack's name or a stack file (.toml); with --terminal a ws:// URL too."
)
OFFER = typer.Option(
    "--offer",
    help="An LLM that a caller may switch to, [LABEL=]BACKEND[,KEY=VALUE…]; again for more. "
    "Default: every one that is installed here and needs no settings.",
)
PORT = typer.Option("--port", min=0, max=65535, help="0: any free one.")
HOST = typer.Option("--host", help="Loopback unless told otherwise; elsewhere a token is needed.")
MAX_SESSIONS = typer.Option("--max-sessions", min=1, help="Conversations at once.")
TOKEN = typer.Option(
    "--token",
    envvar=TOKEN_VARIABLE,
    help="What callers must know; made and printed where one is needed and not given.",
)
ORIGIN = typer.Option("--origin", help="Another page's origin that may connect, as behind a proxy.")
OUT = typer.Option("--out", help="Where the runs of live conversations are kept; ./runs.")
RECORD = typer.Option("--record", help="Save every conversation as a scenario in this folder.")
KEEP = typer.Option("--keep/--no-keep", help="Keep live conversations on disk, audio included.")
LOG_LEVEL = typer.Option("--log-level", help="DEBUG shows every frame's fate.")


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
    agent: Annotated[str, STACK] = "embedded",
    llm: Annotated[str | None, LLM] = None,
    stt: Annotated[str | None, STT] = None,
    tts: Annotated[str | None, TTS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    offer: Annotated[list[str] | None, OFFER] = None,
    port: Annotated[int, PORT] = 7860,
    host: Annotated[str, HOST] = "127.0.0.1",
    max_sessions: Annotated[int, MAX_SESSIONS] = 8,
    token: Annotated[str | None, TOKEN] = None,
    origin: Annotated[list[str] | None, ORIGIN] = None,
    out: Annotated[Path | None, OUT] = None,
    record: Annotated[Path | None, RECORD] = None,
    keep: Annotated[bool, KEEP] = True,
    seed: Annotated[int | None, SEED] = None,
    marks: Annotated[bool, typer.Option(help="Report marks to the caller.")] = True,
    library: Annotated[Path | None, LIBRARY] = None,
    log_level: Annotated[str, LOG_LEVEL] = "WARNING",
    json_: Annotated[bool, typer.Option("--json", help="Print the URL as one JSON line.")] = False,
) -> None:
    """Run an agent: a page to talk to it, and a WebSocket for callers (pipecat protobuf, RTVI).

    Examples: `turngap serve`; `turngap serve --llm sim --offer slow=sim,ttft_ms=600`;
    `turngap serve --host 0.0.0.0 --max-sessions 4`, which prints the token that it needs.

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
    agent: Annotated[str, STACK_OR_URL] = "embedded",
    llm: Annotated[str | None, LLM] = None,
    stt: Annotated[str | None, STT] = None,
    tts: Annotated[str | None, TTS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    offer: Annotated[list[str] | None, OFFER] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    terminal: Annotated[
        bool,
        # `\\[`: help is markup, and would take the extra for a style.
        typer.Option("--terminal", help="Here, without a browser; needs turngap\\[audio]."),
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Sound device for --terminal; the default one.")
    ] = None,
    record: Annotated[Path | None, RECORD] = None,
    out: Annotated[Path | None, OUT] = None,
    keep: Annotated[bool, KEEP] = True,
    port: Annotated[int, PORT] = 7860,
    host: Annotated[str, HOST] = "127.0.0.1",
    max_sessions: Annotated[int, MAX_SESSIONS] = 8,
    token: Annotated[str | None, TOKEN] = None,
    origin: Annotated[list[str] | None, ORIGIN] = None,
    seed: Annotated[int | None, SEED] = None,
    library: Annotated[Path | None, LIBRARY] = None,
    log_level: Annotated[str, LOG_LEVEL] = "WARNING",
) -> None:
    """Talk to an agent yourself: serves it, opens its page, and draws each turn against 800 ms.

    Examples: `turngap talk`; `turngap talk --no-browser --port 0`;
    `turngap talk --offer slow=sim,ttft_ms=600` to switch in mid-conversation;
    `turngap talk --record mine`, then `turngap replay mine/NAME.yaml` plays it again;
    `turngap talk --terminal --agent ws://127.0.0.1:8765/ws` talks to any pipecat bot.

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
        for line in remarks(where, max_sessions):
            say(line)
        if browser and not webbrowser.open(where.page):
            say("no browser could be opened here: open that address in one")

    _serve(
        _Server(choice, offer, (host, port), max_sessions, token, tuple(origin or ())),
        _keeping(out, record, keep),
        library,
        log_level,
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

        server.serve(live.app, listener, ready, live.close)


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    for command in (talk, serve):
        app.command()(command)

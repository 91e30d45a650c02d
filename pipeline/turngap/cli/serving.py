"""`turngap serve` and `turngap talk`."""

import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from turngap.cli import options
from turngap.cli.shared import say
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets

if TYPE_CHECKING:
    from turngap.agent.metrics import Metrics
    from turngap.agent.stack import Chosen
    from turngap.core.clock import Clock
    from turngap.live.answering import Answering
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
        help="The agent: the ws:// URL of your bot, or the name of a stack (embedded, stock, "
        "local, gpu) or a stack file (.toml).",
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
MaxSessions = Annotated[
    int, _for_server("--max-sessions", min=1, help="Conversations at once, at most.")
]


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
    max_sessions: MaxSessions = 8,
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
    """Run an agent: a page to talk to it, and WebSockets for callers.

    /ws is for pipecat's clients (protobuf, RTVI), `turngap replay` and `pipecat eval`, /twilio for
    Twilio Media Streams, and /v1/realtime for clients of OpenAI's Realtime API (docs/serving.md).
    Conversations at the page are kept as runs in ./runs: `turngap report latest`.
    """
    from turngap.agent import server
    from turngap.children import end_with_parent
    from turngap.play.target import AgentChoice

    end_with_parent()
    choice = AgentChoice(
        agent,
        {"llm": llm, "stt": stt, "tts": tts},
        tuple(set_ or ()),
        seed,
        marks,
        tuple(offer or ()),
    )
    if choice.is_url:
        raise InputError(
            "serve.url",
            f"{agent} is a running agent; serve takes a stack",
            hint=f"to talk to it: turngap talk --agent {agent}",
        )

    def announce(where: Where, chosen: "Chosen") -> None:
        if json_:
            server.announce_json(where.socket(server.PATH), page=where.page, chosen=chosen)
            return
        say(f"{agent} serves its page at {where.page}")
        say(f"and callers at {where.socket(server.PATH)} (Ctrl-C ends it)")
        others = f"{server.TWILIO_PATH} for Twilio, {server.OPENAI_PATH} for OpenAI Realtime"
        say(f"also at {others}: docs/serving.md")
        say("\n".join(remarks(where, max_sessions)))

    _serve(
        _Server(choice, (host, port), max_sessions, token, tuple(origin or ())),
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
    dialect: options.Dialect = "",
    header: options.Headers = None,
    subprotocol: options.Subprotocols = None,
    library: options.Library = None,
    browser: Annotated[
        bool, _for_server("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    port: Port = 7860,
    host: Host = "127.0.0.1",
    token: Token = None,
    origin: Origins = None,
    max_sessions: MaxSessions = 8,
    record: Record = None,
    keep: Keep = True,
    out: options.Out = None,
) -> None:
    """Talk to an agent yourself: open a page that draws each turn against 800 ms.

    A stack is served for it. To a running agent at a URL, in any dialect, turngap hands your voice
    on, and the page measures.

    Exit: 0 when you end it, 2 bad input, 4 no agent or no port.
    """
    from turngap.play.target import AgentChoice

    choice = AgentChoice(
        agent,
        {"llm": llm, "stt": stt, "tts": tts},
        tuple(set_ or ()),
        seed,
        offers=tuple(offer or ()),
        dialect=dialect,
        headers=tuple(header or ()),
        subprotocols=tuple(subprotocol or ()),
    )

    def announce(where: Where, _: "Chosen") -> None:
        say(f"talk to {text_without_secrets(agent)} at {where.page} (Ctrl-C ends it)")
        say("\n".join(remarks(where, max_sessions)))
        if browser and not webbrowser.open(where.page):
            say("no browser could be opened here: open that address in one")

    _serve(
        _Server(choice, (host, port), max_sessions, token, tuple(origin or ())),
        _keeping(out, record, keep),
        library,
        "WARNING",
        announce,
    )


@dataclass(frozen=True, slots=True)
class _Server:
    """What the flags of both commands say of the server."""

    choice: "AgentChoice"
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
    from turngap.agent.metrics import metrics
    from turngap.clocks import MonotonicClock
    from turngap.live.app import LiveServer

    set_log_level(log_level)
    host, port = wanted.address
    access = Access.for_host(host, wanted.token, wanted.origins)
    settings = server.ServeSettings(host, port, access)
    with server.bind(settings) as listener:
        clock = MonotonicClock()
        counted = metrics(clock)
        answering = _answering(wanted.choice, library, clock, counted)
        seats = server.Seats(wanted.max_sessions, settings.limits, answering.clock)
        live = LiveServer(answering, settings, keeping, seats, counted)

        def ready(bound: str, port: int) -> None:
            announce(Where(bound, port, access.token), answering.chosen())

        with suppress(KeyboardInterrupt):  # the ordinary way to end it
            running = server.create_server(live.app, settings.limits, seats)
            server.serve(running, listener, ready, live.close)


def _answering(
    choice: "AgentChoice", library: Path | None, clock: "Clock", metrics: "Metrics | None"
) -> "Answering":
    """Make the agent ready: a stack loads its models, a foreign agent is reached once."""
    import asyncio

    from turngap.live.answering import ForeignAgent, OwnStack, reach
    from turngap.play.target import resolve
    from turngap.scenario.library import library_dir

    resolve(choice, library_dir(library))  # refuses what only a stack has, and engines not here
    if choice.is_url:
        reached = asyncio.run(reach(choice.endpoint, clock))
        return ForeignAgent(choice.endpoint, reached, clock)
    from turngap.agent.session import assemble

    assembly = assemble(
        choice.stack(),
        library_dir(library),
        clock,
        traced=choice.traced,
        offer=list(choice.offers) or None,
    )
    assembly.prepare()
    return OwnStack(replace(assembly, metrics=metrics))

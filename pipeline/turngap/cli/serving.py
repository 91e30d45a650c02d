"""`turngap serve` and `turngap talk`."""

import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.hosting import TOKEN_VARIABLE, Wanted, Where, host_agent
from turngap.cli.shared import print_json, say
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import is_loopback

if TYPE_CHECKING:
    from turngap.agent.stack import Chosen
    from turngap.live.keeping import Keeping

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
        metavar="LLM",
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
        "--origin",
        metavar="URL",
        help="Let pages of this origin connect, too, for example behind a proxy: "
        "https://bot.example. Repeatable.",
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
    int, _for_server("--max-sessions", min=1, help="The most conversations at once.")
]
Drain = Annotated[
    float | None,
    _for_server(
        "--drain",
        min=0.0,
        max=3600.0,
        help="At SIGTERM, refuse new calls and let those that run go on for up to this many "
        "seconds. 0: end at once. Default: 300.",
    ),
]


def serve(
    agent: Stack = "embedded",
    llm: options.LLM = None,
    set_: options.Sets = None,
    offer: Offers = None,
    library: options.Library = None,
    port: Port = 7860,
    host: Host = "127.0.0.1",
    token: Token = None,
    origin: Origins = None,
    max_sessions: MaxSessions = 8,
    drain: Drain = None,
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
    """Run an agent: a page to talk to it, and a WebSocket for callers.

    /ws is for pipecat's clients (protobuf, RTVI) and `turngap replay` (docs/serving.md).
    Conversations at the page are kept as runs; `turngap report latest` shows the last one.

    Exit: 0 when you end it, 2 bad input, 4 an engine or a port cannot be had.
    """
    from turngap.agent import server
    from turngap.children import end_with_parent
    from turngap.play.target import AgentChoice

    end_with_parent()
    choice = AgentChoice.of(
        agent,
        set_,
        llm,
        offers=tuple(offer or ()),
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
        say("\n".join(remarks(where, max_sessions)))

    host_agent(
        Wanted(
            choice,
            (host, port),
            max_sessions,
            token,
            tuple(origin or ()),
            drain_s=drain,
            log_level=log_level,
        ),
        _keeping(out, record, keep),
        library,
        announce,
    )


def talk(
    agent: StackOrUrl = "embedded",
    llm: options.LLM = None,
    set_: options.Sets = None,
    offer: Offers = None,
    dialect: options.Dialect = "",
    header: options.Headers = None,
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
    json_: Annotated[
        bool,
        options.for_output(
            "--json", help="Print the page's URL as one JSON document, and open no browser."
        ),
    ] = False,
) -> None:
    """Talk to an agent yourself: open a page that draws each turn against 800 ms.

    A stack is started for it. If you give the URL of a running agent, turngap passes your voice on
    to it, in any dialect, and the page measures.

    Exit: 0 when you end it, 2 bad input, 4 no agent or no port.
    """
    from turngap.play.target import AgentChoice

    choice = AgentChoice.of(
        agent,
        set_,
        llm,
        offers=tuple(offer or ()),
        dialect=dialect,
        headers=tuple(header or ()),
    )

    def announce(where: Where, _: "Chosen") -> None:
        if json_:
            print_json({"ready": True, "page": where.page})
            return
        say(f"talk to {text_without_secrets(agent)} at {where.page} (Ctrl-C ends it)")
        say("\n".join(remarks(where, max_sessions)))
        if browser and not webbrowser.open(where.page):
            say("no browser could be opened here: open that address in one")

    host_agent(
        Wanted(choice, (host, port), max_sessions, token, tuple(origin or ())),
        _keeping(out, record, keep),
        library,
        announce,
    )


def remarks(where: Where, max_sessions: int) -> list[str]:
    """Return what somebody who starts a server should know of it."""
    most = "1 conversation" if max_sessions == 1 else f"{max_sessions} conversations"
    lines = [f"up to {most} at once; more are told that it is full"]
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

"""`turngap serve`, `backends` and `doctor`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from turngap.cli.shared import (
    AGENT,
    JSON,
    LIBRARY,
    LLM,
    SEED,
    SET,
    STT,
    TTS,
    agent_choice,
    print_block,
    print_json,
    say,
    table,
)
from turngap.core.errors import ExitCode, InputError


def serve(
    agent: Annotated[str, AGENT] = "embedded",
    llm: Annotated[str | None, LLM] = None,
    stt: Annotated[str | None, STT] = None,
    tts: Annotated[str | None, TTS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 7860,
    host: Annotated[str, typer.Option(help="Loopback unless told otherwise.")] = "127.0.0.1",
    max_sessions: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 8,
    seed: Annotated[int | None, SEED] = None,
    marks: Annotated[bool, typer.Option(help="Report marks to the caller.")] = True,
    library: Annotated[Path | None, LIBRARY] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG shows every frame's fate.")] = "WARNING",
    json_: Annotated[bool, typer.Option("--json", help="Print the URL as one JSON line.")] = False,
) -> None:
    """Run an agent: a WebSocket endpoint that speaks pipecat's protobuf and RTVI.

    Example: `turngap serve --agent embedded --port 7860`
    """
    from turngap.agent import server
    from turngap.agent.access import Access
    from turngap.agent.session import assemble
    from turngap.children import end_with_parent
    from turngap.clocks import MonotonicClock
    from turngap.library import library_dir

    end_with_parent()
    if "://" in agent:
        raise InputError("serve.url", f"{agent} is a running agent; serve takes a stack")
    choice = agent_choice(agent, {"llm": llm, "stt": stt, "tts": tts}, set_, seed, marks)
    server.set_log_level(log_level)
    settings = server.ServeSettings(host, port, Access.for_host(host))
    listener = server.bind(settings)
    assembly = assemble(choice.stack(), library_dir(library), MonotonicClock(), traced=marks)

    assembly.prepare()

    def announce(host: str, port: int) -> None:
        url = f"ws://{host}:{port}{server.PATH}"
        if json_:
            server.announce_json(url)
        else:
            say(f"{agent} listens on {url} (Ctrl-C ends it)")

    app = server.create_app(assembly, settings, server.Seats(max_sessions))
    server.serve(app, listener, announce)


def backends(json_: Annotated[bool, JSON] = False) -> None:
    """List the engines, what each needs and whether this machine has it."""
    from turngap.backends import specs

    rows = [
        {
            "name": s.name,
            "kind": s.kind,
            "available": not s.missing(),
            "missing": [need.name for need in s.missing()],
            "remedy": [need.remedy for need in s.missing()],
            "licence": s.licence,
            "notes": s.notes,
        }
        for s in specs()
    ]
    if json_:
        print_json(rows)
    else:
        print_block(lambda _: table(rows))


def doctor(
    library: Annotated[Path | None, LIBRARY] = None, json_: Annotated[bool, JSON] = False
) -> None:
    """Check whether this machine is fit to measure, and which agents it can run."""
    from turngap.harness.doctor import Check, examine

    checks: list[Check] = []
    for check in examine(library):
        checks.append(check)
        if not json_:
            typer.echo(f"{'ok' if check.ok else 'NO':3} {check.name}: {check.detail}")
            if check.remedy:
                typer.echo(f"    {check.remedy}")
    if json_:
        print_json([dataclasses.asdict(c) for c in checks])
    raise typer.Exit(ExitCode.PASS if all(c.ok for c in checks) else ExitCode.AGENT_FAILED)


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    for command in (serve, backends, doctor):
        app.command()(command)

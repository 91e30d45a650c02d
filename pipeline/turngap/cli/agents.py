"""`turngap backends` and `doctor`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from turngap.cli.shared import JSON, LIBRARY, print_block, print_json, print_text, table
from turngap.core.errors import ExitCode


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
            print_text(f"{'ok' if check.ok else 'NO':3} {check.name}: {check.detail}")
            if check.remedy:
                print_text(f"    {check.remedy}")
    if json_:
        print_json([dataclasses.asdict(c) for c in checks])
    raise typer.Exit(ExitCode.PASS if all(c.ok for c in checks) else ExitCode.AGENT_FAILED)


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    for command in (backends, doctor):
        app.command()(command)

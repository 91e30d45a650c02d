"""`turngap backends` and `doctor`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngap.cli.shared import JSON, LIBRARY, print_block, print_json, print_text, table
from turngap.core.errors import ExitCode

if TYPE_CHECKING:
    from turngap.backends import BackendSpec


def backends(json_: Annotated[bool, JSON] = False) -> None:
    """List the engines, what each needs and whether this machine has it.

    "not by default": it runs here, but with other settings than its own, as the remedy says.
    """
    from turngap.backends import specs

    rows = [_row(spec) for spec in specs()]
    if json_:
        print_json(rows)
        return
    print_block(lambda _: table([_shown(row) for row in rows]))
    for row in rows:
        _print_remedy(row)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """What of a backend fits into a table."""
    by_default = row["available"] and row["missing_by_default"]
    cells = {key: row[key] for key in ("name", "kind", "available", "licence", "notes")}
    return cells | ({"available": "not by default"} if by_default else {})


def _print_remedy(row: dict[str, Any]) -> None:
    """What a backend lacks and what provides it, in lines that can be copied: none is folded."""
    if lacks := [*row["missing"], *row["missing_by_default"]]:
        print_text(f"{row['name']} lacks {', '.join(lacks)}:")
        for remedy in dict.fromkeys(row["remedy"]):
            print_text(f"  {remedy}")


def _row(spec: "BackendSpec") -> dict[str, Any]:
    lacks, by_default = spec.missing(), spec.missing_by_default()
    return {
        "name": spec.name,
        "kind": spec.kind,
        "available": not lacks,
        "missing": [need.name for need in lacks],
        "missing_by_default": [need.name for need in by_default],
        "remedy": [need.remedy for need in (*lacks, *by_default)],
        "licence": spec.licence,
        "notes": spec.notes,
    }


def doctor(
    library: Annotated[Path | None, LIBRARY] = None, json_: Annotated[bool, JSON] = False
) -> None:
    """Check whether this machine is fit to measure, and which agents it can run."""
    from turngap.play.doctor import Check, examine

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

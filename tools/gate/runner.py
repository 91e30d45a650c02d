"""Talk to GitHub's runner: outputs, annotations, and programs whose output is shown."""

import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Environment = Mapping[str, str]


def set_output(environment: Environment, name: str, value: str) -> None:
    """Give the step an output, which later steps can read. Without a runner, show it."""
    file = environment.get("GITHUB_OUTPUT")
    if not file:
        print(f"{name}={value}")
        return
    end = f"end-{secrets.token_hex(8)}"  # nothing in the value can be it
    with Path(file).open("a", encoding="utf-8") as outputs:
        outputs.write(f"{name}<<{end}\n{value}\n{end}\n")


def annotate(kind: str, title: str, message: str) -> None:
    """Show an `error`, `warning` or `notice` on the page of the job."""
    print(f"::{kind} title={_escaped(title, ':,')}::{_escaped(message)}", flush=True)


def _escaped(text: str, more: str = "") -> str:
    for each in "%\r\n" + more:
        text = text.replace(each, f"%{ord(each):02X}")
    return text


def event_of(environment: Environment) -> dict[str, Any]:
    """Read the event that started the workflow; empty if it is not known."""
    try:
        event = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}


def shown(
    title: str,
    command: Sequence[str | Path],
    *,
    cwd: Path,
    environment: Environment,
) -> int:
    """Run a program and show what it says; its exit code.

    What it says is never a command for the runner: it may be what an agent said. Nor is it kept in
    a file, since only the job's log has its secrets masked.
    """
    token = secrets.token_hex(16)
    print(f"::group::{_escaped(title)}\n::stop-commands::{token}", flush=True)
    try:
        with subprocess.Popen(
            [str(each) for each in command],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
    finally:
        print(f"\n::{token}::\n::endgroup::", flush=True)
    return process.returncode

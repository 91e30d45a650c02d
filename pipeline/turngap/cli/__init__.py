"""The command line. Each command checks its input, calls one part of the harness, and exits.

Commands import what they need when they run: pipecat and scipy take seconds to import, which
`--help` and a serving process that needs neither reports nor statistics should not wait for.
"""

import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from turngap import __version__
from turngap.children import treat_hangups_as_interrupts
from turngap.cli import (
    agents,
    checking,
    comparing,
    judging,
    measuring,
    results,
    serving,
    simulating,
    sweeping,
)
from turngap.cli.shared import show_error
from turngap.core.errors import ExitCode, TurngapError

app = typer.Typer(
    name="turngap",
    help="Measure the turn gap of voice agents: the silence between a person's last word and the "
    "agent's first, at the caller's ear.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# Pipecat logs to stderr unless told otherwise, and greets with a line when it is imported. loguru
# reads this when it is imported, which would slow down the commands that never need it.
os.environ.setdefault("LOGURU_AUTOINIT", "False")
if "loguru" in sys.modules:
    sys.modules["loguru"].logger.remove()

measuring.add_to(app)
checking.add_to(app)
comparing.add_to(app)
sweeping.add_to(app)
simulating.add_to(app)
results.add_to(app)
judging.add_to(app)
serving.add_to(app)
agents.add_to(app)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print it.")] = False) -> None:
    if version:
        sys.stdout.write(f"turngap {__version__}\n")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; a `TurngapError` becomes a line and its exit code."""
    treat_hangups_as_interrupts()
    try:
        app(prog_name="turngap")
    except TurngapError as e:
        show_error(e)
        sys.exit(e.exit_code)
    except Exception as e:
        # Python would exit with 1, which says "over budget" here. The traceback is for a report.
        traceback.print_exc()
        show_error(TurngapError("internal", f"turngap itself failed: {type(e).__name__}: {e}"))
        sys.exit(ExitCode.AGENT_FAILED)
    sys.exit(ExitCode.PASS)

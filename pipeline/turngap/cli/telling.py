"""`--otlp`: what a command plays is told to a collector, and the command says what became of it."""

from typing import TYPE_CHECKING

import typer

from turngap.cli.shared import say

if TYPE_CHECKING:
    from turngap.telemetry.telemetry import Telemetry


def telemetry_of(ctx: typer.Context, otlp: str | None) -> "Telemetry":
    """Telemetry that is sent to its end, and spoken of once, when the command is over.

    Raises:
        InputError: the URL is none of a collector.
        AgentError: OpenTelemetry's exporter is not installed.
    """
    from turngap.telemetry.telemetry import telemetry_to

    telemetry = telemetry_to(otlp)

    def close() -> None:
        if words := telemetry.close():
            say(words)

    ctx.call_on_close(close)
    return telemetry

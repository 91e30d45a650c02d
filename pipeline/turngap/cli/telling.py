"""`--otlp`: sends what a command plays to a collector, and says what became of it."""

from typing import TYPE_CHECKING

import typer

from turngap.cli.shared import say

if TYPE_CHECKING:
    from turngap.telemetry.telemetry import Telemetry


def telemetry_of(ctx: typer.Context, otlp: str | None) -> "Telemetry":
    """Return telemetry that is sent and reported when the command is over.

    Raises:
        InputError: the URL is not one of a collector.
    """
    from turngap.telemetry.telemetry import telemetry_to

    telemetry = telemetry_to(otlp)

    def close() -> None:
        if words := telemetry.close():
            say(words)

    ctx.call_on_close(close)
    return telemetry

"""`turngap dialects` and `turngap dialects check`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngap.cli import options
from turngap.cli.commands import Group
from turngap.cli.next_steps import say_next, say_next_of_a_list
from turngap.cli.progress import Display
from turngap.cli.shared import leave, print_block, print_json, print_text, table
from turngap.core.errors import ExitCode, InputError

if TYPE_CHECKING:
    from turngap.caller.dialects.registry import DialectSpec
    from turngap.caller.endpoint import Endpoint
    from turngap.conformance.evidence import Evidence

# About how long the conversation takes, with its handshake.
MINUTES = 0.5

app = typer.Typer(cls=Group, no_args_is_help=False)


@app.callback(invoke_without_command=True)
def dialects(ctx: typer.Context, json_: options.Json = False) -> None:
    """List the protocols that agents can be spoken to in, or check a server against its own.

    `turngap dialects check URL` plays a short conversation and says what the server does. The
    column Hz is the rate of the person's audio, in samples per second. Exit: 0 listed.
    """
    if ctx.invoked_subcommand is not None:
        return
    from turngap.caller.dialects import registry

    rows = [_row(spec) for spec in registry.dialects().values()]
    if json_:
        print_json(rows)
        return
    print_block(lambda _: table([_shown(row) for row in rows]))
    for row in rows:
        if row["missing"]:
            print_text(f"{row['name']} lacks {', '.join(row['missing'])}")
    say_next_of_a_list("check a server of yours: turngap dialects check ws://HOST:PORT/PATH")


def _row(spec: "DialectSpec") -> dict[str, Any]:
    from turngap.testing.dialects import HALVES

    missing = spec.missing()
    return {
        "name": spec.name,
        "available": not missing,
        "missing": missing,
        "rate": _rate(spec),
        "about": spec.about,
        "hosts": list(spec.hosts),
        "key": spec.key.env if spec.key else None,
        "settings": list(spec.settings_type.model_fields),
        "loopback": spec.name in HALVES,
    }


def _rate(spec: "DialectSpec") -> int | None:
    """Of the person's audio by default; None if a session cannot be made without a setting."""
    try:
        return None if spec.missing() else spec.session().rate
    except InputError:
        return None


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: row[key] for key in ("name", "available", "about", "key")}
    return kept | {"key": row["key"] or "", "Hz": f"{row['rate']:,}" if row["rate"] else ""}


def check(
    url: Annotated[str, typer.Argument(help="The ws:// URL of the server.", show_default=False)],
    dialect: options.Dialect = "",
    header: options.Headers = None,
    subprotocol: options.Subprotocols = None,
    library: options.Library = None,
    junit: Annotated[
        Path | None, options.for_output(help="Also write the checks to this file, as JUnit XML.")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Play a short conversation against a server, and say what it does against its protocol.

    The person asks, speaks into the reply, and asks again (the scenario soup-recipe, about 20 s).
    Each check is a pass, a fail, "seen" if it may be either way, or "not seen" if what it is about
    did not occur. Exit code: 0 if all that was seen conforms, 1 if something does not, 4 if the
    server failed.
    """
    from turngap.caller.endpoint import Endpoint
    from turngap.conformance.checks import judged
    from turngap.conformance.report import Verdict
    from turngap.core.secrets import text_without_secrets

    endpoint = Endpoint(url, dialect, tuple(header or ()), tuple(subprotocol or ()))
    endpoint.check()
    if junit is not None:
        _write(junit, b"")  # before anything is played for it
    spoken, evidence = _observed(endpoint, library)
    failure = evidence.failure
    verdict = Verdict(
        text_without_secrets(url), spoken, judged(evidence, spoken), failure and str(failure)
    )
    if junit is not None:
        _write(junit, verdict.as_junit())
    if json_:
        print_json(verdict.as_json())
    else:
        print_block(verdict.block)
        if failure is None:
            again = dataclasses.replace(endpoint, dialect=dialect or spoken).flags
            say_next(f"measure its turn gap: turngap replay {again}")
    leave(failure, ExitCode.PASS if verdict.conforms else ExitCode.OVER_BUDGET)


def _observed(endpoint: "Endpoint", library: Path | None) -> "tuple[str, Evidence]":
    """Find out the dialect where it is not named; return its name and what the server did."""
    import asyncio

    from turngap.caller.identify import identify
    from turngap.clocks import MonotonicClock
    from turngap.conformance.play import observe, scenario_played

    scenario = scenario_played(library)
    with Display(1, "conversation", MINUTES) as shown:

        async def course() -> "tuple[str, Evidence]":
            clock = MonotonicClock()
            known = await identify(endpoint, clock, lambda name: shown.step(f"trying {name}"))
            shown.step(f"playing in {known.spec().name}")
            return known.spec().name, await observe(known, scenario)

        return asyncio.run(course())


def _write(file: Path, document: bytes) -> None:
    from turngap.store.documents import writing

    with writing(file):
        file.write_bytes(document)

"""`turngap calibrate`."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from turngap.cli import options
from turngap.cli.progress import Display
from turngap.cli.shared import print_block, print_json, table
from turngap.core.errors import ExitCode, TurngapError

# About how long all agents take on one core.
ZOO_MINUTES = 1.0


def calibrate(
    turns: Annotated[int, options.for_play(min=1, help="How many known gaps to measure.")] = 200,
    seed: Annotated[
        int, options.for_play(help="Seed for the order in which the gaps are played.")
    ] = 1,
    dialect: Annotated[
        str,
        options.for_agent(
            metavar="NAME[,KEY=VALUE…]|all",
            help="The protocol that the loopback agent speaks, or `all`, one after the other.",
            autocompletion=options.loopback_names,
        ),
    ] = "pipecat",
    agents: Annotated[
        bool,
        typer.Option(
            "--agents",
            help="Play agents that misbehave as agents in production do (docs/agents.md), in "
            "virtual time instead, and hold what turngap reads against what is right.",
        ),
    ] = False,
    json_: options.Json = False,
) -> None:
    """Measure the error of the instrument itself, against known gaps of a loopback agent.

    Exit: 0 measured, 1 an agent is read wrong, 2 bad input, 4 a dialect could not be measured.
    """
    if agents:
        _play_agents(json_=json_)
        return
    from turngap.play.calibrate import loopback_dialects
    from turngap.report.run import calibration_block, calibrations_block

    names = loopback_dialects() if dialect == "all" else [dialect]
    found = _calibrated(names, turns, seed)
    document = {"dialects": found} if dialect == "all" else found[0]
    block = calibrations_block if dialect == "all" else calibration_block
    if json_:
        print_json(document)
    else:
        print_block(lambda width: block(document, width))
    if any("error" in each for each in found):
        raise typer.Exit(ExitCode.AGENT_FAILED)


def _play_agents(*, json_: bool) -> None:
    from turngap.play.zoo import DIALECTS, play_zoo, rows_of
    from turngap.testing.zoo import ZOO

    with Display(len(ZOO) * len(DIALECTS), "known agents", ZOO_MINUTES) as shown:
        readings = list(play_zoo(on_agent=shown.advance))
    if json_:
        print_json({"agents": [each.as_json() for each in readings]})
    else:
        print_block(lambda _: table(rows_of(readings)))
    if any(each.verdict == "wrong" for each in readings):
        raise typer.Exit(ExitCode.OVER_BUDGET)


def _calibrated(dialects: list[str], turns: int, seed: int) -> list[dict[str, Any]]:
    """Calibrate in one dialect after the other; return what `--json` prints of each.

    Of several, one that fails does not keep the others from being measured.
    """
    import asyncio

    from turngap.clocks import undisturbed
    from turngap.play.calibrate import calibrate
    from turngap.play.plan import calibration_s

    found: list[dict[str, Any]] = []
    minutes = len(dialects) * calibration_s(turns) / 60
    with (
        tempfile.TemporaryDirectory() as folder,
        Display(len(dialects) * turns, "known gaps", minutes) as shown,
        undisturbed(),
    ):
        for number, dialect in enumerate(dialects):
            course = calibrate(
                turns,
                dialect=dialect,
                seed=seed,
                log=Path(folder) / f"loopback-{number}.log",
                on_turn=lambda done, before=number * turns: shown.reach(before + done),
            )
            try:
                found.append(asyncio.run(course).as_json())
            except TurngapError as e:
                if len(dialects) == 1:
                    raise
                found.append({"dialect": dialect, "error": str(e)})
    return found

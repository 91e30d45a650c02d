"""`turngap simulate`: what a fleet would do to the turn gap, in virtual time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.progress import Display
from turngap.cli.results import show, stored_simulation
from turngap.cli.shared import say
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.errors import ExitCode, InputError

FLEET = "Fleet"

if TYPE_CHECKING:
    from turngap.fleet.record import SimulationRecord


def simulate(
    fleet: Annotated[
        Path | None,
        typer.Argument(
            help="A fleet file (.toml or .yaml; see examples/fleet.toml). Without one: one H100 "
            "with Llama 3.1 8B at bf16, and what --set changes."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the fleet file, e.g. pool.weights=fp8, "
            "pool.2.replicas=4, call.turns=5, turn.before_ms=300. Repeatable.",
            rich_help_panel=FLEET,
        ),
    ] = None,
    from_: Annotated[
        list[str] | None,
        options.for_play(
            "--from",
            metavar="RUN",
            help="Draw the turns from this stored run, or `latest`, the finished one that began "
            "last. Repeatable. Default: the fleet file's `turn` says what a turn is like.",
            autocompletion=options.run_names,
        ),
    ] = None,
    calls: Annotated[
        str | None,
        options.for_play(
            metavar="N1,N2,…",
            help="Calls at once. Default: search for the most that the fleet holds.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        options.for_play(
            min=0.1,
            max=10_000,
            help="Simulated minutes for each load. Default: as long as 20,000 turns take.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        options.for_play(
            min=1,
            max=1000,
            help="With --calls: simulate this many loads at once, each in a process of its own; "
            "the figures are the same. Default: one for each processor, or one for a short sweep.",
        ),
    ] = None,
    on: Annotated[
        str,
        options.for_play(
            metavar="local|ray",
            help="With --calls: where these processes run, on this machine or on Ray's nodes.",
        ),
    ] = "local",
    ray_address: Annotated[
        str | None,
        options.for_play(
            metavar="HOST:PORT",
            help="With --on ray: the cluster's address. Default: a cluster on this machine alone.",
        ),
    ] = None,
    seed: Annotated[
        int, options.for_play(min=0, help="The same seed gives the same calls and figures.")
    ] = 1,
    budget_ms: Annotated[
        float,
        options.for_limits(min=1, max=60_000, help="A turn is on time if its gap is at most this."),
    ] = DEFAULT_BUDGET_MS,
    target: Annotated[
        float,
        options.for_limits(
            min=0.01, max=0.999, help="The fleet holds a load if this share of turns is on time."
        ),
    ] = 0.95,
    min_hit_rate: Annotated[
        float | None,
        options.for_limits(
            min=0,
            max=1,
            help="With --calls: exit 1 if fewer turns are on time, 3 if that is uncertain.",
        ),
    ] = None,
    root: options.RunsFolder = None,
    out: options.Out = None,
    json_: options.Json = False,
) -> None:
    """Simulate how many calls a fleet of LLM servers holds, and what a turn costs on it.

    Everything but the LLM comes from a measured run. The LLM server is simulated;
    docs/simulate.md says how far you can believe it.

    Exit: 0 done, 1 below --min-hit-rate, 2 bad input, 3 too few turns to tell.
    """
    from turngap.fleet.files import build_fleet, read_fleet
    from turngap.fleet.run import SimulationPlan, run_simulation, source_of, workload_of
    from turngap.report.words import validity_words
    from turngap.store.folders import find_run
    from turngap.store.runs import read_run

    loads = _loads(calls)
    if min_hit_rate is not None and not loads:
        raise InputError(
            "simulate.no_load", "--min-hit-rate is of a load", hint="give --calls N with it"
        )
    if not loads and (workers is not None or on != "local" or ray_address is not None):
        raise InputError(
            "simulate.no_load",
            "--workers, --on and --ray-address are of loads that are simulated at once",
            hint="give --calls N1,N2,… with them",
        )
    described = read_fleet(fleet, set_ or ())
    runs = [read_run(find_run(name, root)) for name in from_ or ()]
    for run in runs:
        if not run.valid:
            say(f"warning: {run.path}: {validity_words(run.record)}")
    source = source_of(runs, described.turn)
    workload = workload_of(source, described.call)
    plan = SimulationPlan(
        fleet=build_fleet(described, workload.longest_tokens),
        workload=workload,
        source=source,
        loads=loads,
        budget_ms=budget_ms,
        target=target if min_hit_rate is None else min_hit_rate,
        seconds=None if minutes is None else minutes * 60,
        seed=seed,
        agent=described.agent,
        out=out,
        workers=workers,
        executor=on,
        ray_address=ray_address,
        settings={"fleet": None if fleet is None else fleet.name, "set": set_},
    )
    with Display(100, "%") as shown:
        try:
            record, folder = run_simulation(
                plan,
                lambda loads: shown.step(f"{_words(loads)} calls, % played", total=100),
                lambda share: shown.reach(round(100 * share)),
            )
        except KeyboardInterrupt:
            say("interrupted: a simulation is stored when it ends, so nothing is kept of this one")
            raise
    show(stored_simulation(folder, record), json_=json_)
    if min_hit_rate is not None:
        raise typer.Exit(_exit_code(record))


def _words(loads: Sequence[float]) -> str:
    return ", ".join(f"{load:g}" for load in loads)


def _loads(calls: str | None) -> tuple[float, ...]:
    """Parse `--calls N1,N2,…`."""
    if calls is None:
        return ()
    try:
        loads = tuple(float(part) for part in calls.split(","))
    except ValueError:
        loads = (0.0,)
    if not all(0 < load <= 1_000_000 for load in loads):
        raise InputError(
            "simulate.calls", f"--calls {calls!r}: expected N1,N2,…", hint="--calls 100,200,400"
        )
    return loads


def _exit_code(record: "SimulationRecord") -> ExitCode:
    """Return the exit code of the worst load."""
    holds = [load.holds for load in record.loads]
    if False in holds:
        return ExitCode.OVER_BUDGET
    return ExitCode.INCONCLUSIVE if None in holds else ExitCode.PASS

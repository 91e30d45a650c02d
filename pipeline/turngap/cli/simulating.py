"""`turngap simulate`: what a fleet would do to the turn gap, in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngap.cli.shared import JSON, print_block, print_json, progress_bar, say
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.errors import ExitCode, InputError
from turngap.fleet import THINK_MS, THINK_SIGMA

if TYPE_CHECKING:
    from turngap.fleet.files import FleetFile
    from turngap.fleet.record import SimulationRecord
    from turngap.fleet.run import SimulationPlan, Source

# Of a fleet nothing has a default here but in what is shown: the defaults are those of a fleet file
# (`turngap.fleet.files`), and a flag that is not given must not override one.
FLEET, TURN, CALL = "Fleet", "Turns (instead of, or on top of, --from)", "Calls"


def simulate(
    from_: Annotated[
        list[str] | None,
        typer.Option("--from", help="A stored run, or `latest`: turns are drawn from it."),
    ] = None,
    calls: Annotated[
        str | None,
        typer.Option(help="Calls at once, N1,N2,…; without it: search for what is held."),
    ] = None,
    target: Annotated[
        float, typer.Option(min=0.01, max=0.999, help="Share of turns that must be in time.")
    ] = 0.95,
    budget_ms: Annotated[
        float, typer.Option(min=1, max=60_000, help="What in time means.")
    ] = DEFAULT_BUDGET_MS,
    min_hit_rate: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With --calls: exit 1 below it, 3 if that is not sure."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=10_000, help="Virtual time a load, or 400 turns; default: 20,000."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed is the same outcome.")] = 1,
    fleet: Annotated[
        Path | None,
        typer.Option(help="A .toml or .yaml file, instead of the flags.", rich_help_panel=FLEET),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="h100, h200, gb200 or wafer.", show_default="h100", rich_help_panel=FLEET
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option(help="Accelerators a replica.", show_default="1", rich_help_panel=FLEET),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="How many of these.", show_default="1", rich_help_panel=FLEET)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="llama-3.3-70b, …, or a size: 20b.",
            show_default="llama-3.1-8b",
            rich_help_panel=FLEET,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="bf16, fp8, int8, fp4 or int4.", show_default="bf16", rich_help_panel=FLEET
        ),
    ] = None,
    kv: Annotated[
        str | None,
        typer.Option(help="Precision of the KV cache.", show_default="bf16", rich_help_panel=FLEET),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="continuous, static or immediate.",
            show_default="continuous",
            rich_help_panel=FLEET,
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            help="Sequences at once.",
            show_default="continuous: 256, immediate: 1",
            rich_help_panel=FLEET,
        ),
    ] = None,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens a step; 0: whole prompts.",
            show_default="continuous: 2048",
            rich_help_panel=FLEET,
        ),
    ] = None,
    max_wait_ms: Annotated[
        float | None,
        typer.Option(help="Of static: leave half empty after so long.", rich_help_panel=FLEET),
    ] = None,
    acceptance: Annotated[
        float | None,
        typer.Option(help="Speculative decoding: share accepted.", rich_help_panel=FLEET),
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(help="Tokens a draft.", show_default="4", rich_help_panel=FLEET)
    ] = None,
    draft_cost: Annotated[
        float | None,
        typer.Option(
            help="A draft's step, in steps of the model.",
            show_default="0.05",
            rich_help_panel=FLEET,
        ),
    ] = None,
    part_hour_usd: Annotated[
        float | None, typer.Option(help="Price of an accelerator-hour.", rich_help_panel=FLEET)
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(help="sticky or least-busy.", show_default="sticky", rich_help_panel=FLEET),
    ] = None,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            help="Keep conversations between turns.", show_default="on", rich_help_panel=FLEET
        ),
    ] = None,
    turns_per_call: Annotated[
        float | None, typer.Option(min=1, max=1000, help="In the mean.", rich_help_panel=CALL)
    ] = None,
    system_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of the system prompt.", rich_help_panel=CALL)
    ] = None,
    think_ms: Annotated[
        float, typer.Option(min=0, help="Pause before a person speaks.", rich_help_panel=CALL)
    ] = THINK_MS,
    think_sigma: Annotated[
        float, typer.Option(min=0, max=3, help="Its lognormal spread.", rich_help_panel=CALL)
    ] = THINK_SIGMA,
    before_ms: Annotated[
        float | None, typer.Option(help="User's end to the LLM's request.", rich_help_panel=TURN)
    ] = None,
    after_ms: Annotated[
        float | None, typer.Option(help="Opening to the caller's ear.", rich_help_panel=TURN)
    ] = None,
    speech_ms: Annotated[
        float | None, typer.Option(help="How long the person speaks.", rich_help_panel=TURN)
    ] = None,
    reply_ms: Annotated[
        float | None, typer.Option(help="How long the reply sounds.", rich_help_panel=TURN)
    ] = None,
    user_tokens: Annotated[
        int | None, typer.Option(help="Tokens of what was said.", rich_help_panel=TURN)
    ] = None,
    reply_tokens: Annotated[
        int | None, typer.Option(help="Tokens of the reply.", rich_help_panel=TURN)
    ] = None,
    opening_tokens: Annotated[
        int | None, typer.Option(help="Tokens until the TTS can begin.", rich_help_panel=TURN)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where it is kept; ./runs.")] = None,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """How many calls a fleet holds, and what a turn costs on it: simulated, not measured.

    Everything but the LLM comes from a measured run; the LLM is a model of an inference server
    (docs/simulate.md says how far it can be believed).

    Examples: `turngap simulate --from latest --hardware h100 --model llama-3.1-8b`;
    `turngap simulate --from latest --fleet fleet.toml --calls 100,200,400`;
    `turngap simulate --from latest --hardware wafer --model 20b --weights fp16`.

    Exit: 0 done, 1 below --min-hit-rate, 2 bad input, 3 too few turns to tell.
    """
    flags = {
        "hardware": hardware,
        "parts": parts,
        "replicas": replicas,
        "model": model,
        "weights": weights,
        "kv": kv,
        "policy": policy,
        "max_batch": max_batch,
        "chunk_tokens": chunk_tokens,
        "max_wait_ms": max_wait_ms,
        "part_hour_usd": part_hour_usd,
    }
    draft = {
        "acceptance": acceptance,
        "draft_tokens": draft_tokens,
        "draft_cost": draft_cost,
    }
    described = _fleet(fleet, flags, draft, {"routing": routing, "prefix_cache": prefix_cache})
    turn = {
        "before_ms": before_ms,
        "after_ms": after_ms,
        "speech_ms": speech_ms,
        "reply_ms": reply_ms,
        "user_tokens": user_tokens,
        "reply_tokens": reply_tokens,
        "opening_tokens": opening_tokens,
    }
    loads = _loads(calls)
    if min_hit_rate is not None and not loads:
        raise InputError(
            "simulate.no_load", "--min-hit-rate is of a load", hint="give --calls N with it"
        )
    plan = _plan(
        described,
        _source(from_ or (), turn),
        {
            "system_tokens": system_tokens,
            "turns": turns_per_call,
            "think_ms": think_ms,
            "think_sigma": think_sigma,
        },
        loads=loads,
        budget_ms=budget_ms,
        target=target if min_hit_rate is None else min_hit_rate,
        seconds=None if minutes is None else minutes * 60,
        seed=seed,
        out=out,
        settings={"fleet": None if fleet is None else fleet.name},
    )
    record = _run(plan, json_=json_)
    if min_hit_rate is not None:
        raise typer.Exit(_exit_code(record))


def _fleet(
    file: Path | None, flags: dict[str, Any], draft: dict[str, Any], whole: dict[str, Any]
) -> "FleetFile":
    """The fleet of the file, or of the flags."""
    from turngap.fleet.files import fleet_file, read_fleet

    given = {k: v for k, v in (flags | draft | whole).items() if v is not None}
    if file is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(
                "simulate.two_fleets", f"--fleet {file} describes the fleet already; so do {names}"
            )
        return read_fleet(file)
    pool = {k: v for k, v in flags.items() if v is not None}
    drafted = {k: v for k, v in draft.items() if v is not None}
    if drafted:
        pool["speculation"] = drafted
    rest = {k: v for k, v in whole.items() if v is not None}
    return fleet_file({"pool": [pool], **rest}, "the flags")


def _loads(calls: str | None) -> tuple[float, ...]:
    """`--calls N1,N2,…`."""
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


def _source(runs: "list[str] | tuple[()]", turn: dict[str, float | None]) -> "Source":
    from turngap.fleet.run import source_of_flags, source_of_runs, with_flags
    from turngap.store.runs import find_run, read_run

    if not runs:
        return source_of_flags(turn)
    return with_flags(source_of_runs([read_run(find_run(name)) for name in runs]), turn)


def _plan(
    described: "FleetFile", source: "Source", call: dict[str, Any], **rest: Any
) -> "SimulationPlan":
    from turngap.fleet.files import build_fleet
    from turngap.fleet.run import SimulationPlan
    from turngap.fleet.workload import Workload

    known = {"system_tokens": source.system_tokens, "turns": source.turns}
    call = known | {k: v for k, v in call.items() if v is not None}
    for name, flag in (("system_tokens", "--system-tokens"), ("turns", "--turns-per-call")):
        if call[name] is None:
            raise InputError(
                "simulate.no_source", f"nothing says what {flag} is", hint=f"give {flag}"
            )
    workload = Workload(samples=source.samples, **call)
    fleet = build_fleet(described, workload.longest_tokens)
    return SimulationPlan(fleet=fleet, workload=workload, source=source, **rest)


def _run(plan: "SimulationPlan", *, json_: bool) -> "SimulationRecord":
    from turngap.fleet.console import simulation_block
    from turngap.fleet.page import write_page
    from turngap.fleet.run import run_simulation

    with progress_bar(quiet=json_) as bar:
        task = bar.add_task("", total=100)

        def on_load(calls: float) -> None:
            bar.update(task, description=f"{calls:g} calls, % played", completed=0)

        def on_progress(share: float) -> None:
            bar.update(task, completed=round(100 * share))

        try:
            record, folder = run_simulation(plan, on_load, on_progress)
        except KeyboardInterrupt:
            bar.stop()
            say("interrupted: a simulation is stored when it ends, so nothing is kept of this one")
            raise
    page = write_page(record, folder)
    if json_:
        print_json({**record.model_dump(mode="json"), "path": str(folder)})
    else:
        print_block(lambda width: simulation_block(record, width))
        say(f"stored in {folder}\npage: {page}")
    return record


def _exit_code(record: "SimulationRecord") -> ExitCode:
    """The worst of the loads."""
    holds = [load.holds for load in record.loads]
    if False in holds:
        return ExitCode.OVER_BUDGET
    return ExitCode.INCONCLUSIVE if None in holds else ExitCode.PASS


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(simulate)

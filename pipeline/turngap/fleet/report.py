"""The report of a simulation: its sentences, tables and drawings."""

import math
from decimal import Decimal
from pathlib import Path

from turngap.report import levels, page
from turngap.report import words as report_words
from turngap.report.charts import Chart, Mark
from turngap.report.levels import HEIGHT_PX, HELD, count, ms, percent, share
from turngap.report.run import facts
from turngap.report.sections import (
    PAGE,
    Cell,
    Column,
    Drawing,
    Line,
    Report,
    Section,
    Table,
    lines,
)
from turngap.store.documents import read_document
from turngap.store.loads import (
    SIMULATION_FILE,
    AgentCpu,
    Capacity,
    LoadFigures,
    PoolRecord,
    SimulationRecord,
)

# It is printed wherever figures are, so that no one takes them for measured ones.
SIMULATED = "simulated: nothing here was measured on this hardware"
PAGE_FILE = "simulation.html"
SVG_WIDTH = 120
HEAD = (
    Column("calls"),
    Column("verdict", left=True),
    Column("hit rate"),
    Column("95 % interval"),
    Column("gap p50"),
    Column("p95"),
    Column("p99", spare=True),
    Column("LLM p50"),
    Column("LLM p95", spare=True),
    Column("batch", spare=True),
    Column("cached", spare=True),
    Column("part-h", spare=True),
    Column("price"),
    Column("turns", where=PAGE),
    Column("unanswered", where=PAGE),
)
_MOST_TICKS = 7


def read_simulation(folder: Path) -> SimulationRecord:
    """Read a simulation's folder.

    Raises:
        InputError: not readable, damaged, or of another version.
    """
    hint = "give the folder that `turngap simulate` names at its end"
    return read_document(folder / SIMULATION_FILE, SimulationRecord, hint=hint)


def write_page(record: SimulationRecord, folder: Path) -> Path:
    """Write the page into the simulation's folder; returns its path.

    Raises:
        InputError: the folder cannot be written to.
    """
    return page.write(folder / PAGE_FILE, render(record))


def render(record: SimulationRecord) -> str:
    """Render the page."""
    return page.render(simulation_report(record))


def simulation_report(record: SimulationRecord) -> Report:
    """Report the answer, what it is based on, and the loads."""
    work, mean, machine = record.workload, record.workload.mean, record.machine
    ratio = record.virtual_s / record.wall_s if record.wall_s else 0.0
    reasons = sorted({load.why_no_usd for load in record.loads if load.why_no_usd})
    price = f"none: {', '.join(reasons)} (--part-hour-usd)" if reasons else ""
    return Report(
        command="simulate",
        subject=f"simulated fleet · {', '.join(work.runs) or 'described calls'}",
        when=report_words.instant(record.started_utc),
        lead=[Line("answer", answer(record), "strong")],
        stand_ins=SIMULATED,
        sections=[
            Section(
                "What is simulated",
                [
                    lines(
                        *(("fleet", pool_words(pool)) for pool in record.pools),
                        ("turns", turns_are(record)),
                        (
                            "gap",
                            f"{mean['before_ms']:.0f} ms before the LLM and {mean['after_ms']:.0f} "
                            "ms after it, on average; the rest is simulated",
                        ),
                        (
                            "callers",
                            f"{work.turns_per_call:.1f} turns a call; on average "
                            f"{mean['speech_ms'] / 1000:.1f} s of speech, "
                            f"{mean['reply_ms'] / 1000:.1f} s of reply, {work.think_ms:.0f} ms "
                            f"(median) to think; prompts from {work.system_tokens} tokens, replies "
                            f"of {mean['reply_tokens']:.0f}, spoken from token "
                            f"{mean['opening_tokens']:.0f} on",
                        ),
                        ("agent", agent_cpu(record.agent)),
                        ("price", price),
                        (
                            "speed",
                            f"{record.virtual_s:,.0f} s of calls in {record.wall_s:.1f} s "
                            f"({ratio:,.0f} × real time)",
                        ),
                    )
                ],
            ),
            Section(
                "Loads",
                [
                    Table(
                        HEAD,
                        [_cells(load) for load in record.loads],
                        "Gap and LLM in ms; cached: of prompt tokens; part-h: accelerator-hours "
                        "for 1000 turns; price: of 1000 turns on the whole fleet",
                    )
                ],
            ),
            Section("Against load", [Drawing(chart) for chart in charts(record)]),
            Section(
                "How it was simulated",
                [
                    lines(
                        ("in time", f"{record.budget_ms:.0f} ms"),
                        ("seed", f"{record.seed}"),
                        ("routing", record.routing),
                        ("prefix cache", "on" if record.prefix_cache else "off"),
                        (
                            "version",
                            f"turngap {record.turngap_version}, schema {record.schema_version}",
                        ),
                        ("commit", record.commit or "not in a git checkout"),
                        ("machine", f"{machine.cpu}, {machine.cores} cores"),
                        where=PAGE,
                    ),
                    *facts(
                        "Settings",
                        [(k, f"{v}") for k, v in record.settings.items() if v is not None],
                    ),
                ],
            ),
        ],
    )


def _cells(load: LoadFigures) -> list[str | Cell]:
    return [
        count(load.calls),
        Cell(*HELD[load.holds]),
        share(load.hit_rate),
        levels.interval(load.hit_rate),
        ms(load.gap_ms["p50"]),
        ms(load.gap_ms["p95"]),
        ms(load.gap_ms["p99"]),
        ms(load.llm_ms["p50"]),
        ms(load.llm_ms["p95"]),
        "–" if load.batch is None else f"{load.batch:.1f}",
        f"{100 * load.cached:.0f} %",
        hours(load),
        usd(load),
        f"{load.turns:,}",
        f"{load.unanswered:,}",
    ]


def charts(record: SimulationRecord) -> tuple[Chart, ...]:
    """Draw the hit rate, the gap and the price over the calls at once."""
    loads = [
        levels.DrawnLoad(
            load.calls,
            f"{count(load.calls)} calls",
            load.holds,
            load.turns,
            load.hit_rate,
            load.gap_ms,
            {name: load.gap_ms[name].value for name in ("p50", "p95")},
        )
        for load in record.loads
    ]
    drawn = levels.AgainstLoad(loads, "calls at once", lambda across: across.marks(_MOST_TICKS))
    return drawn.hit_rates(record.target), drawn.gaps(record.budget_ms), _costs(record, drawn)


def _costs(record: SimulationRecord, drawn: levels.AgainstLoad) -> Chart:
    """Draw the price of 1000 turns, or the accelerator-hours if the fleet costs nothing."""
    price = any(load.usd_per_1000 for load in record.loads)
    # What is free has no place on a logarithmic axis.
    costs = {
        load.calls: (load.usd_per_1000 if price else load.part_hours_per_1000) or None
        for load in record.loads
    }
    texts = {
        load.calls: usd(load) if price else f"{hours(load)} accelerator-hours"
        for load in record.loads
    }
    seen = [cost for cost in costs.values() if cost] or [1.0, 10.0]
    # A decade at least, or noise would fill the drawing.
    bottom = math.floor(math.log10(min(seen)))
    top = max(math.ceil(math.log10(max(seen)) + 1e-9), bottom + 1)

    def y(value: float) -> float:
        return round(HEIGHT_PX * (1 - (math.log10(value) - bottom) / (top - bottom)), 2)

    name = "Price of 1000 turns" if price else "Accelerator-hours for 1000 turns"
    paths, dots = drawn.curve(
        lambda load: costs[load.calls], y, lambda load: f"{texts[load.calls]} for 1000 turns"
    )
    decades = {e: f"{10.0**e:,.{max(0, -e)}f}" for e in range(bottom, top + 1)}
    return Chart(
        title=name,
        spoken=drawn.spoken(name, lambda load: texts[load.calls]),
        height=HEIGHT_PX,
        note="Calls at once; both axes are logarithmic.",
        x_ticks=drawn.x_ticks,
        y_ticks=[
            Mark(y(10.0**e), f"{'$' * price}{number}", grid=True) for e, number in decades.items()
        ],
        paths=paths,
        dots=dots,
    )


def usd(load: LoadFigures) -> str:
    """Format the price of 1000 turns, such as `$0.412`; a dash if there is none."""
    price = load.usd_per_1000
    if price is None:
        return "–"
    # Cents where there are any, else two digits.
    return f"${price:,.2f}" if price >= 1 else f"${_two_digits(price)}" if price else "$0"


def hours(load: LoadFigures) -> str:
    """Format the accelerator-hours of 1000 turns."""
    spent = load.part_hours_per_1000
    return "–" if spent is None else f"{spent:.2f}" if spent >= 1 else _two_digits(spent)


def _two_digits(value: float) -> str:
    """Format two digits, as `0.000095` and not `9.5e-05`."""
    return f"{Decimal(f'{value:#.2g}'):f}"


def answer(record: SimulationRecord) -> str:
    """Answer the search in one sentence."""
    wanted = f"{percent(record.target)} of turns within {record.budget_ms:.0f} ms"
    capacity = record.capacity
    if capacity is None:
        verdicts: dict[str, list[str]] = {}
        for load in record.loads:
            verdicts.setdefault(HELD[load.holds][0], []).append(count(load.calls))
        held = "; ".join(f"{said} at {', '.join(calls)}" for said, calls in verdicts.items())
        return f"{wanted}: {held} calls at once"
    return _searched(capacity, wanted, record)


def agent_cpu(agent: AgentCpu | None) -> str:
    """Say how many calls the agent's machine carries; empty if it is not described."""
    if agent is None:
        return ""
    return (
        f"{agent.cores:g} cores carry at most {agent.most_calls:.3g} calls of "
        f"{agent.cores_per_call:.3g} cores each: a bound, since how calls wait for each other's "
        "work is not simulated"
    )


def _searched(capacity: Capacity, wanted: str, record: SimulationRecord) -> str:
    if capacity.of_llm is not None:
        held = "not one call" if capacity.held is None else f"at most {count(capacity.held)} calls"
        return (
            f"{wanted}: {held} at once, because more take all of the agent's cores; the LLM's "
            f"servers would hold {count(capacity.of_llm)}"
        )
    if capacity.held is None:
        first = record.loads[0]
        what = "not one call" if first.holds is False else "undecided even for one call"
        gap, llm = ms(first.gap_ms["p50"]), ms(first.llm_ms["p50"])
        return (
            f"{what}: at {count(first.calls)} at once {share(first.hit_rate)} of turns are "
            f"within {record.budget_ms:.0f} ms, and {percent(record.target)} are asked for; the "
            f"gap is {gap} ms p50, of which the LLM takes {llm}"
        )
    if capacity.not_held is None:
        return f"{wanted}: {count(capacity.held)} calls at once and more (the search ended there)"
    next_ = next(load for load in record.loads if load.calls == capacity.not_held)
    beyond = "no longer" if next_.holds is False else "that is not sure"
    return f"{wanted}: up to {count(capacity.held)} calls at once; at {count(next_.calls)} {beyond}"


def pool_words(described: PoolRecord) -> str:
    """Describe one pool in a line."""
    replicas = f"{described.replicas} × " if described.replicas > 1 else ""
    parts = f"{described.parts} × " if described.parts > 1 else ""
    batch = f"{described.policy}, batch {described.max_batch}"
    if described.chunk_tokens:
        batch += f", {described.chunk_tokens} tokens a step"
    if described.max_wait_ms is not None:
        batch += f", leaves after {described.max_wait_ms:g} ms"
    if described.speculation:
        batch += f", drafts accepted at {100 * described.speculation['acceptance']:g} %"
    split = f"({parts}{described.hardware})" if replicas and parts else parts + described.hardware
    return (
        f"{replicas}{split}: {described.model} {described.weights}, KV {described.kv}; {batch}; "
        f"{described.alone_tokens_per_s:,.0f} tokens/s alone"
    )


def turns_are(record: SimulationRecord) -> str:
    """Say where the turns come from."""
    work = record.workload
    if not work.runs:
        return "one turn, as the flags describe it"
    left_out = sum(work.left_out.values())
    why = "; ".join(f"{n} × {reason}" for reason, n in work.left_out.items())
    rest = f" ({left_out} left out: {why})" if left_out else ""
    return f"{work.samples} measured turns of {', '.join(work.runs)}{rest}"

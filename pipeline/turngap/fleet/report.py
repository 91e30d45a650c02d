"""What a simulation's report says."""

from pathlib import Path

from rich.text import Text

from turngap.fleet import charts, words
from turngap.fleet.record import SIMULATION_FILE, LoadFigures, SimulationRecord
from turngap.report import levels, page, terminal
from turngap.report import words as report_words
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


def read_simulation(folder: Path) -> SimulationRecord:
    """Read a simulation's folder.

    Raises:
        InputError: not readable, damaged, or of another version.
    """
    hint = "give the folder that `turngap simulate` names at its end"
    return read_document(folder / SIMULATION_FILE, SimulationRecord, hint=hint)


def simulation_block(record: SimulationRecord, width: int) -> Text:
    """Render the simulation for a terminal."""
    return terminal.block(simulation_report(record), width)


def simulation_svg(record: SimulationRecord, name: str) -> str:
    """Draw the terminal after `turngap report NAME` as an SVG image."""
    return terminal.svg(name, [simulation_block(record, SVG_WIDTH)], SVG_WIDTH)


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
        lead=[Line("answer", words.answer(record), "strong")],
        stand_ins=words.SIMULATED,
        sections=[
            Section(
                "What is simulated",
                [
                    lines(
                        *(("fleet", words.pool(pool)) for pool in record.pools),
                        ("turns", words.turns_are(record)),
                        (
                            "gap",
                            f"{mean['before_ms']:.0f} ms before the LLM and {mean['after_ms']:.0f} "
                            "ms after it, in the mean; the rest is simulated",
                        ),
                        (
                            "callers",
                            f"{work.turns_per_call:.1f} turns a call; in the mean "
                            f"{mean['speech_ms'] / 1000:.1f} s of speech, "
                            f"{mean['reply_ms'] / 1000:.1f} s of reply, {work.think_ms:.0f} ms "
                            f"(median) to think; prompts from {work.system_tokens} tokens, replies "
                            f"of {mean['reply_tokens']:.0f}, spoken from token "
                            f"{mean['opening_tokens']:.0f} on",
                        ),
                        ("agent", words.agent_cpu(record.agent)),
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
            Section("Against load", [Drawing(chart) for chart in charts.charts(record)]),
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
        levels.count(load.calls),
        Cell(*levels.HELD[load.holds]),
        levels.share(load.hit_rate),
        levels.interval(load.hit_rate),
        words.ms(load.gap_ms["p50"]),
        words.ms(load.gap_ms["p95"]),
        words.ms(load.gap_ms["p99"]),
        words.ms(load.llm_ms["p50"]),
        words.ms(load.llm_ms["p95"]),
        "–" if load.batch is None else f"{load.batch:.1f}",
        f"{100 * load.cached:.0f} %",
        words.hours(load),
        words.usd(load),
        f"{load.turns:,}",
        f"{load.unanswered:,}",
    ]

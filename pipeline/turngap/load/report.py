"""The report of a load test: its tables and drawings. Its sentences are in `load.words`."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from turngap.core.untrusted import printable
from turngap.load import words
from turngap.load.figures import best_steps, gap_ms, knee
from turngap.report import levels
from turngap.report import words as report_words
from turngap.report.charts import Chart, Rule
from turngap.report.run import facts
from turngap.report.sections import (
    PAGE,
    TERMINAL,
    Cell,
    Column,
    Drawing,
    Item,
    Line,
    Report,
    Section,
    Table,
    lines,
)
from turngap.store.documents import read_document
from turngap.store.loads import LOAD_FILE, LoadRecord

PAGE_FILE = "report.html"
SVG_WIDTH = 120
_VOID = Cell("void", "odd")
# The labels of the sessions are at least this far apart, in per cent of the width of 300 pixels
# that a phone has.
LABEL_ROOM = 9.0


def read_load(folder: Path) -> LoadRecord:
    """Read a load test's folder.

    Raises:
        InputError: not readable, damaged, or of another version.
    """
    hint = "give the folder that `turngap load` names at its end"
    return read_document(folder / LOAD_FILE, LoadRecord, hint=hint)


def load_report(record: LoadRecord) -> Report:
    """Report the answer, the steps that it is based on, and the limits of the test."""
    warnings = [*filter(None, [words.broken_off(record)]), *words.voids(record)]
    agent = report_words.agent_words(record.name, record.agent)
    played = report_words.scenarios_words([*record.scenario_hashes])
    subject = " · ".join([*agent, played])
    lead = [Line("answer", words.answer(record), "strong")]
    if off := words.off_level_words(record):
        lead.append(Line("warning", off, "unsure"))
    return Report(
        command="load",
        subject=subject,
        when=report_words.instant(record.started_utc),
        verdict=words.verdict(record),
        lead=lead,
        stand_ins=report_words.stand_ins_words(record.stand_ins if record.steps else ()),
        warnings=warnings,
        sections=[
            Section("Against load", [Drawing(chart) for chart in charts(record)]),
            # A terminal shows a verdict in the place of the title, so the agent is named here.
            Section(
                "Steps",
                [lines(("agent", subject), where=TERMINAL), _gaps(record), _calls(record)],
            ),
            Section(
                "What it says",
                [
                    lines(
                        ("confidence", words.certificate_words(record)),
                        ("next level", words.next_words(record)),
                        ("knee", words.knee_words(record)),
                        ("missed", words.missed_words(record)),
                        ("refused", words.refused_words(record)),
                        ("stopped", words.ended(record)),
                        *(("unmeasured", each) for each in words.not_measured(record)),
                    )
                ],
            ),
            Section("How it was measured", [*_how(record)]),
        ],
    )


def _load_column(record: LoadRecord) -> Column:
    at_rate = any(step.sessions is None for step in record.steps)
    return Column("rate" if at_rate else "sessions")


def _gaps(record: LoadRecord) -> Table:
    """Build the table of how quickly the agent answered."""
    searched = record.mode == "search"
    head = [
        _load_column(record),
        *([Column("step", left=True)] if searched else []),
        Column("verdict", left=True),
        Column("turns"),
        Column("hit rate"),
        Column("95 % interval"),
        Column("p50"),
        Column("p95"),
        Column("caller"),
    ]
    rows = [
        [
            words.load_words(step),
            *(["confirm" if step.confirms else "explore"] if searched else []),
            _VOID if step.void else Cell(*levels.HELD[step.holds]),
            f"{step.turns:,}",
            levels.share(step.hit_rate),
            levels.interval(step.hit_rate, unit=False),
            levels.ms(step.gap_ms["p50"]),
            levels.ms(step.gap_ms["p95"]),
            "–" if step.caller_late_ms is None else f"{step.caller_late_ms:.1f}",
        ]
        for step in record.steps
    ]
    caption = (
        "p50, p95: the turn gap in ms, from when the person was meant to end; a missed turn counts "
        "as slower than any. Caller: how late it was itself, ms (p99)"
    )
    return Table(head, rows, caption)


def _calls(record: LoadRecord) -> Table:
    """Build the table of how the calls ended, and of what was heard in them."""
    head = [
        _load_column(record),
        Column("calls", spare=True),
        Column("at once"),
        Column("at most", spare=True),
        Column("refused"),
        Column("late"),
        Column("dropped"),
        Column("cut in"),
        Column("no reply"),
        Column("yield"),
        Column("holes"),
    ]
    rows = [
        [
            words.load_words(step),
            f"{step.calls:,}",
            f"{step.at_once[0]:.1f}",
            f"{step.at_once[1]:,}",
            _count(step.refused),
            _count(step.late_started),
            _count(step.dropped),
            _count(step.outcomes.get("cut_in", 0)),
            _count(step.outcomes.get("no_reply", 0)),
            levels.ms(step.yield_ms),
            "–" if step.holes is None else levels.tenths(step.holes),
        ]
        for step in record.steps
    ]
    caption = (
        "Calls at once on average (and at most, where there is room); calls that were refused, "
        "opened late or dropped; turns that the agent cut into or left without a reply; yield: ms "
        "until it falls silent (p50); holes: replies with one"
    )
    return Table(head, rows, caption)


def _count(n: int) -> Cell:
    return Cell(f"{n:,}", "bad" if n else "dim")


def _how(record: LoadRecord) -> Iterator[Item]:
    machine, rate_hz = record.machine, record.agent.get("line_rate_hz")
    yield lines(
        ("calls", words.schedule_words(record)),
        ("caller", words.caller_words(record)),
        ("instrument", report_words.instrument_words(record.calibration, rate_hz)),
        ("machine", f"{printable(machine.cpu)}, {machine.cores} cores, {machine.memory_gib:g} GiB"),
        where=PAGE,
    )
    versions = f"turngap {record.turngap_version}, schema {record.schema_version}"
    yield from facts(
        "Settings",
        [
            *report_words.flat({**record.settings, "agent": record.agent}),
            ("version", versions),
            ("commit", record.commit or "not in a git checkout"),
        ],
    )


def charts(record: LoadRecord) -> tuple[Chart, ...]:
    """Draw the hit rate and the gap over the sessions, if at least two levels were held."""
    loads = [
        levels.DrawnLoad(
            step.sessions or 1,
            words.at_load(step),
            step.holds,
            step.turns,
            step.hit_rate,
            step.gap_ms,
            {"p50": gap_ms(step, "p50"), "p95": gap_ms(step, "p95")},
        )
        for step in best_steps(record.steps)
    ]
    if len(loads) < 2:
        return ()
    certified = record.capacity.sessions if record.capacity else None
    # The labels of the certified level and of both ends come before all others.
    named = [load.calls for load in (loads[-1], loads[0], *loads)]
    named = [certified, *named] if certified else named
    drawn = levels.AgainstLoad(
        loads,
        "sessions at once",
        lambda across: across.marks_at(named, LABEL_ROOM),
        partial(_rules, record, certified),
        words.not_drawn_words(record),
    )
    return drawn.hit_rates(record.target), drawn.gaps(record.budget_ms)


def _rules(record: LoadRecord, certified: int | None, across: levels.Across) -> Sequence[Rule]:
    """Return upright lines at the certified level and the knee; one if they are the same."""
    bend = None
    if found := knee(record.steps):
        before, after = (step.sessions or 1 for step in found)
        # Between levels that are far apart it is not known where the knee is.
        bend = before if after <= 2 * before + 1 else None
    if certified and certified == bend:
        return [Rule(across.x(certified), f"certified, and knee: {certified:,}", "held")]
    return [
        Rule(across.x(at), f"{name}: {at:,}", style)
        for name, at, style in (("certified", certified, "held"), ("knee", bend, "zero"))
        if at is not None
    ]

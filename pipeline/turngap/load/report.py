"""The report of a load test: its sentences, tables and drawings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from turngap.caller.starting import place_of
from turngap.core.budget import STARVED_MS
from turngap.core.errors import NOTHING_THERE
from turngap.core.untrusted import MOST_SENTENCE, is_loopback, printable
from turngap.core.wording import several
from turngap.load.figures import best_steps, gap_ms, knee
from turngap.report import levels, words
from turngap.report.charts import Chart, Rule
from turngap.report.levels import HELD, interval, ms, percent, share, tenths
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
from turngap.store.loads import LOAD_FILE, LoadRecord, StepFigures

# The number of reasons that are named for calls that were refused or broke off.
MOST_REASONS = 3
# A level does not say what it should if the calls at once differ from it by more than this share.
OFF_LEVEL = 0.1

# Why a planned turn was missed, in words; the outcomes of played turns have their own.
MISSED = {
    "refused": "refused",
    "late_start": "opened too late",
    "dropped": "dropped",
    "not_reached": "not reached",
    "worker_lost": "lost with a caller",
    "waited": "waited for the line",
}


# --- sentences ------------------------------------------------------------------------------------


def sessions_words(n: int | None) -> str:
    """Count sessions: `8 sessions`."""
    return "–" if n is None else several(n, "session")


def load_words(step: StepFigures) -> str:
    """Format a step's load: sessions, or the rate at which calls were dialled."""
    return rate_words(step.offered_per_s) if step.sessions is None else f"{step.sessions:,}"


def rate_words(per_s: float) -> str:
    """Format a rate as `--rate` takes it: `2/s`, `12/min`."""
    return f"{per_s:.3g}/s" if per_s >= 1 else f"{60 * per_s:.3g}/min"


def at_load(step: StepFigures) -> str:
    """Format a step's load for a sentence."""
    if step.sessions is None:
        calls = several(round(step.offered_per_s * step.seconds), "call")
        return f"{calls} in {step.seconds:.0f} s"
    return sessions_words(step.sessions)


def at_once_words(at_once: tuple[float, int] | None) -> str:
    """Format the calls at the same time, in brackets; empty if not known."""
    if at_once is None:
        return ""
    return f" ({at_once[0]:.1f} calls at once on average, {at_once[1]} at most)"


def target_words(record: LoadRecord) -> str:
    """Format the target."""
    return f"{percent(record.target)} of turns within {record.budget_ms:.0f} ms"


def verdict(record: LoadRecord) -> Cell:
    """Summarise the answer in a word or two."""
    found = record.capacity
    if found is not None and found.sessions is not None:
        return Cell(f"✓ {sessions_words(found.sessions).upper()} CERTIFIED", "good")
    if not record.steps:
        return Cell("✗ NOT MEASURED", "bad")
    if record.finished_utc is None:
        return Cell("? BROKEN OFF", "unsure")
    # A search continues below a step that was to explore and is void.
    if record.steps[-1].void or any(step.void and step.confirms for step in record.steps):
        return Cell("≠ VOID", "odd")
    if record.mode == "search":
        not_even_one = any(step.holds is False for step in best_steps(record.steps)[:1])
        return Cell("✗ NOTHING CERTIFIED", "bad" if not_even_one else "unsure")
    holds = {step.holds for step in record.steps}
    if len(holds) > 1:
        most = max((s.sessions or 0 for s in best_steps(record.steps) if s.holds), default=0)
        held = f"{sessions_words(most)} held" if most else "no level held"
        return Cell(f"UP TO {held.upper()}", "good" if True in holds else "unsure")
    held, style = HELD[holds.pop()]
    return Cell(f"{ {'good': '✓', 'bad': '✗'}.get(style, '?') } {held.upper()}", style)


def answer(record: LoadRecord) -> str:
    """Answer in one sentence: the capacity, or which loads are held."""
    found = record.capacity
    if found is not None and found.sessions is not None:
        late = found.caller_late_ms
        return (
            f"{sessions_words(found.sessions)}{at_once_words(found.at_once)}: at least "
            f"{target_words(record)}, with "
            f"{percent(found.confidence)} confidence"
            + ("" if late is None else f"; the caller was late by at most {late:.1f} ms (p99)")
        )
    if found is not None:
        return f"nothing is certified: {printable(found.why or 'there were too few turns')}"
    steps = [step for step in record.steps if step.void is None]
    if not steps:
        return "every step is void" if record.steps else "no step was played"
    if len(steps) == 1:
        (step,) = steps
        return (
            f"{at_load(step)}{at_once_words(step.at_once)}: {share(step.hit_rate)} of "
            f"{words.turns_words(step.turns)} within {record.budget_ms:.0f} ms (95 % interval "
            f"{interval(step.hit_rate)}); the target is {percent(record.target)}: "
            f"{HELD[step.holds][0]}"
        )
    loads: dict[str, list[str]] = {}
    for step in best_steps(steps) or steps:
        loads.setdefault(HELD[step.holds][0], []).append(load_words(step))
    # Such as: held at 1, 2 and 4; not sure at 8; not held at 16.
    each = "; ".join(
        f"{held} at {' and '.join(filter(None, (', '.join(at[:-1]), at[-1])))}"
        for held, at in loads.items()
    )
    return f"{target_words(record)}: {each} sessions"


def knee_words(record: LoadRecord) -> str:
    """Describe where the gap begins to grow; empty if that was not seen."""
    found = knee(record.steps)
    if found is None:
        return ""
    before, after = found
    p95 = after.gap_ms["p95"]
    grown = "longer than any that was answered" if p95.value is None else f"{ms(p95)} ms"
    return (
        f"after {sessions_words(before.sessions)}: the gap's p95 is {ms(before.gap_ms['p95'])} ms "
        f"there, and {grown} at {after.sessions}, the next level that was played"
    )


def certificate_words(record: LoadRecord) -> str:
    """Describe the turns that the certificate is based on; empty without one."""
    found = record.capacity
    if found is None or found.hit_rate is None or found.low is None:
        return ""
    return (
        f"{tenths(found.hit_rate)} of {words.turns_words(found.turns)} that confirm it"
        + ("" if found.seconds is None else f", in {found.seconds:.0f} s,")
        + f" were on time: at least {tenths(found.low)} with "
        f"{percent(found.confidence)} confidence, over all looks"
    )


def next_words(record: LoadRecord) -> str:
    """Describe the level above the certified one; empty if none was played."""
    found = record.capacity
    if found is None or found.sessions is None or found.not_held is None:
        return ""
    if any(step.void and step.sessions == found.not_held for step in record.steps):
        more = sessions_words(found.not_held)
        return f"{more}: not measured, since the callers could not make that many calls in time"
    above = [s for s in best_steps(record.steps) if s.sessions == found.not_held]
    seen = f"; there {share(above[0].hit_rate)} were on time" if above else ""
    return f"{sessions_words(found.not_held)} could not be certified{seen}"


def missed_words(record: LoadRecord) -> str:
    """Count the outcomes of turns that were not on time, over all steps; else empty."""
    found = Counter[str]()
    for step in record.steps:
        found.update(step.outcomes)
        found.update({"answered": -step.waited, "waited": step.waited})
    total = found.total()
    each = [
        f"{n:,} {MISSED.get(name, name.replace('_', ' '))}"
        for name, n in found.most_common()
        if name != "answered" and n
    ]
    if not each:
        return ""
    return f"{', '.join(each)}, of {words.turns_words(total)} in all steps; each is in the hit rate"


def caller_words(record: LoadRecord) -> str:
    """Describe where the callers ran, and how late they may be and were."""
    who = {"local": "on this machine", "ray": "on Ray's nodes"}.get(record.executor, "")
    processes = f"{record.workers} process{'es' * (record.workers != 1)}"
    late = [s.caller_late_ms for s in record.steps if s.caller_late_ms is not None]
    was = f"; it was late by at most {max(late):.1f} ms (p99 of a step)" if late else ""
    limit = record.caller_late_limit_ms
    flag = "" if limit == STARVED_MS else f" (--starved-ms; by default {STARVED_MS:g})"
    return f"{processes} {who}{was}; a step is void from {limit:g} ms on{flag}"


def schedule_words(record: LoadRecord) -> str:
    """Describe how calls arrive, and what is left out."""
    how = {
        "held": "each line dials its next call at fixed times, whatever the agent does",
        "poisson": "calls arrive at random (Poisson)",
        "constant": "calls arrive at a constant rate",
    }.get(record.arrivals, printable(record.arrivals))
    return (
        f"open loop: {how}; seed {record.seed}. The first {record.warm_up_s:.0f} s of each step, "
        "and what comes after its measured window, are left out"
    )


def ended(record: LoadRecord) -> str:
    """Return why the test ended; empty if the answer or a warning already says so."""
    named = {record.failure, *(step.void for step in record.steps)}
    if record.capacity is not None and record.capacity.sessions is None:
        named.add(record.capacity.why)
    return "" if record.ended in named else printable(record.ended)


def off_level_words(record: LoadRecord) -> str:
    """Warn if fewer or more calls ran at once than the level says; else empty.

    A level is this many lines that dial again at fixed times. If conversations end sooner than they
    did in the rehearsal, lines wait; if they take longer, calls overlap.
    """
    certified = record.capacity.sessions if record.capacity else None
    steps = best_steps(record.steps)
    steps = [step for step in steps if step.sessions == certified] or steps
    off = [s for s in steps if s.sessions and abs(s.at_once[0] / s.sessions - 1) > OFF_LEVEL]
    if not off:
        return ""
    step = off[-1]
    fewer = step.at_once[0] < (step.sessions or 0)
    why = "calls took longer than planned, and those of a line overlapped"
    if fewer:
        lost = step.refused or step.dropped
        why = f"calls were {'refused or dropped' if lost else 'over sooner than planned'}"
    return (
        f"at {sessions_words(step.sessions)} {'only ' * fewer}{step.at_once[0]:.1f} calls ran at "
        f"once on average, {step.at_once[1]} at most: {why}"
    )


def not_measured(record: LoadRecord) -> list[str]:
    """List what this load test does not measure, one sentence each."""
    certificate, sentences = record.capacity, list[str]()
    if certificate is not None and certificate.sessions and certificate.not_held is None:
        sentences.append(
            f"more than {sessions_words(certificate.sessions)}: the search ended there"
        )
    try:
        host = urlsplit(place_of(str(record.agent.get("url", "")))).hostname or ""
    except ValueError:
        return sentences
    is_here = record.executor == "local" and ("stack" in record.agent or is_loopback(host))
    if record.steps and is_here:
        line = printable(str(record.settings.get("line") or ""), 80)
        network = f"a network other than the line {line}" if line else "the network"
        sentences.append(f"{network}: agent and callers share this machine, and its processors")
    return sentences


def refused_words(record: LoadRecord) -> str:
    """Count the calls that were refused or dropped, with the main reasons; empty if none were."""
    failed = {
        "refused": sum(step.refused for step in record.steps),
        "dropped": sum(step.dropped for step in record.steps),
    }
    how = " and ".join(f"{n:,} {name}" for name, n in failed.items() if n)
    if not how:
        return ""
    why = Counter[str]()
    for step in record.steps:
        for text, n in step.reasons.items():
            quoted = printable(text.removeprefix("the line was lost: "), MOST_SENTENCE)
            why["not reachable" if text.startswith(NOTHING_THERE) else f"'{quoted}'"] += n
    calls = sum(step.calls for step in record.steps)
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in why.most_common(MOST_REASONS))
    return f"{how}, of {calls:,} calls{': ' * bool(reasons)}{reasons}"


def broken_off(record: LoadRecord) -> str:
    """Return why the load test broke off; empty if it did not."""
    if record.finished_utc is not None:
        return ""
    if record.failure:
        return f"The load test broke off: {printable(record.failure)}"
    step = len(record.steps) + 1  # a killed one (`kill -9`) could not record why
    return f"The load test broke off: it was killed in step {step}, or it still runs"


def voids(record: LoadRecord) -> list[str]:
    """List the void steps, with the reasons."""
    return [
        f"Step {number} ({at_load(step)}) is void and does not measure the agent: "
        f"{printable(step.void)}"
        for number, step in enumerate(record.steps, start=1)
        if step.void is not None
    ]


def not_drawn_words(record: LoadRecord) -> str:
    """Count the void steps, which are not drawn; empty if there are none."""
    if void := sum(step.void is not None for step in record.steps):
        return f" {several(void, 'void step')} {'is' if void == 1 else 'are'} not drawn."
    return ""


# --- tables and drawings --------------------------------------------------------------------------

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
    warnings = [*filter(None, [broken_off(record)]), *voids(record)]
    agent = words.agent_words(record.name, record.agent)
    played = words.scenarios_words([*record.scenario_hashes])
    line = record.settings.get("line")
    subject = " · ".join([*agent, played, *([words.over_words(line)] if line else [])])
    lead = [Line("answer", answer(record), "strong")]
    if off := off_level_words(record):
        lead.append(Line("warning", off, "unsure"))
    return Report(
        command="load",
        subject=subject,
        when=words.instant(record.started_utc),
        verdict=verdict(record),
        lead=lead,
        stand_ins=words.stand_ins_words(record.stand_ins if record.steps else ()),
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
                        ("confidence", certificate_words(record)),
                        ("next level", next_words(record)),
                        ("knee", knee_words(record)),
                        ("missed", missed_words(record)),
                        ("refused", refused_words(record)),
                        ("stopped", ended(record)),
                        *(("unmeasured", each) for each in not_measured(record)),
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
            load_words(step),
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
        "p50, p95: the turn gap in ms, from when the person was scheduled to end; a missed turn "
        "is slower than any. Caller: how late it was itself, ms (p99)"
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
            load_words(step),
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
        ("calls", schedule_words(record)),
        ("caller", caller_words(record)),
        ("instrument", words.instrument_words(record.calibration, rate_hz)),
        ("machine", f"{printable(machine.cpu)}, {machine.cores} cores, {machine.memory_gib:g} GiB"),
        where=PAGE,
    )
    versions = f"turngap {record.turngap_version}, schema {record.schema_version}"
    yield from facts(
        "Settings",
        [
            *words.flat({**record.settings, "agent": record.agent}),
            ("version", versions),
            ("commit", record.commit or "not in a git checkout"),
        ],
    )


def charts(record: LoadRecord) -> tuple[Chart, ...]:
    """Draw the hit rate and the gap over the sessions, if at least two levels were held."""
    loads = [
        levels.DrawnLoad(
            step.sessions or 1,
            at_load(step),
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
        not_drawn_words(record),
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

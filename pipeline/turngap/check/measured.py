"""How a check was measured: on what, with what settings, and by which command."""

from turngap.check import side_words, words
from turngap.check.record import CheckRecord, SideRecord
from turngap.core.budget import STARVED_MS
from turngap.report import measured_words
from turngap.report import words as report_words
from turngap.report.run import facts
from turngap.report.sections import (
    EVERYWHERE,
    PAGE,
    TERMINAL,
    Code,
    Column,
    Item,
    Line,
    Lines,
    Table,
    lines,
)
from turngap.store.runs import Run

# On a terminal at most so many settings that differ are named.
MOST_DIFFERENCES = 6


def _side(side: SideRecord | None, record: CheckRecord) -> str:
    return side_words.no_reference_words(record) if side is None else side_words.side_words(side)


def measured_items(record: CheckRecord, candidate: Run | None, reference: Run | None) -> list[Item]:
    """Build the last section of a check, which is folded on its page."""
    different = side_words.differences(record)
    unusual = EVERYWHERE if record.starved_ms != STARVED_MS else PAGE
    basis = Lines(
        [
            Line("compared" if record.reference else "played", words.pairs_played(record)),
            Line("reference", _side(record.reference, record)),
            Line(side_words.own_name(record), side_words.side_words(record.candidate)),
            Line("caller", words.starved_words(record) or measured_words.ON_TIME),
            Line("accepted", side_words.accepted_words(record), "strong", unusual),
            *([Line("saved", saved)] if (saved := words.saved_words(record)) else []),
        ]
    )
    few = [Line("differs in", f"{n}: {a} → {b}") for n, a, b in different[:MOST_DIFFERENCES]]
    if (more := len(different) - MOST_DIFFERENCES) > 0:
        few.append(Line("", f"and {more} more settings"))
    run = candidate and candidate.record
    # The two are calibrated once where both are spoken to alike.
    other = reference.record if reference and reference.record.calibration else None
    machine = record.machine
    return [
        basis,
        Lines(few, where=TERMINAL),
        Table(
            (
                Column("set differently"),
                Column("reference", left=True),
                Column("candidate", left=True),
            ),
            different,
            where=EVERYWHERE - TERMINAL,
        ),
        lines(
            ("instrument", measured_words.calibration_words(run) if run else ""),
            ("reference's", measured_words.calibration_words(other) if other else ""),
            ("clock", measured_words.offset_words(run) if run else ""),
            ("started", report_words.instant(record.started_utc)),
            ("finished", report_words.instant(record.finished_utc)),
            ("commit", (run and run.commit) or "not in a git checkout"),
            ("versions", report_words.versions(run) if run else ""),
            ("machine", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB"),
            ("system", f"{machine.system}, Python {machine.python}"),
            ("fingerprint", machine.fingerprint),
            where=PAGE,
        ),
        *(facts("Settings", report_words.flat(run.settings)) if run else []),
        Code(words.again_words(record), words.command(record)),
    ]

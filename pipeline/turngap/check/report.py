"""Report of a check, from its record and, on a page, from the turns of both runs; and its files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from turngap.check import charts, words
from turngap.core.budget import DEFAULT_BUDGET_MS, OUTCOMES, STARVED_MS
from turngap.core.errors import InputError
from turngap.core.summary import counted_turns, token_figures
from turngap.report import looks, page, terminal, turn_words
from turngap.report import words as report_words
from turngap.report.charts import Agent, domain_of, gap_chart
from turngap.report.ci import Case, junit_document, junit_times, markdown
from turngap.report.console import turn_block
from turngap.report.run import facts, take, wait_ms
from turngap.report.sections import (
    EVERYWHERE,
    FILES,
    MARKDOWN,
    NOWHERE,
    PAGE,
    TERMINAL,
    Card,
    Cards,
    Cell,
    Code,
    Column,
    Drawing,
    Folded,
    Gauge,
    Item,
    Line,
    Lines,
    Report,
    Section,
    Table,
    lines,
)
from turngap.store.checks import CHECK_FILE, CheckRecord, CheckVerdict, MetricVerdict, SideRecord
from turngap.store.documents import read_document
from turngap.store.runs import Run, read_run_beside

# Shifts below this fill no bar to its end: on a quiet machine all of them are noise.
FULL_BAR_MS = 10.0
_CHANGES = (
    "Candidate less reference. The change of gap p50 is that of the typical pair of the same turn, "
    "which need not be the difference of the two medians. n: the pairs that could be used. Points "
    "are percentage points."
)


def check_report(
    record: CheckRecord,
    candidate: Run | None = None,
    reference: Run | None = None,
    folder: Path | None = None,
) -> Report:
    """Report the check; if its runs are given, also their turns, for a page in `folder`."""
    look = words.look_of(record)
    lead = [Line("why", why, "strong") for why in words.why_words(record)]
    if short := words.short_words(record):
        lead.append(Line("in short", short, where=MARKDOWN))
    if gap := words.gap_words(record):
        lead.append(Line("gap", gap))
    if cut_ins := words.cut_ins_words(record):
        lead.append(Line("cut-ins", cut_ins))
    if line := words.lines_words(record):
        lead.append(Line("two lines", line, "strong"))
    if decide := words.to_decide(record):
        lead.append(Line("to decide", f"{decide}."))
    against = "" if record.reference is None else f" against {words.side_name(record.reference)}"
    played = record.scenarios or sorted({t.scenario for t in candidate.turns} if candidate else ())
    on = f" on {report_words.scenarios_words(played)}" if played else ""
    drawn = [] if candidate is None else drawn_sections(record, candidate, reference, folder)
    return Report(
        command="check",
        subject=f"{words.side_name(record.candidate)}{against}{on}",
        when=report_words.instant(record.started_utc),
        about=(
            words.pairs_played(record),
            f"{record.machine.cpu}, {record.machine.cores} cores",
        ),
        verdict=Cell(f"{look.symbol} {look.title}", look.style),
        means=look.means,
        lead=lead,
        stand_ins=report_words.stand_ins_words(record.stand_ins),
        warnings=[
            *([] if candidate is None else _problems(record, candidate, reference)),
        ],
        sections=[
            Section("Metrics", _metrics(record)),
            Section("Stages", _stages(record, candidate, reference), folded=True),
            Section("Budgets", _budgets(record)),
            *drawn,
            Section(
                "How it was measured", measured_items(record, candidate, reference), folded=True
            ),
        ],
    )


def _verdict(record: CheckRecord, verdict: CheckVerdict) -> Cell:
    shown = record.verdict if record.verdict == "cannot_compare" else verdict
    return Cell(words.verdict_words(record, verdict), words.VERDICTS[shown].style)


def _metrics(record: CheckRecord) -> list[Item]:
    head = (
        Column("metric"),
        Column("verdict", left=True),
        Column("change"),
        Column("95 % interval", left=True),
        Column("drawn", left=True),
        Column("limit"),
        Column("n", spare=True),
        Column("significance", left=True, spare=True),
    )
    rows = [
        (
            f"{m.name}, {words.unit_words(m)}",
            _verdict(record, m.verdict),
            Cell(words.difference_words(m, unit=False), "strong"),
            words.interval_words(m) or "–",
            Cell("–", range=charts.metric_range(m)),
            words.limit_words(m, unit=False),
            str(m.n),
            words.p_words(m.p_value),
        )
        for m in record.metrics
    ]
    key = (
        "In the drawings right is worse: dot and bar are the change with its 95 % interval, the "
        "thin line is no change, the dashed one the limit."
    )
    notes = [
        (m.name, "; ".join(filter(None, (words.metric_note(record, m), words.detectable_words(m)))))
        for m in record.metrics
    ]
    noise = ("noise", words.noise_words(record)) if record.metrics else None
    return [
        Table(head, rows, _CHANGES, key),
        lines(*notes, noise),
    ]


def _stages(record: CheckRecord, candidate: Run | None, reference: Run | None) -> list[Item]:
    if not record.metrics and candidate is None:
        return []
    shifts = {stage.name: stage for stage in record.stages}
    sides = [
        charts.stage_medians(run.turns) if run is not None else {} for run in (reference, candidate)
    ]
    most = max([FULL_BAR_MS, *(abs(stage.shift_ms) for stage in record.stages)])
    beside = PAGE if record.reference is not None else NOWHERE
    compared = EVERYWHERE if record.reference is not None else NOWHERE
    head = (
        Column("stage"),
        Column("A, reference", where=beside),
        Column("median" if record.reference is None else "B, candidate", where=PAGE),
        Column("shift", where=compared),
        Column("n", where=compared, spare=True),
        Column("significance", left=True, where=compared, spare=True),
        Column("drawn", left=True, where=compared),
        Column("", left=True, where=compared),
        Column("the time", left=True, where=PAGE),
    )
    rows: list[list[str | Cell]] = []
    for name in dict.fromkeys([*sides[0], *sides[1], *shifts]):
        stage = shifts.get(name)
        medians = [report_words.ms(side[name]) if name in side else "–" for side in sides]
        if stage is None:
            rows.append(
                [looks.full_name(name), *medians, "–", "–", "–", "–", "", looks.look_of(name).means]
            )
            continue
        remark = words.stage_remark(stage, record)
        style = "bad" if remark else "strong"
        rows.append(
            [
                Cell(looks.full_name(name), "strong" if remark else ""),
                *medians,
                Cell(words.signed_ms(stage.shift_ms), "strong" if remark else ""),
                str(stage.n),
                words.p_words(stage.p_value),
                Cell("–", gauge=Gauge(stage.shift_ms / most, style if remark else "", signed=True)),
                Cell(remark, "strong"),
                looks.look_of(name).means,
            ]
        )
    caption = "Shift of the typical pair, in ms; right of the line is slower."
    key = "Medians are over the answered turns: their difference need not be the shift."
    if record.reference is None:
        caption, key = "", "Medians in ms over the answered turns."
    moved = words.moved_words(record) if record.metrics else ""
    grew = any(stage.moved or stage.name == record.moved_stage for stage in record.stages)
    said = [Line("moved" if grew else "stages", moved, "strong")] if moved else []
    said += [
        Line("llm", text, where=EVERYWHERE - TERMINAL)
        for text in llm_words(candidate, reference, words.own_name(record))
    ]
    if candidate is not None and candidate.record.scored is None:
        names = (stage.name for turn in candidate.turns for stage in turn.stages)
        said += [Line("marks", text) for text in report_words.marks_words(names)]
    where = EVERYWHERE if record.stages else PAGE
    return [Lines(said), Table(head, rows, caption, key, where)]


def llm_words(
    candidate: Run | None, reference: Run | None, own_name: str = "candidate"
) -> list[str]:
    """Describe the speed of each side's language model: a line for each that reported it."""
    sides = (("reference", reference), (own_name, candidate))
    return [
        f"language model of the {name}: {turn_words.token_figures_words(figures)}"
        for name, run in sides
        if run is not None and (figures := token_figures(counted_turns(run.turns))) is not None
    ]


def _budgets(record: CheckRecord) -> list[Item]:
    head = (
        Column("budget"),
        Column("verdict", left=True),
        Column("turns within"),
        Column("95 % interval", left=True),
        Column("drawn", left=True),
        Column("target"),
        Column("n"),
    )
    rows = [
        (
            words.budget_name(budget),
            _verdict(record, budget.verdict),
            Cell(words.budget_figures(budget)[0], "strong"),
            words.budget_figures(budget)[1],
            Cell("–", range=charts.budget_range(budget)),
            words.percents(budget.target),
            str(budget.n),
        )
        for budget in record.budgets
    ]
    caption = (
        f"Share of the {words.own_name(record)}'s turns within each budget; every turn "
        "counts, with or without a reply."
    )
    key = "The drawings run from none to all; the dashed line is the target."
    return [Table(head, rows, caption, key)]


def _problems(record: CheckRecord, candidate: Run, reference: Run | None) -> list[str]:
    """List the faults of either run, except those that the verdict's reasons already name."""
    said = " ".join(record.why)
    found: list[str] = []
    for side, run in ((words.own_name(record), candidate), ("reference", reference)):
        if run is not None:
            found += [f"{side}: {problem}" for problem in run.problems]
            reasons = run.record.why_invalid
            if run.record.valid or (reasons and all(why in said for why in reasons)):
                continue
            if record.verdict == "cannot_compare":
                found.append(f"{side}: {report_words.validity_words(run.record)}")
            else:
                found.append(
                    f"{side}: its percentiles are not valid by themselves, but the verdict is: "
                    f"{'; '.join(reasons)}"
                )
    return found


# On a terminal at most this many settings that differ are named.
MOST_DIFFERENCES = 6


def measured_items(record: CheckRecord, candidate: Run | None, reference: Run | None) -> list[Item]:
    """Build the last section of a check, which is folded on its page."""
    different = words.differences(record)
    unusual = EVERYWHERE if record.starved_ms != STARVED_MS else PAGE
    caller = words.starved_words(record) or report_words.ON_TIME
    scored = candidate is not None and candidate.record.scored is not None
    basis = Lines(
        [
            Line("compared" if record.reference else "played", words.pairs_played(record)),
            *(Line(name, words.side_words(side)) for name, side in reversed(words.sides(record))),
            *([] if scored else [Line("caller", caller)]),
            Line("accepted", words.accepted_words(record), "strong", unusual),
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
            ("instrument", report_words.calibration_words(run) if run else ""),
            ("reference's", report_words.calibration_words(other) if other else ""),
            ("clock", report_words.offset_words(run) if run else ""),
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
        *([Code("To do it again:", record.command)] if record.command else []),
    ]


def drawn_sections(
    record: CheckRecord, candidate: Run, reference: Run | None, folder: Path | None
) -> list[Section]:
    """Build the sections that only a page shows."""
    taken = reference.turns if reference else ()
    agents = [
        Agent(turns, letter, f"{role}, {words.side_name(side)}: {pen}")
        for letter, role, pen, side, turns in (
            ("A", "reference", "dashed, hollow", record.reference, taken),
            ("B", "candidate", "solid, filled", record.candidate, candidate.turns),
        )
        if turns and side is not None
    ]
    if record.reference is None:
        agents = [Agent(candidate.turns)] if candidate.turns else []
    if not agents:
        return []
    budget_ms = candidate.record.budget_ms or DEFAULT_BUDGET_MS
    plot = gap_chart(agents, budget_ms, charts.curves_in_words(candidate.turns, taken))
    pairs = charts.paired(candidate.turns, taken)
    found = [Section("Turn gaps", [Drawing(plot)])]
    if (chart := charts.pairs_chart(pairs)) is not None:
        found.append(Section("Paired differences", [Drawing(chart)]))
    elif record.reference is not None:
        why = (
            "No turn has a gap on both sides."
            if record.reference.run
            else "A stored baseline is a file of its own: its turns are not in this check's folder "
            "to be drawn."
        )
        found.append(Section("Paired differences", [lines(("none", why), where=PAGE)]))
    worst = charts.worst(pairs)
    about = (
        "Turns that came out worse than with the reference, then those that were slowed the most."
        if record.reference is not None and record.reference.run
        else "Turns that were not answered within their budget."
    )
    cards = _cards(record, worst, folder or candidate.path.parent, candidate, reference)
    if not worst:
        return found
    items = [lines(("which", about), where=FILES), cards, *waterfalls(worst, record.verdict)]
    return [*found, Section("Worst turns", items)]


def _cards(
    record: CheckRecord,
    pairs: Sequence[charts.TurnPair],
    folder: Path,
    candidate: Run,
    reference: Run | None,
) -> Cards:
    """Build the cards with one scale for all, so the two waterfalls of a turn can be compared."""
    turns = [t for p in pairs for t in (p.reference, p.candidate) if t is not None]
    domain = domain_of(turns, shown_whole=1.0)
    name = "" if record.reference is None else "B, the candidate"
    cards: list[Card] = []
    for number, pair in enumerate(pairs, start=1):
        takes = [take(candidate, pair.candidate, folder, domain, name)]
        if pair.reference is not None and reference is not None:
            takes.insert(0, take(reference, pair.reference, folder, domain, "A, the reference"))
        title = report_words.turn_name(pair.candidate)
        if len(takes) > 1:  # of a single take the page adds what became of it
            title += f": {charts.heading(pair)}"
        cards.append(
            Card(
                anchor=f"worst-{number}",
                title=title,
                outcome=pair.candidate.outcome,
                wait_ms=wait_ms(pair.candidate),
                about=charts.moved_in(pair),
                takes=takes,
            )
        )
    return Cards(cards, [o for o in OUTCOMES if any(c.outcome == o for c in cards)])


# Pages have more of them, with their recordings.
MOST_PAIRS = 3
# As wide as a comment shows without scrolling.
WIDTH = 84


def waterfalls(pairs: Sequence[charts.TurnPair], verdict: CheckVerdict) -> list[Folded]:
    """Draw the first few of `pairs`, worst first; a regression unfolds the first.

    Pairs with a starved caller are shown only if there are no others: they may read long because of
    the machine.
    """
    on_time = [
        p for p in pairs if not any(t and t.pacing.starved for t in (p.reference, p.candidate))
    ]
    return [
        Folded(
            title=f"{report_words.turn_name(pair.candidate)}: {charts.heading(pair)}",
            about=charts.moved_in(pair),
            text=_text(pair),
            open=number == 0 and verdict == "regressed",
        )
        for number, pair in enumerate((on_time or pairs)[:MOST_PAIRS])
    ]


def _text(pair: charts.TurnPair) -> str:
    """Format both takes of a turn for a terminal, at the same scale."""
    takes = [("A, the reference", pair.reference), ("B, the candidate", pair.candidate)]
    if pair.reference is None:
        return turn_block(pair.candidate, WIDTH).plain
    return "\n".join(f"{name}\n{turn_block(t, WIDTH).plain}" for name, t in takes if t is not None)


# --- files ----------------------------------------------------------------------------------------

PAGE_FILE = "check.html"
TEXT_WIDTH = 100

_HINT = "give the folder that `turngap check` names at its end"


def write_reports(record: CheckRecord, folder: Path, candidate: Run, reference: Run | None) -> None:
    """Write `check.html`, `summary.md` and `junit.xml` into `folder`, each whole or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    report = check_report(record, candidate, reference, folder)
    page.write(folder / PAGE_FILE, page.render(report))
    page.write(folder / "summary.md", markdown(report))
    page.write(folder / "junit.xml", junit(record, check_text(record)))


def check_text(record: CheckRecord, width: int = TEXT_WIDTH) -> str:
    """Render the text that the terminal shows, without styles."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(terminal.block(check_report(record), width), end="")
    return captured.get()


def check_json(record: CheckRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    return {**record.model_dump(mode="json"), "path": str(folder)}


def read_check(path: Path) -> tuple[CheckRecord, Run, Run | None]:
    """Read a check's folder: its record, the candidate's run, and the reference's if it was played.

    Raises:
        InputError: no check, damaged, of another version, or one of its runs is missing.
    """
    record = read_document(path / CHECK_FILE, CheckRecord, hint=_HINT)
    candidate = _read_side(path, record.candidate)
    if candidate is None:
        raise InputError(
            "document.damaged", f"{path / CHECK_FILE}: names no run of the candidate", hint=_HINT
        )
    reference = record.reference and _read_side(path, record.reference)
    return _still_borne(record, candidate, reference), candidate, reference


def _still_borne(record: CheckRecord, candidate: Run, reference: Run | None) -> CheckRecord:
    """Withdraw a verdict whose runs have lost turns since it was made."""
    sides = [("candidate", record.candidate, candidate)]
    if record.reference is not None and reference is not None:
        sides.append(("reference", record.reference, reference))
    lost = tuple(
        f"the {name}'s run holds {len(run.turns)} of the {side.turns} turns that were judged"
        for name, side, run in sides
        if len(run.turns) != side.turns
    )
    if not lost:
        return record
    return record.model_copy(update={"verdict": "cannot_compare", "why": lost})


def _read_side(folder: Path, side: SideRecord) -> Run | None:
    """Read the run next to `check.json`; a check that failed at once has a run without turns."""
    return None if side.run is None else read_run_beside(folder / CHECK_FILE, side.run)


# --- JUnit ----------------------------------------------------------------------------------------

SUITE = "turngap check"


def junit(record: CheckRecord, console_text: str) -> bytes:
    """Build the JUnit XML: a regression is a failure, no verdict is a skip with a reason."""
    seconds, started = junit_times(record.started_utc, record.finished_utc)
    return junit_document(
        SUITE,
        _cases(record),
        properties=dict(_properties(record)),
        output=console_text,
        seconds=seconds,
        started=started,
    )


def _cases(record: CheckRecord) -> Sequence[Case]:
    cases = [_case(m.name, m.verdict, _metric_message(record, m)) for m in record.metrics]
    for budget in record.budgets:
        share, interval = words.budget_figures(budget)
        target = words.percents(budget.target)
        message = f"{share} of {budget.n} turns within ({interval}), target {target}"
        cases.append(_case(words.budget_name(budget), budget.verdict, message))
    why = "; ".join(words.why_words(record))
    if record.verdict == "cannot_compare":
        # Whatever the figures look like: they do not bear a verdict.
        return [_case(c.name, "cannot_compare", why) for c in cases] or [
            _case("comparison", "cannot_compare", why)
        ]
    return cases or [_case("comparison", "undecided", why)]


def _case(name: str, verdict: CheckVerdict, message: str) -> Case:
    """Build the test case of a metric, a budget, or the comparison as such."""
    if verdict == "pass":
        return Case(name, "passed", message)
    if verdict == "regressed":
        return Case(name, "failed", message, kind="regressed")
    return Case(name, "skipped", f"{verdict}: {message}")


def _metric_message(record: CheckRecord, metric: MetricVerdict) -> str:
    parts = [
        words.difference_words(metric) if metric.difference is not None else "",
        f"95 % interval {interval}" if (interval := words.interval_words(metric)) else "",
        f"limit {words.limit_words(metric)}",
        f"n={metric.n}",
        words.metric_note(record, metric),
    ]
    return ", ".join(filter(None, parts))


def _properties(record: CheckRecord) -> list[tuple[str, str]]:
    pairs = [
        ("verdict", record.verdict),
        ("pairs", str(record.pairs)),
        ("left_out", str(record.left_out)),
        ("cut_ins", words.cut_ins_words(record)),
        ("starved_ms", f"{record.starved_ms:g}"),
        ("caller", words.starved_words(record) or report_words.ON_TIME),
        ("moved_stage", record.moved_stage or "none"),
        ("candidate", words.side_words(record.candidate)),
        ("machine", record.machine.fingerprint),
    ]
    if record.reference is not None:
        pairs.append(("reference", words.side_words(record.reference)))
    return pairs

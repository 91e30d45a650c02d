"""Reports of a run and of a calibration, and a run's page."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from turngap.core.budget import OUTCOMES, STARVED_MS, Outcome
from turngap.core.clusters import NO_INTERVAL
from turngap.core.counts import COLD, RATE, SERVER, THOUGHT
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.run_record import RunRecord
from turngap.core.stages import UNATTRIBUTED
from turngap.core.summary import Summary, summarise, turn_taking
from turngap.core.untrusted import printable
from turngap.core.wording import several
from turngap.report import calls, charts, looks, page, terminal, turn_words, words
from turngap.report.evidence import MOST_TURNS, evidence
from turngap.report.line import crossing_words, drawing, line_items
from turngap.report.looks import Style
from turngap.report.sections import (
    EVERYWHERE,
    FILES,
    NOWHERE,
    PAGE,
    TERMINAL,
    Card,
    Cards,
    Cell,
    Column,
    Drawing,
    Figure,
    Figures,
    Gauge,
    Item,
    Line,
    Lines,
    Medium,
    Report,
    Section,
    Table,
    Take,
    lines,
)
from turngap.store.comparisons import TURNS_FILE, TurnsRecord
from turngap.store.documents import read_document
from turngap.store.folders import beside, read_record
from turngap.store.runs import Run

# Shorter stages are only named.
SMALL_SHARE, LONG_MS = 0.01, 10.0
REPORT_FILE = "report.html"
MOST_CURVES = 8  # are read for the advice of a report
VERDICT_STYLES: dict[str, Style] = {"right": "good", "wrong": "bad", "not_judged": "dim"}


def write_html(run: Run) -> Path:
    """Write `report.html` into the run's folder, replacing an older one; returns its path.

    Raises:
        InputError: the folder cannot be written to.
    """
    return page.write(run.path / REPORT_FILE, render(run))


def render(run: Run) -> str:
    """Render the run as a page."""
    return page.render(run_report(run, with_turns=True))


def summary_block(run: Run, width: int) -> Text:
    """Render the run's figures for a terminal, each with its evidence."""
    return terminal.block(run_report(run), width)


def run_report(run: Run, *, with_turns: bool = False) -> Report:
    """Build the report of a run's figures; `with_turns` adds each of its turns, for a page."""
    summary, record = summarise(run.turns), run.record
    warnings = [*run.problems, *turn_words.odd_words(run.turns)]
    if record.failure and record.failure not in " ".join(record.why_invalid):
        warnings.insert(0, f"failed: {record.failure}")
    if not record.valid:
        warnings.insert(0, words.validity_words(record))
    played = words.turns_words(len(run.turns))
    scored = record.scored
    if scored is not None:
        played += f" in {several(len(scored.calls), 'call')}"
        if scored.unscored:
            n = len(scored.calls) + len(scored.unscored)
            warnings.append(f"{len(scored.unscored)} of {n} calls could not be scored")
    elif names := list(dict.fromkeys(turn.scenario for turn in run.turns)):
        played += f" of {words.scenarios_words(names)}"
    if record.line is not None:
        played += f" {words.over_words(record.line.text)}"
    sections = [
        Section("Turn gap", _figures(run, summary)),
        Section("The line", line_items(run, summary)),
        Section("Outcomes", _outcomes(run, summary)),
        Section("Stages", _stages(run, summary)),
        Section("How it was measured", _measured(run, summary)),
    ]
    if scored is not None:
        sections.insert(-1, Section("Calls", calls.call_items(run, scored)))
    if with_turns:
        sections[0] = Section("Turn gap", [*sections[0].items, *_plot(run, summary)])
        if run.turns:
            anchors = [_anchor(number) for number, _ in enumerate(run.turns, start=1)]
            sections.insert(-1, Section("What was heard", [evidence(run, anchors)]))
        unlisted = lines(("turns", calls.unlisted_words(run)))
        sections.insert(-1, Section("Turns", [unlisted, _cards(run)]))
    return Report(
        command="replay" if scored is None else "score",
        subject=" · ".join([*words.run_words(record), played]),
        when=words.instant(record.started_utc),
        about=(f"{record.machine.cpu}, {record.machine.cores} cores",),
        warnings=warnings,
        stand_ins=words.stand_ins_words(record.stand_ins),
        sections=sections,
    )


def _figures(run: Run, summary: Summary) -> list[Item]:
    rate = summary.hit_rate
    value, interval = words.hit_rate_words(rate)
    budgets = {t.budget_ms for t in run.turns} or {run.record.budget_ms}
    budget = f"{words.ms(budgets.pop())} ms" if len(budgets) == 1 else "their budget"
    counted = f"{rate.hits} of {words.turns_words(rate.n, rate.recorded)} within {budget}"
    figures = [Figure("turn gap", *words.median_words(run.turns, summary))]
    figures += [
        Figure(f"gap {name}", *words.percentile_words(p))
        for name, p in summary.gap_ms.items()
        if name != "p50" and p.value is not None
    ]
    figures += [
        Figure("hit rate", value, f"{counted}; {interval}"),
        Figure("cut-ins", *words.cut_ins_words(summary.cut_ins)),
    ]
    if right := words.right_words(summary):
        figures.append(Figure("right", *right))
    figures += [Figure(*found) for found in words.other_right_words(run.record, summary)]
    figures += [Figure("held out", *words.held_out_words(h)) for h in run.record.held_out]
    figures += calls.claimed_figures(run)
    # The reason is one for all, where all figures lack their intervals.
    no_intervals = all(p.why_no_interval == NO_INTERVAL for p in (rate, summary.cut_ins))
    if no_intervals:
        figures = [replace(f, remark=f.remark.replace(f"; {NO_INTERVAL}", "")) for f in figures]
    left_out = words.left_out_words(summary)
    counted = words.turns_words(summary.gap_n, summary.gap_recorded)
    llm = turn_words.token_figures_words(summary.llm) if summary.llm else ""
    outcomes = [f"{n} {outcome}" for outcome, n in summary.outcomes.items()]
    return [
        Figures(figures),
        lines(
            (
                "p90, p95",
                "" if run.record.scored else words.no_percentiles_words(run.turns, summary),
            ),
            ("intervals", NO_INTERVAL.replace("no interval", "none") if no_intervals else ""),
        ),
        lines(("outcomes", " · ".join(outcomes) if len(outcomes) > 1 else ""), where=TERMINAL),
        lines(("llm", llm), where=FILES | _if("tokens/s" in llm or "cold" in llm)),
        lines(
            ("left out", left_out and f"{left_out}; the percentiles are over {counted}"),
            ("also heard", words.heard_words(summary)),
            ("ambiguous", words.ambiguous_words(summary)),
            ("lost", words.lost_words(summary)),
            *((f"{kind} found", found) for kind, found in run.record.found.items()),
        ),
    ]


def _plot(run: Run, summary: Summary) -> list[Item]:
    if not run.turns:
        return []
    listed, numbered = calls.listed(run), enumerate(run.turns, 1)
    counted = [(t, _anchor(n) if n in listed else "") for n, t in numbered if t.left_out is None]
    figure, remark = words.hit_rate_words(summary.hit_rate)
    gaps = ", ".join(f"{k} {words.percentile_words(p)[0]}" for k, p in summary.gap_ms.items())
    spoken = (
        f"Share of turns answered within each gap: {figure} of {summary.hit_rate.n} within budget, "
        f"{remark}; {gaps}; {words.cut_in_sentence(summary.cut_ins)}"
    )
    agent = charts.Agent([t for t, _ in counted], anchors=[a for _, a in counted])
    return [Drawing(charts.gap_chart([agent], run.record.budget_ms, spoken))]


def _outcomes(run: Run, summary: Summary) -> list[Item]:
    head = (
        Column("outcome"),
        Column("turns"),
        Column("of all turns", left=True),
        Column("which means", left=True, where=PAGE),
    )
    rows = [
        (
            Cell(f"{looks.SYMBOLS[outcome]} {outcome}", looks.OUTCOME_STYLES[outcome]),
            str(n),
            Cell("", gauge=Gauge(n / summary.turns, looks.OUTCOME_STYLES[outcome])),
            looks.OUTCOME_MEANS[outcome],
        )
        for outcome in OUTCOMES
        if (n := summary.outcomes.get(outcome))
    ]
    found: list[Item] = [Table(head, rows, where=PAGE)] if len(rows) > 1 else []
    counted: dict[str, Counter[Outcome]] = {}
    for turn in run.turns:
        counted.setdefault(turn.scenario, Counter())[turn.outcome] += 1
    if len(counted) > 1:
        shown: list[Outcome] = [o for o in OUTCOMES if o in summary.outcomes]
        each = [
            (name, *(str(of[o] or "") for o in shown), str(of.total()))
            for name, of in counted.items()
        ]
        names = ("scenario", *(f"{looks.SYMBOLS[o]} {o}" for o in shown), "turns")
        found.append(Table(names, each, "By scenario", where=PAGE))
    return found


def _stages(run: Run, summary: Summary) -> list[Item]:
    if run.record.scored is not None:
        return [lines(("stages", calls.NO_STAGES))]
    names = (stage.name for stage in summary.stages)
    no_marks = words.marks_words(names, run.record.clock_offset)
    said = Lines([Line("stages", text) for text in no_marks])
    explained_ms = sum(s.p50_ms for s in summary.stages if s.name != UNATTRIBUTED)
    if no_marks and explained_ms < charts.SHORT_MS:  # there is nothing else to show
        return [said]
    replied = summary.outcomes.get("answered", 0) + summary.outcomes.get("late", 0)
    shown = [s for s in summary.stages if (s.share or 0) >= SMALL_SHARE or s.max_ms >= LONG_MS]
    short = [looks.full_name(s.name) for s in summary.stages if s not in shown]
    most = max((abs(stage.p50_ms) for stage in shown), default=0.0)
    head = (
        Column("stage"),
        Column("", left=True, where=TERMINAL),
        Column("turns", spare=True, where=_if(any(s.n != replied for s in shown))),
        Column("p50"),
        Column("p95", spare=True, where=_if(any(s.p95_ms.value is not None for s in shown))),
        Column("max", spare=True),
        Column("share", spare=True),
        Column("median", left=True),
        Column("", left=True),
        Column("the time", left=True, where=PAGE),
    )
    rows = [
        (
            looks.full_name(stage.name),
            (look := looks.look_of(stage.name)).pattern,
            str(stage.n) if stage.n == replied else f"{stage.n} of {replied}",
            words.ms(stage.p50_ms),
            "–" if stage.p95_ms.value is None else words.ms(stage.p95_ms.value),
            words.ms(stage.max_ms),
            "–" if stage.share is None else words.percent(stage.share),
            Cell("", gauge=Gauge(stage.p50_ms / most if most else 0.0, look.group)),
            Cell(_slowest(stage.name, summary), "strong"),
            look.means,
        )
        for stage in shown
    ]
    caption = "Where the silence of the answered turns went, in ms; share: of all of it"
    return [
        Table(head, rows, caption),
        said,
        lines(
            ("others", f"under 1 % of the silence: {', '.join(short)}" if short else ""),
            where=FILES,
        ),
        lines(
            ("slowest", words.advice_words(run.record, summary)),
            ("curve", _curve(run, summary)),
        ),
    ]


def _curve(run: Run, summary: Summary) -> str:
    """Say how a setting would change the gap, by the newest curve that has the run's settings."""
    if summary.slowest_stage != "endpoint" or not run.path.is_dir():
        return ""
    agent = _agent_as_stored(run.record)
    files = sorted(run.path.parent.glob(f"*/{TURNS_FILE}"), reverse=True)
    for file in files[:MOST_CURVES]:
        with suppress(InputError):
            curve = read_document(file, TurnsRecord)
            here = curve.machine.fingerprint == run.record.machine.fingerprint
            here = here and curve.settings.get("line") == run.record.settings.get("line")
            # In virtual time, gaps are lower bounds.
            if not (curve.valid and curve.setting and here) or curve.virtual:
                continue
            for point in curve.points:
                if _agent_as_stored(read_record(beside(file, point.run))) == agent:
                    return words.curve_words(curve, point)
    return ""


def _agent_as_stored(record: RunRecord) -> Any:
    """Return an agent with all its settings, as a run's document holds it."""
    return record.model_dump(mode="json", include={"agent"})


def _if(shown: bool) -> frozenset[Medium]:
    return EVERYWHERE if shown else NOWHERE


def _slowest(stage: str, summary: Summary) -> str:
    if stage != summary.slowest_stage:
        return ""
    # What no mark explains is not a stage to be made quicker.
    return "no mark explains it" if stage == UNATTRIBUTED else "slowest"


def _measured(run: Run, summary: Summary) -> list[Item]:
    record = run.record
    machine = record.machine
    accepted = words.accepted_words(record.starved_ms, summary.caller_error_ms)
    always = record.starved_ms == STARVED_MS
    error_ms = summary.label_error_ms
    planned = f" of {record.planned_turns} planned" if record.planned_turns else ""
    starved = words.starved_words(summary)
    played = [
        lines(
            ("caller", starved),
            ("accepted", "" if always else accepted),
            ("instrument", words.brief_words(record)),
            where=TERMINAL,
        ),
        lines(
            ("validity", "valid" if record.valid else "INVALID"),
            ("caller", starved or (words.ON_TIME if run.turns else "")),
            ("instrument", words.calibration_words(record)),
            where=FILES,
        ),
        replace(
            lines(
                ("accepted", accepted if run.turns else ""),
                ("labels", "" if error_ms is None else words.label_words(error_ms)),
                ("onsets", words.onset_words(summary)),
                ("clock", words.offset_words(record)),
                where=FILES,
            ),
            folded="Errors of caller, labels, onsets and clocks",
        ),
    ]
    return [
        *(calls.measured_items(summary) if record.scored else played),
        lines(
            *(
                (f"piece {n}", words.piece_words(piece))
                for n, piece in enumerate(record.pieces, start=1)
            )
        ),
        lines(("stored in", str(run.path)), where=TERMINAL),
        *facts(
            "Machine, versions and times",
            [
                ("turns played", f"{summary.turns}{planned}"),
                ("started", words.instant(record.started_utc)),
                (
                    "finished",
                    words.instant(record.finished_utc) if record.finished_utc else "not finished",
                ),
                ("commit", record.commit or "not in a git checkout"),
                ("versions", words.versions(record)),
                ("machine", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB"),
                ("system", f"{machine.system}, Python {machine.python}"),
                ("fingerprint", machine.fingerprint),
            ],
        ),
        *facts("Agent", words.flat(record.agent)),
        *facts("Settings", words.flat(record.settings)),
        *facts("Voices that spoke turns without a recording", record.voices.items()),
    ]


def facts(title: str, named: Iterable[tuple[str, str]]) -> list[Item]:
    """Fold names and values below a title of a page."""
    return [Lines([Line(name, value) for name, value in named], folded=title, where=PAGE)]


def _anchor(number: int) -> str:
    return f"turn-{number}"


def _cards(run: Run) -> Cards:
    domain, listed = charts.domain_of(run.turns), calls.listed(run)
    cards = [
        Card(
            anchor=_anchor(number),
            title=words.turn_name(turn),
            outcome=turn.outcome,
            wait_ms=wait_ms(turn),
            about="",
            takes=[take(run, turn, run.path, domain, drawn=number <= MOST_TURNS)],
            open=turn.outcome != "answered",
        )
        for number, turn in enumerate(run.turns, start=1)
        if number in listed
    ]
    return Cards(cards, [o for o in OUTCOMES if any(t.outcome == o for t in run.turns)])


def wait_ms(turn: Turn) -> float:
    """Return the gap as a sort key: infinite without a reply."""
    return math.inf if turn.gap_ms is None else turn.gap_ms


def take(
    run: Run, turn: Turn, base: Path, domain: charts.Domain, name: str = "", *, drawn: bool = False
) -> Take:
    """Build a turn for a page in the folder `base`; `name` distinguishes takes of two runs.

    `drawn`: with a drawing of the line that it crossed.
    """
    audio = page.audio_link(run, turn, base)
    missing = turn.audio is not None and bool(turn.audio.file) and audio is None
    whose = f" with {name}" if name else ""
    return Take(
        name=name,
        outcome=turn.outcome,
        style=looks.OUTCOME_STYLES[turn.outcome],
        symbol=looks.SYMBOLS[turn.outcome],
        gap=next(iter(turn_words.gap_words(turn)), ""),
        chart=charts.waterfall(turn, domain),
        line=drawing(run, turn) if drawn else None,
        short=charts.together(turn.stages),
        lines=[line for line in turn_lines(turn) if "page" in line.where],
        audio=audio,
        audio_label=f"Recording of {words.turn_name(turn)}{whose}: left the person, right the "
        "agent as heard",
        missing=f"The recording {turn.audio.file} is not in the run's folder."
        if missing and turn.audio
        else "",
    )


def turn_lines(turn: Turn) -> list[Line]:
    """List the words and events of a turn, and why it had its outcome."""
    found: list[Line] = []
    if tokens := turn_words.tokens_words(turn):
        # The stage of the first token says as much, where nothing else is known.
        more = turn.counts.keys() & {RATE, THOUGHT, COLD, *SERVER.values()}
        found.append(Line("llm", tokens, "dim", where=EVERYWHERE if more else FILES))
    found += [Line("tool", call, "dim") for call in turn_words.calls_words(turn)]
    if why := turn_words.why_words(turn):
        found.append(Line("why", why))
    if crossed := crossing_words(turn):
        found.append(Line("line", crossed, "dim"))
    if error := calls.error_words(turn):
        found.append(Line("error", error, "dim"))
    found += [Line("note", note) for note in turn_words.notes_of(turn)]
    if not calls.is_scored(turn):
        heard = printable(turn.transcript) or "(nothing reported)"
        found += [Line("said", turn.say, where=PAGE), Line("heard", heard, "dim", short=True)]
    elif turn.say:
        found.append(Line("said", printable(turn.say), short=True))
    if reply := printable(turn.reply):
        found.append(Line("replied", reply, "dim", short=True))
    if answer := turn_words.answer_words(turn):
        found.append(Line("answer", answer, VERDICT_STYLES[turn.answer.verdict]))
    return found + [Line(name, said) for name, said in turn_words.other_verdicts_words(turn)]


# A run as one JSON document.


_UNPRINTED = {"schema_version", "marks", "agent_turns", "events"}


def run_json(run: Run) -> dict[str, Any]:
    """Build the document, of plain JSON types.

    Scripts rely on its keys: keys may be added, none removed. Durations are ms; those named `_ns`
    are the exact ones, and a turn's stages sum to its `gap_ns`.
    """
    record = run.record
    return {
        "run": str(run.path),
        "valid": record.valid,
        "why_invalid": list(record.why_invalid),
        "failure": record.failure,
        "problems": list(run.problems),
        "summary": run.summary.as_json(),
        "turn_taking": turn_taking(run.turns).as_json(),
        # Without their marks and raw events, which stay in `turns.jsonl`.
        "turns": [turn.model_dump(mode="json", exclude=_UNPRINTED) for turn in run.turns],
        "planned_turns": record.planned_turns,
        "budget_ms": record.budget_ms,
        "starved_ms": record.starved_ms,
        **record.model_dump(
            mode="json",
            include={
                "schema_version",
                "metrics_version",
                "turngap_version",
                "commit",
                "label",
                "started_utc",
                "finished_utc",
                "machine",
                "agent",
                "settings",
                "stand_ins",
                "held_out",
                "found",
                "clock_offset",
                "calibration",
                "pieces",
                *(("scored",) if record.scored else ()),
            },
        ),
    }


# A calibration: the instrument's own error.


_BINS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_FIGURES = ("p50", "p95", "p99", "max")


def calibration_block(document: dict[str, Any], width: int) -> Text:
    """Render the document of `calibrate --json` for a terminal."""
    return terminal.block(calibration_report(document), width)


def calibration_report(document: dict[str, Any]) -> Report:
    """Build the report: quantiles overall and by condition, and a histogram of the errors."""
    rows = [_row("all", document["error_ms"])]
    for condition, groups in document["by"].items():
        if len(groups) > 1:
            name = condition.replace("_", " ")
            rows += [_row(f"{name} {group}", q) for group, q in groups.items()]
    errors = [abs(sample["error_ms"]) for sample in document["samples"]]
    edges = (0.0, *_BINS_MS, float("inf"))
    counts = [sum(low <= e < high for e in errors) for low, high in itertools.pairwise(edges)]
    names = [f"under {high:g}" for high in _BINS_MS] + [f"{_BINS_MS[-1]:g} or more"]
    top = max(counts, default=0) or 1
    histogram = [
        (name, str(count), Cell("", gauge=Gauge(count / top)))
        for name, count in zip(names, counts, strict=True)
        if count or name == names[0]
    ]
    signed, missed = document["signed_p50_ms"], document["missed"]
    bias = "" if signed is None else f"the median reading is {signed:+.2f} ms from the truth"
    lost = f"{missed} turns had no onset at all" if missed else ""
    items = [
        Table(("|error| in ms", "n", *_FIGURES), rows),
        Table((Column("|error| in ms"), Column("turns"), Column("", left=True)), histogram),
        lines(("bias", bias), ("missed", lost)),
    ]
    if document.get("line"):
        items += _of_packets(document)
    subject = (
        f"calibration · {len(errors)} known gaps in {document['dialect']} at {_rates(document)} Hz"
    )
    return Report("calibrate", subject, "", [Section("Error of the instrument", items)])


def _of_packets(document: dict[str, Any]) -> list[Table]:
    """Build the errors behind the playout buffer, and the turns that lost a first packet."""
    items: list[Table] = []
    lost, errors = document["lost"], document["playout_error_ms"]
    if errors["n"]:  # an adaptive buffer has no length to take off
        row = _row(f"behind {document['buffer_ms']} ms of buffer, less these", errors)
        items.append(Table(("|error| in ms", "n", *_FIGURES), [row]))
    rows = [(s["lost"], f"{s['error_ms']:+.2f}", f"{s['spread_ms'] or 0:.2f}") for s in lost]
    rows += [("some of the first packets", "no gap", "")] * document["lost_without_gap"]
    if rows:
        items.append(Table(("lost", "off by ms", "may be off by, says turngap"), rows))
    return items


def calibrations_block(document: dict[str, Any], width: int) -> Text:
    """Render the document of `calibrate --dialect all --json` for a terminal."""
    dialects = document["dialects"]
    rows = [[d["dialect"], _rates(d), *_of(d)] for d in dialects if "error" not in d]
    head = ("dialect", "Hz", "n", *_FIGURES, "bias")
    items = [
        Table(head, rows, caption="|error| in ms of known gaps; rates of the person and the agent"),
        lines(*(("failed", f"{d['dialect']}: {d['error']}") for d in dialects if "error" in d)),
    ]
    section = Section("Error of the instrument", items)
    return terminal.block(Report("calibrate", "calibration by dialect", "", [section]), width)


def _rates(document: dict[str, Any]) -> str:
    rates = [rate for rate in (document["rate"], document["agent_rate"]) if rate]
    return " / ".join(f"{rate:,}" for rate in dict.fromkeys(rates))


def _of(document: dict[str, Any]) -> list[str]:
    signed = document["signed_p50_ms"]
    return [*_row("", document["error_ms"])[1:], "" if signed is None else f"{signed:+.2f}"]


def _row(name: str, quantiles: dict[str, Any]) -> list[str]:
    shown = ("n too small" if (v := quantiles[f]) is None else f"{v:.2f}" for f in _FIGURES)
    return [name, str(quantiles["n"]), *shown]

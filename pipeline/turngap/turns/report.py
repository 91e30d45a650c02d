"""Report of a curve: its tables, sentences and drawing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turngap.core.budget import OUTCOMES
from turngap.core.cut_ins import PausesOfLength, false_endpoints, heard_cut_in
from turngap.core.results import Turn
from turngap.core.stats import Percentile, Proportion
from turngap.core.untrusted import printable
from turngap.report import charts, page, turn_words
from turngap.report import words as report_words
from turngap.report.charts import (
    DASHES,
    Bar,
    Chart,
    Dot,
    Key,
    Label,
    Mark,
    Rule,
    clear_of,
    polyline,
    round_step,
)
from turngap.report.ci import markdown
from turngap.report.run import take, wait_ms
from turngap.report.sections import (
    FILES,
    PAGE,
    TERMINAL,
    Card,
    Cards,
    Column,
    Drawing,
    Item,
    Line,
    Lines,
    Report,
    Section,
    Table,
    lines,
)
from turngap.store.comparisons import TURNS_FILE, CurveRecord, PointRecord, Reading, TurnsRecord
from turngap.store.documents import read_document
from turngap.store.runs import Run, read_run_beside

MEASURED = "the agent, as measured"
WAITING = "the agent, had it waited longer"
SILENCE = "silence alone"

# Figures that others published, of another data set and with another beginning and end.
PUBLISHED_NOTE = (
    "For orientation, what eot-bench published: English, 400 turns with real pauses. That is "
    "another data set, and its latency ends with the decision that the turn is over, so that no "
    "model, voice or line is in it: a gap is longer"
)
PUBLISHED = (
    ("LiveKit v1", 0.099, 543),
    ("turn-1", 0.106, 553),
    ("Deepgram Flux", 0.129, 1151),
    ("turn-1-mini", 0.226, 849),
    ("Smart Turn v3.2", 0.352, 1051),
    ("silence alone", 0.556, 1600),
)

VIRTUAL = (
    "virtual: no time passed while anything computed, but for smart turn. Cut-ins are those of a "
    "machine that keeps up; gaps lack a few ms of computing and are lower bounds"
)

ASSUMPTIONS = (
    (
        "waiting",
        "had the agent waited d ms more before each decision, each gap would be d longer. It would "
        "have cut in as long as it had still decided within a pause. Turns that were not cut in on "
        "stay so. Turns that were cut in on have no gap and are in no median.",
    ),
    (
        "silence",
        "silence alone is computed from the labelled pauses: with a hold of h it cuts in on each "
        "turn with a pause of h or more, and its gap is h. No engine's time is in it.",
    ),
    (
        "pauses",
        "a pause shorter than the silence for which the agent waits cannot cause a cut-in. A "
        "cut-in belongs to the last pause that had begun when the agent decided.",
    ),
)


def point_name(record: TurnsRecord, point: PointRecord) -> str:
    """Return the name that distinguishes a point."""
    name = record.agent if point.value is None else point.value
    return printable(name) + ("" if point.valid else " (invalid)")


def values_by_gap(record: TurnsRecord) -> list[str]:
    """Return the values behind the points of the measured curve, in its order."""
    known = [(p.gap_ms.value, p.value or "") for p in record.points if p.gap_ms.value is not None]
    return [printable(value) for _, value in sorted(known, key=lambda one: one[0])]


def figure(p: Percentile) -> str:
    """Format a percentile in ms with its interval, for a cell."""
    if p.value is None:
        return "–"
    return report_words.ms(p.value) + _between(p.low, p.high, report_words.ms)


def share(p: Proportion | None) -> str:
    """Format a count of turns with its share and interval, for a cell."""
    if p is None or p.value is None:
        return "–"
    return f"{p.hits} of {p.n}, {percent(p.value)}" + _between(p.low, p.high, percent)


def percent(value: float) -> str:
    """Format a share, with a tenth if it is small: curves are read at 5 %."""
    return f"{value * 100:.1f} %" if 0 < value < 0.1 else report_words.percent(value)


def _between(low: float | None, high: float | None, how: Callable[[float], str]) -> str:
    if low is None:
        return "" if high is None else f" (at most {how(high)})"
    return f" (at least {how(low)})" if high is None else f" ({how(low)} to {how(high)})"


def at_share(reading: Reading) -> str:
    """Format the gap at the share, for a cell."""
    if reading.value is None:
        return "–"
    return f"{report_words.ms(reading.value)} ms" + _between(
        reading.low, reading.high, report_words.ms
    )


def at_gap(reading: Reading) -> str:
    """Format the share at the gap, for a cell."""
    if reading.value is None:
        return "–"
    return percent(reading.value) + _between(reading.low, reading.high, percent)


def why_not_read(record: TurnsRecord) -> list[tuple[str, str]]:
    """List the reasons why a curve cannot be read at the share or at the gap."""
    found: list[tuple[str, str]] = []
    for label, (_, curve) in zip(
        ("measured", "waiting", "silence"), named_curves(record), strict=True
    ):
        if curve.why_none is not None:
            found.append((label, curve.why_none))
            continue
        for what, reading in (
            (f"at {report_words.percent(record.share)} cut-ins", curve.gap_at_share_ms),
            (f"at a gap of {record.gap_ms:.0f} ms", curve.cut_ins_at_gap),
        ):
            if reading.why_none is not None:
                found.append((label, f"not known {what}: {reading.why_none}"))
    return found


def named_curves(record: TurnsRecord) -> list[tuple[str, CurveRecord]]:
    """List the curves by name, the agent's own first."""
    return [(MEASURED, record.measured), (WAITING, record.waiting), (SILENCE, record.silence)]


def spoken(name: str, curve: CurveRecord) -> str:
    """Describe a curve for a screen reader."""
    first, last = curve.points[0], curve.points[-1]
    ends = f"{percent(first.cut_ins)} cut-ins at {report_words.ms(first.gap_ms)} ms"
    if first != last:
        ends += f" to {percent(last.cut_ins)} at {report_words.ms(last.gap_ms)} ms"
    return f"{name}: {ends}"


def length(row: PausesOfLength) -> str:
    """Format the lengths of a row of pauses."""
    if row.to_ms is None:
        return f"{row.from_ms:.0f} ms and more"
    return (
        f"{row.from_ms:.0f} to {row.to_ms:.0f} ms" if row.from_ms else f"up to {row.to_ms:.0f} ms"
    )


def unexplained(runs: Sequence[Run]) -> str:
    """Say how many cut-ins no labelled pause explains; empty if none."""
    labelled = [turn for run in runs for turn in run.turns if turn.pauses is not None]
    found = [cut_in for turn in labelled if (cut_in := heard_cut_in(turn)) is not None]
    n = sum(cut_in.pause is None for cut_in in found)
    return f"{n} of {len(found)} cut-ins came before any labelled pause had begun" if n else ""


def labelled(record: TurnsRecord) -> str:
    """Say how many of the recorded turns are labelled with their pauses."""
    if record.labelled == record.recorded:
        return f"labelled in all {record.recorded} recorded turns"
    how = "; `turngap label FILE` finds those of the others" if record.labelled else ""
    return f"labelled in {record.labelled} of {record.recorded} recorded turns{how}"


MARKDOWN_FILE = "turns.md"
PAGE_FILE = "report.html"

_HINT = "give the folder that `turngap turns` names at its end"


def read_turns(folder: Path) -> tuple[TurnsRecord, list[Run]]:
    """Read a stored curve and the run of each of its points.

    Raises:
        InputError: the curve or a run cannot be read, is damaged, or of another version.
    """
    record = read_document(folder / TURNS_FILE, TurnsRecord, hint=_HINT)
    return record, [read_run_beside(folder / TURNS_FILE, point.run) for point in record.points]


def turns_json(record: TurnsRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    return {"path": str(folder), "valid": record.valid, **record.model_dump(mode="json")}


def write_reports(record: TurnsRecord, runs: Sequence[Run], folder: Path) -> Path:
    """Write the page and `turns.md` into the curve's folder; returns the page's path.

    Raises:
        InputError: the folder cannot be written to.
    """
    report = turns_report(record, runs)
    page.write(folder / MARKDOWN_FILE, markdown(report))
    return page.write(folder / PAGE_FILE, page.render(report))


SVG_WIDTH = 110
# The most turns that are named on a terminal; the page has all of them.
NAMED = 12


def turns_report(record: TurnsRecord, runs: Sequence[Run]) -> Report:
    """Report where the curve is read, its points, the pauses, and the turns cut in on."""
    varied = "" if record.setting is None else f" over {printable(record.setting)}"
    line = record.settings.get("line")
    over = f" {report_words.over_words(line)}" if line else ""
    warnings = [f"ended early: {record.failure}"] if record.failure else []
    warnings += [
        f"{p.value or record.agent} is invalid: {'; '.join(p.why_invalid)}"
        for p in record.points
        if not p.valid
    ]
    chart = curve_chart(record)
    published = Table(
        ("", "cut-ins at 300 ms", "latency at 5 %, ms"),
        [(name, f"{100 * cut:.1f} %", f"{ms}") for name, cut, ms in PUBLISHED],
        PUBLISHED_NOTE,
        where=PAGE,
    )
    return Report(
        command="turns",
        subject=f"turns · {printable(record.agent)}{varied} on "
        f"{report_words.scenarios_words(record.scenarios)}{over}",
        when=report_words.instant(record.started_utc),
        about=(f"turngap {record.turngap_version}",),
        warnings=warnings,
        lead=[Line("time", VIRTUAL)] if record.virtual else (),
        stand_ins=report_words.stand_ins_words(record.stand_ins),
        sections=[
            Section("Gap against cut-ins", [*_read(record), *([Drawing(chart)] if chart else [])]),
            Section("Points", _points(record)),
            Section("Pauses by length", _pauses(record, runs)),
            Section("Turns that were taken to be over too early", _early(record, runs)),
            Section("What others published", [published]),
            Section("How it was counted", [lines(*ASSUMPTIONS, where=FILES)]),
        ],
    )


def _read(record: TurnsRecord) -> list[Item]:
    head = (
        "",
        f"gap at {report_words.percent(record.share)} cut-ins",
        f"cut-ins at {record.gap_ms:.0f} ms",
    )
    rows = [
        (name, at_share(curve.gap_at_share_ms), at_gap(curve.cut_ins_at_gap))
        for name, curve in named_curves(record)
    ]
    return [
        Table(head, rows, "Where the curves lie, with 95 % intervals"),
        lines(*why_not_read(record)),
    ]


def _points(record: TurnsRecord) -> list[Item]:
    head = (
        Column(record.setting or "agent"),
        Column("turns"),
        Column("gap p50"),
        Column("gap p95", spare=True),
        Column("n of gaps", spare=True),
        Column("endpoint p50", spare=True),
        Column("heard cut-ins"),
        Column("false endpoints"),
    )
    rows = [
        (
            point_name(record, point),
            f"{point.turns}{report_words.recorded_words(point.turns, point.recorded)}",
            figure(point.gap_ms),
            figure(point.gap_p95_ms),
            str(point.gap_n),
            "–" if point.endpoint_ms.value is None else report_words.ms(point.endpoint_ms.value),
            share(point.heard),
            share(point.decided),
        )
        for point in record.points
    ]
    why = [f"false endpoints: {p.why_not_decided}" for p in record.points if p.why_not_decided]
    why += [f"gap p50: {p.gap_ms.why_none}" for p in record.points if p.gap_ms.why_none]
    caption = "In ms; in brackets 95 % intervals. False endpoints: turns, heard or not"
    return [
        Table(head, rows, caption),
        lines(*(("no figure", reason) for reason in dict.fromkeys(why))),
    ]


def _pauses(record: TurnsRecord, runs: Sequence[Run]) -> list[Item]:
    if not record.labelled:
        return [lines(("pauses", labelled(record)))]
    several = len(record.points) > 1
    head = [Column("pause", left=True)]
    for point in record.points:
        name = f"{point_name(record, point)}: " if several else ""
        head += [Column(f"{name}heard"), Column(f"{name}false endpoints", spare=several)]
    rows = [
        (
            length(of_length[0]),
            *(share(found) for row in of_length for found in (row.heard, row.decided)),
        )
        for of_length in zip(*(point.pauses for point in record.points), strict=True)
    ]
    return [
        Table(
            head,
            rows,
            "Pauses in which the agent spoke, of those in which it could, by their length",
        ),
        lines(("pauses", labelled(record)), ("pauses", unexplained(runs))),
    ]


def _early(record: TurnsRecord, runs: Sequence[Run]) -> list[Item]:
    found = [
        (point_name(record, point), run, turn)
        for point, run in zip(record.points, runs, strict=True)
        for turn in run.turns
        if turn.outcome == "cut_in" or false_endpoints(turn)
    ]
    heard = [(name, turn) for name, _, turn in found if turn.outcome == "cut_in"]
    named = [Line("cut in", _where(record, name, turn)) for name, turn in heard[:NAMED]]
    if len(heard) > NAMED:
        named.append(Line("", f"{len(heard) - NAMED} more: see the page"))
    if not found:
        known = any(point.decided is not None for point in record.points)
        what = "took no turn to be over too early" if known else "was heard to cut in on no turn"
        return [lines(("none", f"the agent {what}"))]
    return [Lines(named, where=TERMINAL), _cards(record, runs, found)]


def _where(record: TurnsRecord, name: str, turn: Turn) -> str:
    of_point = f"{name}: " if len(record.points) > 1 else ""
    where = "; ".join(turn_words.early_words(turn)) or next(iter(turn_words.gap_words(turn)), "")
    return f"{of_point}{report_words.turn_name(turn)}: {where}"


def _cards(
    record: TurnsRecord, runs: Sequence[Run], found: Sequence[tuple[str, Run, Turn]]
) -> Cards:
    domain = charts.domain_of([turn for _, _, turn in found])
    base = runs[0].path.parent
    several = len(record.points) > 1
    cards = [
        Card(
            anchor=f"turn-{number}",
            title=report_words.turn_name(turn) + (f", {name}" if several else ""),
            outcome=turn.outcome,
            wait_ms=wait_ms(turn),
            about="",
            takes=[take(run, turn, base, domain)],
        )
        for number, (name, run, turn) in enumerate(found, start=1)
    ]
    return Cards(cards, [o for o in OUTCOMES if any(t.outcome == o for _, _, t in found)])


HEIGHT_PX = 260
# At least so much is drawn, and no more than curves are computed for.
LEAST_MS, MOST_MS = 1000.0, 3000.0


def curve_chart(record: TurnsRecord) -> Chart | None:
    """Draw the agent's points and curves, and silence alone; None if no curve has a point."""
    curves = [
        (curve, dash, name, style)
        for curve, dash, name, style in (
            (record.measured, DASHES[0], MEASURED, "b"),
            (record.waiting, DASHES[1], WAITING, "b"),
            (record.silence, DASHES[2], SILENCE, "silence"),
        )
        if curve.points
    ]
    if not curves:
        return None
    records = [curve for curve, *_ in curves]
    read = [curve.gap_at_share_ms.value or 0.0 for curve in records]
    played = [point.gap_ms for point in records[0].points] if len(records[0].points) < 20 else []
    right = min(MOST_MS, max(LEAST_MS, *(1.2 * ms for ms in (*read, *played, 0.0))))
    highest = max(p.high if p.high is not None else p.cut_ins for c in records for p in c.points)
    top = max(0.1, -(-highest // 0.1) * 0.1)
    at_gap = Mark(100 * record.gap_ms / right, f"{record.gap_ms:.0f} ms", strong=True)
    step = round_step(right, 6)
    ticks = (Mark(100 * n * step / right, f"{n * step:.0f}") for n in range(int(right / step) + 1))
    shares = [n * round_step(top) for n in range(round(top / round_step(top)) + 1)]

    def y(share: float) -> float:
        return HEIGHT_PX * (1 - share / top)

    placed = [
        (point, 100 * point.gap_ms / right, y(point.cut_ins)) for point in record.measured.points
    ]
    return Chart(
        spoken="; ".join(spoken(name, curve) for curve, _, name, _ in curves),
        height=HEIGHT_PX,
        name="turns",
        note="Median gap in ms to the right, share of turns that the agent was heard to cut in on "
        "upwards, with 95 % intervals. Lower and further left is better. The dashed rules are "
        f"where curves are read: {report_words.percent(record.share)} of turns and "
        f"{record.gap_ms:.0f} ms.",
        x_ticks=clear_of(ticks, at_gap, 13),
        y_ticks=[Mark(y(share), f"{share:.0%}", grid=True) for share in shares],
        bars=[
            Bar(x - 0.2, y(point.high), 0.4, y(point.low) - y(point.high))
            for point, x, _ in placed
            if point.low is not None and point.high is not None
        ],
        paths=[
            charts.Path(
                polyline((100 * gap / right, y(share)) for gap, share in _within(curve, right)),
                style,
                dash,
            )
            for curve, dash, _, style in curves
        ],
        rules=[
            Rule(at_gap.at, style="target"),
            Rule(y(record.share), style="target", upright=False),
        ],
        dots=[
            Dot(x, at, "odd", title=f"{point.cut_ins:.1%} at {point.gap_ms:.0f} ms")
            for point, x, at in placed
        ],
        labels=[
            Label(x, at - 9, value, -7 if x > 85 else 7)
            for (_, x, at), value in zip(placed, values_by_gap(record), strict=False)
            if value
        ],
        legend=[Key(name, style, dash) for _, dash, name, style in curves],
    )


def _within(curve: CurveRecord, right: float) -> list[tuple[float, float]]:
    """Gaps and shares of a curve's points, cut at the drawing's right edge."""
    gaps = [point.gap_ms for point in curve.points]
    shares = [point.cut_ins for point in curve.points]
    inside = [(gap, share) for gap, share in zip(gaps, shares, strict=True) if gap < right]
    beyond = [(right, float(np.interp(right, gaps, shares)))] if gaps[-1] >= right else []
    return [*inside, *beyond]

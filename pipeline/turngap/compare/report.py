"""Report of a comparison: its tables, sentences and drawings."""

import math
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turngap.compare import words
from turngap.compare.figures import chain_figures
from turngap.compare.side_by_side import LONGEST, expected_ms, expected_usd
from turngap.core.budget import STARVED_MS
from turngap.report import charts, page
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
    spread,
)
from turngap.report.ci import markdown
from turngap.report.sections import (
    FILES,
    Drawing,
    Item,
    Line,
    Lines,
    Report,
    Section,
    Table,
    lines,
)
from turngap.report.words import ms
from turngap.store.comparisons import COMPARISON_FILE, INCONCLUSIVE, BackendRecord, ComparisonRecord
from turngap.store.documents import read_document
from turngap.store.runs import Run, read_run_beside

MARKDOWN_FILE = "compare.md"
PAGE_FILE = "report.html"

_HINT = "give the folder that `turngap compare` names at its end"


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read a stored comparison.

    Raises:
        InputError: it cannot be read, is damaged, or of another version.
    """
    return read_document(folder / COMPARISON_FILE, ComparisonRecord, hint=_HINT)


def read_runs(record: ComparisonRecord, folder: Path) -> list[Run]:
    """Read the run of each backend.

    Raises:
        InputError: a run is missing, damaged, or of another version.
    """
    return [read_run_beside(folder / COMPARISON_FILE, b.run) for b in record.backends if b.run]


def comparison_json(record: ComparisonRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    document = record.model_dump(mode="json")
    for backend, stored in zip(document["backends"], record.backends, strict=True):
        backend["cut_ins"] = stored.cut_ins and stored.cut_ins.as_json()
        backend["hit_rate_ci95"] = [backend["hit_rate"]["low"], backend["hit_rate"]["high"]]
        backend["hit_rate"] = backend["hit_rate"]["value"]
    inconclusive = [words.inconclusive(pair) for pair in record.inconclusive]
    return {"path": str(folder), "valid": record.valid, "inconclusive": inconclusive, **document}


def write_reports(record: ComparisonRecord, folder: Path) -> Path:
    """Write the page and `compare.md` into the comparison's folder; returns the page's path.

    Raises:
        InputError: the folder cannot be written to.
    """
    report = comparison_report(record)
    page.write(folder / MARKDOWN_FILE, markdown(report))
    return page.write(folder / PAGE_FILE, page.render(report))


SVG_WIDTH = 150
# Of more backends than three, the sentences of each two would bury the figures: they are folded.
FEW = 3


def comparison_report(record: ComparisonRecord) -> Report:
    """Report the comparison: the answer first, and ways to make it more certain last."""
    record = _with_simulated_names(record)
    names = ", ".join(backend.name for backend in record.backends)
    about = [names + f" on {report_words.scenarios_words(record.scenarios)}"]
    if record.starved_ms != STARVED_MS:  # first, since a terminal cuts a long headline short
        about.insert(0, f"a caller up to {record.starved_ms:g} ms late accepted")
    if line := record.settings.get("line"):
        about.append(report_words.over_words(line))
    if record.inconclusive:
        about.insert(0, INCONCLUSIVE)
    answer = [
        Line("answer", words.answer(record), "strong"),
        Line("compared", words.basis(record)),
    ]
    warnings = [f"inconclusive: {words.inconclusive(pair)}" for pair in record.inconclusive]
    if record.failure:
        warnings.insert(0, f"ended early: {record.failure}")
    return Report(
        command="compare",
        subject=" · ".join(["compare", *about]),
        when=report_words.instant(record.started_utc),
        about=(f"turngap {record.turngap_version}",),
        warnings=warnings,
        stand_ins=report_words.stand_ins_words(record.stand_ins),
        sections=[
            Section("Backends", _backends(record)),
            Section("Speed, quality, cost", _speed(record)),
            Section("A task of several turns", _chain(record)),
            Section("The answer", [Lines(answer)]),
        ],
    )


def _with_simulated_names(record: ComparisonRecord) -> ComparisonRecord:
    """Mark each simulated backend as simulated wherever a figure or a drawing has its name."""
    names = {b.name: f"{b.name} (simulated)" if b.simulated else b.name for b in record.backends}
    return record.model_copy(
        update={
            "backends": tuple(
                b.model_copy(update={"name": names[b.name]}) for b in record.backends
            ),
            "pairs": tuple(
                p.model_copy(update={"one": names[p.one], "other": names[p.other]})
                for p in record.pairs
            ),
            "chain": tuple(c.model_copy(update={"name": names[c.name]}) for c in record.chain),
            "crossings": tuple(
                c.model_copy(update={"leader": names[c.leader], "follower": names[c.follower]})
                for c in record.crossings
            ),
        }
    )


def _backends(record: ComparisonRecord) -> list[Item]:
    models = {h.model: h for backend in record.backends for h in backend.held_out}
    held_out = map(report_words.held_out_words, models.values())
    return [
        Table(words.head(record), words.rows(record), "In brackets: 95 % intervals"),
        lines(*(("note", note) for note in words.missing(record))),
        lines(*(("held out", f"{share}, {remark}") for share, remark in held_out)),
        lines(*(("judge", note) for note in words.judge_notes(record))),
        _sentences(
            "pairs",
            [words.pair(pair) for pair in record.pairs],
            "Each pair of backends, over the same turns",
        ),
    ]


def _sentences(label: str, said: list[str], title: str) -> Lines:
    many = len(said) > FEW
    return Lines([Line(label, text) for text in said], folded=f"{title} ({len(said)})" * many)


def _speed(record: ComparisonRecord) -> list[Item]:
    chart = speed_chart(record)
    if chart is None:
        why = "No backend has both a gap p50 and judged answers, so none has a place in a drawing."
        return [lines(("no drawing", why), where=FILES)]
    return [Drawing(chart)]


def _chain(record: ComparisonRecord) -> list[Item]:
    if not record.chain:
        return []
    head = ("turns in a row", *(chain.name for chain in record.chain))
    crossings = [words.crossing(found) for found in words.stated(record)]
    return [
        Table(head, words.chain_rows(record), words.CHAIN_NOTE),
        _sentences("overtaken", crossings, "Who overtakes whom, at how long a task"),
        *(Drawing(chart) for chart in task_charts(record)),
    ]


HEIGHT_PX = 240
SMALLEST_PX, LARGEST_PX = 5.0, 16.0
# A task that takes this many times the shortest one's is beyond the drawing.
MOST_DECADES = 5
LETTERS = string.ascii_uppercase


def speed_chart(record: ComparisonRecord) -> Chart | None:
    """Draw each backend's gap across, its right answers up, and its price as its dot's size.

    Return None if no backend has both a gap and judged answers.
    """
    shown = [
        (LETTERS[i % len(LETTERS)], b)
        for i, b in enumerate(record.backends)
        if b.gap_ms["p50"].value is not None and b.correct.n
    ]
    if not shown:
        return None
    gaps = [b.gap_ms["p50"].value or 0.0 for _, b in shown]
    right = max([record.budget_ms, *gaps]) * 1.05
    most = max(b.price.usd_per_turn or 0.0 for _, b in shown)
    step = 200 if right < 1500 else 500
    budget = Mark(100 * record.budget_ms / right, f"{record.budget_ms:.0f} ms", strong=True)
    dots = [_dot(b, right, most) for _, b in shown]
    places = spread([dot.y for dot in dots], HEIGHT_PX)
    said = [
        f"{letter} {b.name}: gap {words.figure(b.gap_ms['p50'])}, cut-ins "
        f"{words.cut_ins(b.cut_ins)}, {words.share(b.correct)} right"
        + ("" if (usd := b.price.usd_per_turn) is None else f", ${words.thousand(usd)} per 1000")
        for letter, b in shown
    ]
    return Chart(
        title="Speed, quality, cost",
        spoken="; ".join(said),
        height=HEIGHT_PX,
        note="Gap p50 in ms to the right, right answers up with their 95 % interval. The larger a "
        "dot, the dearer a turn; hollow: no price is known. The upright line is the budget.",
        x_ticks=clear_of(
            (Mark(100 * at / right, f"{at}") for at in range(0, int(right) + 1, step)), budget, 13
        ),
        y_ticks=[Mark(_up(x), f"{x:.0%}", grid=True) for x in (0, 0.25, 0.5, 0.75, 1)],
        bars=[
            Bar(
                max(0.0, dot.x - 0.2),
                _up(b.correct.high),
                0.4,
                _up(b.correct.low) - _up(b.correct.high),
            )
            for dot, (_, b) in zip(dots, shown, strict=True)
            if b.correct.low is not None and b.correct.high is not None
        ],
        dots=dots,
        labels=[
            Label(dot.x, at, letter, -(dot.r + 4) if dot.x > 90 else dot.r + 4)
            for dot, at, (letter, _) in zip(dots, places, shown, strict=True)
        ],
        rules=[Rule(budget.at, style="target")],
        legend=[Key(text) for text in said],
    )


def _dot(backend: BackendRecord, right: float, most_usd: float) -> Dot:
    usd = backend.price.usd_per_turn
    share = math.sqrt((usd or 0.0) / most_usd) if most_usd else 0.0
    return Dot(
        x=max(0.0, 100 * (backend.gap_ms["p50"].value or 0.0) / right),
        y=_up(backend.correct.value or 0.0),
        hollow=usd is None,
        r=SMALLEST_PX + share * (LARGEST_PX - SMALLEST_PX),
        title=f"{backend.name}: {ms(backend.gap_ms['p50'].value or 0.0)} ms",
    )


def _up(share: float) -> float:
    return HEIGHT_PX * (1 - share)


def task_charts(record: ComparisonRecord) -> list[Chart]:
    """Draw a task of several turns in time and in price, as far as the figures support it."""
    time = _task(record, "time", lambda b, n: _cost(b, n, in_time=True), words.seconds)
    price = _task(record, "price", lambda b, n: _cost(b, n, in_time=False), words.dollars)
    return [chart for chart in (time, price) if chart is not None]


def _cost(backend: BackendRecord, n: int, *, in_time: bool) -> float | None:
    figures = chain_figures(backend)
    if figures is None or not words.bears_out(backend.correct, n):
        return None
    return (expected_ms if in_time else expected_usd)(figures, n)


def _task(
    record: ComparisonRecord,
    what: str,
    cost: Callable[[BackendRecord, int], float | None],
    label: Callable[[float], str],
) -> Chart | None:
    curves: dict[int, list[tuple[int, float]]] = {}
    for i, backend in enumerate(record.backends):
        known = [(n, cost(backend, n)) for n in range(1, LONGEST + 1)]
        points = [(n, value) for n, value in known if value and 0 < value < math.inf]
        if len(points) > 1:
            curves[i] = points
    values = [value for points in curves.values() for _, value in points]
    if not values:
        return None
    bottom = math.floor(math.log10(min(values)))
    top = max(min(math.ceil(math.log10(max(values))), bottom + MOST_DECADES), bottom + 1)

    def y(value: float) -> float:
        return HEIGHT_PX * (1 - (math.log10(value) - bottom) / (top - bottom))

    # Who is ahead from the first turn on crosses nothing: the lines begin so.
    found = [c for c in words.stated(record) if c.what == what]
    sentences = "; ".join(words.crossing(c) for c in found)
    return Chart(
        title=f"A task of several turns: {what} until it went well",
        spoken=sentences or "no backend is known to overtake another",
        height=HEIGHT_PX,
        note=f"Turns of the task to the right, mean {what} up (logarithmic), begun anew each time. "
        "A line ends where the figures support no longer task. Upright lines: where one overtakes "
        "another, with the 95 % interval.",
        x_ticks=[Mark(_across(n), f"{n}") for n in (1, 5, 10, 15, LONGEST)],
        y_ticks=[Mark(y(10.0**e), label(10.0**e), grid=True) for e in range(bottom, top + 1)],
        paths=[charts.Path(_path(points, y), dash=_dash(i)) for i, points in curves.items()],
        rules=[
            Rule(
                _across(c.turns),
                f"{c.follower} past {c.leader} at {c.turns} ({c.earliest} to {c.latest})",
                "target",
            )
            for c in found
            if c.turns is not None and c.turns > 1
        ],
        legend=[
            Key(f"{LETTERS[i % len(LETTERS)]} {record.backends[i].name}", dash=_dash(i))
            for i in curves
        ],
    )


def _dash(number: int) -> str:
    return DASHES[number % len(DASHES)]


def _across(turns: int) -> float:
    return 100 * (turns - 1) / (LONGEST - 1)


def _path(values: Sequence[tuple[int, float]], y: Callable[[float], float]) -> str:
    """Draw the values up to the edge of the drawing."""
    points = [(_across(n), y(value)) for n, value in values]
    inside = [(x, at) for x, at in points if at >= 0]
    # One point beyond the edge, cut there, so that a line is seen to leave.
    beyond = points[len(inside) : len(inside) + 1]
    if inside and beyond:
        (x0, y0), (x1, y1) = inside[-1], beyond[0]
        inside.append((x0 + (x1 - x0) * y0 / (y0 - y1), 0.0))
    return polyline(inside)

"""Report of a comparison."""

from pathlib import Path
from typing import Any

from rich.text import Text

from turngap.compare import charts, words
from turngap.core.budget import STARVED_MS
from turngap.report import page, terminal
from turngap.report import words as report_words
from turngap.report.markdown import markdown
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
from turngap.store.comparisons import COMPARISON_FILE, INCONCLUSIVE, ComparisonRecord
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
        InputError: one is missing, damaged, or of another version.
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


def comparison_block(record: ComparisonRecord, width: int) -> Text:
    """Render the comparison for a terminal."""
    return terminal.block(comparison_report(record), width)


def comparison_svg(record: ComparisonRecord, name: str) -> str:
    """Draw the terminal after `turngap report NAME` as an SVG image."""
    return terminal.svg(name, [comparison_block(record, SVG_WIDTH)], SVG_WIDTH)


def comparison_report(record: ComparisonRecord) -> Report:
    """Report the comparison: the answer first, and last what would make it more certain."""
    record = _with_simulated_names(record)
    names = ", ".join(backend.name for backend in record.backends)
    about = [names + f" on {report_words.scenarios_words(record.scenarios)}"]
    if record.starved_ms != STARVED_MS:  # first, since a terminal cuts a long headline short
        about.insert(0, f"a caller up to {record.starved_ms:g} ms late accepted")
    if record.inconclusive:
        about.insert(0, INCONCLUSIVE)
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
            Section("The answer", _answer(record)),
        ],
    )


def _with_simulated_names(record: ComparisonRecord) -> ComparisonRecord:
    """Call each simulated backend simulated, wherever a figure or a drawing has its name."""
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


def _held_out(record: ComparisonRecord) -> Lines:
    """List the held-out figures of the backends' models, each model once."""
    known = {h.model: h for backend in record.backends for h in backend.held_out}
    said = (
        f"{share}, {remark}" for share, remark in map(report_words.held_out_words, known.values())
    )
    return lines(*(("held out", text) for text in said))


def _backends(record: ComparisonRecord) -> list[Item]:
    return [
        Table(words.head(record), words.rows(record), "In brackets: 95 % intervals"),
        lines(*(("note", note) for note in words.missing(record))),
        _held_out(record),
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
    chart = charts.speed(record)
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
        *(Drawing(chart) for chart in charts.tasks(record)),
    ]


def _answer(record: ComparisonRecord) -> list[Item]:
    return [
        Lines(
            [
                Line("answer", words.answer(record), "strong"),
                Line("compared", words.basis(record)),
            ]
        )
    ]

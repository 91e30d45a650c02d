"""The history on a terminal and as a page: the trends with their drawings, and the list."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from turngap.core.changes import ALPHA
from turngap.history import trend_words
from turngap.history.entry import Entry
from turngap.history.listing import list_table, ms, namer
from turngap.history.trend import Trend
from turngap.report import page, terminal, words
from turngap.report.sections import (
    FILES,
    PAGE,
    Cell,
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

_READ = (
    "Each turn is held against the same turn of the other runs; a run's level is what it adds to "
    "all of its turns. E-divisive finds where the level changed, and a shuffled series says how "
    f"sure that is: of each series without a change, about {100 * ALPHA:g} % are said to have one. "
    "A level is of replies: the shares of turns in time and cut into stand beside it. A spell of a "
    "busy machine is a change of level, too, and no figure tells it from a slower agent: `turngap "
    "check --against` plays both commits side by side, and does."
)


def trends_block(found: Sequence[Trend], width: int) -> Text:
    """The trends on a terminal."""
    sections = [Section("", _trend_items(trend, terse=True)) for trend in found]
    items = [item for section in sections for item in section.seen("terminal")]
    shown = [line for item in items for line in terminal.item_lines(item, width)]
    return terminal.joined(shown)


def write_page(file: Path, entries: Sequence[Entry], found: Sequence[Trend]) -> Path:
    """Write the history as one page.

    Raises:
        InputError: the file cannot be written.
    """
    return page.write(file, page.render(history_report(entries, found)))


def history_report(entries: Sequence[Entry], found: Sequence[Trend]) -> Report:
    """The trends, then the list, the newest entry first."""
    newest = list(reversed(entries))
    moved = sum(len(trend.moves) for trend in found)
    series = f"{len(found)} series" if len(found) != 1 else "1 series"
    return Report(
        command="history",
        subject=f"{len(entries)} stored, {series} of replays",
        when=words.instant(newest[0].started_utc) if newest and newest[0].started_utc else "never",
        lead=[Line("changes", _moved_words(moved, found), "strong")] if found else (),
        sections=[
            *(
                Section(f"Trend: {trend_words.subject_words(trend)}", _trend_items(trend))
                for trend in found
            ),
            Section(
                "How changes are found",
                [lines(("read", _READ + _several_words(len(found))), where=FILES)] if found else [],
            ),
            Section("Everything stored", [list_table(newest), _reasons(newest)]),
        ],
    )


def _several_words(series: int) -> str:
    """How often several series without a change are not all said to have none."""
    if series < 2:
        return ""
    falsely = 100 * (1 - (1 - ALPHA) ** series)
    return (
        f" With {series} series, about {falsely:.0f} % or more of such pages have a false change."
    )


def _moved_words(moved: int, found: Sequence[Trend]) -> str:
    if all(trend.why_none is not None for trend in found):
        return "not known: no series has runs enough"
    return "none found" if not moved else "1 found" if moved == 1 else f"{moved} found"


def _trend_items(trend: Trend, *, terse: bool = False) -> list[Item]:
    said = [Line("moved", trend_words.move_sentence(m), "strong") for m in trend.moves]
    n = len(trend.points)
    if trend.why_none is not None:
        said = [Line("moved", f"not known: {trend.why_none}", "unsure")]
    elif not said:
        said = [Line("moved", f"no change of level in {n} runs")]
    if trend.why_none is None:
        said.append(Line("outcomes", trend_words.series_words(trend)))
    if terse:
        said.insert(0, Line("series", f"{trend_words.subject_words(trend)}, {n} runs", "strong"))
    if trend.left_out:
        of = n + len(trend.left_out)
        said.append(Line("left out", f"{len(trend.left_out)} of {of} runs: {_why(trend)}"))
    chart = trend_words.trend_chart(trend)
    return [Lines(said), *([Drawing(chart)] if chart else []), _moves(trend), _runs(trend)]


# So many reasons are named why runs were left out.
MOST_WHY = 3


def _why(trend: Trend) -> str:
    reasons = list(dict.fromkeys(why for _, why in trend.left_out))
    return "; ".join(reasons[:MOST_WHY]) + ("; …" if len(reasons) > MOST_WHY else "")


def _moves(trend: Trend) -> Table:
    head = (
        Column("from run"),
        Column("commit", left=True),
        Column("change"),
        Column("95 % interval"),
        Column("before"),
        Column("after"),
        Column("lies at", left=True),
        Column("commits in question", left=True, spare=True),
        Column("significance", left=True, spare=True),
    )
    rows = [
        (
            str(move.number),
            words.commit(move.entry.commit),
            Cell(trend_words.signed_ms(move.change.difference), "strong"),
            trend_words.interval_words(move),
            words.ms(move.change.before),
            words.ms(move.change.after),
            trend_words.where_words(move),
            trend_words.commits_words(move),
            trend_words.sure_words(move.change.p_value),
        )
        for move in trend.moves
    ]
    return Table(head, rows, "In ms. Where it lies has 95 % confidence.", where=FILES)


def _runs(trend: Trend) -> Table:
    head = (
        Column("run"),
        Column("began", left=True),
        Column("commit", left=True),
        Column("label", left=True),
        Column("level"),
        Column("p50"),
        Column("turns"),
        Column("in time"),
        Column("cut in"),
        Column("folder", left=True),
    )
    name = namer([point.entry for point in trend.points])
    rows = [
        (
            str(number),
            words.instant(point.entry.started_utc),
            words.commit(point.entry.commit),
            point.entry.label,
            words.ms(point.ms),
            ms(point.entry.gap_ms["p50"]),
            str(point.turns),
            "–" if point.entry.hit_rate is None else words.percent(point.entry.hit_rate),
            "–" if point.entry.cut_ins is None else str(point.entry.cut_ins),
            name(point.entry),
        )
        for number, point in enumerate(trend.points, start=1)
    ]
    rows.reverse()
    return Table(head, rows, "The series' runs, the newest first; level and p50 in ms.", where=PAGE)


def _reasons(entries: Sequence[Entry]) -> Lines:
    name = namer(entries)
    told = [Line(name(e), "; ".join(e.why)) for e in entries if not e.valid and e.why]
    return Lines(told, folded=f"Why {len(told)} cannot be used", where=PAGE)

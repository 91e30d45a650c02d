"""The history on a terminal and as a page: the trends with their drawings, and the list."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from rich.text import Text

from turngap.core.changes import ALPHA, IN_PAIRS
from turngap.history import trend_words
from turngap.history.entry import Entry
from turngap.history.listing import list_table, ms, namer
from turngap.history.reading import began
from turngap.history.trend import Move, Trend
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
from turngap.store.documents import is_file

# Of a label on a page, which has more room than a terminal.
_MOST_LABEL = 60
_READ = (
    "Each turn is held against the same turn of the other runs; a run's level is what it adds to "
    "all of its turns. E-divisive finds where the level or the hit rate changed, and a shuffled "
    f"series says how sure that is: at most about {100 * ALPHA:g} % of series without a change are "
    f"said to have one of either, from {IN_PAIRS} runs on and unless a machine is busy for longer "
    "than two of them; of fewer runs, it may be more. A level is of replies; the hit rate is of "
    "all turns. A spell of a busy machine is a change of level, too, and no figure tells it from a "
    "slower agent: `turngap check --against` plays both commits side by side, and does."
)


def trends_block(found: Sequence[Trend], width: int) -> Text:
    """The trends on a terminal."""
    shown: list[Text] = []
    for trend in found:
        shown += [Text()] if shown else []
        for item in Section("", _trend_items(trend, terse=True)).seen("terminal"):
            shown += terminal.item_lines(item, width)
    return terminal.joined(shown)


def write_page(file: Path, shown: Report) -> Path:
    """Write one of the reports below as a page.

    Raises:
        InputError: the file cannot be written.
    """
    return page.write(file, page.render(shown))


def list_report(
    entries: Sequence[Entry], found: Sequence[Trend], beside: Path | None = None
) -> Report:
    """The list, the newest entry first; then the drawing of each series, whose runs it has.

    Each entry is linked to its own page, where it has one, from a page in the folder `beside`.
    """
    newest = list(reversed(entries))
    table = list_table(newest, _MOST_LABEL)
    listed = Section("Everything stored", [_linked(table, newest, beside), _reasons(newest)])
    sections = [Section(_title(trend), _trend_items(trend)) for trend in found]
    return Report(
        command="history",
        subject=f"{len(entries)} stored, {_series_words(found)}",
        when=_when(newest),
        lead=_lead(found),
        sections=[listed, *sections, _how(found)],
    )


def _linked(table: Table, entries: Sequence[Entry], beside: Path | None) -> Table:
    """A table of entries whose rows lead to their pages, from a page in the folder `beside`."""
    if beside is None:
        return table
    rows = [
        [Cell(str(first), link=_link(entry, beside)), *rest]
        for entry, (first, *rest) in zip(entries, table.rows, strict=True)
    ]
    return replace(table, rows=rows)


def _link(entry: Entry, beside: Path) -> str:
    """The relative address of an entry's own page; empty where it has none."""
    pages = (Path(entry.path) / name for name in ("report.html", "check.html", "simulation.html"))
    page_file = next(filter(is_file, pages), None)
    return "" if page_file is None else quote(os.fsencode(os.path.relpath(page_file, beside)))


def trends_report(found: Sequence[Trend], beside: Path | None = None) -> Report:
    """Each series with its drawing and its runs; `beside` as in `list_report`."""
    used = [point.entry for trend in found for point in trend.points]
    newest = sorted(used, key=began, reverse=True)
    sections = [Section(_title(t), [*_trend_items(t), _runs(t, beside)]) for t in found]
    return Report(
        command="history trend",
        subject=_series_words(found),
        when=_when(newest),
        lead=_lead(found),
        sections=[*sections, _how(found)],
    )


def _series_words(found: Sequence[Trend]) -> str:
    return f"{len(found)} series of replays"


def _title(trend: Trend) -> str:
    return f"Trend: {trend_words.subject_words(trend)}"


def _when(newest: Sequence[Entry]) -> str:
    if not newest or not newest[0].started_utc:
        return "without a run"
    return f"the newest is of {words.instant(newest[0].started_utc)}"


def _lead(found: Sequence[Trend]) -> Sequence[Line]:
    return [Line("changes", _moved_words(found), "strong")] if found else ()


def _how(found: Sequence[Trend]) -> Section:
    """How to read all that; nothing where no change could be looked for."""
    looked = any(trend.why_none is None for trend in found)
    read = lines(("read", _READ + _several_words(len(found))), where=FILES)
    return Section("How changes are found", [read] if looked else [])


def _several_words(series: int) -> str:
    """In how many pages at most a series without a change is said to have one."""
    if series < 2:
        return ""
    falsely = 100 * (1 - (1 - ALPHA) ** series)
    return (
        f" With {series} series, up to about {falsely:.0f} % of such pages have a false change, or "
        "more in these cases."
    )


def _moved_words(found: Sequence[Trend]) -> str:
    if all(trend.why_none is not None for trend in found):
        return "not known: no series has enough runs that tell of one"
    moves = sum(len(trend.moves) + len(trend.hit_moves) for trend in found)
    return f"{moves or 'none'} found"


def _trend_items(trend: Trend, *, terse: bool = False) -> list[Item]:
    said = [Line("moved", trend_words.move_sentence(m), "strong") for m in trend.moves]
    said += [Line("hit rate", trend_words.hit_sentence(m), "strong") for m in trend.hit_moves]
    if not said:
        style = "" if trend.why_none is None else "unsure"
        said = [Line("changes", trend_words.unmoved_words(trend), style)]
    elif trend.why_no_hits is not None:
        said.append(Line("hit rate", f"not known: {trend.why_no_hits}", "unsure"))
    elif trend.why_no_level is not None:
        said.append(Line("level", f"not known: {trend.why_no_level}", "unsure"))
    if trend.why_none is None:
        said.append(Line("outcomes", trend_words.series_words(trend)))
    if terse:
        said.insert(0, Line("series", trend_words.series_name(trend), "strong"))
    if (uneven := trend_words.uneven_words(trend)) is not None:
        said.append(Line("set aside", uneven))
    if (without := trend_words.without_level_words(trend)) is not None:
        said.append(Line("no level", without))
    if trend.left_out:
        of = len(trend.points) + len(trend.left_out)
        said.append(Line("left out", f"{len(trend.left_out)} of {of} runs: {_why(trend)}"))
    chart = trend_words.trend_chart(trend)
    return [Lines(said), *([Drawing(chart)] if chart else []), _moves(trend), _hit_moves(trend)]


# So many reasons are named why runs were left out.
MOST_WHY = 3


def _why(trend: Trend) -> str:
    reasons = list(dict.fromkeys(why for _, why in trend.left_out))
    return "; ".join(reasons[:MOST_WHY]) + ("; …" if len(reasons) > MOST_WHY else "")


def _moves(trend: Trend) -> Table:
    return _table(
        trend.moves,
        (trend_words.signed_ms, words.ms),
        "Changes of the level, in ms. Where it lies has 95 % confidence.",
    )


def _hit_moves(trend: Trend) -> Table:
    return _table(
        trend.hit_moves,
        (trend_words.signed_points, trend_words.rate_words),
        "Changes of the hit rate; its difference in per cent of the turns. Where it lies has 95 % "
        "confidence.",
    )


def _table(
    moves: Sequence[Move],
    shown: tuple[Callable[[float], str], Callable[[float], str]],
    caption: str,
) -> Table:
    """Changes of one figure, of which `shown` writes a difference and a value."""
    signed, plain = shown
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
            Cell(signed(move.change.difference), "strong"),
            trend_words.interval_words(move, signed),
            plain(move.change.before),
            plain(move.change.after),
            trend_words.where_words(move),
            trend_words.commits_words(move),
            trend_words.sure_words(move.change.p_value),
        )
        for move in moves
    ]
    return Table(head, rows, caption, where=FILES)


def _runs(trend: Trend, beside: Path | None) -> Table:
    labels = any(point.entry.label for point in trend.points)
    head = (
        Column("run"),
        Column("level"),
        Column("p50"),
        Column("turns"),
        Column("in time"),
        Column("cut in"),
        Column("commit", left=True),
        *([Column("label", left=True)] if labels else []),
        Column("began", left=True),
        Column("folder", left=True),
    )
    name = namer([point.entry for point in trend.points])
    rows = [
        (
            str(number),
            ms(point.ms),
            ms(point.entry.gap_ms["p50"]),
            str(point.turns),
            "–" if point.entry.hit_rate is None else words.percent(point.entry.hit_rate),
            "–" if point.entry.cut_ins is None else str(point.entry.cut_ins),
            words.commit(point.entry.commit),
            *([point.entry.label] if labels else []),
            words.instant(point.entry.started_utc),
            name(point.entry),
        )
        for number, point in enumerate(trend.points, start=1)
    ]
    table = Table(
        head, rows, "The series' runs, the newest first; level and p50 in ms.", where=PAGE
    )
    linked = _linked(table, [point.entry for point in trend.points], beside)
    return replace(linked, rows=linked.rows[::-1])


def _reasons(entries: Sequence[Entry]) -> Lines:
    name = namer(entries)
    told = [Line(name(e), "; ".join(e.why)) for e in entries if not e.valid and e.why]
    return Lines(told, folded=f"Why {len(told)} cannot be used", where=PAGE)

"""Content of a report, independent of the medium.

Each room builds one `Report` from its stored record. `report.terminal`, `report.page` and
`report.ci` write it. Texts may hold anything that an agent said: the writers clean and escape
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from turngap.report.charts import Chart
from turngap.report.looks import Style

Medium = Literal["terminal", "page", "markdown"]
EVERYWHERE: frozenset[Medium] = frozenset({"terminal", "page", "markdown"})
PAGE: frozenset[Medium] = frozenset({"page"})
TERMINAL: frozenset[Medium] = frozenset({"terminal"})
NOWHERE: frozenset[Medium] = frozenset()
FILES: frozenset[Medium] = frozenset({"page", "markdown"})
MARKDOWN: frozenset[Medium] = frozenset({"markdown"})


@dataclass(frozen=True, slots=True)
class Gauge:
    """A bar in a table's cell, `share` of the longest one.

    `signed` bars start in the middle: to the right above 0 and to the left below.
    """

    share: float
    style: Style = ""
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """An estimate with its interval, zero and a limit, each in per cent of the width."""

    zero: float
    limit: float
    low: float
    width: float
    at: float
    spoken: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell with more than text. A page links its row to the address `link`."""

    text: str
    style: Style = ""
    gauge: Gauge | None = None
    range: Range | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. `spare` columns are left out first on a narrow terminal."""

    name: str
    left: bool = False
    spare: bool = False
    where: frozenset[Medium] = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first column names the rows. `caption` names the figures.

    `key` explains the parts that only a page draws.
    """

    head: Sequence[str | Column]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    key: str = ""
    where: frozenset[Medium] = EVERYWHERE

    def seen(self, medium: Medium) -> tuple[list[Column], list[list[Cell]]]:
        """Return the columns that a medium shows, and the cells of each row.

        Markdown has no bars, and only a page has drawn intervals.
        """
        columns = [c if isinstance(c, Column) else Column(c) for c in self.head]
        rows = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]
        shown = [
            i
            for i, column in enumerate(columns)
            if medium in column.where
            and not (medium != "page" and any(row[i].range for row in rows))
            and not (medium == "markdown" and any(row[i].gauge for row in rows))
        ]
        return [columns[i] for i in shown], [[row[i] for i in shown] for row in rows]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence with its name. A `short` one is cut to one line on a terminal."""

    label: str
    text: str
    style: Style = ""
    where: frozenset[Medium] = EVERYWHERE
    short: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences below one another. `folded`: the title under which a page hides them."""

    lines: Sequence[Line]
    title: str = ""
    folded: str = ""
    where: frozenset[Medium] = EVERYWHERE

    def seen(self, medium: Medium) -> list[Line]:
        return [line for line in self.lines if medium in line.where]


@dataclass(frozen=True, slots=True)
class Figure:
    """A headline figure and the evidence for it."""

    name: str
    value: str
    remark: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The main figures of a report."""

    figures: Sequence[Figure]
    where: frozenset[Medium] = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Code:
    """A command to copy, below its description."""

    about: str
    text: str
    where: frozenset[Medium] = FILES


@dataclass(frozen=True, slots=True)
class Folded:
    """Lines as on a terminal, below a title that unfolds them.

    `open`: they are unfolded at first.
    """

    title: str
    about: str
    text: str
    open: bool = False
    where: frozenset[Medium] = MARKDOWN


@dataclass(frozen=True, slots=True)
class Take:
    """One agent's take of a turn. `audio` links to its recording; `missing`: there is none.

    `line`: a drawing of the line that the turn crossed.
    """

    name: str
    outcome: str
    style: Style
    symbol: str
    gap: str
    chart: Chart
    short: str
    lines: Sequence[Line]
    audio: str | None
    audio_label: str
    missing: str
    line: Chart | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A turn on a page; `wait_ms` sorts by slowness, infinite if no reply came.

    `open`: it is unfolded at first.
    """

    anchor: str
    title: str
    outcome: str
    wait_ms: float
    about: str
    takes: Sequence[Take]
    open: bool = True


@dataclass(frozen=True, slots=True)
class Cards:
    """Turns, and the outcomes that they can be filtered by."""

    cards: Sequence[Card]
    outcomes: Sequence[str]
    where: frozenset[Medium] = PAGE


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart; only a page shows it."""

    chart: Chart
    where: frozenset[Medium] = PAGE


@dataclass(frozen=True, slots=True)
class Strip:
    """A small drawing of a turn, which leads to its card."""

    title: str
    outcome: str
    style: Style
    anchor: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class Sheet:
    """Small drawings side by side; `note` explains them all."""

    strips: Sequence[Strip]
    note: str
    where: frozenset[Medium] = PAGE


Item = Table | Lines | Figures | Code | Folded | Cards | Drawing | Sheet


@dataclass(frozen=True, slots=True)
class Section:
    """Items under a title. `folded`: Markdown hides them below it, since few readers want them."""

    title: str
    items: Sequence[Item]
    folded: bool = False

    def seen(self, medium: Medium) -> list[Item]:
        """Return the items that a medium shows; empty ones are left out."""
        return [i for i in self.items if medium in i.where and _has_content(i, medium)]


def _has_content(item: Item, medium: Medium) -> bool:
    match item:
        case Table():
            return bool(item.rows)
        case Lines():
            return bool(item.seen(medium))
        case Figures():
            return bool(item.figures)
        case Cards():
            return bool(item.cards)
        case _:
            return True


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        command: the command that made it (`check`).
        subject: the agent that was measured, and the scenarios that it was played.
        when: the start of the measurement, for reading.
        verdict: the answer in a word, with its style; `means` explains it.
        lead: the sentences that come first: the reason, or the answer in full.
        stand_ins: the simulated or synthetic parts, and the limits that they put on the figures.
        warnings: why the figures may not be used.
        sections: all the rest, the next useful step last.
    """

    command: str
    subject: str
    when: str
    sections: Sequence[Section]
    verdict: Cell | None = None
    means: str = ""
    lead: Sequence[Line] = ()
    stand_ins: str = ""
    warnings: Sequence[str] = ()
    about: Sequence[str] = field(default_factory=tuple)

    def lead_seen(self, medium: Medium) -> list[Line]:
        """Return the sentences that come first on a medium."""
        return Lines(self.lead).seen(medium)


def lines(*named: tuple[str, str] | None, where: frozenset[Medium] = EVERYWHERE) -> Lines:
    """List plain sentences by their names; leave out None and empty ones."""
    return Lines([Line(*pair) for pair in named if pair is not None and pair[1]], where=where)

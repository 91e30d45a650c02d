"""A turn on a terminal: its waterfall as soon as it is over.

Everything is built as `rich.text.Text`: pure and cheap enough to be made while the next turn plays,
readable without colour, and plain text where the output is no terminal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from turngap.core.budget import NATURAL_MS
from turngap.core.results import Turn
from turngap.core.stages import UNATTRIBUTED, Stage, unmarked
from turngap.core.untrusted import printable
from turngap.report import looks, terminal, turn_words, words
from turngap.report.charts import SHORT_MS
from turngap.report.run import summary_block, turn_lines
from turngap.report.sections import Lines
from turngap.report.terminal import GUTTER, MIN_WIDTH
from turngap.store.runs import Run

# Of a run's turns, the most good ones that are listed, and the most others drawn whole.
MOST_LINES, MOST_BLOCKS = 6, 3
# In a turn's line: the width of its name, and of its slowest stage.
NAME_COLUMNS, ABOUT_COLUMNS = 28, 30
# Of a scenario's name at least this much is shown.
MIN_NAME = 8
# Where the budget's rule stands between zero and the right edge; the rest is for what overflows.
RULE_AT = 0.74
RULE = "│"
OVERFLOW = "▶"
SILENCE = "╌"
# The gap of a turn of which no stage is known. No stage is drawn so.
WHOLE_GAP = "▄"


@dataclass(frozen=True, slots=True)
class Scale:
    """Milliseconds to columns. `zero` and `rule` are columns, the same for every turn."""

    width: int
    budget_ms: float
    zero: int = GUTTER

    @property
    def rule(self) -> int:
        return self.zero + round((self.width - self.zero) * RULE_AT)

    def column(self, ms: float) -> int:
        """Return the column of an instant, which may be beyond either edge."""
        return self.zero + round(ms * (self.rule - self.zero) / self.budget_ms)


def turn_block(turn: Turn, width: int) -> Text:
    """Draw one turn: outcome, waterfall against its budget, stages, words heard and replied.

    The block ends with an empty line, so blocks can be printed one below the other.
    """
    width = max(width, MIN_WIDTH)
    scale = Scale(width, turn.budget_ms)
    lines = [
        _header(turn, width),
        _bar(turn, scale),
        _axis(turn, scale),
        *_stage_lines(turn, width),
    ]
    return terminal.joined([*lines, *terminal.lines_of(Lines(turn_lines(turn)), width)])


class TurnList:
    """A run's turns on a terminal: a line each, and whole blocks of those that failed.

    Of a long run, only the first good turns are listed and only the first bad ones drawn whole, so
    its figures are on the same screen. `verbose` draws every turn whole.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._good = self._bad = 0

    def shown(self, turn: Turn, width: int) -> Text | None:
        """Draw the next turn; None if it is not listed."""
        if self._verbose:
            return turn_block(turn, width)
        if turn.outcome != "answered":
            self._bad += 1
            return turn_block(turn, width) if self._bad <= MOST_BLOCKS else turn_line(turn, width)
        self._good += 1
        if self._good <= MOST_LINES:
            return turn_line(turn, width)
        if self._good == MOST_LINES + 1:
            return Text("  … further turns within the budget are not listed; -v shows all", "dim")
        return None


def turn_line(turn: Turn, width: int) -> Text:
    """Draw a turn in one line: its name, its gap, its bar and its slowest stage."""
    width = max(width, MIN_WIDTH)
    style = terminal.STYLES[looks.OUTCOME_STYLES[turn.outcome]]
    number = f" {turn.turn}" + (f", repeat {turn.repeat}" if turn.repeat > 1 else "")
    gap = "–" if turn.gap_ms is None else f"{words.ms(turn.gap_ms)} ms"
    about = _slowest(turn) or turn.outcome.replace("answered", "")
    if turn.answer.verdict == "wrong":
        about = "wrong answer"
    room = min(NAME_COLUMNS, width // 3)
    name = terminal.cropped(printable(turn.scenario), room - len(number)) + number
    text = Text.assemble((f"{looks.SYMBOLS[turn.outcome]} ", style), name.ljust(room), f"{gap:>9} ")
    bar_columns = width - cell_len(text.plain) - ABOUT_COLUMNS
    if bar_columns >= terminal.NARROWEST_BAR:
        text.append_text(_bar(turn, Scale(bar_columns, turn.budget_ms, zero=0)))
    text.append(terminal.cropped(f"  {about}", width - cell_len(text.plain)))
    text.rstrip()
    return text


def _slowest(turn: Turn) -> str:
    """Name the stage that took most of a turn's gap; empty if no mark explains any of it."""
    if _unmarked(turn) or not turn.stages:
        return ""
    stage = max(turn.stages, key=lambda each: each.ns)
    return f"{looks.short_name(stage.name)} {words.ms(stage.ms)}"


def run_blocks(run: Run, width: int, *, verbose: bool = False) -> list[Text]:
    """Draw a stored run as its player shows it: its turns, then its figures."""
    turns = TurnList(verbose=verbose)
    shown = [block for turn in run.turns if (block := turns.shown(turn, width)) is not None]
    return [*shown, Text(), summary_block(run, width)]


def run_svg(run: Run, width: int = 96) -> str:
    """Draw the terminal with the run's most telling turns and its summary."""
    blocks = [turn_block(turn, width) for turn in telling_turns(run.turns)]
    return terminal.svg(run.path.name, [*blocks, summary_block(run, width)], width)


def telling_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Choose a typical turn, the slowest one, and the first unanswered one, without duplicates."""
    answered = sorted((t for t in turns if t.replied), key=lambda t: t.gap_ms or 0.0)
    unanswered = [t for t in turns if not t.replied]
    chosen = [*answered[len(answered) // 2 :][:1], *answered[-1:], *unanswered[:1]]
    return [t for t in turns if any(t is c for c in chosen)]


def _header(turn: Turn, width: int) -> Text:
    style = terminal.STYLES[looks.OUTCOME_STYLES[turn.outcome]]
    where = f" · turn {turn.turn}" + (f" · repeat {turn.repeat}" if turn.repeat > 1 else "")
    room = width - cell_len(f"{looks.SYMBOLS[turn.outcome]} {where} · {turn.outcome}")
    gap = next((g for g in turn_words.gap_words(turn) if len(g) + 3 <= room - MIN_NAME), "")
    room -= len(gap) + 3 if gap else 0
    text = Text.assemble(
        (f"{looks.SYMBOLS[turn.outcome]} ", style),
        (terminal.cropped(printable(turn.scenario), max(room, MIN_NAME)), "bold"),
        f"{where} · ",
        (turn.outcome, style),
    )
    return text.append(f" · {gap}") if gap else text


def _bar(turn: Turn, scale: Scale) -> Text:
    """Draw the waterfall's line: one cell a column, the rule always in its own."""
    cells: list[tuple[str, str]] = [(" ", "")] * scale.width
    if turn.gap_ms is None:
        if turn.outcome == "no_reply":
            _paint(cells, scale.zero, scale.width, SILENCE, "dim")
            cells[-1] = (OVERFLOW, "dim")
    elif turn.gap_ms < 0:
        start = scale.column(turn.gap_ms)
        _paint(cells, start, scale.zero, looks.UNKNOWN_STAGE.pattern, "magenta")
        if start < 0:
            cells[0] = ("◀", "magenta")
    elif _unmarked(turn):
        _paint(cells, scale.zero, scale.column(turn.gap_ms), WHOLE_GAP, terminal.STYLES["unknown"])
        if scale.column(turn.gap_ms) > scale.width:
            cells[-1] = (OVERFLOW, "bold red")
    else:
        _paint_stages(cells, turn.stages, scale)
    cells[scale.rule] = (RULE, "bold red" if turn.outcome == "late" else "bold")
    return Text.assemble(*cells, end="")


def _paint_stages(cells: list[tuple[str, str]], stages: Iterable[Stage], scale: Scale) -> None:
    at_ns = 0
    for stage in stages:
        look = looks.look_of(stage.name)
        start = scale.column(at_ns / 1e6)
        at_ns += stage.ns
        _paint(cells, start, scale.column(at_ns / 1e6), look.pattern, terminal.STYLES[look.group])
    if scale.column(at_ns / 1e6) > scale.width:
        cells[-1] = (OVERFLOW, "bold red")


def _paint(cells: list[tuple[str, str]], start: int, stop: int, char: str, style: str) -> None:
    for column in range(max(start, 0), min(stop, len(cells))):
        cells[column] = (char, style)


def _axis(turn: Turn, scale: Scale) -> Text:
    """Draw zero, the natural band (heavy), and the budget below its rule."""
    low, high = (scale.column(ms) for ms in NATURAL_MS)
    chars = [" "] * scale.width
    for column in range(scale.zero, scale.rule):
        chars[column] = "━" if low <= column < high else "─"
    chars[scale.rule] = "┴"
    _write(chars, scale.zero, "0")
    if low - scale.zero > 4 and high - low > 3 and high < scale.rule - 3:
        _write(chars, low - 3, f"{NATURAL_MS[0]:.0f}")
        _write(chars, high, f"{NATURAL_MS[1]:.0f}")
    label = f" {words.ms(scale.budget_ms)} ms"
    _write(chars, scale.rule + 1, label if len(label) < scale.width - scale.rule else "")
    _write(chars, 0, ("cut in" if turn.outcome == "cut_in" else "ms").rjust(GUTTER - 1))
    return Text("".join(chars), style="dim")


def _write(chars: list[str], start: int, text: str) -> None:
    chars[start : start + len(text)] = list(text)


def _unmarked(turn: Turn) -> bool:
    """Return whether no mark of the agent explains the gap, so that there are no stages to show."""
    known_ms = sum(stage.ms for stage in turn.stages if stage.name != UNATTRIBUTED)
    return unmarked(stage.name for stage in turn.stages) and known_ms < SHORT_MS


def _stage_lines(turn: Turn, width: int) -> list[Text]:
    if turn.gap_ms is None or turn.gap_ms < 0 or _unmarked(turn):
        return []
    pieces: list[Text] = []
    for stage in turn.stages:
        if stage.ms < SHORT_MS:
            continue
        look = looks.look_of(stage.name)
        figure = f"{looks.short_name(stage.name)} {words.ms(stage.ms)}"
        pieces.append(Text.assemble((f"{look.pattern} ", terminal.STYLES[look.group]), figure))
    return terminal.flowed("stages, ms", pieces, width)

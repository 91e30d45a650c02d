"""A run on a terminal: a waterfall for each turn as it finishes, then the summary.

Everything is built as `rich.text.Text`: pure and cheap enough to be made while the next turn plays,
readable without colour, and plain text where the output is no terminal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from turngap.core.budget import NATURAL_MS, OUTCOMES, STARVED_MS, Outcome
from turngap.core.results import StageRecord, Turn
from turngap.core.stages import UNATTRIBUTED
from turngap.core.summary import Summary, summarise
from turngap.report import layout, words
from turngap.report.layout import GUTTER, MIN_WIDTH
from turngap.store.runs import Run

# Of a scenario's name at least this much is shown.
MIN_NAME = 8
# Where the budget's rule stands between zero and the right edge; the rest is for what overflows.
RULE_AT = 0.74
RULE = "│"
OVERFLOW = "▶"
SILENCE = "╌"
# Stages shorter than this have no segment that can be seen; they are named together.
SHORT_MS = 1.0

GROUP_STYLES: dict[words.Group, str] = {
    "listen": "cyan",
    "think": "yellow",
    "speak": "green",
    "line": "blue",
    "unknown": "magenta",
}
OUTCOME_STYLES: dict[Outcome, str] = {
    "answered": "bold green",
    "late": "bold red",
    "no_reply": "bold red",
    "cut_in": "bold magenta",
    "abandoned": "bold",
    "error": "bold red",
}
ANSWER_STYLES = {"right": "green", "wrong": "bold red", "not_judged": "dim"}


@dataclass(frozen=True, slots=True)
class Scale:
    """Milliseconds to columns. `zero` and `rule` are columns, the same for every turn."""

    width: int
    budget_ms: float

    @property
    def zero(self) -> int:
        """The column of the person's last word."""
        return GUTTER

    @property
    def rule(self) -> int:
        """The column of the budget."""
        return GUTTER + round((self.width - GUTTER) * RULE_AT)

    def column(self, ms: float) -> int:
        """The column of an instant, which may lie beyond either edge."""
        return self.zero + round(ms * (self.rule - self.zero) / self.budget_ms)


def turn_block(turn: Turn, width: int) -> Text:
    """One turn: outcome, waterfall against its budget, stages, what was heard and replied.

    Ends with an empty line, so that blocks can be printed one below the other.
    """
    width = max(width, MIN_WIDTH)
    scale = Scale(width, turn.budget_ms)
    lines = [
        _header(turn, width),
        _bar(turn, scale),
        _axis(turn, scale),
        *_stage_lines(turn, width),
    ]
    if tokens := words.tokens_words(turn):
        lines += layout.wrapped("llm", tokens, width, "dim")
    for call in words.calls_words(turn):
        lines += layout.wrapped("tool", call, width, "dim")
    if why := words.why_words(turn):
        lines += layout.wrapped("why", why, width)
    for note in words.notes_of(turn):
        lines += layout.wrapped("note", note, width)
    lines.append(
        layout.one_line("heard", words.clean(turn.transcript) or "(nothing reported)", width, "dim")
    )
    if reply := words.clean(turn.reply):
        lines.append(layout.one_line("replied", reply, width, "dim"))
    if answer := words.answer_words(turn):
        lines += layout.wrapped("answer", answer, width, ANSWER_STYLES[turn.answer.verdict])
    for name, verdict in words.other_verdicts_words(turn):
        lines += layout.wrapped(name, verdict, width)
    return layout.block(lines)


def summary_block(run: Run, width: int) -> Text:
    """A run's figures, each with what makes it believable, and where the run is stored."""
    width = max(width, MIN_WIDTH)
    summary = summarise(run.turns)
    lines = [_title(run, width), *_warnings(run, width)]
    lines += _hit_rate_lines(run, summary, width)
    lines += _gap_lines(summary, width)
    if right := words.right_words(summary):
        lines += layout.wrapped("right", f"{right[0]}  {right[1]}", width, "bold")
    for name, share, remark in words.other_right_words(run.record, summary):
        lines += layout.wrapped(name, f"{share}  {remark}", width)
    lines += _outcome_lines(summary, width)
    lines += _stage_table(summary, width)
    if summary.llm:
        lines += layout.wrapped("llm", words.token_figures_words(summary.llm), width)
    valid = "valid" if run.record.valid else "INVALID, as said above"
    lines += layout.wrapped("validity", valid, width, "" if run.record.valid else "bold red")
    if starved := words.starved_words(summary):
        lines += layout.wrapped("", starved, width)
    if run.record.starved_ms != STARVED_MS:
        accepted = words.accepted_words(run.record.starved_ms, summary.caller_error_ms)
        lines += layout.wrapped("", accepted, width, "bold")
    lines += layout.wrapped("instrument", words.calibration_words(run.record), width)
    lines += layout.wrapped("", words.offset_words(run.record), width)
    lines += layout.wrapped("stored in", str(run.path), width)
    return layout.block(lines)


def run_svg(run: Run, width: int = 96) -> str:
    """A picture of the terminal with the run's telling turns and its summary."""
    blocks = [*(turn_block(turn, width) for turn in telling_turns(run.turns))]
    return layout.svg(run.path.name, [*blocks, summary_block(run, width)], width)


def telling_turns(turns: Sequence[Turn]) -> list[Turn]:
    """A typical turn, the slowest one, and the first that was not answered; none of them twice."""
    answered = sorted((t for t in turns if t.replied), key=lambda t: t.gap_ms or 0.0)
    unanswered = [t for t in turns if not t.replied]
    chosen = [*answered[len(answered) // 2 :][:1], *answered[-1:], *unanswered[:1]]
    return [t for t in turns if any(t is c for c in chosen)]


def _header(turn: Turn, width: int) -> Text:
    style = OUTCOME_STYLES[turn.outcome]
    where = f" · turn {turn.turn}" + (f" · repeat {turn.repeat}" if turn.repeat > 1 else "")
    room = width - cell_len(f"{words.SYMBOLS[turn.outcome]} {where} · {turn.outcome}")
    gap = next((g for g in words.gap_words(turn) if len(g) + 3 <= room - MIN_NAME), "")
    room -= len(gap) + 3 if gap else 0
    text = Text.assemble(
        (f"{words.SYMBOLS[turn.outcome]} ", style),
        (layout.cropped(words.clean(turn.scenario), max(room, MIN_NAME)), "bold"),
        f"{where} · ",
        (turn.outcome, style),
    )
    return text.append(f" · {gap}") if gap else text


def _bar(turn: Turn, scale: Scale) -> Text:
    """The waterfall's line: one cell a column, the rule always in its own."""
    cells: list[tuple[str, str]] = [(" ", "")] * scale.width
    if turn.gap_ms is None:
        if turn.outcome == "no_reply":
            _paint(cells, scale.zero, scale.width, SILENCE, "dim")
            cells[-1] = (OVERFLOW, "dim")
    elif turn.gap_ms < 0:
        start = scale.column(turn.gap_ms)
        _paint(cells, max(start, 0), scale.zero, words.UNKNOWN_STAGE.pattern, "magenta")
        if start < 0:
            cells[0] = ("◀", "magenta")
    else:
        _paint_stages(cells, turn.stages, scale)
    cells[scale.rule] = (RULE, "bold red" if turn.outcome == "late" else "bold")
    return Text.assemble(*cells, end="")


def _paint_stages(
    cells: list[tuple[str, str]], stages: Iterable[StageRecord], scale: Scale
) -> None:
    at_ns = 0
    for stage in stages:
        look = words.look_of(stage.name)
        start = scale.column(at_ns / 1e6)
        at_ns += stage.ns
        _paint(cells, start, scale.column(at_ns / 1e6), look.pattern, GROUP_STYLES[look.group])
    if scale.column(at_ns / 1e6) > scale.width:
        cells[-1] = (OVERFLOW, "bold red")


def _paint(cells: list[tuple[str, str]], start: int, stop: int, char: str, style: str) -> None:
    for column in range(start, min(stop, len(cells))):
        cells[column] = (char, style)


def _axis(turn: Turn, scale: Scale) -> Text:
    """Zero, the natural band (heavy), and the budget below its rule."""
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


def _stage_lines(turn: Turn, width: int) -> list[Text]:
    if turn.gap_ms is None or turn.gap_ms < 0:
        return []
    short = [stage for stage in turn.stages if stage.ms < SHORT_MS]
    pieces: list[Text] = []
    for stage in turn.stages:
        if stage in short and len(short) > 1:
            continue
        look = words.look_of(stage.name)
        figure = f"{words.clean(stage.name)} {words.ms(stage.ms)}"
        pieces.append(Text.assemble((f"{look.pattern} ", GROUP_STYLES[look.group]), figure))
    lines = layout.flowed("stages, ms", pieces, width)
    if len(short) > 1:
        names = ", ".join(dict.fromkeys(words.clean(stage.name) for stage in short))
        total = words.ms(sum(stage.ms for stage in short))
        lines += layout.wrapped("", f"{names}: {total} together", width, "dim")
    return lines


def _title(run: Run, width: int) -> Text:
    parts = [*words.run_words(run.record), words.turns_words(len(run.turns))]
    title = layout.cropped(" · ".join(parts), width - 4)
    return Text(f"━━ {title} ".ljust(width, "━"), style="bold")


def _warnings(run: Run, width: int) -> list[Text]:
    found = list(map(words.clean, run.problems))
    if run.record.failure:
        found.insert(0, f"failed: {words.clean(run.record.failure)}")
    if not run.record.valid:
        found.insert(0, words.validity_words(run.record))
    return [line for warning in found for line in layout.wrapped("!", warning, width, "bold red")]


def _hit_rate_lines(run: Run, summary: Summary, width: int) -> list[Text]:
    figure, remark = words.hit_rate_words(summary.hit_rate)
    budgets = {t.budget_ms for t in run.turns} or {run.record.budget_ms}
    budget = f"{words.ms(budgets.pop())} ms" if len(budgets) == 1 else "their budget"
    rate = summary.hit_rate
    counted = f"{rate.hits} of {words.turns_words(rate.n, rate.recorded)} within {budget}"
    return layout.wrapped("hit rate", f"{figure}  {counted}; {remark}", width, "bold")


def _gap_lines(summary: Summary, width: int) -> list[Text]:
    lines: list[Text] = []
    for name, p in summary.gap_ms.items():
        figure, remark = words.percentile_words(p)
        label = "" if lines else "turn gap"
        lines += layout.wrapped(label, f"{name} {figure:>8}  {remark}", width)
    if left_out := words.left_out_words(summary):
        lines += layout.wrapped("left out", left_out, width)
    return lines


def _outcome_lines(summary: Summary, width: int) -> list[Text]:
    lines: list[Text] = []
    most = max(summary.outcomes.values(), default=0)
    for outcome in OUTCOMES:
        if n := summary.outcomes.get(outcome):
            line = layout.labelled("" if lines else "outcomes")
            line.append(f"{words.SYMBOLS[outcome]} {outcome:<9}", OUTCOME_STYLES[outcome])
            line.append(f" {n:>5}  ")
            line.append(_gauge(n / most, width - cell_len(line.plain)), style="dim")
            lines.append(line)
    return lines


def _stage_table(summary: Summary, width: int) -> list[Text]:
    if not summary.stages:
        return []
    widest = max(len(words.clean(stage.name)) for stage in summary.stages)
    most = max(abs(stage.p50_ms) for stage in summary.stages)
    answered = summary.outcomes.get("answered", 0) + summary.outcomes.get("late", 0)
    lines = [
        layout.labelled("stages").append(
            "median in ms of the answered turns that have it", style="dim"
        )
    ]
    for stage in summary.stages:
        look = words.look_of(stage.name)
        line = layout.labelled("")
        line.append(f"{look.pattern} ", GROUP_STYLES[look.group])
        line.append(f"{words.clean(stage.name):<{widest}} {words.ms(stage.p50_ms):>6}  ")
        # What no mark explains is not a stage to be made quicker.
        most_of_it = " most of it" if stage.name == UNATTRIBUTED else " slowest"
        remark = most_of_it if stage.name == summary.slowest_stage else ""
        remark += f" (in {stage.n} of {answered})" if stage.n < answered else ""
        room = width - cell_len(line.plain) - cell_len(remark)
        line.append(_gauge(stage.p50_ms / most if most else 0, room), GROUP_STYLES[look.group])
        line.append(remark, style="bold")
        lines.append(line)
    return lines


def _gauge(share: float, room: int) -> str:
    return "█" * round(share * max(0, min(room, 40)))

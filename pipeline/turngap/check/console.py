"""A check on a terminal: the verdict in a word, then what it rests on."""

from rich.cells import cell_len
from rich.text import Text

from turngap.check import words as check_words
from turngap.check.record import CheckRecord, CheckVerdict, MetricRecord
from turngap.core.budget import STARVED_MS
from turngap.report import layout, words
from turngap.report.layout import MIN_WIDTH

VERDICT_STYLES: dict[CheckVerdict, str] = {
    "pass": "bold green",
    "regressed": "bold red",
    "undecided": "bold yellow",
    "cannot_compare": "bold magenta",
}
# Shifts below this fill no bar to its end: on a quiet machine all of them are noise.
FULL_BAR_MS = 10.0
SLOWER, FASTER, ZERO = "█", "░", "│"


def check_block(record: CheckRecord, width: int) -> Text:
    """The whole check; readable without colour. Ends with an empty line."""
    width = max(width, MIN_WIDTH)
    lines = [_title(record, width)]
    for number, why in enumerate(check_words.why_words(record)):
        lines += layout.wrapped("" if number else "why", why, width, "bold")
    if decide := check_words.to_decide(record):
        lines += layout.wrapped("to decide", decide, width)
    lines += _metric_lines(record, width)
    lines += _stage_lines(record, width)
    lines += _budget_lines(record, width)
    if record.metrics:
        lines += layout.wrapped("noise", check_words.noise_words(record.noise), width)
    lines += layout.wrapped("compared", check_words.pairs_played(record), width)
    if starved := check_words.starved_words(record):
        lines += layout.wrapped("caller", starved, width)
    if record.starved_ms != STARVED_MS:
        lines += layout.wrapped("", check_words.accepted_words(record), width, "bold")
    lines += _side_lines(record, width)
    if saved := check_words.saved_words(record):
        lines += layout.wrapped("saved", saved, width)
    return layout.block(lines)


def check_svg(record: CheckRecord, name: str, width: int = 96) -> str:
    """A picture of the terminal with the check."""
    return layout.svg(name, [check_block(record, width)], width)


def _title(record: CheckRecord, width: int) -> Text:
    look = check_words.look_of(record)
    text = Text.assemble((f"{look.symbol} {look.title}", VERDICT_STYLES[record.verdict]))
    about = f"  {look.means}"
    if cell_len(text.plain) + cell_len(about) <= width:
        text.append(about)
    return text


def _metric_lines(record: CheckRecord, width: int) -> list[Text]:
    """A line for each metric where there is room; columns of one width each."""
    if not record.metrics:
        return []
    columns = [_metric_columns(record, m) for m in record.metrics]
    widths = [max(cell_len(row[i]) for row in columns) for i in range(4)]
    lines: list[Text] = []
    for metric, row in zip(record.metrics, columns, strict=True):
        verdict, difference, interval, limit = (
            text.ljust(room) for text, room in zip(row, widths, strict=True)
        )
        pieces = [
            Text(verdict, style=VERDICT_STYLES[metric.verdict]),
            Text(difference, style="bold"),
            *([Text(interval)] if widths[2] else []),
            Text(limit, style="dim"),
        ]
        if caught := check_words.detectable_words(metric):
            pieces.append(Text(caught, style="dim"))
        lines += layout.flowed(words.clean(metric.name), pieces, width)
        if note := check_words.metric_note(record, metric):
            lines += layout.wrapped("", note, width)
    return lines


def _metric_columns(record: CheckRecord, metric: MetricRecord) -> tuple[str, str, str, str]:
    interval = check_words.interval_words(metric)
    return (
        check_words.verdict_words(record, metric.verdict),
        check_words.difference_words(metric),
        f"[{interval}]" if interval else "",
        f"limit {check_words.limit_words(metric)}",
    )


def _stage_lines(record: CheckRecord, width: int) -> list[Text]:
    """Every stage's shift as a bar from a common zero: right is slower."""
    if not record.metrics:
        return []
    lines = layout.wrapped("moved", check_words.moved_words(record), width, "bold")
    if not record.stages:
        return lines
    heading = "shift of the typical pair, ms; right of the line is slower"
    lines += layout.wrapped("stages", heading, width, "dim")
    widest = max(cell_len(words.clean(stage.name)) for stage in record.stages)
    most = max(FULL_BAR_MS, *(abs(stage.shift_ms) for stage in record.stages))
    # In how many turns it did is said above: beside the bars there is no room for it.
    remarks = [check_words.stage_remark(s, record).partition(";")[0] for s in record.stages]
    aside = 1 + max(map(len, remarks))
    for stage, remark in zip(record.stages, remarks, strict=True):
        line = layout.labelled("")
        line.append(f"{words.clean(stage.name):<{widest}} ")
        line.append(f"{check_words.signed_ms(stage.shift_ms):>6} ", "bold" if remark else "")
        room = width - cell_len(line.plain) - aside - 1
        half = max(2, min(room // 2, 20))
        cells = round(abs(stage.shift_ms) / most * half)
        slower = stage.shift_ms > 0
        line.append((FASTER * (0 if slower else cells)).rjust(half), "cyan")
        line.append(ZERO, "dim")
        line.append((SLOWER * (cells if slower else 0)).ljust(half), "red" if remark else "")
        line.append(f" {remark}" if remark else "", "bold")
        line.truncate(width)
        lines.append(line)
    return lines


def _budget_lines(record: CheckRecord, width: int) -> list[Text]:
    lines: list[Text] = []
    for budget in record.budgets:
        share, interval = check_words.budget_figures(budget)
        pieces = [
            Text(
                check_words.verdict_words(record, budget.verdict),
                style=VERDICT_STYLES[budget.verdict],
            ),
            Text(check_words.budget_name(budget)),
            Text(f"in {share}", style="bold"),
            Text(f"[{interval}]"),
            Text(f"target {check_words.percents(budget.target)}", style="dim"),
            Text(f"n={budget.n}", style="dim"),
        ]
        lines += layout.flowed("" if lines else "budgets", pieces, width)
    return lines


def _side_lines(record: CheckRecord, width: int) -> list[Text]:
    if record.reference is None:
        lines = layout.wrapped("reference", check_words.no_reference_words(record), width)
    else:
        lines = layout.wrapped("reference", check_words.side_words(record.reference), width)
    lines += layout.wrapped("candidate", check_words.side_words(record.candidate), width)
    different = check_words.differences(record)
    for number, (name, a, b) in enumerate(different[:6]):
        lines += layout.wrapped("" if number else "differs in", f"{name}: {a} → {b}", width)
    if len(different) > 6:
        lines += layout.wrapped("", f"and {len(different) - 6} more settings", width)
    return lines

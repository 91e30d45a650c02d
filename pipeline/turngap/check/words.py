"""How reports say what a check found: one spelling for terminal, page, Markdown and JUnit.

The record counts a loss of hit rate as positive; here every change is candidate less reference, so
that "+41 ms" is slower, "+5 points" of cut-ins is more of them, and "−5 points" of the hit rate is
fewer turns in time.
"""

import re
import shlex
from dataclasses import dataclass, replace

from turngap.check.record import BudgetRecord, CheckRecord, CheckVerdict, MetricVerdict, StageShift
from turngap.check.side_words import differences, side_name
from turngap.core.budget import STARVED_MS
from turngap.core.untrusted import printable
from turngap.report import words
from turngap.report.looks import Style


@dataclass(frozen=True, slots=True)
class VerdictLook:
    """A verdict's symbol, its name in capitals and in a sentence, what it means, and its style."""

    symbol: str
    title: str
    word: str
    means: str
    style: Style


VERDICTS: dict[CheckVerdict, VerdictLook] = {
    "pass": VerdictLook("✓", "PASS", "pass", "no regression of the size that matters", "good"),
    "regressed": VerdictLook("✗", "REGRESSED", "regressed", "worse beyond chance", "bad"),
    "undecided": VerdictLook(
        "?", "UNDECIDED", "undecided", "a regression is neither shown nor ruled out", "unsure"
    ),
    "cannot_compare": VerdictLook(
        "≠", "CANNOT COMPARE", "cannot compare", "these figures do not bear a verdict", "odd"
    ),
}


# Where nothing was compared, only budgets were judged.
_MEANS_WITHOUT_A_REFERENCE: dict[CheckVerdict, str] = {
    "pass": "every budget is kept",
    "regressed": "a budget is not kept",
    "undecided": "too few turns to say whether the budgets are kept",
}
# Nothing was asked but to save, and it was.
SAVED = VerdictLook("↓", "SAVED", "saved", "as a baseline; nothing was compared", "good")

# A shift below this is not worth a name where it is not beyond chance.
WORTH_NAMING_MS = 5.0


def look_of(record: CheckRecord) -> VerdictLook:
    """Choose how the verdict is shown; a check that was only to save has none."""
    if record.verdict == "cannot_compare" and record.saved is not None and record.saved.done:
        return SAVED
    look = VERDICTS[record.verdict]
    if record.reference is None and record.verdict in _MEANS_WITHOUT_A_REFERENCE:
        return replace(look, means=_MEANS_WITHOUT_A_REFERENCE[record.verdict])
    return look


def verdict_words(record: CheckRecord, verdict: CheckVerdict) -> str:
    """Symbol and word of a metric or budget, which has none where the whole bears none."""
    if record.verdict == "cannot_compare":
        return "≠ no verdict"
    look = VERDICTS[verdict]
    return f"{look.symbol} {look.word}"


def why_words(record: CheckRecord) -> list[str]:
    """List what decided, one reason a line; never empty."""
    if record.why:
        return [printable(why) for why in record.why]
    return ["every metric and budget holds"]


def signed_ms(value: float) -> str:
    """Format a difference in ms, always with its sign."""
    text = words.ms(value)
    return f"+{text}" if value >= 0.05 else text


def change(metric: MetricVerdict, value: float, *, unit: bool = True) -> str:
    """Format a value of `metric` as a change from reference to candidate."""
    if metric.unit == "ms":
        return signed_ms(value) + (f" {unit_words(metric)}" if unit else "")
    points = -100 * value if metric.is_loss else 100 * value
    text = f"{abs(points):.1f}".removesuffix(".0") if abs(points) < 9.95 else f"{abs(points):.0f}"
    sign = "" if text == "0" else "−" if points < 0 else "+"
    return f"{sign}{text}" + (f" {unit_words(metric)}" if unit else "")


def unit_words(metric: MetricVerdict) -> str:
    """Return the unit of the metric's changes; shares change in percentage points."""
    return "ms" if metric.unit == "ms" else "points"


def difference_words(metric: MetricVerdict, *, unit: bool = True) -> str:
    """Format the estimate; a dash if there is none."""
    return "–" if metric.difference is None else change(metric, metric.difference, unit=unit)


def interval_words(metric: MetricVerdict) -> str:
    """Format the estimate's 95 % interval, low to high, as far as n bounds it."""
    low, high = (
        None if end is None else change(metric, end, unit=False)
        for end in ((metric.high, metric.low) if metric.is_loss else (metric.low, metric.high))
    )
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"at least {low}"
    return "" if high is None else f"at most {high}"


def limit_words(metric: MetricVerdict, *, unit: bool = True) -> str:
    """Format the smallest change that must not pass unseen."""
    return change(metric, metric.limit, unit=unit)


def detectable_words(metric: MetricVerdict) -> str:
    """Say how large a real regression must be for this comparison to detect it."""
    if metric.detectable is None:
        return ""
    return f"would have caught {change(metric, metric.detectable)} with 95 % power"


def p_words(p_value: float | None) -> str:
    """Format a p-value to three digits."""
    if p_value is None:
        return "–"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def metric_note(record: CheckRecord, metric: MetricVerdict) -> str:
    """Say why there is no figure or decision, and how many more turns would bring one."""
    notes = [reason_words(metric)] if metric.why else []
    if metric.turns_needed is not None and record.verdict != "cannot_compare":
        notes.append(f"about {more_pairs(metric.turns_needed)} would decide")
    return "; ".join(notes)


def reason_words(metric: MetricVerdict) -> str:
    """Say why there is no decision; complete the half sentence stored for few conversations."""
    why = printable(metric.why or "")
    few = re.fullmatch(r"(?:moved )?(in \d+ of the \d+ conversations) that it takes", why)
    return f"was measured {few[1]} that a decision takes" if few else why


def more_pairs(n: int) -> str:
    """`n` further pairs."""
    return "1 more pair of turns" if n == 1 else f"{n} more pairs of turns"


def pairs_words(n: int) -> str:
    """`n` pairs."""
    return "1 pair" if n == 1 else f"{n} pairs"


def moved_words(record: CheckRecord) -> str:
    """Name the stage to blame, and by how much; else which ones grew, or that none did."""
    if not record.stages:
        return "not known: too few pairs of turns have marks from both agents and a caller in time"
    blamed = [s for s in record.stages if s.name == record.moved_stage]
    grown = blamed or [s for s in record.stages if s.moved]
    if not grown:
        text = "no stage grew beyond chance"
        largest = max(record.stages, key=lambda s: s.shift_ms)
        if largest.shift_ms < WORTH_NAMING_MS:
            return text
        return f"{text}; the largest shift: {_stage_moved(largest)}"
    text = "; ".join(map(_stage_moved, grown))
    return text if blamed else f"grew, without a regression of the whole: {text}"


def _stage_moved(stage: StageShift) -> str:
    tail = f", {words.turns_words(stage.slowed)} far slower" if stage.slowed > 0 else ""
    return (
        f"{printable(stage.name)} {signed_ms(stage.shift_ms)} ms in the typical pair{tail} "
        f"(n={stage.n}, {p_words(stage.p_value)})"
    )


def stage_remark(stage: StageShift, record: CheckRecord) -> str:
    """Mark a stage that is to blame for the regression, or that grew without one."""
    return "moved" if stage.name == record.moved_stage else "grew" if stage.moved else ""


def budget_name(budget: BudgetRecord) -> str:
    """Say what must hold for a turn to be within the budget."""
    return f"{printable(budget.name)} ≤ {budget.budget_ms:g} ms"


def budget_figures(budget: BudgetRecord) -> tuple[str, str]:
    """Format the share of turns within, and its interval; a dash if no turn was played."""
    if budget.share is None or budget.low is None or budget.high is None:
        return "–", "no turns"
    return words.percent(budget.share), f"{percents(budget.low)} to {percents(budget.high)}"


def percents(share: float) -> str:
    """Format a share to a tenth of a per cent, so that it can be compared with a target."""
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def noise_words(record: CheckRecord) -> str:
    """Say how much identical code varies on this machine, to compare a verdict with."""
    noise = record.noise
    if noise is None and record.reference is not None and record.reference.run is not None:
        return "not known: the reference played no turn twice, to be held against itself"
    if noise is None:
        return "not known: no reference was played beside the candidate"
    figures = [f"reference against itself, n={noise.n}"]
    if noise.shift_p50_ms is not None:
        figures.append(f"median shift {signed_ms(noise.shift_p50_ms)} ms")
    if noise.spread_p95_ms is not None:
        figures.append(f"95 % of turns within ±{words.ms(noise.spread_p95_ms)} ms")
    if noise.verdict == "regressed":
        figures.append("identical code was called REGRESSED: quiet the machine and run again")
    elif noise.verdict is not None:
        passes = "passes" if noise.verdict == "pass" else "is neither passed nor failed"
        figures.append(f"identical code {passes} by the same limits")
    return "; ".join(figures)


def pairs_played(record: CheckRecord) -> str:
    """Say how much the verdict is based on."""
    rounds = "1 round" if record.rounds == 1 else f"{record.rounds} rounds"
    if record.reference is None:
        return f"{words.turns_words(record.candidate.turns)} in {rounds}"
    text = f"{pairs_words(record.pairs)} in {rounds}"
    if record.left_out:
        text += f"; {record.left_out} left out of the gaps (cut in or interrupted: no gap there)"
    if record.baseline is not None and record.baseline.unmatched:
        unmatched = words.turns_words(record.baseline.unmatched)
        text += f"; {unmatched} without a twin in the baseline (other rounds or phases)"
    if record.baseline is not None and record.baseline.rejudged:
        text += f"; {record.baseline.rejudged} saved under another budget, judged by this one"
    return text


def saved_words(record: CheckRecord) -> str:
    """Say what came of `--save`; empty if it was not used."""
    if record.saved is None:
        return ""
    file = printable(record.saved.file)
    if record.saved.done:
        return f"as a baseline: {file}"
    return f"not saved as {file}: {printable(record.saved.why_not or 'no reason was stored')}"


def starved_words(record: CheckRecord) -> str:
    """Say in how many turns the caller was late, and what that means; empty if in none."""
    starvation = record.starvation
    if starvation is not None and starvation.pairs:
        text = (
            f"starved in {starvation.pairs} of {pairs_words(starvation.of)} "
            f"({starvation.reference} in the reference, {starvation.candidate} in the candidate), "
            f"whose gaps may read up to {words.ms(starvation.error_ms)} ms too long"
        )
    elif record.candidate.starved:
        turns = words.turns_words(record.candidate.turns)
        text = f"starved in {record.candidate.starved} of {turns}"
    else:
        return ""
    if record.verdict == "cannot_compare":
        return text
    return f"{text}: the verdict holds with and without what that added"


def again_words(record: CheckRecord) -> str:
    """Introduce the command; that of an older check lacks overrides of a stack."""
    with_sets = " (add what is set differently: --set, --against-set)"
    return f"To do it again{with_sets if not record.command and differences(record) else ''}:"


def command(record: CheckRecord) -> str:
    """Build the command line of such a check; for an older one, as far as known."""
    if record.command:
        return printable(record.command)
    parts = ["turngap", "check", *record.scenarios, "--agent", side_name(record.candidate)]
    if record.reference is not None and record.reference.run is not None:
        parts += ["--against", side_name(record.reference)]
    elif record.reference is not None:
        parts += ["--baseline", "BASELINE.json"]
    for metric in record.metrics:
        if metric.name in ("gap p50", "gap p95"):
            parts += [f"--limit-{metric.name.split()[-1]}-ms", f"{metric.limit:g}"]
    for budget in record.budgets:
        parts += ["--budget", f"{budget.name}={budget.budget_ms:g}"]
    if record.budgets:
        parts += ["--target", f"{record.budgets[0].target:g}"]
    parts += ["--rounds", str(max(record.rounds, 1))]
    if record.phases > 1:
        parts += ["--phases", str(record.phases)]
    if record.starved_ms != STARVED_MS:
        parts += ["--starved-ms", f"{record.starved_ms:g}"]
    if record.saved is not None:
        parts += ["--save", record.saved.file]
    return " ".join(shlex.quote(printable(part)) for part in parts)

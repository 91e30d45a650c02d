"""Words for a check's findings: one spelling for terminal, page, Markdown and JUnit.

The record counts a loss of hit rate as positive. Here every change is candidate minus reference:
"+41 ms" is slower, "+5 points" of cut-ins is more of them, and "−5 points" of the hit rate is fewer
turns in time.
"""

import math
from dataclasses import dataclass, replace

from turngap.check.baseline import lines_differ
from turngap.core.stats import n_without_a_miss, proportion
from turngap.core.wording import several
from turngap.report import looks, words
from turngap.report.looks import Style
from turngap.store.checks import (
    CUT_INS,
    HIT_RATE,
    BaselineUse,
    BudgetRecord,
    CheckRecord,
    CheckVerdict,
    MetricVerdict,
    SideRecord,
    StageShift,
)

_TYPICAL = "gap p50"
# What a metric is of, before how it changed.
_SUBJECTS = {
    _TYPICAL: "the typical turn",
    "gap p95": "p95 of the turn gap",
    HIT_RATE: "the hit rate",
    CUT_INS: "the share of turns that it cuts into",
}


@dataclass(frozen=True, slots=True)
class VerdictLook:
    """A verdict's symbol, its name in capitals and in a sentence, its meaning, and its style."""

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
        "≠", "CANNOT COMPARE", "cannot compare", "these figures allow no verdict", "odd"
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


def look_of(record: CheckRecord) -> VerdictLook:
    """Choose how the verdict is shown; a check that only saved has a look of its own."""
    if record.verdict == "cannot_compare" and record.saved is not None and record.saved.done:
        return SAVED
    look = VERDICTS[record.verdict]
    if record.reference is None and record.verdict in _MEANS_WITHOUT_A_REFERENCE:
        return replace(look, means=_MEANS_WITHOUT_A_REFERENCE[record.verdict])
    return look


def verdict_words(record: CheckRecord, verdict: CheckVerdict) -> str:
    """Return symbol and word of a metric or budget; "no verdict" if the sides do not compare."""
    if record.verdict == "cannot_compare":
        return "≠ no verdict"
    look = VERDICTS[verdict]
    return f"{look.symbol} {look.word}"


def why_words(record: CheckRecord) -> list[str]:
    """List the deciding reasons, one a line; never empty."""
    if record.why:
        return list(record.why)
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
    notes = [metric.why] if metric.why else []
    if metric.turns_needed is not None and record.verdict != "cannot_compare":
        notes.append(f"about {more_pairs(metric.turns_needed)} would decide")
    return "; ".join(notes)


def more_pairs(n: int) -> str:
    """Format a number of further pairs."""
    return "1 more pair of turns" if n == 1 else f"{n} more pairs of turns"


def pairs_words(n: int) -> str:
    """Write a number of pairs."""
    return several(n, "pair")


def moved_words(record: CheckRecord) -> str:
    """Name the stage to blame, and its growth; else the stages that grew; else say none did."""
    if not record.stages:
        return "not known: too few pairs of turns have marks from both agents and a caller in time"
    blamed = [s for s in record.stages if s.name == record.moved_stage]
    grown = blamed or [s for s in record.stages if s.moved]
    if not grown:
        return "no stage grew beyond chance"
    text = "; ".join(map(_stage_moved, grown))
    return text if blamed else f"grew, without a regression of the whole: {text}"


def _stage_moved(stage: StageShift) -> str:
    tail = f", {words.turns_words(stage.slowed)} far slower" if stage.slowed > 0 else ""
    return (
        f"{looks.full_name(stage.name)} {signed_ms(stage.shift_ms)} ms in the typical pair{tail} "
        f"(n={stage.n}, {p_words(stage.p_value)})"
    )


def stage_remark(stage: StageShift, record: CheckRecord) -> str:
    """Mark a stage that is to blame for the regression, or that grew although nothing regressed."""
    return "moved" if stage.name == record.moved_stage else "grew" if stage.moved else ""


def budget_name(budget: BudgetRecord) -> str:
    """Say what must hold for a turn to be within the budget."""
    return f"{budget.name} ≤ {budget.budget_ms:g} ms"


def budget_figures(budget: BudgetRecord) -> tuple[str, str]:
    """Format the share of turns within budget, and its interval; a dash if no turn was played."""
    if budget.share is None or budget.low is None or budget.high is None:
        return "–", "no turns"
    return words.percent(budget.share), f"{percents(budget.low)} to {percents(budget.high)}"


def percents(share: float) -> str:
    """Format a share to a tenth of a per cent, so that it can be compared with a target."""
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def noise_words(record: CheckRecord) -> str:
    """Say how much identical code varies on this machine; empty if unknown."""
    if (noise := record.noise) is None:
        return ""
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
    rounds += f" {words.over_words(record.line)}" if record.line else ""
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
    """Describe the outcome of `--save`; empty if it was not used."""
    if record.saved is None:
        return ""
    file = record.saved.file
    if record.saved.done:
        return f"as a baseline: {file}"
    return f"not saved as {file}: {record.saved.why_not or 'no reason was stored'}"


def starved_words(record: CheckRecord) -> str:
    """Say in how many turns the caller was late, and the consequence; empty if in none."""
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
    return f"{text}: the verdict is the same with and without that error"


def own_name(record: CheckRecord) -> str:
    """Name the checked agent: without a reference it is not called the candidate."""
    return "agent" if record.reference is None else "candidate"


def sides(record: CheckRecord) -> list[tuple[str, SideRecord]]:
    """List the agents by name, the checked one first."""
    others = [] if record.reference is None else [("reference", record.reference)]
    return [(own_name(record), record.candidate), *others]


def gap_words(record: CheckRecord) -> str:
    """Describe each side's times: typical turn, slow ones, slowest; empty if unknown.

    The slowest reply is given only for the agent that was checked.
    """
    texts: list[str] = []
    for name, side in sides(record):
        if side.gap is None:
            continue
        text = ", ".join(
            f"{of} {figure} ({remark})"
            for of, (figure, remark) in (
                ("p50", words.percentile_words(side.gap.p50)),
                ("p95", words.percentile_words(side.gap.p95)),
            )
        )
        if side is record.candidate and side.gap.slowest is not None:
            scenario, number, _, repeat = side.gap.slowest
            turn = words.take_name(scenario, number, repeat)
            text += f", slowest reply {words.ms(side.gap.slowest_ms or 0.0)} ms ({turn})"
        texts.append(text if record.reference is None else f"{name} {text}")
    return "; ".join(texts)


def cut_ins_words(record: CheckRecord) -> str:
    """Say how many turns each side cut into; empty if not known."""
    each = [
        (f"the {name}", words.cut_in_sentence(side.cut_ins))
        for name, side in sides(record)
        if side.cut_ins is not None and side.cut_ins.n
    ]
    if len(each) > 1 and each[0][1] == each[1][1]:
        return f"both the reference and the candidate {each[0][1]}"
    return "; ".join(map(" ".join, each))


def accepted_words(record: CheckRecord) -> str:
    """Say how late the caller may be, and by how much that may change either side's gaps."""
    errors = [side.caller_error_ms for _, side in sides(record) if side.caller_error_ms is not None]
    return words.accepted_words(record.starved_ms, max(errors, default=None))


def side_name(side: SideRecord) -> str:
    """Name the agent as `--agent` and `--against` take it: `DIR#STACK` for a checkout's."""
    named = side.agent.get("stack") or side.agent.get("url") or "agent"
    if checkout := side.agent.get("checkout"):
        named = f"{checkout}#{named}"
    return str(named)


def side_words(side: SideRecord) -> str:
    """Describe an agent: its name, its turns, and whether its run may be used."""
    parts = [side_name(side), words.turns_words(side.turns)]
    if side.run is None:
        parts.append("stored baseline")
    else:
        parts.append(f"run {side.run}")
    if side.valid is not None:
        # Percentiles of the run alone do not hold then; a verdict bounds what the caller added.
        alone = " by itself" if side.starved else ""
        parts.append("valid" if side.valid else f"INVALID{alone}")
    return " · ".join(parts)


def lines_words(record: CheckRecord) -> str:
    """Say that the two agents were called with different dialects or rates; empty if not."""
    differ = record.reference and lines_differ(record.reference.agent, record.candidate.agent)
    if not differ or record.verdict == "cannot_compare":
        return ""
    return (
        f"{differ}: the gaps are comparable at the caller's ear, but each agent heard the person "
        "in another form."
    )


def differences(record: CheckRecord) -> list[tuple[str, str, str]]:
    """List the agents' different settings: name, reference's value, candidate's value.

    For an agent of another checkout only its commit and overrides are known, not its settings.
    """
    if record.reference is None:
        return []
    both = record.reference, record.candidate
    a, b = ({k: v for k, v in words.flat(side.agent) if v not in ("{}", "[]")} for side in both)
    names = dict.fromkeys([*a, *b])
    if any("checkout" in side.agent for side in both):
        names = [
            n for n in names if n in ("checkout", "commit", "sets", "seed") or (n in a and n in b)
        ]
    return [(n, a.get(n, "–"), b.get(n, "–")) for n in names if a.get(n) != b.get(n)]


def to_decide(record: CheckRecord) -> str:
    """Say how to reach a verdict, if it is undecided and more turns would help; else empty."""
    if record.verdict != "undecided":
        return ""
    if (metric := _decisive(record)) is None or metric.turns_needed is None:
        return _to_decide_budgets(record)
    if record.baseline is not None:
        return _to_decide_beside(record.baseline, record, metric.turns_needed)
    text = f"about {more_pairs(metric.turns_needed)}"
    if rounds := _rounds_for(record, metric.turns_needed):
        text += f": --rounds {rounds}, or {_go_on(record)}"
    return text


def _to_decide_budgets(record: CheckRecord) -> str:
    """Say how many rounds would decide the budgets that are open; empty if none is."""
    budgets = [b for b in record.budgets if b.verdict == "undecided"]
    if not budgets:
        return ""
    needed = [calls for b in budgets if (calls := _calls_to_keep(b)) is not None]
    calls = len(record.scenarios)
    if len(needed) < len(budgets) or not calls or not record.rounds:
        return "more turns: they narrow the budgets' intervals"
    rounds = math.ceil(max(needed) / calls)
    return (
        f"{max(needed)} calls, if they continue like this: --rounds {rounds}, or {_go_on(record)}"
    )


def _go_on(record: CheckRecord) -> str:
    """Name the flag that plays more; a check that used it already ran out of time."""
    more = "--until-decided" in record.command
    return "a larger --max-minutes" if more else "--until-decided"


def _calls_to_keep(budget: BudgetRecord) -> int | None:
    """Count the calls that show, at this share of turns within budget, that the target is kept.

    None if the share is not higher than the target, and for missing marks.
    """
    if budget.share is None or budget.share <= budget.target:
        return None
    least = n_without_a_miss(budget.target)
    tried = (round(least * 1.1**step) for step in range(60))
    bounds = ((n, proportion(round(n * budget.share), n).low) for n in tried)
    return next((n for n, low in bounds if low is not None and low >= budget.target), None)


def _decisive(record: CheckRecord) -> MetricVerdict | None:
    """Find the metric whose missing pairs would decide the verdict.

    If one is beyond its limit, the verdict is `regressed` as soon as that is shown. If no metric
    is, all of them have to pass.
    """
    needing = [m for m in record.metrics if m.turns_needed is not None]
    beyond = [m for m in needing if (m.difference or 0.0) >= m.limit]
    if beyond:
        return min(beyond, key=lambda m: m.turns_needed or 0)
    return max(needing, key=lambda m: m.turns_needed or 0, default=None)


def _rounds_for(record: CheckRecord, more: int) -> int | None:
    """Count the rounds that would add this many pairs; None if no round had any pairs."""
    if not record.rounds or not record.pairs:
        return None
    return record.rounds + math.ceil(more / (record.pairs / record.rounds))


def _to_decide_beside(use: BaselineUse, record: CheckRecord, needed: int) -> str:
    """Say whether a stored baseline has enough turns to decide, and how to get there."""
    rounds = _rounds_for(record, needed)
    if needed <= use.more_pairs and rounds:
        return f"about {more_pairs(needed)}, which the baseline has: --rounds {rounds}"
    if not record.pairs:
        return (
            "the rounds and phases that the baseline was saved with: none of its turns was played"
        )
    left = f"only {use.more_pairs}" if use.more_pairs else "none"
    return (
        f"about {more_pairs(needed)}, of which the baseline has {left}: a bigger one "
        f"(--save with --rounds {rounds}), or the reference itself (--against)"
    )


def short_words(record: CheckRecord) -> str:
    """Name the metric that got worse, by how much and in which stage; else those that held.

    Return an empty text if nothing was compared, or the figures allow no verdict.
    """
    known = [m for m in record.metrics if m.difference is not None]
    if record.verdict == "cannot_compare" or not known:
        return ""
    shown = [m for m in known if m.verdict == "regressed"]
    shown = shown or [m for m in known if m.name == _TYPICAL] or known[:1]
    text = "; ".join(map(_changed, shown))
    stage = next((s for s in record.stages if s.name == record.moved_stage), None)
    if stage is not None:
        text += f". The stage that moved is {looks.full_name(stage.name)}: "
        text += f"{signed_ms(stage.shift_ms)} ms in the typical pair"
    return f"{text[:1].upper()}{text[1:]}."


def _changed(metric: MetricVerdict) -> str:
    interval = interval_words(metric)
    sure = f" (95 % interval {interval})" if interval else ""
    subject = _SUBJECTS.get(metric.name, metric.name)
    if metric.unit == "ms" and metric.difference is not None:
        than = "quicker" if metric.difference < 0 else "slower"
        return f"{subject} is {words.ms(abs(metric.difference))} ms {than}{sure}"
    return f"{subject} changed by {difference_words(metric)}{sure}"

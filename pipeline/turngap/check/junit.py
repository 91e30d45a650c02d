"""A check as JUnit XML, which CI servers show test by test."""

from collections.abc import Sequence

from turngap.check import words as check_words
from turngap.check.record import CheckRecord, CheckVerdict, MetricVerdict
from turngap.report import words as report_words
from turngap.report.junit import Case, document, times

SUITE = "turngap check"


def junit(record: CheckRecord, console_text: str) -> bytes:
    """Build the document: a regression is a failure, no verdict is a skipped test with a reason."""
    seconds, started = times(record.started_utc, record.finished_utc)
    return document(
        SUITE,
        _cases(record),
        properties=dict(_properties(record)),
        output=console_text,
        seconds=seconds,
        started=started,
    )


def _cases(record: CheckRecord) -> Sequence[Case]:
    cases = [_case(m.name, m.verdict, _metric_message(record, m)) for m in record.metrics]
    for budget in record.budgets:
        share, interval = check_words.budget_figures(budget)
        target = check_words.percents(budget.target)
        message = f"{share} of {budget.n} turns within ({interval}), target {target}"
        cases.append(_case(check_words.budget_name(budget), budget.verdict, message))
    why = "; ".join(check_words.why_words(record))
    if record.verdict == "cannot_compare":
        # Whatever the figures look like: they do not bear a verdict.
        return [_case(c.name, "cannot_compare", why) for c in cases] or [
            _case("comparison", "cannot_compare", why)
        ]
    return cases or [_case("comparison", "undecided", why)]


def _case(name: str, verdict: CheckVerdict, message: str) -> Case:
    """Build the test case of a metric, a budget, or the comparison as such."""
    if verdict == "pass":
        return Case(name, "passed", message)
    if verdict == "regressed":
        return Case(name, "failed", message, kind="regressed")
    return Case(name, "skipped", f"{verdict}: {message}")


def _metric_message(record: CheckRecord, metric: MetricVerdict) -> str:
    parts = [
        check_words.difference_words(metric) if metric.difference is not None else "",
        f"95 % interval {interval}" if (interval := check_words.interval_words(metric)) else "",
        f"limit {check_words.limit_words(metric)}",
        f"n={metric.n}",
        check_words.metric_note(record, metric),
    ]
    return ", ".join(filter(None, parts))


def _properties(record: CheckRecord) -> list[tuple[str, str]]:
    pairs = [
        ("verdict", record.verdict),
        ("pairs", str(record.pairs)),
        ("left_out", str(record.left_out)),
        ("cut_ins", check_words.cut_ins_words(record)),
        ("starved_ms", f"{record.starved_ms:g}"),
        ("caller", check_words.starved_words(record) or report_words.ON_TIME),
        ("moved_stage", record.moved_stage or "none"),
        ("candidate", check_words.side_words(record.candidate)),
        ("machine", record.machine.fingerprint),
    ]
    if record.reference is not None:
        pairs.append(("reference", check_words.side_words(record.reference)))
    return pairs

"""A check as JUnit XML, which CI servers show test by test."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.etree import ElementTree

from turngap.check import words as check_words
from turngap.check.record import CheckRecord, CheckVerdict, MetricVerdict
from turngap.core.untrusted import printable, xml_text

SUITE = "turngap check"
CLASS = "turngap.check"


@dataclass(frozen=True, slots=True)
class Case:
    """One test case: a metric, a budget, or the comparison as such."""

    name: str
    verdict: CheckVerdict
    message: str


def junit(record: CheckRecord, console_text: str) -> bytes:
    """The document. A regression is a failure; no verdict is a skipped test with its reason."""
    cases = _cases(record)
    counts = {
        "tests": len(cases),
        "failures": sum(case.verdict == "regressed" for case in cases),
        "errors": 0,
        "skipped": sum(case.verdict in ("undecided", "cannot_compare") for case in cases),
    }
    seconds, started = _times(record)
    attributes = {name: str(n) for name, n in counts.items()} | {"time": seconds}
    root = ElementTree.Element("testsuites", {"name": SUITE, **attributes})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **attributes, **started})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(record):
        attributes = {"name": name, "value": xml_text(value)}
        ElementTree.SubElement(properties, "property", attributes)
    for case in cases:
        _append(suite, case)
    ElementTree.SubElement(suite, "system-out").text = xml_text(console_text)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _cases(record: CheckRecord) -> Sequence[Case]:
    cases = [Case(m.name, m.verdict, _metric_message(record, m)) for m in record.metrics]
    for budget in record.budgets:
        share, interval = check_words.budget_figures(budget)
        target = check_words.percents(budget.target)
        message = f"{share} of {budget.n} turns within ({interval}), target {target}"
        cases.append(Case(check_words.budget_name(budget), budget.verdict, message))
    why = "; ".join(check_words.why_words(record))
    if record.verdict == "cannot_compare":
        # Whatever the figures look like: they do not bear a verdict.
        return [Case(c.name, "cannot_compare", why) for c in cases] or [
            Case("comparison", "cannot_compare", why)
        ]
    return cases or [Case("comparison", "undecided", why)]


def _metric_message(record: CheckRecord, metric: MetricVerdict) -> str:
    parts = [
        check_words.difference_words(metric) if metric.difference is not None else "",
        f"95 % interval {interval}" if (interval := check_words.interval_words(metric)) else "",
        f"limit {check_words.limit_words(metric)}",
        f"n={metric.n}",
        check_words.metric_note(record, metric),
    ]
    return ", ".join(filter(None, parts))


def _append(suite: ElementTree.Element, case: Case) -> None:
    name, message = xml_text(printable(case.name)), xml_text(case.message)
    attributes = {"classname": CLASS, "name": name, "time": "0"}
    element = ElementTree.SubElement(suite, "testcase", attributes)
    if case.verdict == "regressed":
        failure = ElementTree.SubElement(
            element, "failure", {"message": message, "type": "regressed"}
        )
        failure.text = message
    elif case.verdict != "pass":
        ElementTree.SubElement(element, "skipped", {"message": f"{case.verdict}: {message}"})


def _properties(record: CheckRecord) -> list[tuple[str, str]]:
    pairs = [
        ("verdict", record.verdict),
        ("pairs", str(record.pairs)),
        ("left_out", str(record.left_out)),
        ("cut_ins", check_words.cut_ins_words(record)),
        ("starved_ms", f"{record.starved_ms:g}"),
        ("caller", check_words.starved_words(record) or "not starved"),
        ("moved_stage", printable(record.moved_stage or "none")),
        ("candidate", check_words.side_words(record.candidate)),
        ("machine", printable(record.machine.fingerprint)),
    ]
    if record.reference is not None:
        pairs.append(("reference", check_words.side_words(record.reference)))
    return pairs


def _times(record: CheckRecord) -> tuple[str, dict[str, str]]:
    """How long the check took in s, and when it began; nothing made up where that is not told."""
    try:
        started = datetime.fromisoformat(record.started_utc)
        seconds = (datetime.fromisoformat(record.finished_utc) - started).total_seconds()
    except (ValueError, TypeError):
        return "0", {}
    return f"{max(seconds, 0.0):.3f}", {"timestamp": f"{started:%Y-%m-%dT%H:%M:%S}"}

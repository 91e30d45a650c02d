"""JUnit XML, which CI servers show test by test: each turn of a run is a test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from turngap.core.clock import instant
from turngap.core.results import Turn
from turngap.core.untrusted import printable, xml_text
from turngap.report import turn_words, words
from turngap.store.runs import Run, agent_name


@dataclass(frozen=True, slots=True)
class Case:
    """One test case. `why` is the reason for a failure or for skipping it.

    `kind`: the kind of failure, as JUnit's attribute `type`. `seconds`: its duration.
    """

    name: str
    status: Literal["passed", "failed", "skipped"]
    why: str = ""
    kind: str = "failed"
    seconds: float | None = None


def document(
    suite: str,
    cases: Sequence[Case],
    *,
    properties: Mapping[str, str],
    output: str,
    seconds: str = "",
    started: str = "",
) -> bytes:
    """Write one suite of cases; its name with a dot for the space is their class.

    `seconds` and `started` are the values of JUnit's attributes `time` and `timestamp`; each is
    left out if not known.
    """
    counts = {
        "tests": len(cases),
        "failures": sum(case.status == "failed" for case in cases),
        "errors": 0,
        "skipped": sum(case.status == "skipped" for case in cases),
    }
    attributes = {name: str(n) for name, n in counts.items()}
    attributes |= {"time": seconds} if seconds else {}
    root = ElementTree.Element("testsuites", {"name": suite, **attributes})
    stamp = {"timestamp": started} if started else {}
    element = ElementTree.SubElement(root, "testsuite", {"name": suite, **attributes, **stamp})
    listed = ElementTree.SubElement(element, "properties")
    for name, value in properties.items():
        ElementTree.SubElement(listed, "property", {"name": name, "value": printable(value)})
    for case in cases:
        _append(element, suite.replace(" ", "."), case)
    ElementTree.SubElement(element, "system-out").text = xml_text(output)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def times(started_utc: str, finished_utc: str | None) -> tuple[str, str]:
    """Return the duration in s, and the start; 0 or empty if not known."""
    try:
        started = instant(started_utc)
        seconds = (instant(finished_utc or "") - started).total_seconds()
    except ValueError:
        return "0", ""
    return f"{max(seconds, 0.0):.3f}", f"{started:%Y-%m-%dT%H:%M:%S}"


def _append(suite: ElementTree.Element, classname: str, case: Case) -> None:
    name, message = printable(case.name), printable(case.why)
    attributes = {"classname": classname, "name": name}
    attributes |= {} if case.seconds is None else {"time": f"{case.seconds:.6f}"}
    element = ElementTree.SubElement(suite, "testcase", attributes)
    if case.status == "failed":
        failure = ElementTree.SubElement(
            element, "failure", {"message": message, "type": case.kind}
        )
        failure.text = message
    elif case.status == "skipped":
        ElementTree.SubElement(element, "skipped", {"message": message})


def run_junit(run: Run) -> bytes:
    """Build the document. A test's `time` is the turn's gap, so a CI server plots it over builds.

    A turn that was answered within its budget passes, any other fails with its outcome as `type`.
    Turns without a verdict are skipped: every turn of an invalid run, and turns that are left out.
    """
    seconds, started = times(run.record.started_utc, run.record.finished_utc)
    return document(
        "turngap run",
        [_case(run, turn) for turn in run.turns],
        properties=dict(_properties(run)),
        output=repr(run).strip("<>"),
        seconds=seconds,
        started=started,
    )


def _case(run: Run, turn: Turn) -> Case:
    gap_s = None if turn.gap_ms is None or turn.gap_ms < 0 else turn.gap_ms / 1000
    name, outcome = words.turn_name(turn), turn.outcome
    if turn.phase_ms:
        name += f", phase {turn.phase_ms:g} ms"
    what = [outcome, *turn_words.gap_words(turn)[:1], turn_words.why_words(turn) or ""]
    message = ": ".join(filter(None, (what[0], "; ".join(filter(None, what[1:])))))
    if turn.pacing.starved:
        message += "; turngap itself was late in this turn"
    if not run.valid:
        return Case(name, "skipped", f"{words.validity_words(run.record)} ({message})")
    if turn.left_out is not None:
        return Case(name, "skipped", f"left out: {turn.left_out} ({message})")
    status = "passed" if outcome == "answered" else "failed"
    return Case(name, status, message, kind=outcome, seconds=gap_s)


def _properties(run: Run) -> Iterator[tuple[str, str]]:
    yield "run", run.path.name
    yield "agent", agent_name(run)
    yield "commit", run.record.measured_commit or "not in a git checkout"
    yield "valid", words.validity_words(run.record)
    yield "hit_rate", str(run.hit_rate)
    yield "cut_ins", str(run.cut_ins)
    yield "gap_ms", str(run.gap_ms)
    yield "machine", run.record.machine.fingerprint

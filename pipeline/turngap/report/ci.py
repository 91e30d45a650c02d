"""Write reports for CI: Markdown for summaries and pull requests, JUnit XML test by test."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from turngap.core.clock import instant
from turngap.core.results import Turn
from turngap.core.untrusted import harmless, inert, printable, xml_text
from turngap.report import turn_words, words
from turngap.report.line import line_words
from turngap.report.sections import Code, Figures, Folded, Item, Line, Lines, Report, Table
from turngap.store.runs import Run, agent_name

# --- Markdown -------------------------------------------------------------------------------------
# No text in it can become a link, a tag or a part of a table.

# Whatever could start a tag, link, mention, table cell or emphasis, as in CommonMark and GFM.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": "&#58;//"}

_CAPITALS = {"llm", "stt", "tts"}


def markdown(report: Report) -> str:
    """Render the whole report without its drawings."""
    verdict = f": {report.verdict.text}" if report.verdict else ""
    blocks = [f"## turngap {report.command}{escaped(verdict)}", escaped(report.subject)]
    blocks += [f"**{escaped(warning)}**" for warning in report.warnings]
    blocks += [_lines(report.lead_seen("markdown")), escaped(report.stand_ins)]
    for section in report.sections:
        found = [_item(item) for item in section.seen("markdown")]
        if found and section.folded:
            blocks.append(_folded(section.title, found))
        elif found:
            blocks += [f"### {escaped(section.title)}", *found]
    return inert("\n\n".join(block for block in blocks if block)) + "\n"


def _item(item: Item) -> str:
    match item:
        case Table():
            columns, rows = item.seen("markdown")
            cells = ([cell.text for cell in row] for row in rows)
            caption = f"{escaped(item.caption)}\n\n" if item.caption else ""
            return caption + _table([column.name for column in columns], cells)
        case Lines():
            return _lines(item.seen("markdown"))
        case Figures():
            rows = ([f.name, f.value, f.remark] for f in item.figures)
            return _table(("figure", "", "it rests on"), rows)
        case Code():
            text = printable(item.text).replace("`", "")
            return f"{escaped(item.about)}\n\n```sh\n{text}\n```"
        case Folded():
            # Without a backtick no line can end the block.
            rows = [harmless(row, len(row)) for row in item.text.replace("`", "'").splitlines()]
            text = "\n".join(["```text", *rows, "```"])
            return _folded(item.title, [escaped(item.about), text], is_open=item.open)
        case _:
            return ""


def _folded(title: str, blocks: Iterable[str], *, is_open: bool = False) -> str:
    """Put blocks below a title that unfolds them. The title is HTML, where no backslash escapes."""
    opening = "<details open>" if is_open else "<details>"
    plain = html.escape(printable(title)).replace("@", "&#64;").replace("`", "&#96;")
    summary = f"<summary>{plain}</summary>"
    return "\n\n".join(filter(None, [f"{opening}{summary}", *blocks, "</details>"]))


def escaped(text: str) -> str:
    """Escape `text` to plain words in any place, also in a table's cell."""
    text = _SPECIAL.sub(r"\\\1", printable(text))
    for raw, entity in _ENTITIES.items():
        text = text.replace(raw, entity)
    return text


def _lines(lines: Iterable[Line]) -> str:
    named = (f"{_begun(line.label)}: {line.text}" for line in lines)
    return "\n".join(f"- {escaped(text)}" for text in named)


def _begun(label: str) -> str:
    """Capitalise a name for the start of a line; terms of the field keep their capitals."""
    first, space, rest = label.partition(" ")
    first = first.upper() if first in _CAPITALS else f"{first[:1].upper()}{first[1:]}"
    return f"{first}{space}{rest}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[escaped(name) for name in head], ["---"] * len(head)]
    lines += [[escaped(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- JUnit XML ------------------------------------------------------------------------------------
# CI servers show it test by test: each turn of a run is a test.


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


def junit_document(
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


def junit_times(started_utc: str, finished_utc: str | None) -> tuple[str, str]:
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
    seconds, started = junit_times(run.record.started_utc, run.record.finished_utc)
    return junit_document(
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
    if run.record.line is not None:
        yield "line", line_words(run.record.line)
    yield "machine", run.record.machine.fingerprint

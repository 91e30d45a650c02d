"""A run as JUnit XML: each turn is a test, which CI servers show one by one."""

from collections.abc import Iterator

from turngap.core.results import Turn
from turngap.report import turn_words, words
from turngap.report.junit import Case, document, times
from turngap.store.runs import Run
from turngap.store.tables import agent_name

SUITE = "turngap run"


def run_junit(run: Run) -> bytes:
    """Build the document. A test's `time` is the turn's gap, so a CI server plots it over builds.

    A turn that was answered within its budget passes, any other fails with its outcome as `type`.
    Turns without a verdict are skipped: every turn of an invalid run, and turns that are left out.
    """
    seconds, started = times(run.record.started_utc, run.record.finished_utc)
    return document(
        SUITE,
        [_case(run, turn) for turn in run.turns],
        properties=dict(_properties(run)),
        output=repr(run).strip("<>"),
        seconds=seconds,
        started=started,
    )


def _case(run: Run, turn: Turn) -> Case:
    gap_s = None if turn.gap_ms is None or turn.gap_ms < 0 else turn.gap_ms / 1000
    name, outcome = turn_words.turn_name(turn), turn.outcome
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

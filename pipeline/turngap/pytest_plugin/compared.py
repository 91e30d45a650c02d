"""A candidate beside a reference: what `turngap.check()` returns, and runs beside baselines."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from turngap.check import baseline as baselines
from turngap.check import words as check_words
from turngap.check.play import Checked
from turngap.check.record import CheckVerdict
from turngap.check.verdict import judge
from turngap.core.errors import InconclusiveError, InputError, LatencyError
from turngap.core.paired import Limits
from turngap.core.results import Turn, TurnKey
from turngap.pytest_plugin import wording
from turngap.pytest_plugin.measured import MeasuredRun
from turngap.report import words
from turngap.store.provenance import this_machine
from turngap.store.runs import Run


class Comparison:
    """A finished check.

    Attributes:
        checked: the check as `turngap.check` returns it, with its record and both runs.
        run: the candidate's run, whether it holds or not.
        asserted: whether the verdict has been asserted.
    """

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.record = checked.record
        self.path = checked.path
        self.verdict: CheckVerdict = checked.verdict
        self.run = MeasuredRun(checked.candidate)
        self.asserted = False

    @property
    def candidate(self) -> MeasuredRun:
        """The candidate's run, for assertions of its own.

        Raises:
            InconclusiveError: the caller was starved, so that no figure of the run holds.
        """
        __tracebackhide__ = True
        if not self.run.valid:
            raise invalid(self.run)
        return self.run

    def assert_not_slower(self) -> None:
        """Assert the verdict `pass`: nothing regressed, and a relevant change would have been seen.

        Raises:
            LatencyError: regressed; names the stage that moved.
            InconclusiveError: undecided or not comparable.
        """
        __tracebackhide__ = True
        self.asserted = True
        if self.verdict == "pass":
            return
        reference = self.checked.reference
        gaps = {t.key: t.gap_ms for t in reference.turns} if reference else {}
        lines = [*self._lines(), *_slower(self.run.turns, gaps, self.verdict)]
        raise _failure(self.verdict, lines, f"check: {self.path}")

    def _lines(self) -> list[str]:
        record = self.record
        # Of a verdict the record names the metrics; of an obstacle, what it is.
        obstacle = record.verdict == "cannot_compare"
        lines = [f"{'cannot compare: ' if obstacle else ''}{'; '.join(record.why)}"]
        moved = wording.moved_words(record.stages)
        lines += [moved] if moved and record.verdict == "regressed" else []
        # Figures that bear no verdict are in the check's report.
        lines += [] if obstacle else [wording.metric_words(m) for m in record.metrics]
        if starved := check_words.starved_words(record):
            lines.append(f"the caller was {starved}")
        for b in () if obstacle else record.budgets:
            share, interval = check_words.budget_figures(b)
            lines.append(
                f"{b.name} within {b.budget_ms:g} ms: {b.verdict}, {share} of "
                f"{words.turns_words(b.n)} (expected {words.percent(b.target)}; 95 % interval "
                f"{interval})"
            )
        return lines


def baseline_file(folder: Path, name: str, nodeid: str, number: int) -> Path:
    """Where the baseline of a test's `number`th run lies; no two tests share one."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", nodeid).strip("-.")[-80:]
    digest = hashlib.sha256(nodeid.encode()).hexdigest()[:8]
    which = f"-{number}" if number > 1 else ""
    return folder / name / f"{slug}-{digest}{which}.json"


def save(run: Run, file: Path) -> None:
    """Store a run as a baseline.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(
            "baseline.unwritable",
            f"{file.parent}: cannot be made: {e.strerror}",
            hint="--turngap-baselines DIR names another folder",
        ) from e
    baselines.save(file, run.record, run.turns)


def compare(run: Run, file: Path, name: str) -> None:
    """Compare a run with a stored baseline, as `turngap check --baseline` does.

    Raises:
        LatencyError: it is slower or cuts in more often; names the stage that moved.
        InconclusiveError: there is no baseline, or it does not compare, or there are too few turns.
    """
    where = f"baseline: {file}\nrun: {run.path}"
    if not file.exists():
        raise InconclusiveError(
            "pytest.no_baseline",
            f"no baseline {name} of this test\n\nexpected: {file}\n"
            f"pytest --turngap-save {name} makes it",
        )
    try:
        stored = baselines.load(file)
    except InputError as e:
        raise _failure("cannot_compare", [f"cannot compare with {name}: {e.message}"]) from None
    reasons = baselines.why_not_comparable(
        stored, this_machine(), run.record.scenario_hashes, run.record.starved_ms
    )
    matched = baselines.matched(stored, run.turns)
    judgement = None if reasons else judge(matched.pairs, Limits())
    if judgement and (why := judgement.starvation.why_not_judged):
        reasons = [why]
    if judgement is None or reasons:
        lines = [f"cannot compare with {name}: {'; '.join(reasons)}"]
        raise _failure("cannot_compare", lines, where)
    if judgement.verdict == "pass":
        return
    moved = wording.moved_words(judgement.stages)
    regressed = ", ".join(m.name for m in judgement.metrics if m.verdict == "regressed")
    lines = [f"worse than {name} in {regressed}; {moved or 'no single stage moved beyond chance'}"]
    if judgement.verdict == "undecided":
        lines = [
            f"undecided beside {name}: {judgement.n} pairs; more take more turns on both sides: "
            f"--turngap-rounds N with --turngap-save {name}, then with --turngap-compare {name}"
        ]
    if matched.unmatched:
        turns = words.turns_words(matched.unmatched)
        lines.append(f"{turns} without a twin in {name} (other rounds or phases)")
    if matched.rejudged:
        turns = words.turns_words(matched.rejudged)
        lines.append(f"{turns} of {name} saved under another budget, judged by this test's")
    lines += [wording.metric_words(m) for m in judgement.metrics]
    lines += _slower(run.turns, baselines.gaps(stored), judgement.verdict)
    raise _failure(judgement.verdict, lines, where)


def invalid(run: Run) -> InconclusiveError:
    """Build the error for a run whose caller was starved."""
    text = f"the run is invalid: {'; '.join(run.record.why_invalid)}\n\nrun: {run.path}"
    return InconclusiveError("pytest.invalid", text)


def _failure(verdict: CheckVerdict, lines: Sequence[str], where: str = "") -> Exception:
    text = "\n".join(lines) + (f"\n\n{where}" if where else "")
    if verdict == "regressed":
        return LatencyError(text)
    return InconclusiveError(f"pytest.{verdict}", text)


def _slower(
    turns: Sequence[Turn], reference: Mapping[TurnKey, float | None], verdict: CheckVerdict
) -> list[str]:
    """Where there is a regression: the waterfalls of the turns that lost most to their pair."""
    if verdict != "regressed":
        return []
    lost: list[tuple[float, Turn]] = []
    for turn in turns:
        before = reference.get(turn.key)
        if not turn.replied:
            lost.append((float("inf"), turn))
        elif turn.gap_ms is not None and before is not None and turn.gap_ms > before:
            lost.append((turn.gap_ms - before, turn))
    lost.sort(key=lambda item: -item[0])
    return ["", wording.offenders([turn for _, turn in lost])] if lost else []

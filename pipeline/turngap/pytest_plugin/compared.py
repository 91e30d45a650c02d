"""A candidate beside a reference: what `turngap.check()` returns, and runs beside baselines."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from turngap.check import baseline as baselines
from turngap.check import words as check_words
from turngap.check.play import Checked
from turngap.check.record import BaselineRecord, CheckRecord, CheckVerdict
from turngap.check.verdict import Judgement, Limits, Reading, judge
from turngap.core.errors import InconclusiveError, InputError
from turngap.core.results import Turn
from turngap.pytest_plugin import wording
from turngap.pytest_plugin.failures import LatencyError
from turngap.pytest_plugin.measured import MeasuredRun
from turngap.report import words
from turngap.store.provenance import this_machine
from turngap.store.runs import Run

Gaps = Mapping[baselines.Key, float | None]


class Comparison:
    """A finished check.

    Attributes:
        record: as in `check.json`.
        run: the candidate's run, whether it holds or not.
        asserted: whether the verdict has been asserted.
    """

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self.record: CheckRecord = checked.record
        self.run = MeasuredRun(checked.candidate)
        self.asserted = False

    @property
    def candidate(self) -> MeasuredRun:
        """The candidate's run, for assertions of its own.

        Raises:
            InconclusiveError: the caller was starved, so that no figure of the run holds.
        """
        __tracebackhide__ = True
        if not self.run.stored.record.valid:
            raise invalid(self.run.stored)
        return self.run

    @property
    def verdict(self) -> CheckVerdict:
        """`pass`, `regressed`, `undecided` or `cannot_compare`."""
        return self.record.verdict

    @property
    def path(self) -> str:
        """The check's folder."""
        return str(self._checked.path)

    def assert_not_slower(self) -> None:
        """The verdict is `pass`: nothing regressed, and what matters would have been seen.

        Raises:
            LatencyError: regressed; names the stage that moved.
            InconclusiveError: undecided or not comparable.
        """
        __tracebackhide__ = True
        self.asserted = True
        if self.verdict == "pass":
            return
        reference = self._checked.reference
        gaps = {} if reference is None else _gaps(baselines.readings(reference.turns))
        text = "\n".join((*self._lines(), *_slower(self.run.turns, gaps, self.verdict)))
        text += f"\n\ncheck: {self.path}"
        raise _failure(self.verdict, text)

    def _lines(self) -> list[str]:
        record = self.record
        # Of a verdict the record names the metrics; of an obstacle, what it is.
        obstacle = "cannot compare: " if record.verdict == "cannot_compare" else ""
        lines = [f"{obstacle}{'; '.join(record.why)}"]
        moved = wording.moved_words(record.stages)
        lines += [moved] if moved and record.verdict == "regressed" else []
        # Figures that bear no verdict are in the check's report.
        lines += [] if obstacle else [wording.metric_words(m) for m in record.metrics]
        if starved := check_words.starved_words(record):
            lines.append(f"the caller was {starved}")
        for b in () if obstacle else record.budgets:
            share = "–" if b.share is None else words.percent(b.share)
            low = "" if b.low is None or b.high is None else (
                f"; 95 % interval {words.percent(b.low)} to {words.percent(b.high)}"
            )  # fmt: skip
            lines.append(
                f"{b.name} within {b.budget_ms:g} ms: {b.verdict}, {share} of "
                f"{words.turns_words(b.n)} (expected {words.percent(b.target)}{low})"
            )
        return lines


def baseline_file(folder: Path, name: str, nodeid: str, number: int) -> Path:
    """Where the baseline of a test's `number`th run lies; no two tests share one."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", nodeid).strip("-.")[-80:]
    digest = hashlib.sha256(nodeid.encode()).hexdigest()[:8]
    which = f"-{number}" if number > 1 else ""
    return folder / name / f"{slug}-{digest}{which}.json"


def save(run: MeasuredRun, file: Path) -> None:
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
    baselines.save(file, run.stored.record, run.turns)


def compare(run: MeasuredRun, file: Path, name: str) -> None:
    """Compare a run with a stored baseline, as `turngap check --baseline` does.

    Raises:
        LatencyError: it is slower; names the stage that moved.
        InconclusiveError: there is no baseline, or it does not compare, or there are too few turns.
    """
    stored = _loaded(file, name)
    hashes = run.stored.record.scenario_hashes
    starved_ms = run.stored.record.starved_ms
    reasons = baselines.why_not_comparable(stored, this_machine(), hashes, starved_ms)
    if reasons:
        text = f"cannot compare with {name}: {'; '.join(reasons)}"
        text += f"\n\nbaseline: {file}\nrun: {run.path}"
        raise InconclusiveError("pytest.cannot_compare", text)
    matched = baselines.matched(stored, run.turns)
    judgement = judge(matched.pairs, Limits())
    if why := judgement.starvation.why_not_judged:
        text = f"cannot compare with {name}: {why}\n\nbaseline: {file}\nrun: {run.path}"
        raise InconclusiveError("pytest.cannot_compare", text)
    if judgement.verdict == "pass":
        return
    lines = [_headline(judgement, name), *_how_matched(matched, name)]
    lines += map(wording.metric_words, judgement.metrics)
    lines += _slower(run.turns, baselines.gaps(stored), judgement.verdict)
    text = "\n".join(lines) + f"\n\nbaseline: {file}\nrun: {run.path}"
    raise _failure(judgement.verdict, text)


def _loaded(file: Path, name: str) -> BaselineRecord:
    if not file.exists():
        raise InconclusiveError(
            "pytest.no_baseline",
            f"no baseline {name} of this test\n\nexpected: {file}\n"
            f"pytest --turngap-save {name} makes it",
        )
    try:
        return baselines.load(file)
    except InputError as e:
        text = f"cannot compare with {name}: {e.message}"
        raise InconclusiveError("pytest.cannot_compare", text) from None


def _failure(verdict: CheckVerdict, text: str) -> Exception:
    if verdict == "regressed":
        return LatencyError(text)
    return InconclusiveError(f"pytest.{verdict}", text)


def invalid(stored: Run) -> InconclusiveError:
    """What a run raises whose caller was starved."""
    reasons = "; ".join(stored.record.why_invalid)
    text = f"the run is invalid: {reasons}\n\nrun: {stored.path}"
    return InconclusiveError("pytest.invalid", text)


def _headline(judgement: Judgement, name: str) -> str:
    if judgement.verdict == "undecided":
        return (
            f"undecided beside {name}: {judgement.n} pairs; more take more turns on both sides: "
            f"--turngap-rounds N with --turngap-save {name}, then with --turngap-compare {name}"
        )
    moved = wording.moved_words(judgement.stages) or "no single stage moved beyond chance"
    return f"slower than {name}; {moved}"


def _how_matched(matched: baselines.Matched, name: str) -> list[str]:
    """Turns that the baseline has no twin for, and twins of another budget."""
    lines: list[str] = []
    if matched.unmatched:
        turns = words.turns_words(matched.unmatched)
        lines.append(f"{turns} without a twin in {name} (other rounds or phases)")
    if matched.rejudged:
        turns = words.turns_words(matched.rejudged)
        lines.append(f"{turns} of {name} saved under another budget, judged by this test's")
    return lines


def _gaps(readings: Mapping[baselines.Key, Reading]) -> Gaps:
    return {key: reading.gap_ms for key, reading in readings.items()}


def _slower(turns: Sequence[Turn], reference: Gaps, verdict: CheckVerdict) -> list[str]:
    """Where there is a regression: the waterfalls of the turns that lost most to their pair."""
    if verdict != "regressed":
        return []
    lost: list[tuple[float, Turn]] = []
    for turn in turns:
        before = reference.get(baselines.key_of(turn))
        if not turn.replied:
            lost.append((float("inf"), turn))
        elif turn.gap_ms is not None and before is not None and turn.gap_ms > before:
            lost.append((turn.gap_ms - before, turn))
    lost.sort(key=lambda item: -item[0])
    return ["", wording.offenders([turn for _, turn in lost])] if lost else []

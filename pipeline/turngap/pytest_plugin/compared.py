"""A candidate compared with a reference: what `turngap.check()` returns."""

from collections.abc import Mapping, Sequence

from turngap.check import words as check_words
from turngap.check.play import Checked
from turngap.core.errors import InconclusiveError, LatencyError
from turngap.core.results import Turn, TurnKey
from turngap.pytest_plugin.measured import (
    MeasuredRun,
    metric_words,
    moved_words,
    offenders,
)
from turngap.report import words
from turngap.store.checks import CheckVerdict
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
        """Return the candidate's run, for assertions of its own.

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
        moved = moved_words(record.stages)
        lines += [moved] if moved and record.verdict == "regressed" else []
        # Figures that bear no verdict are in the check's report.
        lines += [] if obstacle else [metric_words(m) for m in record.metrics]
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
    """Draw the turns that lost most to their pair, where there is a regression."""
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
    return ["", offenders([turn for _, turn in lost])] if lost else []

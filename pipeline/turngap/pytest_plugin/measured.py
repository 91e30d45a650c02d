"""A finished run, its assertions, and the output of failed ones."""

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from statistics import median

from turngap.check import words as check_words
from turngap.check.play import Checked
from turngap.core.budget import OUTCOMES, Outcome
from turngap.core.clusters import Clusters
from turngap.core.errors import InconclusiveError, InputError, LatencyError
from turngap.core.results import Turn, TurnKey
from turngap.core.stages import STAGES, UNATTRIBUTED, unmarked
from turngap.core.stats import at_least as bound_of
from turngap.core.stats import n_needed, percentile_of, proportion_of
from turngap.core.summary import PERCENTILES, counted_turns, due_gaps
from turngap.report import looks, words
from turngap.report.console import turn_block
from turngap.store.checks import CheckVerdict, MetricVerdict, StageShift
from turngap.store.runs import Run

# Where even this many turns without a miss would not do, no number is named.
_MAX_EXTRA = 4096
_BY_CHANCE = "(its 95 % interval holds the limit: more turns, --turngap-rounds, would decide)"

# A figure of a turn in ms, infinite where a reply was due and there is none; slowest first.
Figures = Sequence[tuple[float, Turn]]
GAP = "turn gap"


class MeasuredRun(Run):
    """A run that was played to its end by a caller that was never starved.

    Every assertion counts turns without a reply as slower than any other. With `sure=True`, the
    observed figure is not enough: its 95 % bound has to keep the limit, and if it does not, the
    test is inconclusive. A figure that cannot be known at all (p95 of 3 turns) is inconclusive
    either way.

    An assertion that makes no sense (no such stage, no limit) raises an `InputError`.

    Attributes:
        asserted: whether anything has been asserted so far.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.record, run.turns, run.path, run.problems)
        self.asserted = False

    def assert_hit_rate(self, at_least: float = 0.95, *, sure: bool = False) -> None:
        """Assert that at least this share of all turns was answered within the budget.

        With `sure`, the lower end of the 95 % interval has to reach `at_least`: 0.95 then takes 72
        calls without a miss, whatever their turns. Rounds count: the assertion is about these
        recordings, while the interval of a report is about turns like them.

        Raises:
            LatencyError: the share is below `at_least`.
            InconclusiveError: `sure`, and the interval holds `at_least`.
        """
        __tracebackhide__ = True
        self.asserted = True
        if not 0 < at_least <= 1 or (sure and at_least == 1):
            message = f"at_least={at_least!r}: expected a share, 0.95 for 95 %"
            raise InputError("pytest.hit_rate", message)
        turns = counted_turns(self.turns)
        rate = proportion_of([t.outcome == "answered" for t in turns], _calls(turns))
        figure, remark = words.hit_rate_words(rate)
        counted = f"{rate.hits} of {words.turns_words(rate.n)} within {self._budget_words()}"
        headline = f"hit rate {figure} ({counted}; {remark}), expected {words.percent(at_least)}"
        missed = [t for t in self.turns if t.outcome != "answered"]
        if rate.value is None or rate.value < at_least:
            chance = rate.high is not None and rate.high >= at_least
            raise LatencyError(self._report(headline, missed, _BY_CHANCE if chance else None))
        if sure and (rate.low is None or rate.low < at_least):
            text = self._report(
                f"{headline} at its lower bound",
                missed,
                _more_calls(rate.value, _calls(turns), at_least, "a miss"),
            )
            raise InconclusiveError("pytest.unsure", text)

    def assert_cut_ins(self, at_most: float = 0.05, *, sure: bool = False) -> None:
        """Assert that the agent cut in on at most this share of all turns.

        Assert it wherever you assert a gap: an agent with no patience is quick. With `sure`, the
        upper end of the 95 % interval must not exceed `at_most`: 0.05 then takes 72 calls without a
        cut-in.

        Raises:
            LatencyError: the share is above `at_most`.
            InconclusiveError: `sure`, and the interval holds `at_most`.
        """
        __tracebackhide__ = True
        self.asserted = True
        if not 0 <= at_most < 1 or (sure and at_most == 0):
            message = f"at_most={at_most!r}: expected a share, 0.05 for 5 %"
            raise InputError("pytest.cut_ins", message)
        turns = counted_turns(self.turns)
        bounds = proportion_of([t.outcome == "cut_in" for t in turns], _calls(turns))
        rate = replace(self.cut_ins, low=bounds.low, high=bounds.high, recorded=None)
        figure, remark = words.cut_ins_words(rate)
        headline = f"cut-ins {figure} ({remark}), expected at most {words.percent(at_most)}"
        early = [t for t in self.turns if t.outcome == "cut_in"]
        if rate.value is None or rate.value > at_most:
            chance = rate.low is not None and rate.low <= at_most
            raise LatencyError(self._report(headline, early, _BY_CHANCE if chance else None))
        if sure and (rate.high is None or rate.high > at_most):
            more = _more_calls(1 - rate.value, _calls(turns), 1 - at_most, "a cut-in")
            text = self._report(f"{headline} at its upper bound", early, more)
            raise InconclusiveError("pytest.unsure", text)

    def assert_gap(
        self,
        *,
        p50_ms: float | None = None,
        p90_ms: float | None = None,
        p95_ms: float | None = None,
        max_ms: float | None = None,
        sure: bool = False,
    ) -> None:
        """Assert that the turn gap keeps these limits.

        Cut-ins have no gap to compare and are left out; they are misses of the hit rate, and
        `assert_cut_ins` limits them. A turn that the person gave up on is over every limit.

        Raises:
            LatencyError: a percentile, or with `max_ms` any turn, is over its limit.
            InconclusiveError: too few turns for the percentile, or for its bound with `sure`.
        """
        __tracebackhide__ = True
        limits = {"p50": p50_ms, "p90": p90_ms, "p95": p95_ms, "max": max_ms}
        self._hold(GAP, self._figures(lambda t: t.gap_ms), limits, sure)

    def assert_stage(
        self,
        stage: str,
        *,
        p50_ms: float | None = None,
        p90_ms: float | None = None,
        p95_ms: float | None = None,
        max_ms: float | None = None,
        sure: bool = False,
    ) -> None:
        """Assert that one stage of the gap keeps these limits, as `assert_gap` does for the whole.

        A turn that was answered without the mark that ends the stage counts as over the limit.

        Raises:
            LatencyError: as `assert_gap`.
            InconclusiveError: as `assert_gap`; or no turn has the stage, since the agent does not
                report its mark.
            InputError: there is no such stage.
        """
        __tracebackhide__ = True
        if stage not in STAGES:
            hint = f"stages: {', '.join(STAGES)}"
            raise InputError("pytest.stage", f"no stage {stage!r}", hint=hint)
        self.asserted = True
        # That nothing is unexplained is 0; that a mark is missing is not known.
        missing = 0.0 if stage == UNATTRIBUTED else None
        figures = self._figures(lambda t: t.stage_ms.get(stage, missing))
        seen = [figure.name for figure in self.summary.stages]
        if seen and figures and all(ms == inf for ms, _ in figures):
            raise InconclusiveError(
                "pytest.no_stage",
                f"no turn has the stage {stage}, whose mark the agent does not report (there is: "
                f"{', '.join(seen)})\n\nrun: {self.path}",
                hint=ADD_MARKS if unmarked(seen) else "",
            )
        limits = {"p50": p50_ms, "p90": p90_ms, "p95": p95_ms, "max": max_ms}
        self._hold(stage, figures, limits, sure)

    def assert_outcome(self, scenario: str, turn: int, outcome: Outcome = "answered") -> None:
        """Assert that one turn of a scenario, counted from 1, had this outcome in every repeat.

        Raises:
            LatencyError: the turn had another outcome.
            InputError: no such turn was played, or there is no such outcome.
        """
        __tracebackhide__ = True
        self.asserted = True
        if outcome not in OUTCOMES:
            hint = f"outcomes: {', '.join(OUTCOMES)}"
            raise InputError("pytest.outcome", f"no outcome {outcome!r}", hint=hint)
        played = [t for t in self.turns if (t.scenario, t.turn) == (scenario, turn)]
        if not played:
            known = ", ".join(dict.fromkeys(f"{t.scenario} {t.turn}" for t in self.turns))
            message = f"no turn {turn} of {scenario!r} was played"
            raise InputError("pytest.turn", message, hint=f"played: {known}")
        others = [t for t in played if t.outcome != outcome]
        if others:
            found = ", ".join(dict.fromkeys(t.outcome for t in others))
            headline = (
                f"{scenario}, turn {turn}: {found} in {len(others)} of {len(played)}, "
                f"expected {outcome}"
            )
            raise LatencyError(self._report(headline, others))

    def _budget_words(self) -> str:
        budgets = {t.budget_ms for t in self.turns}
        return f"{words.ms(budgets.pop())} ms" if len(budgets) == 1 else "their budget"

    def _figures(self, value: Callable[[Turn], float | None]) -> Figures:
        """Return the figures of every turn that was due a reply and had a chance to get it."""
        due = [(value(t) if t.replied else None, t) for _, t in due_gaps(counted_turns(self.turns))]
        return sorted(((inf if ms is None else ms, t) for ms, t in due), key=lambda f: -f[0])

    def _hold(
        self, what: str, figures: Figures, limits: Mapping[str, float | None], sure: bool
    ) -> None:
        __tracebackhide__ = True
        self.asserted = True
        asked = {name: ms for name, ms in limits.items() if ms is not None}
        if not asked:
            hint = "for example p95_ms=450, p50_ms=300 or max_ms=800"
            raise InputError("pytest.no_limit", f"{what}: no limit given", hint=hint)
        unsure: InconclusiveError | None = None
        for name, limit_ms in asked.items():
            over = [turn for ms, turn in figures if ms > limit_ms]
            try:
                if name == "max":
                    self._hold_max(what, figures, over, limit_ms)
                else:
                    self._hold_percentile(what, name, figures, over, limit_ms=limit_ms, sure=sure)
            except InconclusiveError as e:
                # Another limit may be broken for sure, which says more than that this is not known.
                unsure = unsure or e
        if unsure is not None:
            raise unsure

    def _hold_max(self, what: str, figures: Figures, over: Sequence[Turn], limit_ms: float) -> None:
        __tracebackhide__ = True
        if not figures:
            text = f"{what}: no turn has one{self._left_out()}\n\nrun: {self.path}"
            raise InconclusiveError("pytest.no_turn", text)
        if over:
            worst = figures[0][0]
            figure = "without a figure" if worst == inf else f"{words.ms(worst)} ms"
            headline = (
                f"{what} max {figure}, expected at most {limit_ms:g} ms: {len(over)} of "
                f"{words.turns_words(len(figures))} over it{self._left_out()}"
            )
            raise LatencyError(self._report(headline, over))

    def _hold_percentile(
        self,
        what: str,
        name: str,
        figures: Figures,
        over: Sequence[Turn],
        *,
        limit_ms: float,
        sure: bool,
    ) -> None:
        __tracebackhide__ = True
        q = PERCENTILES[name]
        calls = _calls([turn for _, turn in figures])
        found = percentile_of([ms for ms, _ in figures], calls, q)
        if what == GAP:
            found = replace(found, why_none=self.summary.gap_ms[name].why_none)
        figure, remark = words.percentile_words(found)
        counted = remark if found.why_none else f"{remark}; n={len(figures)}"
        headline = (
            f"{what} {name} {figure} ({counted}), expected at most {limit_ms:g} ms"
            f"{self._left_out()}"
        )
        if len(figures) < n_needed(q):
            # Too few for the percentile, but enough to see that it must lie beyond the limit.
            if bound_of(len(over), len(figures)) > 1 - q:
                beyond = f"{len(over)} of {words.turns_words(len(figures))} over it already"
                raise LatencyError(self._report(headline, over, beyond))
            text = f"{headline}{self._rounds_for(q, figures)}\n\nrun: {self.path}"
            raise InconclusiveError("pytest.too_few", text)
        if found.value is None or found.value > limit_ms:
            by_chance = found.low is not None and found.low <= limit_ms
            raise LatencyError(self._report(headline, over, _BY_CHANCE if by_chance else None))
        if sure and (found.high is None or found.high > limit_ms):
            remark = "the 95 % bound is over it: more calls (--turngap-rounds) narrow the interval"
            raise InconclusiveError("pytest.unsure", self._report(headline, over, remark))

    def _left_out(self) -> str:
        left_out = words.left_out_words(self.summary)
        return f"; left out: {left_out}" if left_out else ""

    def _rounds_for(self, q: float, figures: Figures) -> str:
        """Say how often everything must be played for this percentile to exist."""
        repeats = max((t.repeat for t in self.turns), default=1)
        each = len(figures) / repeats
        if not each:
            return ""
        return f"; repeat={ceil(n_needed(q) / each)} (or --turngap-rounds) gives enough turns"

    def _report(self, headline: str, offending: Sequence[Turn], remark: str | None = None) -> str:
        chosen = {id(t) for t in offending}
        others = [t for t in self.turns if id(t) not in chosen]
        text = "\n".join(filter(None, (headline, remark, blame(offending, others))))
        if offending:
            text += f"\n\n{offenders(offending)}"
        return f"{text}\n\nrun: {self.path}"


def _calls(turns: Sequence[Turn]) -> Clusters:
    return Clusters.of_plays([turn.call for turn in turns])


def _more_calls(share: float, calls: Clusters, target: float, miss: str) -> str | None:
    n = calls.least or 0.0

    def low(extra: int) -> float:
        return bound_of(share * n + extra, n + extra)

    extra = bisect_left(range(_MAX_EXTRA), target, key=low)
    return f"{extra} more calls without {miss} would be enough" if extra < _MAX_EXTRA else None


# Enough to see what they have in common; all of them are in the run's report.html.
SHOWN = 3
_PREFIX = len("E   ")

ADD_MARKS = f"the agent reports no marks; in a pipecat bot, add: {'; '.join(words.ADD_MARKS)}"


def offenders(turns: Sequence[Turn]) -> str:
    """Draw the waterfalls of the first few turns."""
    columns = shutil.get_terminal_size().columns - _PREFIX
    width = min(max(columns, 60), 100)
    text = "\n".join(turn_block(turn, width).plain for turn in turns[:SHOWN])
    rest = len(turns) - SHOWN
    return text.rstrip("\n") + (f"\n\n… and {words.turns_words(rest)} more" if rest > 0 else "")


def blame(offending: Sequence[Turn], others: Sequence[Turn]) -> str | None:
    """Name the stage that makes most of the difference between slow turns and the others."""
    slow, usual = _medians(offending), _medians(others)
    if not slow:
        return None
    stage = max(slow, key=lambda name: slow[name] - usual.get(name, 0.0))
    text = f"most of it: {looks.full_name(stage)}, median {words.ms(slow[stage])} ms in these turns"
    if usual:
        text += f", {words.ms(usual.get(stage, 0.0))} ms in the other {len(others)}"
    return f"{text} ({ADD_MARKS})" if stage == UNATTRIBUTED else text


def _medians(turns: Sequence[Turn]) -> dict[str, float]:
    """Return each stage's median in ms over the answered turns; a missing stage counts as 0."""
    answered = [turn.stage_ms for turn in turns if turn.replied]
    names = dict.fromkeys(name for stages in answered for name in stages)
    return {name: median(stages.get(name, 0.0) for stages in answered) for name in names}


def metric_words(metric: MetricVerdict) -> str:
    """Describe one metric: its verdict, its change with an interval, and what would decide."""
    if metric.difference is None:
        return f"{metric.name}: {metric.verdict} ({metric.why or 'not known'})"
    bounds = check_words.interval_words(metric)
    interval = f"95 % interval {bounds}" if bounds else "too few for an interval"
    change = check_words.difference_words(metric)
    text = f"{metric.name}: {metric.verdict}, {change} ({interval}; n={metric.n} pairs)"
    if metric.verdict != "undecided":
        return text
    needed = metric.turns_needed
    more = None if needed is None else f"about {check_words.more_pairs(needed)} would decide"
    return "; ".join(filter(None, (text, metric.why, more)))


def moved_words(shifts: Iterable[StageShift]) -> str | None:
    """Name the stages that grew beyond chance, most first."""
    grown = sorted((s for s in shifts if s.moved), key=lambda s: -s.shift_ms)
    listed = ", ".join(
        f"{looks.full_name(s.name)} +{words.ms(s.shift_ms)} ms (n={s.n})" for s in grown
    )
    return f"stage that moved: {listed}" if grown else None


class Comparison:
    """A finished check.

    Attributes:
        checked: the check as `turngap.check` returns it, with its record and both runs.
        run: the candidate's run, valid or not.
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
        """Return the candidate's run, for further assertions.

        Raises:
            InconclusiveError: the caller was starved, so that no figure of the run is valid.
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

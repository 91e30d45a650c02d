"""The fixture `turngap`: plays from within a test, one replay at a time on this machine."""

import inspect
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from turngap import _api
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import InconclusiveError, InputError, LatencyError, TurngapError
from turngap.core.wording import minutes_words, seconds_left
from turngap.play.defaults import REPLACED, read_defaults
from turngap.pytest_plugin.measured import Comparison, MeasuredRun, invalid
from turngap.pytest_plugin.options import DEFAULTS, INCONCLUSIVE, Options, Row
from turngap.report import words
from turngap.store.runs import Run

if TYPE_CHECKING:
    from turngap.core.results import Turn


Result = TypeVar("Result")

# What the plugin itself sets of a call.
_OURS = {"out", "settings", "on_turn", "progress"}


class Turngap:
    """The fixture of a test: methods that play in real time and return when they have measured.

    Attributes:
        runs: the replays of this test so far, in order.
        checks: the checks of this test so far.
    """

    def __init__(
        self,
        nodeid: str,
        options: Options,
        *,
        marker: pytest.Mark | None,
        folder: Callable[[], Path],
        write: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._nodeid = nodeid
        self._options = options
        self._folder = folder
        self._write = write
        self._marker = _marker_settings(marker)
        self.runs: list[MeasuredRun] = []
        self.checks: list[Comparison] = []
        self._refused: list[MeasuredRun] = []
        self._warnings: list[str] = []

    def replay(self, agent: str | None = None, **settings: Any) -> MeasuredRun:
        """Play scenarios against an agent, as `turngap.replay` does, and keep the run.

        Args:
            agent: a stack's name, a stack file or a `ws://` URL; `start="python bot.py"` starts
                that bot. Start a bot in a process of its own, or it delays the caller in the test.
            settings: keywords of `turngap.replay`, which replace those of the marker `turngap`.

        Raises:
            InputError: a setting is wrong.
            AgentError: the agent cannot be reached or failed.
            InconclusiveError: the caller was starved, so that no figure of the run is valid.
        """
        __tracebackhide__ = True
        if self._options.rounds:
            settings["repeat"] = self._options.rounds
        ours = {"settings": {"test": self._nodeid}}
        run = MeasuredRun(self._play("replay", _api.replay, agent, settings, **ours))
        if not run.valid:
            self._refused.append(run)
            raise invalid(run)
        self.runs.append(run)
        return run

    def score(self, *calls: str | Path, **settings: Any) -> MeasuredRun:
        """Measure recorded calls, as `turngap.score` does, and keep the run.

        Args:
            calls: stereo recordings, or folders of them.
            settings: keywords of `turngap.score`.

        Raises:
            InputError: a setting is wrong, or no call could be scored.
            InconclusiveError: no figure of the run is valid.
        """
        __tracebackhide__ = True
        _refuse_unknown(settings, keywords(_api.score), "turngap.score")
        ours = {"settings": {"test": self._nodeid}, "out": self._folder(), "progress": False}
        given = {"otlp": self._options.otlp, **settings}
        try:
            with _warnings_kept(self._warnings):
                run = MeasuredRun(_api.score(*calls, **given, **ours))
        except TurngapError as e:
            raise e.with_traceback(None) from None
        if not run.valid:
            self._refused.append(run)
            raise invalid(run)
        self.runs.append(run)
        return run

    def check(self, agent: str | None = None, **settings: Any) -> Comparison:
        """Compare an agent with a reference, as `turngap.check` does, and keep both runs.

        Args:
            agent: the candidate.
            settings: keywords of `turngap.check`, which replace those of the marker `turngap`.

        Raises:
            InputError: a setting is wrong, or the baseline cannot be read.
            AgentError: one of the agents cannot be reached or failed.
        """
        __tracebackhide__ = True
        if self._options.rounds:
            settings["rounds"] = self._options.rounds
        comparison = Comparison(self._play("check", _api.check, agent, settings))
        self.checks.append(comparison)
        return comparison

    def _play(
        self,
        command: str,
        play: Callable[..., Result],
        agent: str | None,
        given: Mapping[str, Any],
        **ours: Any,
    ) -> Result:
        """Play alone on this machine: the call wins over the marker, the options and the file."""
        __tracebackhide__ = True
        allowed = keywords(play)
        _refuse_unknown(given, allowed, "turngap")
        options = self._options
        known = {name: value for name, value in self._marker.items() if name in allowed}
        in_options: dict[str, Any] = {
            "calibration": options.calibration,
            "starved_ms": options.starved_ms,
            "otlp": options.otlp,
            "line": options.line,
        }
        if agent is None and "agent" not in {*known, *given}:
            in_options |= {"agent": options.agent, "start": options.start}
        chosen: dict[str, Any] = {}
        for layer in (in_options, known, {"agent": agent}, given):
            chosen |= {name: value for name, value in layer.items() if value is not None}
        chosen = {**DEFAULTS, **_in_the_file(command, chosen, allowed), **chosen}
        try:
            with one_at_a_time(), _warnings_kept(self._warnings):
                watched = Watched(self._write, command, chosen)
                ours |= {"out": self._folder(), "on_turn": watched.count, "progress": False}
                return play(**chosen, **ours)
        except TurngapError as e:
            if e.stored is not None:
                run = e.stored if isinstance(e.stored, Run) else e.stored.candidate
                self._refused.append(MeasuredRun(run))
            # What happened within turngap is not for the reader of a test's failure.
            raise e.with_traceback(None) from None

    def rows(self, outcome: str, error: BaseException | None) -> list[Row]:
        """Build a row for each run, in words, once the test has ended."""
        verdict = _verdict(outcome, error)
        rows = [self._row(run, _with_remark(verdict, run.asserted)) for run in self.runs]
        rows += [self._row(run, verdict) for run in self._refused]
        for comparison in self.checks:
            asserted = comparison.asserted or comparison.run.asserted
            remarks = _with_remark(verdict, asserted)
            shown = f"{remarks} (check: {comparison.verdict.replace('_', ' ')})"
            rows.append(self._row(comparison.run, shown, comparison.path))
        if rows:
            rows[-1]["warnings"] = self._warnings
        return rows

    def _row(self, run: MeasuredRun, verdict: str, folder: Path | None = None) -> Row:
        figure, _ = words.hit_rate_words(run.hit_rate)
        gap = run.gap_ms
        p50, p95 = (
            f"{words.ms(p.value)} ms" if p.value is not None else (p.why_none or "–")
            for p in (gap.p50, gap.p95)
        )
        return Row(
            test=self._nodeid,
            hit_rate=f"{figure} (n={run.hit_rate.n})",
            p50=p50,
            p95=p95,
            cut_ins=f"{run.cut_ins.hits} of {run.cut_ins.n}",
            verdict=verdict,
            runs=str(folder or run.path),
            warnings=[],
        )


def keywords(play: Callable[..., Any]) -> list[str]:
    """List the keywords of `turngap.replay` or `turngap.check` that a test may use."""
    return [name for name in inspect.signature(play).parameters if name not in _OURS]


def lock_file() -> Path:
    """Return the file of this user that all replays on this machine lock."""
    return Path(tempfile.gettempdir()) / f"turngap-{os.getuid()}.lock"


@contextmanager
def one_at_a_time(file: Path | None = None) -> Iterator[None]:
    """Wait for the lock of all replays on this machine and hold it: two would disturb each other.

    Under xdist, or with two terminals, each waits here for its turn.
    The kernel keeps the lock, and a process that dies releases it; the file alone is no lock.
    """
    # Not at the top: this module is imported on every platform that runs pytest.
    import fcntl

    # Not through a link: the temporary folder is everybody's.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(file or lock_file(), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _warnings_kept(warnings: list[str]) -> Iterator[None]:
    """Add the warnings of turngap's logger meanwhile, such as of telemetry that was not sent."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    logger, handler = logging.getLogger("turngap"), Keep(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _in_the_file(command: str, given: Collection[str], allowed: Collection[str]) -> dict[str, Any]:
    """Return the keywords that the file has for a call, without those that `given` replaces.

    Raises:
        InputError: the file cannot be used.
    """
    defaults = read_defaults()
    if defaults is None:
        return {}
    left_out = {name for by in given for name in REPLACED.get(by, ())}
    values = defaults.of(command).items()
    return {name: v for name, v in values if name in allowed and name not in left_out}


def _marker_settings(marker: pytest.Mark | None) -> dict[str, Any]:
    """Return the marker's keywords.

    Raises:
        InputError: the marker has unknown keywords, or arguments without a name.
    """
    if marker is None:
        return {}
    allowed = keywords(_api.replay)
    if marker.args:
        raise InputError(
            "pytest.marker",
            f"@pytest.mark.turngap({', '.join(map(repr, marker.args))}): name each argument",
            hint=f"keywords: {', '.join(allowed)}",
        )
    _refuse_unknown(marker.kwargs, allowed, "@pytest.mark.turngap")
    return dict(marker.kwargs)


def _refuse_unknown(given: Mapping[str, Any], allowed: list[str], where: str) -> None:
    if unknown := [name for name in given if name not in allowed]:
        raise InputError(
            "pytest.setting",
            f"{where}: no setting {', '.join(unknown)}",
            hint=f"allowed: {', '.join(allowed)}",
        )


def _verdict(outcome: str, error: BaseException | None) -> str:
    match error:
        case InconclusiveError():
            return "inconclusive"
        case LatencyError():
            return "too slow"
        case TurngapError():
            return "not measured"
        case pytest.skip.Exception() if str(error).startswith(INCONCLUSIVE):
            return "inconclusive, skipped"
    return outcome


def _with_remark(verdict: str, asserted: bool) -> str:
    return verdict if verdict != "passed" or asserted else "passed, nothing asserted"


# How often a line is written, so that a log stays short.
LINE_EVERY_S = 10.0


class Watched:
    """Counts the turns of one call, and writes a line now and then.

    Args:
        write: shows a line; see `writer_of`.
        command, asked: the call, `replay` or `check`, and its keywords.
        clock: measures how long it has taken.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        command: str,
        asked: Mapping[str, Any],
        clock: Clock | None = None,
    ) -> None:
        self._write = write
        self._clock = clock or MonotonicClock()
        self._begun_ns = self._line_ns = self._clock.now_ns()
        self._done = 0
        self._turns, self._planned_s = _planned(asked) if command == "replay" else (None, None)
        if self._turns is not None and self._planned_s is not None:
            length = minutes_words(self._planned_s / 60)
            write(f"turngap: {self._turns} turns in real time: {length}")
        else:
            write(f"turngap: {command} plays in real time")

    def count(self, _: "Turn") -> None:
        """Count a turn that was played."""
        self._done += 1
        now_ns = self._clock.now_ns()
        if now_ns - self._line_ns < LINE_EVERY_S * NS_PER_S:
            return
        self._line_ns = now_ns
        if self._turns is None:
            self._write(f"turngap: {self._done} turns played")
        elif self._done < self._turns:
            elapsed_s = (now_ns - self._begun_ns) / NS_PER_S
            left_s = seconds_left(self._done / self._turns, elapsed_s, self._planned_s) or 0.0
            left = minutes_words(left_s / 60)
            self._write(f"turngap: {self._done} of {self._turns} turns, {left} left")


def writer_of(config: pytest.Config) -> Callable[[str], None]:
    """Return a function that shows a line on pytest's terminal, past its capture.

    It shows nothing in a log that no one watches: without a terminal, `-v` or `-s`; nor under
    xdist, whose processes have no terminal.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    watched = reporter is not None and reporter.verbosity >= 0
    asked = config.get_verbosity() > 0 or config.getoption("capture", "") == "no"
    if reporter is None or not watched or not (asked or reporter.isatty):
        return lambda line: None

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            reporter.ensure_newline()
            reporter.write_line(line)
            reporter.flush()

    return write


def _planned(asked: Mapping[str, Any]) -> tuple[int, float] | tuple[None, None]:
    """Estimate how many turns a replay plays, and how long they take, in seconds.

    Return None if it cannot be played: the call itself raises the reason.
    """
    from turngap.play.plan import PlayPlan
    from turngap.scenario.library import chosen

    rounds, calibration = asked.get("repeat", 1), asked.get("calibration", 0)
    names, library = asked.get("scenarios") or (), asked.get("library")
    if not isinstance(rounds, int) or not isinstance(calibration, int):
        return None, None
    try:
        _, loaded = chosen(
            str(asked.get("agent", "embedded")),
            list(map(str, [names] if isinstance(names, str | Path) else names)),
            asked.get("tag"),
            None if library is None else Path(library),
        )
    except (InputError, TypeError):
        return None, None
    plan = PlayPlan(scenarios=loaded, rounds=rounds, calibration_turns=calibration)
    return plan.turns, plan.minutes * 60

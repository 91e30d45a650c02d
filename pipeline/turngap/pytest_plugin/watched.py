"""Show progress in pytest while a test plays: the turns, how many are over, the time left."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import InputError
from turngap.core.wording import minutes_words, seconds_left

if TYPE_CHECKING:
    from turngap.core.results import Turn

# How often a line is written, so that a log stays short.
LINE_EVERY_S = 10.0


class Watched:
    """Counts the turns of one call, and writes a line now and then.

    Args:
        write: shows a line; see `writer_of`.
        command, asked: the call, `replay` or `check`, and its keywords.
        clock: tells how long it has taken.
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
        """One turn more was played."""
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
    """Return what shows a line on pytest's terminal, past its capture.

    It shows nothing in a log that nobody watches: without a terminal, `-v` or `-s`; nor under
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

    Return None for what cannot be played: the call itself says why.
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

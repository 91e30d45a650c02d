"""Options of the plugin, and the rows of its summary. Nothing heavy is imported here."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

from turngap.core.budget import STARVED_MS
from turngap.core.errors import InputError
from turngap.play.options import Option, options_of

CHOICES = ("fail", "skip")
# What holds where neither a test, nor an option, nor the repository's file says otherwise.
DEFAULTS: dict[str, Any] = {"agent": "embedded", "calibration": 8, "starved_ms": STARVED_MS}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line, or else of the ini file; None if in neither.

    Attributes:
        out: the folder of runs; None for pytest's temporary folder, which pytest clears later.
        rounds: how often everything is played, whatever the tests say.
        agent: the agent of tests that name none.
        start: the command that starts that agent; None if it runs, or turngap starts it.
        line: the line of all tests that name none.
        calibration: known gaps to measure before each run.
        starved_ms: how late the caller may be before a turn counts as starved.
        otlp: the URL of the collector that gets a trace of each conversation.
        skip_inconclusive: skip inconclusive tests instead of failing them.
    """

    out: Path | None
    rounds: int | None
    agent: str | None
    start: str | None
    line: str | None
    calibration: int | None
    starved_ms: float | None
    otlp: str | None
    skip_inconclusive: bool

    @classmethod
    def of(cls, config: pytest.Config) -> "Options":
        """Read and check the options.

        Raises:
            pytest.UsageError: an ini option has a wrong value.
        """
        out, here = _either(config, "out"), config.invocation_params.dir
        configured = config.getoption("turngap_out") is None
        inconclusive = _either(config, "inconclusive") or "fail"
        if inconclusive not in CHOICES:
            raise pytest.UsageError(
                f"ini option turngap_inconclusive is {inconclusive!r}: expected fail or skip"
            )
        return cls(
            # What is typed is meant from here; what is configured, from the project's root.
            out=None if out is None else (config.rootpath if configured else here) / out,
            rounds=config.getoption("turngap_rounds"),
            agent=_either(config, "agent"),
            start=_either(config, "start"),
            line=_either(config, "line"),
            calibration=_number(config, "calibration"),
            starved_ms=config.getoption("turngap_starved_ms") or _number(config, "starved_ms"),
            otlp=_collector(config),
            skip_inconclusive=inconclusive == "skip",
        )


def _either(config: pytest.Config, name: str) -> str | None:
    return config.getoption(f"turngap_{name}") or config.getini(f"turngap_{name}") or None


def _number(config: pytest.Config, name: str) -> Any:
    """Return the number that an ini option has; None without one."""
    text = str(config.getini(f"turngap_{name}"))
    try:
        return parsed(REPLAY[name])(text) if text else None
    except ArgumentTypeError as e:
        raise pytest.UsageError(f"ini option turngap_{name} is {e}") from None


def _collector(config: pytest.Config) -> str | None:
    if url := _either(config, "otlp"):
        from turngap.telemetry import require_http

        try:
            require_http(url)
        except InputError as e:
            raise pytest.UsageError(f"--turngap-otlp, or turngap_otlp: {e}") from None
    return url


def parsed(option: Option) -> Callable[[str], Any]:
    """Return a function that reads an option's number from a text and checks its range."""

    def parse(text: str) -> Any:
        value: Any = None
        with suppress(ValueError):
            value = option.kind(text)
        if option.is_refused(value):
            raise ArgumentTypeError(f"{text!r}: expected {option.expected()}")
        return value

    return parse


REPLAY = options_of("replay")

# How the reason of a test begins that was skipped for being inconclusive.
INCONCLUSIVE = "inconclusive: "


class Row(TypedDict):
    """One run of one test, in words; a test's last run has the test's warnings."""

    test: str
    hit_rate: str
    p50: str
    p95: str
    cut_ins: str
    verdict: str
    runs: str
    warnings: list[str]

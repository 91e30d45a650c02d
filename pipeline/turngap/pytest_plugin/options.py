"""`--turngap-…` on pytest's command line, and the ini options behind them."""

from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turngap.core.budget import MAX_STARVED_MS, STARVED_MS
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless

INCONCLUSIVE = ("fail", "skip")
# What holds where neither a test, nor an option, nor the repository's file says otherwise.
DEFAULTS: dict[str, Any] = {"agent": "embedded", "calibration": 8, "starved_ms": STARVED_MS}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line, or else in the ini file; None: in neither.

    Attributes:
        out: where runs are kept; None: in pytest's temporary folder, which it clears by and by.
        rounds: how often everything is played, whatever the tests say.
        agent: for tests that name none.
        start: the command that starts that agent; None: it runs already, or turngap starts it.
        calibration: known gaps to measure before each run.
        starved_ms: how late the caller may be before a turn counts as starved.
        otlp: the URL of the collector that gets a trace of each conversation.
        skip_inconclusive: skip inconclusive tests instead of failing them.
    """

    out: Path | None
    rounds: int | None
    agent: str | None
    start: str | None
    calibration: int | None
    starved_ms: float | None
    otlp: str | None
    skip_inconclusive: bool

    @classmethod
    def of(cls, config: pytest.Config) -> "Options":
        """Read and check them.

        Raises:
            pytest.UsageError: an ini option has a value that it cannot have.
        """
        out, here = _either(config, "out"), config.invocation_params.dir
        configured = config.getoption("turngap_out") is None
        inconclusive = _either(config, "inconclusive") or "fail"
        if inconclusive not in INCONCLUSIVE:
            raise pytest.UsageError(
                f"ini option turngap_inconclusive is {inconclusive!r}: expected fail or skip"
            )
        calibration = config.getini("turngap_calibration")
        if calibration and not str(calibration).isdecimal():
            raise pytest.UsageError(
                f"ini option turngap_calibration is {calibration!r}: expected a number of turns, "
                "0 for none"
            )
        return cls(
            # What is typed is meant from here; what is configured, from the project's root.
            out=None if out is None else (config.rootpath if configured else here) / out,
            rounds=config.getoption("turngap_rounds"),
            agent=_either(config, "agent"),
            start=_either(config, "start"),
            calibration=int(calibration) if calibration else None,
            starved_ms=_starved_ms(config),
            otlp=_collector(config),
            skip_inconclusive=inconclusive == "skip",
        )


def _either(config: pytest.Config, name: str) -> str | None:
    return config.getoption(f"turngap_{name}") or config.getini(f"turngap_{name}") or None


def _starved_ms(config: pytest.Config) -> float | None:
    typed, text = config.getoption("turngap_starved_ms"), config.getini("turngap_starved_ms")
    try:
        return typed or (_lateness(str(text)) if text else None)
    except ArgumentTypeError as e:
        raise pytest.UsageError(f"ini option turngap_starved_ms is {e}") from None


def _collector(config: pytest.Config) -> str | None:
    if url := _either(config, "otlp"):
        from turngap.telemetry import require_http

        try:
            require_http(url)
        except InputError as e:
            raise pytest.UsageError(f"--turngap-otlp, or turngap_otlp: {e}") from None
    return url


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)


def _lateness(text: str) -> float:
    try:
        ms = float(text)
    except ValueError:
        ms = 0.0
    if not 1 <= ms <= MAX_STARVED_MS:
        raise ArgumentTypeError(f"{text!r}: expected a number of ms from 1 to {MAX_STARVED_MS:g}")
    return ms


_STARVED = (
    "How late the caller may be before a turn counts as starved; every gap may be off by as much."
)
_OPTIONS: dict[str, dict[str, Any]] = {
    "out": {
        "metavar": "DIR",
        "help": "Folder for the runs, with recordings and report.html; default: pytest's temporary "
        "folder.",
    },
    "rounds": {
        "metavar": "N",
        "type": _at_least_one,
        "help": "Play everything N times, whatever the tests say: more turns decide more.",
    },
    "agent": {
        "metavar": "AGENT",
        "help": "Agent of tests that name none: a stack, a .toml file or a ws:// URL; default: "
        "that of turngap.toml, or embedded.",
    },
    "start": {
        "metavar": "COMMAND",
        "help": "Start that agent with this command, before each replay or check, and end it "
        "afterwards. The agent is then the ws:// URL at which the command serves.",
    },
    "inconclusive": {
        "choices": INCONCLUSIVE,
        "help": "What becomes of a test whose measurement says nothing either way (a starved "
        "caller, too few turns, another machine's baseline); default fail. It never passes.",
    },
    "starved-ms": {"metavar": "MS", "type": _lateness, "help": f"{_STARVED} Default 10."},
    "otlp": {
        "metavar": "URL",
        "help": "Send a trace of each conversation, and histograms, to an OpenTelemetry collector "
        "at this URL (http://HOST:4318); default: where OTEL_EXPORTER_OTLP_ENDPOINT says.",
    },
}
_INI = {
    "out": ("Folder for the runs, from the root of the project (--turngap-out).", ""),
    "agent": ("The agent of tests that name none (--turngap-agent).", ""),
    "start": ("The command that starts that agent (--turngap-start).", ""),
    "inconclusive": ("fail or skip (--turngap-inconclusive).", ""),
    "calibration": (
        "Known gaps to measure before each run, which takes about a second each; 0 for none; "
        "default 8.",
        "",
    ),
    "otlp": ("The collector that gets a trace of each conversation (--turngap-otlp).", ""),
    "starved_ms": (f"{_STARVED} (--turngap-starved-ms) Default {STARVED_MS:g}.", ""),
}


def add_options(parser: pytest.Parser) -> None:
    """Declare every option, with a help text that says its default."""
    group = parser.getgroup("turngap", "latency of voice agents (turngap)")
    for name, how in _OPTIONS.items():
        group.addoption(f"--turngap-{name}", dest=f"turngap_{name.replace('-', '_')}", **how)
    for name, (text, default) in _INI.items():
        parser.addini(f"turngap_{name}", text, default=default)


def header() -> str | None:
    """Return the line of pytest's header that names the file and the command in it; None without.

    A file that cannot be used fails the tests that measure, and no others.
    """
    from turngap.defaults.file import read_defaults

    try:
        defaults = read_defaults()
    except InputError as e:
        return f"turngap: {harmless(e.message)}"
    if defaults is None:
        return None
    start = defaults.of("replay").get("start")
    starts = f"; it starts: {harmless(text_without_secrets(start))}" if start else ""
    return f"turngap: defaults from {defaults.name}{starts}"

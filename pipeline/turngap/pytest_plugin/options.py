"""`--turngap-…` on pytest's command line, and the ini options behind them."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turngap.core.budget import STARVED_MS
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless
from turngap.play.options import Option, options_of

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
        return cls(
            # What is typed is meant from here; what is configured, from the project's root.
            out=None if out is None else (config.rootpath if configured else here) / out,
            rounds=config.getoption("turngap_rounds"),
            agent=_either(config, "agent"),
            start=_either(config, "start"),
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
        return _parsed(_REPLAY[name])(text) if text else None
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


def _parsed(option: Option) -> Callable[[str], Any]:
    """Return what reads an option's number from a text, in its range."""

    def parse(text: str) -> Any:
        value: Any = None
        with suppress(ValueError):
            value = option.kind(text)
        if option.is_refused(value):
            raise ArgumentTypeError(f"{text!r}: expected {option.expected()}")
        return value

    return parse


_REPLAY = options_of("replay")
# Flags of this plugin, with their help where it is not that of the option of `replay`.
_FLAGS = {
    "out": "Folder for the runs, with recordings and report.html; default: pytest's temporary "
    "folder.",
    "rounds": "Play everything N times, whatever the tests say: more turns decide more.",
    "agent": "Agent of tests that name none: a stack, a .toml file or a ws:// URL; default: that "
    "of turngap.toml, or embedded.",
    "start": "",
    "starved_ms": "",
    "otlp": "",
}
_INCONCLUSIVE = (
    "What becomes of a test whose measurement says nothing either way (a starved caller, too few "
    "turns, another machine's baseline); default fail. It never passes."
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option, with a help text that says its default."""
    group = parser.getgroup("turngap", "latency of voice agents (turngap)")
    for name, text in _FLAGS.items():
        option = _REPLAY["repeat" if name == "rounds" else name]
        flag = f"--turngap-{name.replace('_', '-')}"
        default = f" Default {option.default:g}." if option.kind is float else ""
        group.addoption(
            flag,
            dest=f"turngap_{name}",
            metavar=option.unit,
            type=_parsed(option) if option.kind in (int, float) else str,
            help=text or option.help + default,
        )
        if name != "rounds":
            parser.addini(f"turngap_{name}", f"As {flag}.{default}", default="")
    names = ("--turngap-inconclusive", "turngap_inconclusive")
    group.addoption(names[0], dest=names[1], choices=INCONCLUSIVE, help=_INCONCLUSIVE)
    parser.addini(names[1], f"fail or skip ({names[0]}).", default="")
    calibration = f"{_REPLAY['calibration'].help} Default {DEFAULTS['calibration']}."
    parser.addini("turngap_calibration", calibration, default="")


def header() -> str | None:
    """Return the line of pytest's header that names the file and the command in it; None without.

    A file that cannot be used fails the tests that measure, and no others.
    """
    from turngap.play.defaults import read_defaults

    try:
        defaults = read_defaults()
    except InputError as e:
        return f"turngap: {harmless(e.message)}"
    if defaults is None:
        return None
    start = defaults.of("replay").get("start")
    starts = f"; it starts: {harmless(text_without_secrets(start))}" if start else ""
    return f"turngap: defaults from {defaults.name}{starts}"

"""pytest plugin: a latency test is a few lines in any repository.

    @pytest.mark.turngap(budget_ms=800)
    def test_fast_enough(turngap):
        run = turngap.replay("ws://127.0.0.1:8765/ws", scenarios=["quick-questions"], repeat=7)
        run.assert_hit_rate(0.9)
        run.assert_gap(p95_ms=800)
        run.assert_cut_ins(at_most=0.05)

If the bot has a `MarksObserver`, `run.assert_stage("llm_first_token", p95_ms=450)` holds one stage
to its share of the budget. A bot without marks reports no stages, and such a test is inconclusive.

This module and what it imports at the top are loaded into every test run where turngap is
installed: nothing heavy here. `fixture` and all below it come with the first test that measures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from turngap.core.errors import InconclusiveError, InputError, LatencyError, TurngapError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless, inert
from turngap.pytest_plugin.options import (
    CHOICES,
    DEFAULTS,
    INCONCLUSIVE,
    REPLAY,
    Options,
    Row,
    parsed,
)

if TYPE_CHECKING:
    from turngap.pytest_plugin.fixture import Turngap

__all__ = ["LatencyError", "turngap"]

# Flags of this plugin, with their help where it is not that of the option of `replay`.
_FLAGS = {
    "out": "Folder for the runs, with recordings and report.html; default: pytest's temporary "
    "folder.",
    "rounds": "Play everything N times, whatever the tests say: more turns decide more.",
    "agent": "Agent of tests that name none: a stack, a .toml file or a ws:// URL; default: that "
    "of turngap.toml, or embedded.",
    "start": "",
    "line": "",
    "starved_ms": "",
    "otlp": "",
}
_INCONCLUSIVE = (
    "Whether to fail or skip a test whose measurement is inconclusive (a starved caller, too few "
    "turns, another machine's baseline); default fail. It never passes."
)

# The attribute of a report that holds its rows; xdist sends it along, since it is plain JSON.
ROWS = "turngap_rows"

_MARKER = (
    "turngap(agent, scenarios, repeat, budget_ms, ...): a latency test; the keywords are defaults "
    "for the fixture's turngap.replay() and turngap.check()"
)
_OPTIONS = pytest.StashKey[Options]()
_MEASURING = pytest.StashKey["Turngap"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--turngap-…` and the ini options behind them, with help texts that say the default."""
    group = parser.getgroup("turngap", "latency of voice agents (turngap)")
    for name, text in _FLAGS.items():
        option = REPLAY["repeat" if name == "rounds" else name]
        flag = f"--turngap-{name.replace('_', '-')}"
        default = f" Default {option.default:g}." if option.kind is float else ""
        group.addoption(
            flag,
            dest=f"turngap_{name}",
            metavar=option.unit,
            type=parsed(option) if option.kind in (int, float) else str,
            help=(text or option.help + default).replace("%", "%%"),
        )
        if name != "rounds":
            parser.addini(f"turngap_{name}", f"As {flag}.{default}", default="")
    names = ("--turngap-inconclusive", "turngap_inconclusive")
    group.addoption(names[0], dest=names[1], choices=CHOICES, help=_INCONCLUSIVE)
    parser.addini(names[1], f"fail or skip ({names[0]}).", default="")
    calibration = f"{REPLAY['calibration'].help} Default {DEFAULTS['calibration']}."
    parser.addini("turngap_calibration", calibration, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, so that a wrong one ends pytest before anything is played."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_OPTIONS] = Options.of(config)


def pytest_report_header() -> str | None:
    """Name the repository's file, and the command that it starts.

    A file that cannot be used fails only the tests that measure.
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests with the fixture: `-m "not turngap"` then leaves out all that play audio."""
    for item in items:
        uses = "turngap" in getattr(item, "fixturenames", ())
        if uses and item.get_closest_marker("turngap") is None:
            item.add_marker("turngap")


@pytest.fixture
def turngap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Turngap":
    """Play recorded people against a voice agent, and assert how long they waited."""
    try:
        from turngap._playing import quietly

        with quietly():
            from turngap.pytest_plugin.fixture import Turngap, writer_of
    except ModuleNotFoundError as e:
        from turngap.backends.needs import not_installed

        if (missing := not_installed(e)) is None:
            raise
        raise pytest.fail.Exception(f"{missing.message}: {missing.hint}", pytrace=False) from None

    options = request.config.stash[_OPTIONS]
    marker = request.node.get_closest_marker("turngap")
    measuring = Turngap(
        request.node.nodeid,
        options,
        marker=marker,
        folder=lambda: options.out or tmp_path_factory.mktemp("turngap"),
        write=writer_of(request.config),
    )
    request.node.stash[_MEASURING] = measuring
    return measuring


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Skip in setup as in the test: a fixture of the user may measure as well."""
    __tracebackhide__ = True
    with _skipping(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip an inconclusive test, if the user wants that."""
    __tracebackhide__ = True
    with _skipping(item):
        yield


@contextmanager
def _skipping(item: pytest.Item) -> Iterator[None]:
    """Turn an inconclusive result into a skipped test, if the user wants that."""
    __tracebackhide__ = True
    try:
        yield
    except (TurngapError, LatencyError) as e:
        e.args = tuple(map(inert, map(str, e.args)))  # they quote what agents say
        if isinstance(e, InconclusiveError) and item.config.stash[_OPTIONS].skip_inconclusive:
            raise pytest.skip.Exception(f"{INCONCLUSIVE}{e}") from None
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Send a row for each run along with the report: under xdist they come from other processes."""
    report: pytest.TestReport = yield  # pyright: ignore[reportReturnType]
    measuring = item.stash.get(_MEASURING, None)
    measured = report.when == "call" or (report.when == "setup" and report.failed)
    if measuring is not None and measured:
        error = call.excinfo.value if call.excinfo else None
        setattr(report, ROWS, measuring.rows(report.outcome, error))
    return report  # pyright: ignore[reportReturnType]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write each measured test with its figures, its verdict and the folders of its runs."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    rows: list[Row] = [row for report in reports for row in getattr(report, ROWS, ())]
    if not rows:
        return
    terminalreporter.section("turngap")
    below = ("runs", "warnings")
    lines = [[str(cell) for name, cell in row.items() if name not in below] for row in rows]
    lines.insert(0, ["test", "hit rate", "p50", "p95", "cut-ins", "verdict"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.line(inert(text.rstrip()))
        if index:
            row = rows[index - 1]
            for said in (f"runs: {row['runs']}", *row["warnings"]):
                terminalreporter.line(inert(f"  {said}"))

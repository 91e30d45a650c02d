"""Commands import little, so that they begin at once: a matter of structure, not of time."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_records import make_record, make_turn
from scipy.stats import binom

from turngap.core import stats
from turngap.store.writer import RunWriter

# Each of these takes a tenth of a second or more to import.
SLOW = ("scipy", "numba", "pipecat", "loguru", "jinja2", "soundfile", "soxr", "ruamel", "fastapi")
NOT_FOR_HELP = {*SLOW, "numpy", "psutil"}


def imported_by(*arguments: str | Path) -> set[str]:
    """The top-level modules that a command has imported when it ends."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted({m.partition('.')[0] for m in sys.modules}),"
        " file=sys.stderr))\n"
        "from turngap.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = make_record(planned_turns=8)
    with RunWriter.create(tmp_path_factory.mktemp("runs"), "replay", record) as writer:
        for number in range(1, 9):
            writer.append_turn(make_turn(turn=number))
        writer.finish(record)
        return writer.path


@pytest.mark.parametrize("arguments", [("--help",), ("check", "--help"), ("--version",)])
def test_help_imports_nothing_that_measures(arguments: tuple[str, ...]) -> None:
    assert not imported_by(*arguments) & NOT_FOR_HELP


def test_a_report_imports_no_engine_and_no_statistics_package(run: Path) -> None:
    assert not imported_by("report", run) & {*SLOW}


def test_the_package_itself_imports_next_to_nothing() -> None:
    code = "import sys, turngap; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {m.partition(".")[0] for m in done.stdout.split()} & {
        *NOT_FOR_HELP,
        "pydantic",
        "rich",
        "typer",
    }


def test_what_replaces_scipy_gives_the_same_to_the_last_digit() -> None:
    tails = ((1 - stats.CONFIDENCE) / 2, 1 - (1 - stats.CONFIDENCE) / 2)
    for n in (*range(1, 120), 400, 1001, 20_000):
        for p in (0.05, 0.5, 0.9, 0.95, 0.99):
            for tail in tails:
                ours = stats._binomial_quantile(tail, n, p)  # pyright: ignore[reportPrivateUsage]
                assert ours == binom.ppf(tail, n, p), (n, p, tail)

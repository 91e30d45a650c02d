"""Paths in `turngap.toml` are of its own folder, wherever turngap is called."""

import subprocess
import sys
from pathlib import Path

import pytest

from turngap.play.defaults import read_defaults
from turngap.play.process import argv_of


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNGAP_CONFIG", raising=False)
    return tmp_path


def test_paths_are_those_of_the_files_folder(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".git").mkdir()
    (repository / "src").mkdir()
    (repository / "turngap.toml").write_text(
        'agent = "stacks/mine.toml"\nstart = "python bot.py"\n'
        'scenarios = ["coffee-order", "mine/one.yaml"]\nout = "measured"\n'
        '[check]\nbaseline = "base.json"\nagainst = "embedded"\n'
    )
    monkeypatch.chdir(repository / "src")
    found = read_defaults()
    assert found is not None
    assert found.of("check") == {
        "agent": "../stacks/mine.toml",
        "start": """sh -c 'CDPATH= cd -- "$0" && exec "$@"' .. python bot.py""",
        "scenarios": ["coffee-order", "../mine/one.yaml"],
        "out": "../measured",
        "baseline": "../base.json",
        "against": "embedded",
    }


def test_a_command_runs_in_the_files_folder_and_no_shell_reads_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "my bot").mkdir()
    (repository / "my bot" / "turngap.toml").write_text(
        f"start = \"{sys.executable} -c 'import os, sys; print(os.getcwd(), sys.argv[1:])'"
        " '$HOME' 'a b'\"\n"
    )
    monkeypatch.setenv("TURNGAP_CONFIG", "my bot/turngap.toml")
    found = read_defaults()
    assert found is not None
    argv = argv_of(found.shared["start"])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{repository / 'my bot'} ['$HOME', 'a b']\n"

"""A repository with a bot on a pull request, and a job that runs the action there."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from action_job import BOT, Job, git
from fake_github import served
from gate import measure as measuring
from gate import versions


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a bot, a pull request that changes it, and GitHub's merge of both."""
    folder = tmp_path_factory.mktemp("origin") / "bot"
    (folder / "app").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for branch, version in (("main", "quick"), ("change", "slow")):
        if branch == "change":
            git(folder, "checkout", "-q", "-b", branch)
        (folder / "app/bot.py").write_text(BOT.format(version))
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", version)
    git(folder, "checkout", "-q", "main")
    (folder / "unrelated").write_text("main went on")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "main went on")
    git(folder, "checkout", "-q", "-b", "merge")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "change")
    return folder


@pytest.fixture
def job(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    def bare_venv(folder: Path) -> Path:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/python").symlink_to(sys.executable)
        return folder

    monkeypatch.setattr(versions, "made_venv", bare_venv)
    with served() as github:
        job = Job(origin, tmp_path, github)
        monkeypatch.setattr(measuring, "installed_turngap", lambda *_: job.turngap / "bin/turngap")
        yield job

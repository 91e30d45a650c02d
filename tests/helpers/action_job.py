"""A job of a workflow that runs the action, with a stand-in for turngap."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fake_github import TOKEN, FakeGitHub
from gate.measure import measure
from gate.report import tell
from made_checks import make_side, make_turns, store

from turngap.check.report import write_reports
from turngap.store.checks import CHECK_FILE, CheckRecord
from turngap.store.documents import write_document

# Says what it was asked, starts both versions as turngap does, and leaves a check behind.
TURNGAP = f"""#!{sys.executable}
import json, pathlib, shlex, shutil, subprocess, sys
here = pathlib.Path(__file__).parents[1]
words = sys.argv[1:]
said = {{"words": words}}
for name in ("--start", "--start-against"):
    if name in words:
        start = shlex.split(words[words.index(name) + 1])
        said[name] = subprocess.run(start, capture_output=True, text=True).stdout.splitlines()
(here / "asked.json").write_text(json.dumps(said))
out = pathlib.Path(words[words.index("--out") + 1])
if (here / "check").is_dir():
    shutil.copytree(here / "check", out / "20261123T100000Z-check")
if (here / "saves").is_file():
    shutil.copy(here / "saves", words[words.index("--save") + 1])
print("::set-env name=OWNED::by what an agent said")
sys.exit(int((here / "code").read_text()))
"""
# Says what it read in the repository's file.
PYTHON = f"""#!{sys.executable}
import pathlib
said = pathlib.Path(__file__).parents[1] / "defaults.json"
print(said.read_text() if said.is_file() else '{{"keys": []}}')
"""
BOT = 'import os; print("{}"); print(os.environ["PORT"]); print(os.environ["VIRTUAL_ENV"])'


def git(folder: Path, *arguments: str) -> str:
    # Whatever the user's own settings are.
    who = ["-c", "user.name=you", "-c", "user.email=you@example.invalid", "-c", "commit.gpgsign=0"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class Job:
    """A job of a workflow on a pull request, with the variables and files that GitHub gives it."""

    def __init__(self, origin: Path, folder: Path, github: FakeGitHub) -> None:
        self.folder, self.github = folder, github
        self.turngap = folder / "turngap"
        (self.turngap / "bin").mkdir(parents=True)
        for name, text in (("turngap", TURNGAP), ("python", PYTHON)):
            (self.turngap / "bin" / name).write_text(text)
            (self.turngap / "bin" / name).chmod(0o755)
        self.checkout = folder / "checkout"
        # As actions/checkout does: the merge alone, without its history.
        git(folder, "clone", "-q", "--depth=1", "-b", "merge", f"file://{origin}", "checkout")
        self.head, self.change = (
            git(self.checkout, "rev-parse", "HEAD"),
            git(origin, "rev-parse", "change"),
        )
        self.main = git(origin, "rev-parse", "main")
        self.env = {
            "PATH": "/usr/bin:/bin",
            "GITHUB_WORKSPACE": str(self.checkout),
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_SHA": self.head,
            "GITHUB_REPOSITORY": "you/bot",
            "GITHUB_API_URL": github.url,
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "RUNNER_TEMP": str(folder / "temp"),
            "GATE_FOLDER": "app",
            "GATE_START": f"{shlex.quote(sys.executable)} bot.py",
        }
        base = {"sha": git(origin, "rev-parse", "main~1"), "ref": "main"}
        self.event({"pull_request": {"number": 12, "base": base, "head": {"sha": self.change}}})

    def event(self, event: dict[str, Any]) -> None:
        (self.folder / "event.json").write_text(json.dumps(event))

    def finds(self, record: CheckRecord, code: int) -> None:
        """Write the files that a check leaves behind."""
        check = self.turngap / "check"
        shutil.rmtree(check, ignore_errors=True)
        check.mkdir()
        sides = [
            store(check, n, make_turns(6, slower_ms=ms)) for n, ms in (("new", 41), ("old", 0))
        ]
        new, old = (make_side(run.path.name, turns=6) for run in sides)
        record = record.model_copy(update={"candidate": new, "reference": old})
        write_document(check / CHECK_FILE, record)
        write_reports(record, check, sides[0], sides[1])
        (self.turngap / "code").write_text(str(code))

    @property
    def asked(self) -> dict[str, Any]:
        return json.loads((self.turngap / "asked.json").read_text())

    def measure(self, **inputs: str) -> dict[str, str]:
        """The first step; its outputs."""
        (self.folder / "output").write_text("")
        shutil.rmtree(self.folder / "temp", ignore_errors=True)
        assert measure({**self.env, **inputs}) == 0
        text = (self.folder / "output").read_text()
        return dict(re.findall(r"^([\w-]+)<<(?:end-\w+)\n(.*)\nend-\w+$", text, re.MULTILINE))

    def tell(self, outputs: dict[str, str], **inputs: str) -> tuple[int, str]:
        """The last step: its exit code, and the summary."""
        (self.folder / "summary").write_text("")
        told = {"GATE_TOKEN": TOKEN, "GATE_PAGES": "https://example.invalid/artifacts/7"}
        code = tell({**self.env, "GATE_OUT": outputs["folder"], **told, **inputs})
        return code, (self.folder / "summary").read_text()

    def file_says(self, *keys: str) -> None:
        """Have turngap read these keys in the repository's file."""
        (self.turngap / "defaults.json").write_text(json.dumps({"keys": keys}))

"""turngap as its user runs it: a process, its streams and its exit code."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from turngap.cli import main
from turngap.testing.agent import Script, script_to_json

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"


# To build it takes 10 ms, and a process does that once.
_command_of = cache(get_command)


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    def document(self) -> Any:
        return json.loads(self.out)


def turngap_here(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Finished:
    """The same in this process: quicker by the seconds that importing pipecat takes."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["turngap", *map(str, arguments)])
        patch.setenv("COLUMNS", "100")
        patch.setattr("typer.main.get_command", _command_of)
        main()
    shown = capsys.readouterr()
    return Finished(int(left.value.code or 0), shown.out, shown.err)


def turngap(*arguments: str | Path, cwd: Path | None = None, timeout: float = 180) -> Finished:
    done = subprocess.run(
        [sys.executable, "-m", "turngap", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "100"},
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


class ScriptedProcess:
    """A scripted agent in a process of its own, so that it can die."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __enter__(self) -> str:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "turngap.testing.agent", script_to_json(self._script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())["url"]

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def turns_on_disk(run: Path) -> list[dict[str, Any]]:
    text = (run / "turns.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def only_run(out: Path) -> Path:
    (run,) = [p for p in out.iterdir() if p.is_dir()]
    return run

"""`turngap init` on a real pipecat bot in an otherwise empty folder."""

import tomllib
from pathlib import Path

import pytest
import quiet
from commandline import ROOT, turngap
from reserved_ports import reserved_port

from turngap.core.errors import ExitCode

pytestmark = [pytest.mark.realtime, pytest.mark.unhurried]


def test_the_bot_is_found_started_called_and_written_down(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "pipecat_bot.py").read_text()
    with reserved_port() as port:  # of its own: other tests start that bot, too
        (tmp_path / "pipecat_bot.py").write_text(text.replace("default=8765", f"default={port}"))
        done = turngap("init", "--yes", cwd=tmp_path)
    quiet.exited(done.code, done.err, ExitCode.PASS)
    said = tomllib.loads((tmp_path / "turngap.toml").read_text())
    assert (said["agent"], said["dialect"]) == (f"ws://127.0.0.1:{port}/ws", "pipecat")
    assert said["start"].endswith("pipecat_bot.py")

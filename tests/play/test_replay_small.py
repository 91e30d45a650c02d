"""The small model in the agent's process, from the command line."""

from pathlib import Path

import pytest
from commandline import only_run, turngap_here

Capsys = pytest.CaptureFixture[str]

# Starvation is not what is tested here.
REPLAY = ("replay", "--llm", "small", "--calibration", "0", "--starved-ms", "1000")


def test_a_model_that_is_not_there_is_one_line_exit_code_4_and_a_run(
    tmp_path: Path, capsys: Capsys
) -> None:
    gone = f"llm.model={tmp_path / 'gone'}"
    done = turngap_here(
        capsys, *REPLAY, "quick-questions", "--set", gone, "--out", tmp_path / "runs"
    )
    assert done.code == 4
    assert "no model directory at" in done.err
    assert "ct2-transformers-converter" in done.err
    assert "Traceback" not in done.err
    assert (only_run(tmp_path / "runs") / "run.json").is_file()

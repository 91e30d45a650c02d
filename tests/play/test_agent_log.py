"""The log of an agent that has ended: no secret, and not too much."""

import os
from pathlib import Path
from typing import IO

import pytest

from turngap.play import process


def test_a_log_loses_its_secrets_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    said = "line one\n" * 7000 + "x" * 2500 + "\n"
    log.write_text(f"{said}error: password=hunter22x\nlast\n")
    process._clean(log)
    assert log.read_text() == f"{said}error: password=(removed)\nlast\n"


def test_of_a_long_log_the_end_is_kept_and_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_LOG_BYTES", 1000)
    log = tmp_path / "agent.log"
    log.write_text("secret=hunter22x, line\n" * 1000)
    process._clean(log)
    first, *rest = log.read_text().splitlines()
    assert "bytes before this were left out" in first
    assert set(rest) == {"secret=(removed), line"}
    assert 20 < len(rest) < 50


def test_a_log_that_cannot_be_cleaned_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = process._opened

    def full(log: Path, mode: str = "rb", flags: int = os.O_RDONLY) -> IO[bytes]:
        with opened(log, mode, flags) as file:
            return open("/dev/full" if mode == "wb" else os.dup(file.fileno()), mode)  # noqa: PTH123

    monkeypatch.setattr(process, "_opened", full)
    log = tmp_path / "agent.log"
    log.write_text("secret=hunter22x\n")
    process._clean(log)
    assert log.read_text() == ""

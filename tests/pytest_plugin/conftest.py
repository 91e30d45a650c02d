"""The lock of these tests' replays."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def a_lock_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No replay waits for one of another worker or of another checkout on this machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

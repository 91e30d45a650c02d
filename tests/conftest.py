"""What all tests share: hypothesis settings, real-time tests last, and voices for piper."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: how long an example takes says more of the machine than of the code. In CI the same
# examples every time, so that a red build is the change's doing; elsewhere new ones, to find more.
settings.register_profile("turngap", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("turngap")

# A shell starts its background jobs with SIGINT ignored, and their children inherit that; some
# tests interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order what plays in real time last: a plain fault shows before the slow part begins."""
    items.sort(key=lambda item: item.get_closest_marker("realtime") is not None)


@pytest.fixture(scope="session")
def speaking_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A piper voice that can be understood, of two speakers (services/training/voices)."""
    path = tmp_path_factory.mktemp("voices") / "unit-bank.onnx"
    # In a process of its own: espeak-ng is one a process, and this one has its own start.
    subprocess.run([sys.executable, "-m", "training.voices.unit_bank", path], check=True)
    return path


@pytest.fixture(scope="session")
def heavy_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A piper voice that says nothing and takes as long as a published one of medium quality."""
    from training.voices.random_vits import make

    path = tmp_path_factory.mktemp("voices") / "random-medium.onnx"
    make(path)
    return path

"""What all tests share: hypothesis settings, and real-time tests last."""

import os
import signal

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

"""Keeps Python itself from delaying the caller while people are played."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Python hands the interpreter lock on after this long; the default, 5 ms, is a quarter of a packet.
SWITCH_INTERVAL_S = 0.0005


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Python from pausing the caller: no collection of old objects, short lock intervals."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()

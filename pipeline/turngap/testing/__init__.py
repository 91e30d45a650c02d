"""Helpers for testing code that uses turngap."""

from turngap.testing.clock import ManualClock
from turngap.testing.virtual import LoopClock, VirtualLoop, in_virtual_time

__all__ = ["LoopClock", "ManualClock", "VirtualLoop", "in_virtual_time"]

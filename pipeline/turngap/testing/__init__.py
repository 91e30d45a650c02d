"""Helpers for testing what is built on turngap."""

from turngap.testing.clock import ManualClock

__all__ = ["ManualClock"]

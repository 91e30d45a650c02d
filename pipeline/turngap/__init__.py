"""Measures the turn gap of voice agents, as heard at the caller's ear."""

__version__ = "0.1.0"

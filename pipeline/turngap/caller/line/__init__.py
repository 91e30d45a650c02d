"""Faults of the line to an agent: what a network does to a call."""

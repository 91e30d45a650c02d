"""Scenarios: the file model, the library, labels, expected answers and tool calls."""

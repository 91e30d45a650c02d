"""Whisper models of turngap's own, for tests and benchmarks: one that is canned, one that reads."""

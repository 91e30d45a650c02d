"""Sends what was heard to an OpenTelemetry collector: a trace a conversation, and histograms."""

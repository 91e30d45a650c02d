"""Fit the probability that a turn is over, and judge it on recordings it never saw."""

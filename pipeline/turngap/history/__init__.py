"""History of runs, checks, comparisons and load tests, as a list and over time."""

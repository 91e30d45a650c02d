"""What was measured before: runs, checks, comparisons and load tests, as a list and over time."""

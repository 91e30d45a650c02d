"""The parts of `benchmarks/half_the_gap.py`."""

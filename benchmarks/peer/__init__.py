"""The parts of `benchmarks/peers.py`."""

"""Measure a voice agent: print its turn gap with the 95 % interval, and keep every turn as CSV.

Run it as `python examples/measure.py [AGENT]`, or paste these lines into a cell of a notebook.
"""

import sys

import turngap

agent = sys.argv[1] if len(sys.argv) > 1 else "embedded"
run = turngap.replay(agent, tag="smoke", repeat=3)
print("turn gap p50 in ms:", run.gap_ms.p50)
print("hit rate:", run.hit_rate)
print("all turns:", run.to_csv("turns.csv"))

"""Measure a voice agent: print its gap and its cut-ins with intervals, and keep every turn as CSV.

Run it as `python examples/measure.py [AGENT]`, or paste these lines into a cell of a notebook.
"""

import sys

import turngap

agent = sys.argv[1] if len(sys.argv) > 1 else "embedded"
run = turngap.replay(agent, tag="smoke", repeat=3)
print("turn gap p50 in ms:", run.gap_ms.p50)
print("cut-ins:", run.cut_ins)  # a short gap bought with cut-ins is not fast
print("hit rate:", run.hit_rate)
print("all turns:", run.to_csv("turns.csv"))

"""A model of an inference server: what a step costs, how batches form, when each token comes.

It is pure and deterministic. Time is in whole picoseconds (`_ps`), because a token's share of a
step is a few nanoseconds on a GPU and a few picoseconds on a wafer.
"""

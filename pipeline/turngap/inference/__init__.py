"""An inference server as a model: what a step costs, who is in the batch, when a token comes.

Pure and deterministic. Time inside is whole picoseconds (`_ps`): a token's share of a step is a
few nanoseconds on a GPU and a few picoseconds on a wafer, and whole numbers make a leap over many
steps give exactly what the same steps give one by one.
"""

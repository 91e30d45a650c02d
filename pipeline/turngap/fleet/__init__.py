"""Many calls on a fleet of inference servers, in virtual time. Pure: seeded, no clock, no I/O."""

# People leave about this much to each other (Levinson and Torreira 2015, doi
# 10.3389/fpsyg.2015.00731: gaps are of the order of 200 ms). How far it spreads is an assumption.
THINK_MS = 200.0
THINK_SIGMA = 0.8

"""Generated turns with pauses to think: two disjoint sets, one to fit on and one to judge by.

docs/turns-corpus.md says what they are, where their distributions come from, and what they assume.
"""

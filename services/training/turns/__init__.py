"""Generated turns with pauses to think: two disjoint sets, one to fit on and one to judge by.

docs/turns.md says what they are, and training.turns.plan where their distributions come from.
"""

"""Short voice dialogues, made by plain code from a seed.

Every turn knows which words a right answer must have, which skill it tests, and its *content*: the
values that decide the answer. Contents are split into trained and held out once, by their hash, so
that held-out accuracy is over combinations that no training dialogue has ever held.
"""

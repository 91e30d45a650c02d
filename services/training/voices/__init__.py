"""Voices for piper that the project makes itself, without torch, when they are needed.

`unit_bank` speaks and can be understood; `random_vits` says nothing, and takes as long over it as a
published voice does. Neither is for people to listen to: they are test assets.
"""

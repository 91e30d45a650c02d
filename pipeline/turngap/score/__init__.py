"""Scores of recorded calls: figures from stereo recordings, and figures that anyone can check."""

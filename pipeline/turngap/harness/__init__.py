"""What is done with an agent and a caller: replay, calibrate, label."""

"""An agent and a caller together: targets, processes, one run, replay, calibration."""

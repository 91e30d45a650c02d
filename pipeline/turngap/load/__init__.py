"""`turngap load`: how many calls at once an agent holds, measured in an open loop."""

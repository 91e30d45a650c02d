"""`turngap compare`: the same agent with several LLM backends, side by side."""

"""The caller's end of the line: sends a person's audio in real time and hears the agent."""

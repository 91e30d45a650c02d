"""From the text of a reply to sound: clauses, synthesis ahead of playback, pacing."""

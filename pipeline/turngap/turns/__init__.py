"""One curve for a whole agent: the gap that a caller hears against the turns that it cuts in on."""

"""One curve for a whole agent: the gap that a caller hears against the share of cut-ins."""

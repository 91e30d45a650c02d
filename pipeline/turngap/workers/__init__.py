"""Work in several processes: of this machine, or of a Ray cluster."""

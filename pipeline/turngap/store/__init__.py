"""Storage: documents, runs and their provenance."""

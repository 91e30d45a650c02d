"""What is kept: stored documents, runs and their provenance."""

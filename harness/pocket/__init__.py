"""The pocket model: checkpoint, problems and their generator."""

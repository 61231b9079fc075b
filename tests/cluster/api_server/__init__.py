"""A real API server, into which recorded time lines are written."""

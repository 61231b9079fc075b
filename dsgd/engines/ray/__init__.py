"""Real workers: actors of Ray, in wall time."""

"""How vectors travel between processes: through Ray, or on one machine through shared memory."""

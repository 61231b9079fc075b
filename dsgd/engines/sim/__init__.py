"""The simulator: one heap of events."""

"""Deterministic simulation testing: random faults in seeded schedules, and kills of real processes."""

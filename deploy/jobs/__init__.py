"""Runs jobs on a cluster, watches them, and tests that they do what they should."""

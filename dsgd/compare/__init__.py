"""Experiments: several runs under one scenario and budget, compared (docs/experiments.md)."""

"""Exchanges that pass by the driver: all-reduce, and servers that hold a slice each."""

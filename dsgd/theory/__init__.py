"""Closed forms, a file for each subject."""

"""Run records: how they are written, read and kept; docs/record.md describes their files."""

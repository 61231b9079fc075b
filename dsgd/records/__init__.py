"""Run records: written, read, traced, uploaded (docs/record.md); stores/: where checkpoints are kept."""

"""Where checkpoints are stored: in a folder, in S3."""

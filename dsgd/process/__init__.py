"""What any program needs: signals, exit codes, messages, files written whole, S3, code of a user."""

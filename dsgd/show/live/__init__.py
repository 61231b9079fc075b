"""What can be seen of runs while they go on: metrics for Prometheus, and a live page."""

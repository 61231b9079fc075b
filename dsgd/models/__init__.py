"""What is trained: workloads, their networks and data, and losses on one flat vector."""

"""What runs in the driver: the cluster, its processes and tasks."""

"""Renders the RayJobs, and what goes with them in a cluster, from one table."""

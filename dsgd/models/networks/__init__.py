"""The networks of the workloads that ship."""

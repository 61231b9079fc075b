"""The networks of the workloads that ship; a workload of your own may use them, too."""

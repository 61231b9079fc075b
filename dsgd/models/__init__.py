"""What is trained: workloads/, networks/, datasets/, moe/ (experts); objectives/: losses on flat vectors."""

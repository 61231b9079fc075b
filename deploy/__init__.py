"""From this repository to a cluster: manifests, jobs, observability."""

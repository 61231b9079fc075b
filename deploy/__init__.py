"""From this repository to a cluster: image, manifests, observability, tools."""

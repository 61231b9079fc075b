"""Pods whose image cannot be written to: what a job leaves or changes is in volumes that go with its pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Besides /dev/shm: Ray's session and logs, caches, and records until they are uploaded.
WRITABLE = {"tmp": "/tmp", "home": "/home/ray", "runs": "/app/runs"}  # noqa: S108 - a pod's own


def read_only(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a RayJob or RayService with read-only images, and with volumes where its pods write."""
    for pod in pods(resource):
        (container,) = pod["containers"]
        container["securityContext"]["readOnlyRootFilesystem"] = True
        mounts = [{"name": name, "mountPath": path} for name, path in WRITABLE.items()]
        container["volumeMounts"] = [*container.get("volumeMounts", ()), *mounts]
        pod["volumes"] = [*pod.get("volumes", ()), *({"name": name, "emptyDir": {}} for name in WRITABLE)]
    return resource


def pods(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the specifications of a RayJob's or RayService's pods: submitter if it has one, head, workers."""
    if "submitterPodTemplate" in resource["spec"]:
        yield resource["spec"]["submitterPodTemplate"]["spec"]
    yield from nodes(resource)


def nodes(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the specifications of the pods that are Ray's nodes: head, workers."""
    cluster = cluster_of(resource)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]["spec"]


def cluster_of(resource: dict[str, Any]) -> dict[str, Any]:
    """Return the RayCluster's specification in a RayJob or a RayService."""
    name = "rayClusterSpec" if resource["kind"] == "RayJob" else "rayClusterConfig"
    cluster: dict[str, Any] = resource["spec"][name]
    return cluster

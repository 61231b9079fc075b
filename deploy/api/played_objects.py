"""What the player sees of the cluster at one moment, where it finds things, and the objects that it makes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from deploy.api.api_client import ApiAway, ApiClient, Body
from deploy.project import GPU, NAMESPACE

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
RAY_JOBS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayjobs"
RAY_CLUSTERS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
BATCH_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The objects of the namespace that jobs are made of."""

    ray_jobs: list[Body]
    ray_clusters: list[Body]
    batch_jobs: list[Body]
    pods: list[Body]

    def by_path(self) -> list[tuple[str, Body]]:
        """Return all of them, each with the path of its collection."""
        collections = (
            (RAY_JOBS, self.ray_jobs),
            (RAY_CLUSTERS, self.ray_clusters),
            (BATCH_JOBS, self.batch_jobs),
            (PODS, self.pods),
        )
        return [(path, one) for path, found in collections for one in found]

    def pods_of(self, cluster: str) -> list[Body]:
        """Return a RayCluster's pods, those that are being deleted left out."""
        return [
            pod
            for pod in self.pods
            if label(pod, "ray.io/cluster") == cluster and "deletionTimestamp" not in pod["metadata"]
        ]

    def head_runs(self, cluster: str) -> bool:
        """Whether a RayCluster has a head that runs."""
        heads = (pod for pod in self.pods_of(cluster) if label(pod, "ray.io/node-type") == "head")
        return any(pod["status"]["phase"] == "Running" for pod in heads)


def look_at(client: ApiClient) -> Seen:
    """Read them. Raises ApiAway where a kind is not served: what it owns must not seem to have no owner."""
    found = {path: client.find(path) for path in (RAY_JOBS, RAY_CLUSTERS, BATCH_JOBS, PODS)}
    if missing := [path for path, one in found.items() if one is None]:
        raise ApiAway(f"{missing[0]} is not served")
    jobs, clusters, batch, pods = ((one or {}).get("items") or [] for one in found.values())
    return Seen(ray_jobs=jobs, ray_clusters=clusters, batch_jobs=batch, pods=pods)


def label(item: Body, name: str) -> str:
    """Return an object's label; empty if it has none of this name."""
    return str((item["metadata"].get("labels") or {}).get(name, ""))


def gpus_of(pod: Body) -> int:
    """Return how many GPUs a pod asks for."""
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"]["containers"]]
    return sum(int(one.get(GPU, 0)) for one in limits)


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def owned_by(owner: Body, kind: str, api_version: str) -> list[dict[str, Any]]:
    """Return the ownerReferences of what an object's controller makes for it."""
    reference = {"apiVersion": api_version, "kind": kind, "controller": True, "blockOwnerDeletion": True}
    return [reference | {key: owner["metadata"][key] for key in ("name", "uid")}]


def report(
    client: ApiClient, about: Body, kind: str, reason: str, message: str, *, good: bool = True
) -> None:
    """Create an event about an object, as its controller or kubelet does."""
    metadata = about["metadata"]
    version = "v1" if kind == "Pod" else "ray.io/v1"
    involved = {"apiVersion": version, "kind": kind, "namespace": NAMESPACE}
    when = now()
    client.create(
        EVENTS,
        {
            "metadata": {"generateName": f"{metadata['name'][:40]}."},
            "involvedObject": involved | {key: metadata[key] for key in ("name", "uid")},
            "reason": reason,
            "message": message,
            "type": "Normal" if good else "Warning",
            "count": 1,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "source": {"component": "player"},
        },
    )

"""Pods, events and a RayJob's status, as typed values made from the JSON of Kubernetes and KubeRay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["head", "worker", "submitter"]

JSON = Mapping[str, Any]

_STARTING = ("ContainerCreating", "PodInitializing", None)  # the reasons of a pod that starts as it should


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of a RayJob; `container` is the one that runs Ray, or the submitter's only one."""

    name: str
    uid: str
    role: Role
    phase: str
    ready: bool
    restarts: int
    node: str
    container: str
    image: str
    leaving: bool
    """It is being deleted."""
    unschedulable: str
    """The scheduler's reason for placing it nowhere, or nothing."""
    waiting: str
    """Why a container cannot start, as ImagePullBackOff, or nothing."""
    waiting_message: str
    ended: str
    """How a container ended that should run, as `OOMKilled, exit code 137`, or nothing."""
    ended_before: str
    """The same of the container that its restart has replaced."""

    @property
    def running(self) -> bool:
        return self.phase == "Running" and self.ready and not self.leaving


@dataclass(frozen=True, kw_only=True)
class KubernetesEvent:
    """An event about one object."""

    about: str
    """Name of the object."""
    kind: str
    type: str
    reason: str
    message: str
    count: int
    time: str
    """When it was last seen, ISO 8601."""


@dataclass(frozen=True, kw_only=True)
class RayJobStatus:
    """A RayJob's status."""

    name: str
    uid: str
    cluster: str
    """Name of its RayCluster; empty before there is one."""
    deployment_status: str
    job_status: str
    reason: str
    message: str

    @property
    def over(self) -> bool:
        """Whether the operator is done with it; the pods may stay for a while."""
        return self.deployment_status in ("Complete", "Failed")

    @property
    def state(self) -> str:
        """The statuses as one text, like `Running, RUNNING`."""
        both = filter(None, (self.deployment_status, self.job_status))
        return ", ".join(both) or "not yet taken up by the operator"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A job, its pods and the events about them, read in one call."""

    job: RayJobStatus | None
    pods: tuple[Pod, ...] = ()
    events: tuple[KubernetesEvent, ...] = ()

    def of(self, *roles: Role) -> list[Pod]:
        """Return the pods of these roles."""
        return [pod for pod in self.pods if pod.role in roles]

    @property
    def head(self) -> Pod | None:
        """The head pod, if it runs."""
        return next((pod for pod in self.of("head") if pod.running), None)


def snapshot(items: Iterable[JSON], name: str) -> Snapshot:
    """Sort out what belongs to the RayJob `name` in a list of RayJobs, pods and events of its namespace."""
    items = list(items)
    found = (item for item in items if item["kind"] == "RayJob" and item["metadata"]["name"] == name)
    job = next(map(_ray_job, found), None)
    cluster = job.cluster if job else ""
    pods = tuple(
        _pod(item, role)
        for item in items
        if item["kind"] == "Pod" and (role := _role(item["metadata"].get("labels") or {}, name, cluster))
    )
    names = {name, cluster, *(pod.name for pod in pods)} - {""}
    events = [_event(item) for item in items if item["kind"] == "Event"]
    about = sorted((event for event in events if event.about in names), key=lambda event: event.time)
    return Snapshot(job=job, pods=pods, events=tuple(about))


def _role(labels: JSON, job: str, cluster: str) -> Role | None:
    if cluster and labels.get("ray.io/cluster") == cluster:
        return "head" if labels.get("ray.io/node-type") == "head" else "worker"
    if job in (labels.get("batch.kubernetes.io/job-name"), labels.get("job-name")):
        return "submitter"
    return None


def _ray_job(item: JSON) -> RayJobStatus:
    status = item.get("status") or {}
    return RayJobStatus(
        name=item["metadata"]["name"],
        uid=item["metadata"].get("uid", ""),
        cluster=status.get("rayClusterName", ""),
        deployment_status=status.get("jobDeploymentStatus", ""),
        job_status=status.get("jobStatus", ""),
        reason=status.get("reason", ""),
        message=" ".join(status.get("message", "").split()),
    )


def _pod(item: JSON, role: Role) -> Pod:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or []
    # A worker's init container has the same image: a failed pull shows there first.
    states = [one.get("state") or {} for one in [*(status.get("initContainerStatuses") or ()), *containers]]
    stuck = (state["waiting"] for state in states if "waiting" in state)
    waiting: JSON = next((wait for wait in stuck if wait.get("reason") not in _STARTING), {})
    ended = _ended(containers, "state", role)
    if not ended and status.get("phase") == "Failed":  # evicted, or its node is gone
        ended = " ".join(f"{status.get('reason', 'Failed')}: {status.get('message', '')}".split())
    placed = conditions.get("PodScheduled", {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        phase=status.get("phase", "Unknown"),
        ready=conditions.get("Ready", {}).get("status") == "True",
        restarts=sum(one.get("restartCount", 0) for one in containers),
        node=spec.get("nodeName", ""),
        container=spec["containers"][0]["name"],
        image=spec["containers"][0]["image"],
        leaving="deletionTimestamp" in metadata,
        unschedulable=placed.get("message", "") if placed.get("reason") == "Unschedulable" else "",
        waiting=waiting.get("reason", ""),
        waiting_message=" ".join(waiting.get("message", "").split()),
        ended=ended,
        ended_before=_ended(containers, "lastState", role),
    )


def _ended(containers: Iterable[JSON], which: str, role: Role) -> str:
    for one in containers:
        end = (one.get(which) or {}).get("terminated")
        if end and (role != "submitter" or end.get("exitCode")):
            return f"{end.get('reason', 'ended')}, exit code {end.get('exitCode')}"
    return ""


def _event(item: JSON) -> KubernetesEvent:
    about = item["involvedObject"]
    return KubernetesEvent(
        about=about.get("name", ""),
        kind=about.get("kind", ""),
        type=item.get("type", ""),
        reason=item.get("reason", ""),
        message=" ".join(item.get("message", "").split()),
        count=item.get("count") or (item.get("series") or {}).get("count") or 1,
        time=(item.get("series") or {}).get("lastObservedTime")
        or item.get("lastTimestamp")
        or item.get("eventTime")
        or item["metadata"].get("creationTimestamp")
        or "",
    )

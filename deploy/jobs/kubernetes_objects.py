"""Pods, events and a RayJob's status, as typed values made from the JSON of Kubernetes and KubeRay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

Role = Literal["head", "worker", "submitter"]

JSON = Mapping[str, Any]

TEST_OF, OWNER = "dsgd-lab/test-of", "dsgd-lab/owner"  # labels of a test's RayJob

# From which KubeRay does not go on by itself. Retrying, Suspended and Waiting are not among them.
_TERMINAL = ("Complete", "Failed", "ValidationFailed")
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
    uid: str
    """Of the object: a later one of the same name has another."""
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
    failed: int
    """How often it has failed; after each but the last it is tried again, in a new RayCluster."""
    created: str
    """When it was applied, ISO 8601, as all times here; empty where there is none."""
    started: str
    ended: str
    leaving: str
    """Since when it is being deleted."""
    finalizers: tuple[str, ...]
    """What must be done before it is gone, by those that put them there."""
    test_of: str
    """The job that it tests, if it is a test."""
    owner: str
    """Who applied it, if it says."""
    head_address: str
    """Of the dashboard, inside the cluster, with its port."""
    conditions: tuple[str, ...]
    """Of its RayCluster, a line each."""

    @property
    def over(self) -> bool:
        """Whether the operator is done with it; the pods may stay for a while."""
        return self.deployment_status in _TERMINAL

    @property
    def taken_up(self) -> bool:
        """Whether an operator has seen it. Before it is tried again, its status is empty for a moment."""
        return bool(self.deployment_status or self.failed)

    @property
    def retries(self) -> int:
        """How often it was begun again after it had failed."""
        return self.failed - (self.deployment_status == "Failed")

    @property
    def state(self) -> str:
        """The statuses as one text, like `Running, RUNNING`."""
        text = ", ".join(filter(None, (self.deployment_status, self.job_status)))
        if self.failed and not self.over:
            text = f"{text or 'New'}; try {self.failed + 1}"
        text = text or "not yet taken up by the operator"
        return f"{text}; is being deleted since {self.leaving}" if self.leaving else text

    @property
    def outcome(self) -> str:
        """The state with reason and message, as far as there are any."""
        why = ": ".join(filter(None, (self.reason, self.message)))
        return f"{self.state} ({why})" if why else self.state

    @property
    def age_s(self) -> float:
        """Seconds since it was applied, by this machine's clock; 0 where it does not say."""
        if not self.created:
            return 0.0
        return (datetime.now(UTC) - datetime.fromisoformat(self.created)).total_seconds()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A job and its pods, read in one call, and the events about them, read in another."""

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

    def with_events(self, items: Iterable[JSON]) -> Snapshot:
        """Return the same with what is about it of a list of events, oldest first."""
        about = [item for item in items if self._concerned(item)]
        return replace(self, events=tuple(_event(item) for item in sorted(about, key=_order)))

    def _concerned(self, item: JSON) -> bool:
        """Whether an event is about this job: by uid, because an earlier one had the same name."""
        about, job = item["involvedObject"], self.job
        if about.get("uid") in {pod.uid for pod in self.pods} | ({job.uid} if job else set()):
            return True
        if job is None:
            return False
        if about.get("kind") == "RayCluster":  # whose name ends with letters drawn for this job
            return bool(job.cluster) and about.get("name") == job.cluster
        # The submitter's Job, whose uid no pod names before there is one.
        return about.get("kind") == "Job" and about.get("name") == job.name and _when(item) >= job.created


def snapshot(items: Iterable[JSON], name: str) -> Snapshot:
    """Sort out what belongs to the RayJob `name` in a list of RayJobs and pods of its namespace."""
    items = list(items)
    job = next((job for job in ray_jobs(items) if job.name == name), None)
    cluster = job.cluster if job else ""
    pods = tuple(
        _pod(item, role)
        for item in items
        if item["kind"] == "Pod" and (role := _role(item["metadata"].get("labels") or {}, name, cluster))
    )
    return Snapshot(job=job, pods=pods)


def ray_jobs(items: Iterable[JSON]) -> list[RayJobStatus]:
    """Return the RayJobs in a list of objects."""
    return [_ray_job(item) for item in items if item["kind"] == "RayJob"]


def _role(labels: JSON, job: str, cluster: str) -> Role | None:
    if cluster and labels.get("ray.io/cluster") == cluster:
        return "head" if labels.get("ray.io/node-type") == "head" else "worker"
    if job in (labels.get("batch.kubernetes.io/job-name"), labels.get("job-name")):
        return "submitter"
    return None


def _ray_job(item: JSON) -> RayJobStatus:
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    cluster = status.get("rayClusterStatus") or {}
    return RayJobStatus(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        cluster=status.get("rayClusterName", ""),
        deployment_status=status.get("jobDeploymentStatus", ""),
        job_status=status.get("jobStatus", ""),
        reason=status.get("reason", ""),
        message=" ".join(status.get("message", "").split()),
        failed=status.get("failed") or 0,
        created=metadata.get("creationTimestamp") or "",
        started=status.get("startTime") or "",
        ended=status.get("endTime") or "",
        leaving=metadata.get("deletionTimestamp") or "",
        finalizers=tuple(metadata.get("finalizers") or ()),
        test_of=labels.get(TEST_OF, ""),
        owner=labels.get(OWNER, ""),
        head_address=status.get("dashboardURL", ""),
        conditions=tuple(_condition(one) for one in cluster.get("conditions") or ()),
    )


def _condition(one: JSON) -> str:
    why = ": ".join(filter(None, (one.get("reason", ""), one.get("message", ""))))
    return f"{one['type']} {one['status']} since {one.get('lastTransitionTime', '?')}" + (
        f" ({why})" if why else ""
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
        uid=about.get("uid", ""),
        kind=about.get("kind", ""),
        type=item.get("type", ""),
        reason=item.get("reason", ""),
        message=" ".join(item.get("message", "").split()),
        count=item.get("count") or (item.get("series") or {}).get("count") or 1,
        time=_when(item),
    )


def _when(item: JSON) -> str:
    return (
        (item.get("series") or {}).get("lastObservedTime")
        or item.get("lastTimestamp")
        or item.get("eventTime")
        or item["metadata"].get("creationTimestamp")
        or ""
    )


def _order(item: JSON) -> tuple[str, str]:
    """Return what sorts events: most have whole seconds, and their name ends with the nanosecond, as hex."""
    return _when(item)[:19], item["metadata"].get("name", "").rpartition(".")[2].rjust(32, "0")

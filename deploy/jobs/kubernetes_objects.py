"""What is read of Kubernetes and KubeRay: a line a field, with its place in the JSON, and what follows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, Literal, NamedTuple, TypeVar

Role = Literal["head", "worker", "submitter"]
JSON = Mapping[str, Any]
T = TypeVar("T")

TEST_OF, OWNER = "dsgd-lab/test-of", "dsgd-lab/owner"  # labels of a test's RayJob

# From which KubeRay does not go on by itself. Retrying, Suspended and Waiting are not among them.
_TERMINAL = ("Complete", "Failed", "ValidationFailed")
_STARTING = ("ContainerCreating", "PodInitializing", "")  # the reasons of a pod that starts as it should
_UNITS = {
    **{"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40},
}


def at(item: JSON, places: str, default: T) -> T:
    """Return what an object has at a place like spec.containers.0.name, text on one line.

    Null is as good as absent. Of several places, with | between them, it is the first that has something.
    """
    for place in places.split("|"):
        found: Any = item
        for name in place.split("."):
            found = (found[int(name)] if isinstance(found, list) else found.get(name)) or {}
        if isinstance(found, str):
            found = " ".join(found.split())
        if found:
            value: T = found
            return value
    return default


def part(item: JSON, path: str) -> JSON:
    """Return the part of an object at a place; empty where there is none."""
    return at(item, path, {})


class Field(Generic[T]):
    """A field of an object, by its place in the JSON."""

    def __init__(self, path: str, default: T) -> None:
        self._path, self._default = path, default

    def __get__(self, owner: KubernetesObject, _: type) -> T:
        return at(owner.json, self._path, self._default)


@dataclass(frozen=True)
class KubernetesObject:
    """An object of any kind; its times are ISO 8601, and empty where there is none."""

    json: JSON

    name = Field("metadata.name", "")
    namespace = Field("metadata.namespace", "")
    uid = Field("metadata.uid", "")
    labels = Field[JSON]("metadata.labels", {})
    created = Field("metadata.creationTimestamp", "")
    leaving = Field("metadata.deletionTimestamp", "")
    """Since when it is being deleted."""


class Pod(KubernetesObject):
    """A pod; its first container runs Ray, or is the submitter's only one."""

    node = Field("spec.nodeName", "")
    phase = Field("status.phase", "Unknown")
    container = Field("spec.containers.0.name", "")
    image = Field("spec.containers.0.image", "")
    _reason = Field("status.reason", "Failed")
    _message = Field("status.message", "")
    _conditions = Field[Sequence[JSON]]("status.conditions", ())
    _statuses = Field[Sequence[JSON]]("status.containerStatuses", ())
    _init_statuses = Field[Sequence[JSON]]("status.initContainerStatuses", ())

    @property
    def role(self) -> Role:
        """What a pod of a RayJob is for."""
        if "ray.io/cluster" not in self.labels:
            return "submitter"
        return "head" if self.labels.get("ray.io/node-type") == "head" else "worker"

    def belongs_to(self, job: str, cluster: str) -> bool:
        """Whether it is one of the RayJob `job`, whose RayCluster is `cluster`."""
        if self.role == "submitter":
            return job in (self.labels.get("batch.kubernetes.io/job-name"), self.labels.get("job-name"))
        return bool(cluster) and self.labels["ray.io/cluster"] == cluster

    @property
    def ready(self) -> bool:
        return self._condition("Ready").get("status") == "True"

    @property
    def running(self) -> bool:
        return self.phase == "Running" and self.ready and not self.leaving

    @property
    def restarts(self) -> int:
        return sum(at(one, "restartCount", 0) for one in self._statuses)

    @property
    def unschedulable(self) -> str:
        """The scheduler's reason for placing it nowhere, or nothing."""
        placed = self._condition("PodScheduled")
        return at(placed, "message", "") if placed.get("reason") == "Unschedulable" else ""

    @property
    def waiting(self) -> tuple[str, str]:
        """Why a container cannot start, as ImagePullBackOff, and the message; or nothing."""
        # A worker's init container has the same image: a failed pull shows there first.
        states = (part(one, "state.waiting") for one in (*self._init_statuses, *self._statuses))
        found = next((one for one in states if at(one, "reason", "") not in _STARTING), {})
        return at(found, "reason", ""), at(found, "message", "")

    @property
    def ended(self) -> str:
        """How a container ended that should run, as `OOMKilled, exit code 137`, or nothing."""
        if self.phase == "Failed" and not self._ended("state"):  # evicted, or its node is gone
            return f"{self._reason}: {self._message}"
        return self._ended("state")

    @property
    def ended_before(self) -> str:
        """The same of the container that its restart has replaced."""
        return self._ended("lastState")

    def _ended(self, which: str) -> str:
        for end in (part(one, f"{which}.terminated") for one in self._statuses):
            if end and (self.role != "submitter" or end.get("exitCode")):
                return f"{at(end, 'reason', 'ended')}, exit code {end.get('exitCode')}"
        return ""

    def _condition(self, kind: str) -> JSON:
        return next((one for one in self._conditions if one["type"] == kind), {})


class Event(KubernetesObject):
    """An event about one object; a later object of the same name has another uid."""

    about = Field("involvedObject.name", "")
    about_uid = Field("involvedObject.uid", "")
    kind = Field("involvedObject.kind", "")
    type = Field("type", "")
    reason = Field("reason", "")
    message = Field("message", "")
    count = Field("count|series.count", 1)
    time = Field("series.lastObservedTime|lastTimestamp|eventTime|metadata.creationTimestamp", "")
    """When it was last seen."""

    @property
    def order(self) -> tuple[str, str]:
        """What sorts events: most have whole seconds, and their name ends with the nanosecond, as hex."""
        return self.time[:19], self.name.rpartition(".")[2].rjust(32, "0")


class Condition(NamedTuple):
    """What an operator says of an object."""

    type: str
    status: str
    """True, False or Unknown."""
    reason: str
    message: str
    since: str

    def __str__(self) -> str:
        why = ": ".join(filter(None, (self.reason, self.message)))
        since = f"{self.type} {self.status} since {self.since or '?'}"
        return f"{since} ({why})" if why else since


class RayJob(KubernetesObject):
    """A RayJob in the cluster."""

    cluster = Field("status.rayClusterName", "")
    """Its RayCluster; empty before there is one."""
    deployment_status = Field("status.jobDeploymentStatus", "")
    job_status = Field("status.jobStatus", "")
    reason = Field("status.reason", "")
    message = Field("status.message", "")
    failed = Field("status.failed", 0)
    """How often it has failed; after each but the last it is tried again, in a new RayCluster."""
    started = Field("status.startTime", "")
    ended = Field("status.endTime", "")
    head_address = Field("status.dashboardURL", "")
    """Inside the cluster."""
    _conditions = Field[Sequence[JSON]]("status.rayClusterStatus.conditions", ())
    finalizers = Field[Sequence[str]]("metadata.finalizers", ())
    """What must be done before it is gone, by those that put them there."""
    test_of = Field(f"metadata.labels.{TEST_OF}", "")
    """The job that it tests, if it is a test."""
    owner = Field(f"metadata.labels.{OWNER}", "")
    """Who applied it, if it says."""

    @property
    def conditions(self) -> list[Condition]:
        """What the operator says of its RayCluster."""
        names = ("reason", "message", "lastTransitionTime")
        return [
            Condition(one["type"], one["status"], *(one.get(n, "") for n in names))
            for one in self._conditions
        ]

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


class Node(KubernetesObject):
    """A node of the cluster."""

    allocatable = Field[JSON]("status.allocatable", {})
    images = Field[Sequence[JSON]]("status.images", ())
    _taints = Field[Sequence[JSON]]("spec.taints", ())
    _conditions = Field[Sequence[JSON]]("status.conditions", ())
    _closed = Field("spec.unschedulable", False)

    @property
    def takes_pods(self) -> bool:
        return not self._closed and any(
            one["type"] == "Ready" and one["status"] == "True" for one in self._conditions
        )

    def taints(self, *effects: str) -> set[str]:
        """Return the keys of its taints with these effects; without one, of all."""
        return {one["key"] for one in self._taints if not effects or one["effect"] in effects}

    def amount(self, resource: str) -> float:
        """Return how much of a resource its pods may have."""
        return quantity(self.allocatable.get(resource, 0))


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A job and its pods, read in one call, and the events about them, read in another."""

    job: RayJob | None
    pods: tuple[Pod, ...] = ()
    events: tuple[Event, ...] = ()

    def of(self, *roles: Role) -> list[Pod]:
        """Return the pods of these roles."""
        return [pod for pod in self.pods if pod.role in roles]

    @property
    def head(self) -> Pod | None:
        """The head pod, if it runs."""
        return next((pod for pod in self.of("head") if pod.running), None)

    def with_events(self, items: Iterable[JSON]) -> Snapshot:
        """Return the same with what is about it of a list of events, oldest first."""
        about = sorted(filter(self._concerned, map(Event, items)), key=lambda event: event.order)
        return replace(self, events=tuple(about))

    def _concerned(self, event: Event) -> bool:
        """Whether an event is about this job: by uid, because an earlier one had the same name."""
        job = self.job
        if event.about_uid in {pod.uid for pod in self.pods} | ({job.uid} if job else set()):
            return True
        if job is None:
            return False
        if event.kind == "RayCluster":  # whose name ends with letters drawn for this job
            return bool(job.cluster) and event.about == job.cluster
        # The submitter's Job, whose uid no pod names before there is one.
        return event.kind == "Job" and event.about == job.name and event.time >= job.created


def snapshot(items: Iterable[JSON], name: str) -> Snapshot:
    """Sort out what belongs to the RayJob `name` in a list of RayJobs and pods of its namespace."""
    items = list(items)
    jobs = (RayJob(item) for item in items if item["kind"] == "RayJob")
    pods = (Pod(item) for item in items if item["kind"] == "Pod")
    job = next((job for job in jobs if job.name == name), None)
    cluster = job.cluster if job else ""
    return Snapshot(job=job, pods=tuple(pod for pod in pods if pod.belongs_to(name, cluster)))


def requested(pods: Iterable[JSON]) -> dict[str, float]:
    """Return what pods, or templates of pods, request, by resource; a limit without a request is one."""
    total: dict[str, float] = {}
    for container in (one for pod in pods for one in pod["spec"]["containers"]):
        asked = {**part(container, "resources.limits"), **part(container, "resources.requests")}
        for name, amount in asked.items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total


def quantity(text: str | int | float) -> float:
    """Return an amount of Kubernetes, like 500m or 12Gi, as a number. Raises ValueError for anything else."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]{0,2})", str(text))
    if not found or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not an amount")
    return float(found[1]) * _UNITS[found[2]]

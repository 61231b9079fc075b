"""Writes the stand-in's recorded time lines into an API server, a frame at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kubectl_standin.play import objects, scenario
from kubectl_standin.recorded import FINALIZER, Frame

from api_server.api_client import ApiAway, ApiClient, ApiRefused, Body
from api_server.install_cluster import count_quotas
from deploy.project import NAMESPACE

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
RAY_JOBS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayjobs"
RAY_CLUSTERS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
PROBE = "validate-setup-"
STEP_S = 0.3


class TimeLines:
    """Takes each RayJob a frame further at each step, and clears what belongs to one that is deleted."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._written: dict[str, int] = {}  # by the job's uid: how many of its frames
        self.pods: dict[str, tuple[Frame, Body]] = {}
        """By their names: what a kubelet answers for them."""
        self.failure: BaseException | None = None
        """What has ended the writing."""
        self.play("success")

    def play(self, name: str, *, frees: bool = True) -> None:
        """Play a scenario for the jobs that are applied from now on. frees: the finalizer is taken away."""
        self._frames, self.frees = scenario(name)["frames"], frees

    def is_over(self, job: Body) -> bool:
        """Whether the last frame of a job is written."""
        assert self.failure is None
        return self._written.get(job["metadata"]["uid"]) == len(self._frames)

    def step(self) -> None:
        """Write the next frame of each job."""
        for job in self._client.items(RAY_JOBS):
            uid = job["metadata"]["uid"]
            written = self._written.setdefault(uid, 0)
            if "deletionTimestamp" in job["metadata"]:
                self._clear(job)
            elif written < len(self._frames):
                number = list(self._written).index(uid) + 1
                self._write(job, Frame(objects(), self._frames[written], job, number))
                self._written[uid] = written + 1
        pods = self._client.items(PODS)
        for pod in pods:
            if pod["metadata"]["name"].startswith(PROBE):
                self._end_probe(pod)
        count_quotas(self._client, pods)

    def _write(self, job: Body, frame: Frame) -> None:
        if frame.status is None:
            return
        place = f"{RAY_JOBS}/{job['metadata']['name']}"
        self._client.patch(place, {"metadata": {"finalizers": [FINALIZER]}})
        self._client.set_status(place, frame.status)
        if not frame.pods():
            return
        cluster = {"metadata": {"name": frame.cluster}, "spec": job["spec"]["rayClusterSpec"]}
        self._client.create(RAY_CLUSTERS, {"apiVersion": "ray.io/v1", "kind": "RayCluster", **cluster})
        events = frame.cluster_events()
        there = {pod["metadata"]["name"]: pod for pod in self._pods_of(job)}
        for pod, about_pod in frame.pods():
            name = pod["metadata"]["name"]
            try:
                uid = self._write_pod(pod, there.pop(name, None))
            except ApiRefused as error:  # as KubeRay reports it
                events.append(frame.refusal(str(error)))
            else:
                self.pods[name] = frame, pod
                for event in about_pod:
                    event["involvedObject"]["uid"] = uid
                events += about_pod
        self._delete(there)
        for event in events:
            self._client.create(EVENTS, event)

    def _write_pod(self, pod: Body, there: Body | None) -> str:
        """Create a pod, or change its state; return its uid. Raises ApiRefused."""
        name, node = pod["metadata"]["name"], pod["spec"].pop("nodeName", None)
        if there is None:
            metadata = {"name": name, "labels": pod["metadata"]["labels"]}
            there = self._client.create(PODS, {"metadata": metadata, "spec": pod["spec"]})
        assert there, f"{name}: made by somebody else"
        if node and "nodeName" not in there["spec"]:
            self._place(name, node)
        self._client.set_status(f"{PODS}/{name}", pod["status"])
        return str(there["metadata"]["uid"])

    def _place(self, pod: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._client.create(f"{PODS}/{pod}/binding", {"metadata": {"name": pod}, "target": target})

    def _clear(self, job: Body) -> None:
        """Take away what a job had, as the garbage collector does, and the job too, unless it is stuck."""
        pods = {pod["metadata"]["name"]: pod for pod in self._pods_of(job)}
        self._delete(pods)
        for cluster in {pod["metadata"]["labels"].get("ray.io/cluster") for pod in pods.values()} - {None}:
            self._client.delete(f"{RAY_CLUSTERS}/{cluster}")
        kept = None if self.frees else [FINALIZER]
        self._client.patch(f"{RAY_JOBS}/{job['metadata']['name']}", {"metadata": {"finalizers": kept}})

    def _pods_of(self, job: Body) -> list[Body]:
        name = job["metadata"]["name"]
        cluster = (job.get("status") or {}).get("rayClusterName", "")
        return [
            pod
            for pod in self._client.items(PODS)
            if name == pod["metadata"]["labels"].get("job-name")
            or (cluster and cluster == pod["metadata"]["labels"].get("ray.io/cluster"))
        ]

    def _delete(self, pods: dict[str, Body]) -> None:
        for name in pods:
            self._client.delete(f"{PODS}/{name}", gracePeriodSeconds=0)

    def _end_probe(self, pod: Body) -> None:
        place = f"{PODS}/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            self._client.delete(place, gracePeriodSeconds=0)
        elif pod["status"]["phase"] == "Pending":
            self._place(pod["metadata"]["name"], "node-cpu-0")
            self._client.set_status(place, {"phase": "Succeeded"})


@contextmanager
def writing(lines: TimeLines) -> Iterator[None]:
    """Write time lines while the block runs, also after the API server was away: controllers look again."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(STEP_S):
            try:
                lines.step()
            except ApiAway:
                pass
            except BaseException as error:
                lines.failure = error
                raise

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

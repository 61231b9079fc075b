"""Scheduler and kubelets, played: they place pods, start them, see them end, and take them away."""

from __future__ import annotations

import base64
import re
import signal
import time
from pathlib import Path

from deploy.api.api_client import ApiClient, Body
from deploy.api.install_cluster import NODES
from deploy.api.played_objects import PODS, Seen, gpus_of, label, now, report
from deploy.api.played_ray import EXIT_CODE
from deploy.api.pod_processes import PodProcess, Workplace
from deploy.api.scenarios import Scenario
from deploy.project import GPU, NAMESPACE, TAG_VARIABLE

_SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
STARTS_AFTER_S = 0.5  # what pulling an image and starting a container take here


class PlayedNodes:
    """Takes each pod one state further at each look. folder: for logs, and for the processes' files."""

    def __init__(self, client: ApiClient, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._processes: dict[str, PodProcess] = {}  # by the pod's uid
        self._uids: dict[str, str] = {}  # of pods with a process, by their names
        self._placed: dict[str, float] = {}  # by the pod's uid: when
        self._reported: set[str] = set()  # uids of pods with a trouble that was reported
        self.workplaces: dict[str, Workplace] = {}
        """By the name of the RayCluster, or of the probe's pod: a head that is made again has a new one."""
        (folder / "logs").mkdir(parents=True)

    def log_of(self, pod: str) -> Path:
        """Return the file with what a pod has printed."""
        return self._folder / "logs" / pod

    def runs(self, pod: str) -> bool:
        """Whether a pod has a process that may still print."""
        process = self._processes.get(self._uids.get(pod, ""))
        return process is not None and process.exit_code is None

    def exit_code(self, cluster: str) -> int | None:
        """Return how the driver on a RayCluster's head has ended; None if it has not, or none was there."""
        work = self.workplaces.get(cluster)
        path = work.folder / EXIT_CODE if work else None
        return int(path.read_text()) if path and path.exists() else None

    def step(self, seen: Seen, scenario: Scenario) -> None:
        """Do what scheduler and kubelets do for each pod."""
        there = {pod["metadata"]["uid"] for pod in seen.pods}
        for uid in self._processes.keys() - there:  # deleted by force
            self._processes.pop(uid).end()
        for pod in seen.pods:
            if "deletionTimestamp" in pod["metadata"]:
                self._take_away(pod)
            elif not pod["spec"].get("nodeName"):
                self._place(pod)
            elif pod["status"]["phase"] == "Pending":
                self._start(pod, seen, scenario)
            elif pod["status"]["phase"] == "Running":
                self._watch(pod, seen, scenario)

    def end(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.end()

    def _take_away(self, pod: Body) -> None:
        name = pod["metadata"]["name"]
        process = self._processes.get(pod["metadata"]["uid"])
        if process and process.exit_code is None:  # a driver completes its record first
            if pod["metadata"]["uid"] not in self._reported:
                self._reported.add(pod["metadata"]["uid"])
                process.signal(signal.SIGTERM)
            return
        self._client.delete(f"{PODS}/{name}", gracePeriodSeconds=0)

    def _place(self, pod: Body) -> None:
        gpus = gpus_of(pod)
        fitting = [name for name, has in NODES.items() if bool(has) == bool(gpus) and gpus <= has]
        name = pod["metadata"]["name"]
        if not fitting:
            why = f"0/{len(NODES)} nodes are available: {len(NODES)} Insufficient {GPU}."
            if pod["metadata"]["uid"] not in self._reported:
                self._reported.add(pod["metadata"]["uid"])
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                self._client.set_status(f"{PODS}/{name}", {"conditions": [condition | {"message": why}]})
                report(self._client, pod, "Pod", "FailedScheduling", why, good=False)
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": fitting[0]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self._client.create(f"{PODS}/{name}/binding", body)
        self._placed[pod["metadata"]["uid"]] = time.monotonic()
        report(
            self._client, pod, "Pod", "Scheduled", f"Successfully assigned {NAMESPACE}/{name} to {fitting[0]}"
        )

    def _start(self, pod: Body, seen: Seen, scenario: Scenario) -> None:
        if label(pod, "ray.io/node-type") == "worker" and not scenario.pulls:
            self._fail_to_pull(pod)
            return
        if time.monotonic() - self._placed.get(pod["metadata"]["uid"], 0.0) < STARTS_AFTER_S:
            return
        if job_name := label(pod, "job-name"):
            job = next((one for one in seen.ray_jobs if one["metadata"]["name"] == job_name), None)
            # Its shell waits until the head answers: a new one, where the one before is gone.
            if job is None or not seen.head_runs(job["status"]["rayClusterName"]):
                return
        name = pod["metadata"]["name"]
        if label(pod, "ray.io/node-type"):
            self.log_of(name).write_text("INFO scripts.py -- Ray runtime started.\n")
        if label(pod, "ray.io/node-type") != "worker":
            self._uids[name] = pod["metadata"]["uid"]
            self._processes[pod["metadata"]["uid"]] = self._run(pod, seen, scenario)
        self._set(pod, "Running", ready=True, state={"running": {"startedAt": now()}})

    def _run(self, pod: Body, seen: Seen, scenario: Scenario) -> PodProcess:
        """Start what a head, a submitter or a probe runs. A submitter works in the folder of its head."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        job = next((one for one in seen.ray_jobs if one["metadata"]["name"] == label(pod, "job-name")), None)
        (container,) = pod["spec"]["containers"]
        env, command = self._environment(pod), [*container["command"], *container.get("args", ())]
        if job:
            work = self.workplaces[job["status"]["rayClusterName"]]
            env["PLAYED_DRIVER"] = scenario.driver
        else:
            if cluster := label(pod, "ray.io/cluster"):
                command = ["ray", "head"]
            folder = self._folder / "work" / f"{cluster or name}-{uid[:5]}"
            work = self.workplaces[cluster or name] = Workplace(folder)
        return PodProcess(command, env | work.environment, work.folder, self.log_of(name))

    def _environment(self, pod: Body) -> dict[str, str]:
        """Return a pod's variables: the image's, those of the secrets that it names and finds, its own."""
        (container,) = pod["spec"]["containers"]
        found = {TAG_VARIABLE: container["image"].rpartition(":")[2]}
        for source in container.get("envFrom", ()):
            secret = self._client.find(f"{_SECRETS}/{source['secretRef']['name']}") or {}
            found |= {
                name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()
            }
        return found | {one["name"]: _value(one, pod) for one in container.get("env", ())}

    def _fail_to_pull(self, pod: Body) -> None:
        if pod["metadata"]["uid"] in self._reported:
            return
        self._reported.add(pod["metadata"]["uid"])
        image = pod["spec"]["containers"][0]["image"]
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
        init = _container(pod["spec"]["initContainers"][0]["name"], image, state={"waiting": waiting})
        self._set(pod, "Pending", ready=False, state={"waiting": {"reason": "PodInitializing"}}, init=init)
        message = f'Failed to pull image "{image}": rpc error: code = NotFound desc = "{image}": not found'
        report(self._client, pod, "Pod", "Failed", message, good=False)

    def _watch(self, pod: Body, seen: Seen, scenario: Scenario) -> None:
        process = self._processes.get(pod["metadata"]["uid"])
        if process and process.exit_code is not None:
            good = process.exit_code == 0
            ended = {
                "exitCode": process.exit_code,
                "reason": "Completed" if good else "Error",
                "finishedAt": now(),
            }
            self._set(pod, "Succeeded" if good else "Failed", ready=False, state={"terminated": ended})
        elif (
            scenario.out_of_memory
            and label(pod, "ray.io/node-type") == "worker"
            and self._runs_long(pod, seen)
        ):
            self._reported.add(pod["metadata"]["uid"])
            killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": now()}}
            state = {"running": {"startedAt": now()}}
            self._set(pod, "Running", ready=True, state=state, last_state=killed, restarts=1)

    def _runs_long(self, pod: Body, seen: Seen) -> bool:
        """Whether no pod was killed yet, and the submitter has been there for a second."""
        cluster = label(pod, "ray.io/cluster")
        if any(other["metadata"]["uid"] in self._reported for other in seen.pods_of(cluster)):
            return False
        job = next(
            (one for one in seen.ray_jobs if (one.get("status") or {}).get("rayClusterName") == cluster), None
        )
        submitters = [one for one in seen.pods if job and label(one, "job-name") == job["metadata"]["name"]]
        return any(
            time.monotonic() - self._placed.get(one["metadata"]["uid"], time.monotonic()) > 1 + STARTS_AFTER_S
            for one in submitters
        )

    def _set(
        self,
        pod: Body,
        phase: str,
        *,
        ready: bool,
        state: Body,
        last_state: Body | None = None,
        restarts: int = 0,
        init: Body | None = None,
    ) -> None:
        first = pod["spec"]["containers"][0]
        one = _container(first["name"], first["image"], state, last_state, ready=ready, restarts=restarts)
        conditions = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": str(init is None)},
            {"type": "Ready", "status": str(ready)},
            {"type": "ContainersReady", "status": str(ready)},
        ]
        status: Body = {"phase": phase, "conditions": conditions, "containerStatuses": [one]}
        if init:
            status["initContainerStatuses"] = [init]
        self._client.set_status(f"{PODS}/{pod['metadata']['name']}", status)


def _value(variable: Body, pod: Body) -> str:
    """Return the value of a container's variable; what is of another kind than ours is empty."""
    path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    if found := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
        return label(pod, found[1])
    return str(variable.get("value", ""))


def _container(
    name: str,
    image: str,
    state: Body,
    last_state: Body | None = None,
    *,
    ready: bool = False,
    restarts: int = 0,
) -> Body:
    return {
        "name": name,
        "image": image,
        "imageID": "",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": last_state or {},
    }

"""KubeRay's operator, played: a RayJob's states as rayjob_controller.go of KubeRay 1.7 goes through them.

Names, labels, finalizer, events, retries and the submitter's shell are its own. A job that fails gets a new
RayCluster and submission, `backoffLimit` times, with the whole of its deadlines; one that has passed its
activeDeadlineSeconds does not. A head that is lost is made again in the same RayCluster; the submitter, which
has lost its connection, fails, and the next pod of its Job submits again there.
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from typing import Any

import yaml

from deploy.api.api_client import ApiClient, ApiRefused, Body
from deploy.api.played_objects import (
    BATCH_JOBS,
    PODS,
    RAY_CLUSTERS,
    RAY_JOBS,
    Seen,
    label,
    now,
    owned_by,
    report,
)
from deploy.api.scenarios import Scenario
from deploy.project import NAMESPACE

FINALIZER = "ray.io/rayjob-finalizer"
_RAY = "ray.io/v1"


class PlayedOperator:
    """Takes each RayJob one state further at each look.

    exit_code: of the driver on a RayCluster's head, what Ray's job manager knows; None while it runs.
    """

    def __init__(self, client: ApiClient, exit_code: Callable[[str], int | None]) -> None:
        self._client, self._exit_code = client, exit_code
        self._since: dict[str, float] = {}  # uid of a RayJob -> when it was taken up last
        self._reported: set[str] = set()  # uids of RayClusters of which a pod was refused

    def step(self, seen: Seen, scenario: Scenario) -> None:
        """Do what one reconciliation of each RayJob does."""
        for job in seen.ray_jobs:
            if "deletionTimestamp" in job["metadata"]:
                if scenario.frees:
                    self._release(job)
                continue
            if not scenario.adopts:
                continue
            match (job.get("status") or {}).get("jobDeploymentStatus", ""):
                case "" if scenario.invalid:
                    self._refuse(job, scenario.invalid)
                case "":
                    self._take_up(job)
                case "Initializing":
                    self._start(job, seen)
                case "Running":
                    self._follow(job, seen)
                case "Retrying":
                    self._clear(job, seen)

    def _release(self, job: Body) -> None:
        kept = [one for one in job["metadata"].get("finalizers") or () if one != FINALIZER]
        if len(kept) < len(job["metadata"].get("finalizers") or ()):
            self._client.patch(_path(job), {"metadata": {"finalizers": kept or None}})

    def _refuse(self, job: Body, why: str) -> None:
        report(self._client, job, "RayJob", "InvalidRayJobSpec", f"{_name(job)}: {why}", good=False)
        self._set(job, jobDeploymentStatus="ValidationFailed", reason="ValidationFailed", message=why)

    def _take_up(self, job: Body) -> None:
        self._since[job["metadata"]["uid"]] = time.monotonic()
        finalizers = [one for one in job["metadata"].get("finalizers") or () if one != FINALIZER]
        self._client.patch(_path(job), {"metadata": {"finalizers": [*finalizers, FINALIZER]}})
        self._set(
            job,
            jobDeploymentStatus="Initializing",
            jobId=f"{job['metadata']['name']}-{_letters()}",
            rayClusterName=f"{job['metadata']['name']}-{_letters()}",
            startTime=now(),
        )

    def _start(self, job: Body, seen: Seen) -> None:
        """Make the RayCluster, and once its pods run, the submitter."""
        name = job["status"]["rayClusterName"]
        cluster = _cluster(job, seen)
        if cluster is None:
            self._make_cluster(job)
            return
        pods = seen.pods_of(name)
        if not pods:
            self._make_token(cluster)
        wanted = self._keep_pods(job, cluster, seen)
        ready = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        self._set(job, rayClusterStatus=_cluster_status(len(ready) == wanted))
        if len(ready) < wanted:
            if self._age_s(job) > job["spec"].get("preRunningDeadlineSeconds", float("inf")):
                self._fail(job, "PreRunningDeadlineExceeded", "The RayJob has passed its deadline to run.")
            return
        address = f"{name}-head-svc.{NAMESPACE}.svc.cluster.local:8265"
        job["status"]["dashboardURL"] = address
        self._submit(job)
        self._set(
            job,
            jobDeploymentStatus="Running",
            jobStatus="RUNNING",
            message="Job is currently running.",
            dashboardURL=address,
        )

    def _keep_pods(self, job: Body, cluster: Body, seen: Seen) -> int:
        """Make the pods that the RayCluster lacks, until one is refused; return how many it has to have."""
        spec, there = job["spec"]["rayClusterSpec"], seen.pods_of(cluster["metadata"]["name"])
        groups = [("head", 1, spec["headGroupSpec"], "headgroup")]
        groups += [("worker", one["replicas"], one, one["groupName"]) for one in spec["workerGroupSpecs"]]
        taken = True
        for role, count, group, name in groups:
            have = sum(label(pod, "ray.io/group") == name for pod in there)
            for _ in range(count - have):
                taken = taken and self._make_pod(cluster, role, group["template"], name)
        return sum(count for _, count, _, _ in groups)

    def _follow(self, job: Body, seen: Seen) -> None:
        if self._age_s(job) > job["spec"].get("activeDeadlineSeconds", float("inf")):
            self._fail(job, "DeadlineExceeded", "The RayJob has passed the activeDeadlineSeconds.")
            return
        if cluster := _cluster(job, seen):
            self._keep_pods(job, cluster, seen)
        names = (one for one in seen.batch_jobs if one["metadata"]["name"] == job["metadata"]["name"])
        conditions = [one for found in names for one in (found.get("status") or {}).get("conditions", ())]
        ended = {one["type"]: one.get("reason") for one in conditions}
        code = self._exit_code(job["status"]["rayClusterName"])
        if "Failed" in ended:
            message = f"Job submission has failed. Reason: {ended['Failed']}."
            self._fail(job, "SubmissionFailed" if code is None else "AppFailed", message)
        elif "Complete" in ended and code == 0:
            done = (job.get("status") or {}).get("succeeded", 0) + 1
            status = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "endTime": now()}
            self._set(job, **status, message="Job finished successfully.", succeeded=done)
        elif "Complete" in ended and code is not None:
            self._fail(job, "AppFailed", f"Job entrypoint command failed with exit code {code}")

    def _fail(self, job: Body, reason: str, message: str) -> None:
        """End a job that failed, or have it tried again."""
        failed = job["status"].get("failed", 0) + 1
        again = failed <= job["spec"].get("backoffLimit", 0) and reason != "DeadlineExceeded"
        status: Body = {"jobStatus": "FAILED", "reason": reason, "message": message, "failed": failed}
        if again:
            self._set(job, jobDeploymentStatus="Retrying", **status)
        else:
            self._set(job, jobDeploymentStatus="Failed", endTime=now(), **status)

    def _clear(self, job: Body, seen: Seen) -> None:
        """Delete RayCluster and submitter; once they are gone, the job is as new."""
        cluster = _cluster(job, seen)
        submitters = [one for one in seen.batch_jobs if one["metadata"]["name"] == job["metadata"]["name"]]
        left = [(RAY_CLUSTERS, "RayCluster", "cluster", cluster)] if cluster else []
        left += [(BATCH_JOBS, "RayJobSubmitter", "submitter K8s Job", one) for one in submitters]
        for path, kind, words, one in left:
            if "deletionTimestamp" not in one["metadata"]:
                name = one["metadata"]["name"]
                self._client.delete(f"{path}/{name}", propagationPolicy="Background")
                report(self._client, job, "RayJob", f"Deleted{kind}", f"Deleted {words} {NAMESPACE}/{name}")
        if not left:
            names = ("jobStatus", "jobId", "rayClusterName", "dashboardURL", "reason", "message")
            self._set(job, jobDeploymentStatus="", rayClusterStatus=None, **dict.fromkeys(names, ""))

    def _set(self, job: Body, **status: Any) -> None:
        self._client.set_status(_path(job), status)

    def _age_s(self, job: Body) -> float:
        return time.monotonic() - self._since[job["metadata"]["uid"]]

    def _make_cluster(self, job: Body) -> None:
        name = job["metadata"]["name"]
        metadata = {
            "name": job["status"]["rayClusterName"],
            "labels": {"ray.io/originated-from-cr-name": name, "ray.io/originated-from-crd": "RayJob"},
            "ownerReferences": owned_by(job, "RayJob", _RAY),
        }
        body = {"apiVersion": _RAY, "kind": "RayCluster", "metadata": metadata}
        self._client.create(RAY_CLUSTERS, body | {"spec": job["spec"]["rayClusterSpec"]})
        message = f"Created RayCluster {NAMESPACE}/{metadata['name']}"
        report(self._client, job, "RayJob", "CreatedRayCluster", message)

    def _make_token(self, cluster: Body) -> None:
        metadata = {
            "name": cluster["metadata"]["name"],
            "ownerReferences": owned_by(cluster, "RayCluster", _RAY),
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        self._client.create(path, {"metadata": metadata, "stringData": {"auth_token": "played"}})

    def _make_pod(self, cluster: Body, role: str, template: Body, group: str) -> bool:
        """Make a pod as pod.go does; return whether the API server took it."""
        name = cluster["metadata"]["name"]
        metadata = copy.deepcopy(template.get("metadata") or {})
        metadata["labels"] = (metadata.get("labels") or {}) | {
            "ray.io/cluster": name,
            "ray.io/node-type": role,
            "ray.io/group": group,
            "ray.io/is-ray-node": "yes",
            "ray.io/identifier": f"{name}-{role}"[:63],
            "app.kubernetes.io/created-by": "kuberay-operator",
            "app.kubernetes.io/name": "kuberay",
        }
        metadata["ownerReferences"] = owned_by(cluster, "RayCluster", _RAY)
        # KubeRay draws letters for workers; the head's name has none.
        metadata |= (
            {"name": f"{name}-head"} if role == "head" else {"generateName": f"{name}-{group}-worker-"}
        )
        try:
            made = self._client.create(
                PODS, {"metadata": metadata, "spec": _pod_spec(template["spec"], role)}
            )
        except ApiRefused as error:
            kind = role.title()
            message = f"Failed to create {role} Pod for the cluster {NAMESPACE}/{name}, err: {error}"
            if cluster["metadata"]["uid"] not in self._reported:  # it tries again and again
                self._reported.add(cluster["metadata"]["uid"])
                report(self._client, cluster, "RayCluster", f"FailedToCreate{kind}Pod", message, good=False)
            return False
        if made:
            message = f"Created {role} Pod {NAMESPACE}/{made['metadata']['name']}"
            report(self._client, cluster, "RayCluster", f"Created{role.title()}Pod", message)
        return True

    def _submit(self, job: Body) -> None:
        """Make the submitter's Job, of which the job controller makes pods."""
        name = job["metadata"]["name"]
        template = copy.deepcopy(job["spec"]["submitterPodTemplate"])
        (container,) = template["spec"]["containers"]
        container["command"], container["args"] = ["/bin/bash", "-ce", "--"], [submitting(job)]
        container["env"] = [
            *container.get("env", ()),
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "RAY_DASHBOARD_ADDRESS", "value": job["status"]["dashboardURL"]},
            {"name": "RAY_JOB_SUBMISSION_ID", "value": job["status"]["jobId"]},
        ]
        of_job = {"ray.io/originated-from-cr-name": name, "ray.io/originated-from-crd": "RayJob"}
        labels = ((template.get("metadata") or {}).get("labels") or {}) | of_job
        template["metadata"] = (template.get("metadata") or {}) | {"labels": labels}
        made = self._client.create(
            BATCH_JOBS,
            {
                "metadata": {
                    "name": name,
                    "labels": of_job,
                    "ownerReferences": owned_by(job, "RayJob", _RAY),
                },
                "spec": {
                    "backoffLimit": job["spec"]["submitterConfig"]["backoffLimit"],
                    "template": template,
                },
            },
        )
        if made:
            message = f"Created Kubernetes Job {_name(job)}"
            report(self._client, job, "RayJob", "CreatedRayJobSubmitter", message)


def submitting(job: Body) -> str:
    """Return what the submitter's shell runs, as BuildJobSubmitCommand of KubeRay puts it together.

    The wait for the dashboard is left out. The entrypoint is a part of the line, so this shell fills in its
    variables.
    """
    address, job_id = f"http://{job['status']['dashboardURL']}", job["status"]["jobId"]
    runtime = ""
    if text := job["spec"].get("runtimeEnvYAML"):
        runtime = f" --runtime-env-json {json.dumps(json.dumps(yaml.safe_load(text)))}"
    return (
        f"if ! ray job status --address {address} {job_id} >/dev/null 2>&1 ; "
        f"then ray job submit --address {address} --no-wait{runtime} --submission-id {job_id} "
        f"-- {job['spec']['entrypoint'].strip()} ; "
        f"fi ; ray job logs --address {address} --follow {job_id}"
    )


def _pod_spec(spec: Body, role: str) -> Body:
    """Return a template's spec with what KubeRay adds: start command, shared memory, probes, a wait."""
    made = copy.deepcopy(spec)
    ray = made["containers"][0]
    ray |= {"command": ["/bin/bash", "-c", "--"], "args": ["ulimit -n 65536; ray start"]}
    ray["volumeMounts"] = [*ray.get("volumeMounts", ()), {"name": "shared-mem", "mountPath": "/dev/shm"}]
    made["volumes"] = [
        *made.get("volumes", ()),
        {"name": "shared-mem", "emptyDir": {"medium": "Memory"}},
    ]
    probe = {"httpGet": {"path": "/api/healthz", "port": 52365}, "periodSeconds": 5}
    ray |= {"livenessProbe": probe, "readinessProbe": probe}
    if role == "worker":
        small = {"cpu": "200m", "memory": "256Mi"}
        wait: Body = {
            "name": "wait-gcs-ready",
            "command": ["/bin/bash", "-c", "--"],
            "args": ["ray health-check"],
        }
        wait |= {key: ray[key] for key in ("image", "imagePullPolicy", "securityContext") if key in ray}
        wait["resources"] = {"limits": small, "requests": small}
        made["initContainers"] = [*made.get("initContainers", ()), wait]
    return made


def _cluster_status(ready: bool) -> Body:
    yes, no = {"status": "True"}, {"status": "False"}
    when = {"lastTransitionTime": now(), "message": ""}
    conditions = [
        {"type": "HeadPodReady", "reason": "HeadPodRunningAndReady" if ready else "HeadPodNotFound"},
        {"type": "RayClusterProvisioned", "reason": "AllPodRunningAndReadyFirstTime"
         if ready else "RayClusterPodsProvisioning"},
    ]  # fmt: skip
    return {
        "conditions": [one | when | (yes if ready else no) for one in conditions],
        **({"state": "ready"} if ready else {}),
    }


def _cluster(job: Body, seen: Seen) -> Body | None:
    """Return a RayJob's RayCluster, if it is there."""
    name = job["status"]["rayClusterName"]
    return next((one for one in seen.ray_clusters if one["metadata"]["name"] == name), None)


def _letters() -> str:
    """Return what KubeRay draws for a name: five letters without vowels, so that no words come out."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


def _path(job: Body) -> str:
    return f"{RAY_JOBS}/{job['metadata']['name']}"


def _name(job: Body) -> str:
    return f"{NAMESPACE}/{job['metadata']['name']}"

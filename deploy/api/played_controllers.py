"""Kubernetes' controller manager, played: garbage collector, count of quotas, pods of Jobs."""

from __future__ import annotations

from deploy.api.api_client import ApiClient, Body
from deploy.api.played_objects import BATCH_JOBS, PODS, Seen, gpus_of, now, owned_by
from deploy.project import GPU, NAMESPACE

_FOREGROUND = "foregroundDeletion"
_QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"


def collect(client: ApiClient, seen: Seen) -> None:
    """Delete what has no owner any more, or one that waits for it; free owners that own nothing any more."""
    everything = seen.by_path()
    by_uid = {item["metadata"]["uid"]: item for _, item in everything}
    owned = {owner["uid"] for _, item in everything for owner in _owners(item)}
    for path, item in everything:
        metadata = item["metadata"]
        place = f"{path}/{metadata['name']}"
        owners = [by_uid.get(owner["uid"]) for owner in _owners(item)]
        waited_for = any(owner and _waits(owner) for owner in owners)
        orphaned = bool(owners) and not any(owners)
        if "deletionTimestamp" not in metadata and (orphaned or waited_for):
            client.delete(place, propagationPolicy="Foreground" if waited_for else "Background")
        if _waits(item) and metadata["uid"] not in owned:
            kept = [name for name in metadata["finalizers"] if name != _FOREGROUND]
            client.patch(place, {"metadata": {"finalizers": kept or None}})


def count_quotas(client: ApiClient, seen: Seen) -> None:
    """Fill in the status of GPU quotas: without `hard` nothing is enforced, and only this lowers `used`."""
    used = sum(gpus_of(pod) for pod in seen.pods if pod["status"]["phase"] in ("Pending", "Running"))
    for quota in client.items(_QUOTAS):
        status = {"hard": quota["spec"]["hard"], "used": {f"requests.{GPU}": str(used)}}
        if quota.get("status") != status:
            client.set_status(f"{_QUOTAS}/{quota['metadata']['name']}", status)


def run_jobs(client: ApiClient, seen: Seen) -> None:
    """Give each Job a pod, another one if that fails, and the condition that says that it is over."""
    for job in seen.batch_jobs:
        metadata, status = job["metadata"], job.get("status") or {}
        if "deletionTimestamp" in metadata or status.get("conditions"):
            continue
        pods = [pod for pod in seen.pods if metadata["uid"] in {owner["uid"] for owner in _owners(pod)}]
        phases = [pod["status"]["phase"] for pod in pods]
        failed = phases.count("Failed")
        over = ""
        if "Succeeded" in phases:
            over, reason = "Complete", ""
        elif failed > job["spec"]["backoffLimit"]:
            over, reason = "Failed", "BackoffLimitExceeded"
        if over:
            when = now()
            condition = {"type": over, "status": "True", "reason": reason, "lastTransitionTime": when}
            path = f"{BATCH_JOBS}/{metadata['name']}"
            client.set_status(path, {"conditions": [condition], "failed": failed, "startTime": when})
        elif failed == len(pods):  # none is active
            template = job["spec"]["template"]
            labels = template["metadata"]["labels"]
            name = metadata["name"]
            of_job = {"job-name": name, "batch.kubernetes.io/job-name": name}
            made = {
                "generateName": f"{name}-",
                "labels": labels | of_job,
                "ownerReferences": owned_by(job, "Job", "batch/v1"),
            }
            client.create(PODS, {"metadata": made, "spec": template["spec"]})


def _owners(item: Body) -> list[Body]:
    owners: list[Body] = item["metadata"].get("ownerReferences") or []
    return owners


def _waits(item: Body) -> bool:
    """Whether an object is being deleted in the foreground: after all that it owns."""
    return "deletionTimestamp" in item["metadata"] and _FOREGROUND in (
        item["metadata"].get("finalizers") or ()
    )

"""A pod that tries what only the cluster can answer: to pull the image and to use the bucket."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.jobs import bucket_check
from deploy.jobs.checks import Answer, hopeless
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubernetes_objects import Pod

_SMALL = {"cpu": "100m", "memory": "256Mi"}


def probe_manifest(job: JobManifest) -> Mapping[str, Any]:
    """Return a pod with the head's image, service account and environment; it tries the bucket, and ends."""
    spec = copy.deepcopy(job.templates["head"]["spec"])
    (container,) = spec["containers"]
    for unused in ("ports", "lifecycle"):
        container.pop(unused, None)
    source = Path(bucket_check.__file__).read_text(encoding="utf-8")
    container |= {"name": "probe", "command": ["python", "-c", source, job.bucket]}
    container["resources"] = {"requests": _SMALL, "limits": _SMALL}
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "activeDeadlineSeconds": 600}
    metadata = {
        "name": f"validate-setup-{secrets.token_hex(4)}",
        "namespace": job.manifest["metadata"]["namespace"],
        "labels": dict(job.manifest["metadata"]["labels"]),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def probe(kubectl: Kubectl, job: JobManifest, limit_s: float, poll_s: float) -> Answer:
    """Run the pod to its end, delete it, and return whether image and bucket serve the job's account."""
    manifest = probe_manifest(job)
    name = manifest["metadata"]["name"]
    until_s = time.monotonic() + limit_s
    kubectl.apply(manifest)
    try:
        while True:
            pod = Pod(kubectl.get("pods", name))
            reason, message = pod.waiting
            if what := hopeless(reason, pod.image):
                return "fail", f"{what}: {message}"
            if pod.phase in ("Succeeded", "Failed"):
                said = kubectl.logs(pod).strip().splitlines() or ["it printed nothing"]
                used = f"service account {job.account('head')}: {said[-1]}"
                return "pass" if pod.phase == "Succeeded" else "fail", used
            if time.monotonic() > until_s:
                return "fail", f"pod {name}: after {limit_s:g} s still {reason or pod.phase}"
            time.sleep(poll_s)
    finally:
        kubectl("delete", "pods", name, "--ignore-not-found", "--wait=false")

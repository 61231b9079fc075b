"""A RayService, as Kubernetes gets it: what jobs have trained, answered by replicas on two pods."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from deploy.manifests.job_table import SERVICE
from deploy.manifests.rayjob import LABELS, SERVICE_ACCOUNT, STORAGE, ray_cluster
from deploy.manifests.read_only import nodes, read_only
from deploy.manifests.settings import Settings
from deploy.manifests.tls import with_tls
from deploy.manifests.yaml_text import yaml_text
from deploy.project import NAMESPACE, TOKEN_VARIABLE

PORT = 8000  # Ray Serve's own
_REPLICAS = "auto:1-6"  # each has a CPU; a pod has three
_TOKEN = {"name": "serve-token", "key": "token"}
# A pod is ready once models are loaded somewhere; KubeRay's own probe asks whether Ray Serve is there.
_READY = {"httpGet": {"path": "/v2/health/ready", "port": PORT}, "periodSeconds": 5, "timeoutSeconds": 2}


def service(settings: Settings) -> dict[str, Any]:
    """Return the RayService as Kubernetes gets it. It computes on CPUs."""
    where, asked = f"s3://{settings.bucket}/runs", settings.serves or ("RUN",)
    application = {
        "name": "dsgd",
        "import_path": "dsgd.serve.replicas:from_manifest",
        "route_prefix": "/",
        "args": {"runs": [run if "://" in run else f"{where}/{run}" for run in asked], "replicas": _REPLICAS},
    }
    on_ray = {"http_options": {"host": "0.0.0.0", "port": PORT}, "applications": [application]}  # noqa: S104 - a pod's
    on_cpus = replace(settings, device="cpu", gpus_per_worker=None, efa=0, workers=None)
    found: dict[str, Any] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": SERVICE.name, "namespace": NAMESPACE, "labels": LABELS},
        "spec": {
            "serveConfigV2": yaml_text(on_ray),
            "excludeHeadPodFromServeSvc": True,
            "rayClusterConfig": ray_cluster(SERVICE, on_cpus),
        },
    }
    for pod in nodes(found):
        (container,) = pod["containers"]
        # Those of a job are about its driver and its workers' processes, which a service does not have.
        for name in ("lifecycle", "livenessProbe", "readinessProbe"):
            container.pop(name, None)
        container["ports"] = [port for port in container["ports"] if port["name"] != "driver-metrics"]
        # KubeRay makes the service of the head's port of this name, though no request goes to the head.
        container["ports"].append({"name": "serve", "containerPort": PORT})
        container["env"].append({"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": dict(_TOKEN)}})
        container["envFrom"] = STORAGE
    *_, workers = nodes(found)
    workers["serviceAccountName"] = SERVICE_ACCOUNT  # replicas read weights from the bucket
    workers["containers"][0]["readinessProbe"] = _READY
    return with_tls(read_only(found), settings.tls)

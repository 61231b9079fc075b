"""Whether the cluster has all that a job needs: CRD, operator, GPUs, namespace, monitor, user's rights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from deploy.jobs.checks import Check
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import NotFound
from deploy.jobs.validation import Finding, ask
from deploy.project import GPU

_APPLY = "kubectl apply --server-side -k deploy/kubernetes/overlays/eks-gpu"
_OLDEST_KUBERAY = (1, 7)
_RIGHTS = (
    ("create", "rayjobs.ray.io"),
    ("delete", "rayjobs.ray.io"),
    ("list", "pods"),
    ("list", "events"),
    ("get", "pods/log"),
    ("create", "pods/exec"),
)


def check_setup(kubectl: Kubectl, job: JobManifest) -> list[Check]:
    """Check what the job needs of the cluster. Raises KubectlError if the cluster cannot even be asked."""
    version = kubectl.get_version()
    return [
        Check(name="cluster", state="pass", detail=f"Kubernetes {version}"),
        ask("crd", lambda: _crd(kubectl)),
        ask("operator", lambda: _operator(kubectl)),
        ask("gpus", lambda: _gpus(kubectl, job)),
        ask("namespace", lambda: _exists(kubectl, "namespaces", kubectl.namespace)),
        ask("account", lambda: _exists(kubectl, "serviceaccounts", job.service_account)),
        ask("monitor", lambda: _monitor(kubectl, job)),
        ask("rights", lambda: _rights(kubectl)),
    ]


def _crd(kubectl: Kubectl) -> Finding:
    crd = kubectl.get("customresourcedefinitions.apiextensions.k8s.io", "rayjobs.ray.io")
    versions = {version["name"]: version for version in crd["spec"]["versions"] if version["served"]}
    if "v1" not in versions:
        served = ", ".join(versions) or "none"
        return False, f"rayjobs.ray.io serves {served}, v1 is needed: upgrade KubeRay to 1.7 or newer"
    schema: Any = versions["v1"].get("schema", {}).get("openAPIV3Schema", {}).get("properties", {})
    if "preRunningDeadlineSeconds" not in schema.get("spec", {}).get("properties", {}):
        return False, (
            "rayjobs.ray.io v1 has no preRunningDeadlineSeconds: it is older than KubeRay 1.7; upgrade the "
            "CRDs with the operator (helm leaves them as they are)"
        )
    return True, "rayjobs.ray.io v1, with preRunningDeadlineSeconds"


def _operator(kubectl: Kubectl) -> Finding:
    # The Helm chart's name, and that of KubeRay's own kustomization.
    names = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
    items = kubectl.get("deployments.apps", "--all-namespaces", "--selector", names)["items"]
    if not items:
        return False, "there is no KubeRay operator in the cluster: install KubeRay 1.7 or newer"
    deployment = items[0]
    place = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    if not (deployment.get("status") or {}).get("availableReplicas"):
        return False, f"{place} ({image}) has no replica that is available: kubectl describe it"
    tag = re.search(r":v?(\d+)\.(\d+)[^/]*$", image)
    if tag is None:
        return True, f"{place} runs; {image} has no version in its tag; that of the CRD decides"
    if (int(tag[1]), int(tag[2])) < _OLDEST_KUBERAY:
        return False, f"{place} is KubeRay {tag[1]}.{tag[2]} ({image}), 1.7 or newer is needed: upgrade it"
    return True, f"{place} is KubeRay {tag[1]}.{tag[2]}"


def _gpus(kubectl: Kubectl, job: JobManifest) -> Finding:
    if not job.gpus:
        return True, f"{job.file} asks for none"
    nodes = kubectl.get("nodes")["items"]
    usable = [int(n["status"].get("allocatable", {}).get(GPU, 0)) for n in nodes if _takes_pods(n)]
    count = sum(gpus > 0 for gpus in usable)
    if not count:
        return False, (
            f"no GPU node: none of {len(nodes)} is ready and has {GPU}, {job.file} asks for {job.gpus}; "
            "add GPU nodes with the NVIDIA device plugin, or render with --device cpu"
        )
    detail = f"{sum(usable)} on {count} nodes, {job.file} asks for {job.gpus}"
    return sum(usable) >= job.gpus, detail


def _takes_pods(node: Any) -> bool:
    conditions: Iterable[Any] = node["status"].get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not node["spec"].get("unschedulable")


def _exists(kubectl: Kubectl, kind: str, name: str) -> Finding:
    try:
        kubectl.get(kind, name)
    except NotFound:
        return False, f"there is no {kind[:-1]} {name}: {_APPLY}"
    return True, name


def _monitor(kubectl: Kubectl, job: JobManifest) -> Finding:
    """Check that a PodMonitor selects the head, and has the port at which the driver is scraped."""
    items = kubectl.get("podmonitors.monitoring.coreos.com")["items"]
    head = job.manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    port = next((p["name"] for p in head.get("ports", ()) if p["containerPort"] == job.metrics_port), None)
    for item in items:
        labels = item["spec"].get("selector", {}).get("matchLabels", {})
        ports = [endpoint.get("port") for endpoint in item["spec"].get("podMetricsEndpoints", ())]
        if labels.get("ray.io/node-type") == "head" and port in ports:
            return True, f"PodMonitor {item['metadata']['name']} scrapes port {port} of heads"
    names = ", ".join(item["metadata"]["name"] for item in items) or "none"
    return False, (f"no PodMonitor scrapes port {port} of heads (there: {names}): {_APPLY}")


def _rights(kubectl: Kubectl) -> Finding:
    refused = [f"{verb} {resource}" for verb, resource in _RIGHTS if not kubectl.may(verb, resource)]
    if refused:
        return False, f"you may not {', '.join(refused)} in namespace {kubectl.namespace}"
    return True, "; ".join(f"{verb} {resource}" for verb, resource in _RIGHTS)

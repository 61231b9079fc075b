"""What a cluster has before the first job: CRDs, nodes, an operator, our overlay, people's roles."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from api_server.api_client import ApiClient, Body
from api_server.local_api import LocalApi
from deploy.project import GPU, NAMESPACE, ROOT

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODES = {"node-cpu-0": 0, "node-gpu-0": 8}  # name -> GPUs; the names are those of recorded pods
_QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
_SERVED_TIMEOUT_S = 30.0
_VIEWER = [
    {"apiGroups": ["ray.io"], "resources": ["rayjobs", "rayclusters"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


def read_crds(folder: Path) -> list[dict[str, Any]]:
    """Return the CRDs in a folder, JSON or YAML; loose ones for the Prometheus operator if it has none."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".yaml"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = [
        json.loads(path.read_text()) if path.suffix == ".json" else yaml.load(path.read_text(), loader)  # noqa: S506 - a safe one
        for path in paths
    ]
    crds = [one for one in found if one.get("kind") == "CustomResourceDefinition"]
    names = {crd["metadata"]["name"] for crd in crds}
    return crds + [crd for crd in _loose_crds() if crd["metadata"]["name"] not in names]


def _loose_crds() -> Iterator[dict[str, Any]]:
    """Yield CRDs that accept anything, for the kinds of which our overlays have objects."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in ("PodMonitor", "PrometheusRule"):
        plural, group = f"{kind.lower()}s", "monitoring.coreos.com"
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [
                    {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
                ],
            },
        }


def without_field(crd: dict[str, Any], field: str) -> dict[str, Any]:
    """Return a CRD without a field of its spec: one of an older KubeRay."""
    older: dict[str, Any] = json.loads(json.dumps(crd))
    for version in older["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(field, None)
    return older


def install_crd(client: ApiClient, crd: dict[str, Any]) -> None:
    """Create or replace a CRD, and wait until it is served. What 1.20 does not know (CEL) it leaves out."""
    name, spec = crd["metadata"]["name"], crd["spec"]
    body = {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "metadata": {"name": name}, "spec": spec}
    if there := client.find(f"{CRDS}/{name}"):  # a patch would keep what the new one lacks
        client.replace(f"{CRDS}/{name}", there | {"spec": spec})
    else:
        client.create(CRDS, body)
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    wait_until_served(client, f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")


def wait_until_served(client: ApiClient, path: str) -> None:
    """Wait until the API server answers at a path."""
    until_s = time.monotonic() + _SERVED_TIMEOUT_S
    while not client.answers(path):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{path} is not served after {_SERVED_TIMEOUT_S:g} s")
        time.sleep(0.1)


def install(api: LocalApi, kubelet_port: int, crds: Sequence[dict[str, Any]], overlay: str) -> None:
    """Install all of it. kubelet_port: of 127.0.0.1, where a kubelet answers for all nodes."""
    for crd in crds:
        install_crd(api.client, crd)
    for name, gpus in NODES.items():
        _install_node(api.client, name, gpus, kubelet_port)
    _install_operator(api.client)
    apply_overlay(api, overlay)
    _install_roles(api.client)


def apply_overlay(api: LocalApi, overlay: str) -> str:
    """Apply one of our overlays as docs/deploy.md says, do what controllers add; return kubectl's words."""
    objects = overlay_objects(api, overlay)
    said = _kubectl(api, "apply", "--server-side", "--filename", "-", given=objects)
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    api.client.create(accounts, {"metadata": {"name": "default"}})  # the controller manager's work
    count_quotas(api.client, ())
    return said


def count_quotas(client: ApiClient, pods: Sequence[Body]) -> None:
    """Have quotas of GPUs enforced, and count what the pods use: an API server alone only raises that."""
    limits = [one["resources"].get("limits", {}) for pod in pods for one in pod["spec"]["containers"]]
    used = {f"requests.{GPU}": str(sum(int(limit.get(GPU, 0)) for limit in limits))}
    for quota in client.items(_QUOTAS):
        status = {"hard": quota["spec"]["hard"], "used": used}
        if quota.get("status") != status:
            client.set_status(f"{_QUOTAS}/{quota['metadata']['name']}", status)


def overlay_objects(api: LocalApi, overlay: str) -> str:
    """Return an overlay's objects, as YAML, as 1.20 knows them: disruption budgets are beta there."""
    documents = list(yaml.safe_load_all(_kubectl(api, "kustomize", f"deploy/kubernetes/overlays/{overlay}")))
    for one in documents:
        if one["kind"] == "PodDisruptionBudget":
            one["apiVersion"] = "policy/v1beta1"
            one["spec"].pop("unhealthyPodEvictionPolicy", None)
    return yaml.safe_dump_all(documents)


def _kubectl(api: LocalApi, *words: str, given: str = "") -> str:
    return subprocess.run(
        ["kubectl", *words],
        cwd=ROOT,
        env=os.environ | api.environment,
        input=given,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def _install_node(client: ApiClient, name: str, gpus: int, kubelet_port: int) -> None:
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    taints = [{"key": GPU, "effect": "NoSchedule"}] if gpus else None
    client.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    client.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})
    has = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "80Gi", "pods": "58"} | (
        {GPU: str(gpus)} if gpus else {}
    )
    client.set_status(
        f"/api/v1/nodes/{name}",
        {
            "capacity": has,
            "allocatable": has,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    )


def _install_operator(client: ApiClient) -> None:
    """Create the Deployment of the Helm chart's operator, as far as one looks at it; no pod is made of it."""
    namespace = "kuberay-system"
    labels = {"app.kubernetes.io/name": "kuberay-operator"}
    container = {"name": "kuberay-operator", "image": "kuberay/operator:v1.7.0"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    client.create(path, {"metadata": {"name": "kuberay-operator", "labels": labels}, "spec": spec})
    replicas = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
    client.set_status(f"{path}/kuberay-operator", replicas)


def _install_roles(client: ApiClient) -> None:
    """Bind the shipped role to students, as docs/deploy.md says, and one that only looks to viewers."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    client.create(f"{path}/roles", {"metadata": {"name": "view-jobs"}, "rules": _VIEWER})
    for role, group in (("run-jobs", "students"), ("view-jobs", "viewers")):
        subject = {"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "Role", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": group}, "subjects": [subject], "roleRef": reference}
        client.create(f"{path}/rolebindings", body)

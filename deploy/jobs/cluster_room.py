"""Whether a cluster's nodes and quotas have room for a job, as far as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.jobs.checks import Answer
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import Forbidden
from deploy.jobs.kubernetes_objects import Node, Pod, part, quantity, requested
from deploy.project import GPU

_AUTOSCALERS = "app.kubernetes.io/name in (cluster-autoscaler, aws-cluster-autoscaler, karpenter)"


def gpus(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Find out whether the nodes have the GPUs that the job asks for, and how many are free."""
    if not job.gpus:
        return "pass", f"{job.file} asks for none"
    nodes = [Node(item) for item in kubectl.get("nodes")["items"]]
    ready = [node for node in nodes if node.takes_pods]
    usable = {node.name: int(node.amount(GPU)) for node in ready if node.amount(GPU)}
    have = sum(usable.values())
    if not usable:
        marked = [n for n in ready if GPU in n.taints() or n.labels.get("nvidia.com/gpu.present") == "true"]
        if marked:
            return "fail", (
                f"node {marked[0].name} is marked as one with GPUs and offers no {GPU}: does NVIDIA's device "
                "plugin run there? kubectl get daemonsets --all-namespaces"
            )
        what = f"no GPU node: none of {len(nodes)} is ready and has {GPU}, {job.file} asks for {job.gpus}"
        remedy = "add GPU nodes with the NVIDIA device plugin, or render with --device cpu"
        return _or_scaled(kubectl, what, remedy)
    detail = f"{have} on {len(usable)} nodes, {job.file} asks for {job.gpus}"
    if have < job.gpus:
        return _or_scaled(kubectl, detail, "add GPU nodes or render with fewer --workers")
    try:
        pods = [Pod(item) for item in kubectl.get("pods", "--all-namespaces")["items"]]
    except Forbidden:
        return "pass", detail
    there = [pod.json for pod in pods if pod.node in usable and pod.phase in ("Pending", "Running")]
    free = have - requested(there).get(GPU, 0)
    if free < job.gpus:
        return "open", f"{detail}; only {free:g} are free now: the job waits for the others"
    return "pass", f"{detail}, {free:g} are free"


def room(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Find out whether one node is large enough for the head, and one for a worker."""
    nodes = [node for node in map(Node, kubectl.get("nodes")["items"]) if node.takes_pods]
    parts = []
    for role in ("head", "worker"):
        template = job.templates[role]
        wanted = requested([template])
        fitting = sum(_fits(node, template["spec"], wanted) for node in nodes)
        disk = wanted.get("ephemeral-storage", 0) / 2**30
        size = f"{wanted.get('cpu', 0):g} CPUs and {wanted.get('memory', 0) / 2**30:g} GiB"
        size += f", {disk:g} GiB of disk" if disk else ""
        if not fitting:
            what = f"no node that the {role} may go to has {size}"
            return _or_scaled(kubectl, what, "add larger nodes, or check taints and --node-selector")
        parts.append(f"{role} ({size}) fits on {fitting} nodes")
    return "pass", ", ".join(parts)


def quotas(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Find out whether the namespace's quotas allow the whole job, and have that much left."""
    wanted = requested(job.pods)  # by the names that a quota has: a request is the limit here
    wanted |= {f"{kind}.{name}": amount for name, amount in wanted.items() for kind in ("requests", "limits")}
    details, tight = [], []
    for item in kubectl.get("resourcequotas")["items"]:
        name = item["metadata"]["name"]
        hard = {**part(item, "spec.hard"), **part(item, "status.hard")}
        for resource in sorted(hard.keys() & wanted.keys()):
            limit, need = quantity(hard[resource]), wanted[resource]
            left = limit - quantity(part(item, "status.used").get(resource, 0))
            asked = f"{job.file} asks for {need:g}"
            if limit < need:
                remedy = "raise it, or render the jobs for this cluster (--device, --workers)"
                return "fail", f"quota {name} allows {limit:g} {resource}, {asked}: {remedy}"
            if left < need:
                tight.append(f"quota {name} has {left:g} of {limit:g} {resource} left, {asked}")
            details.append(f"{name}: {need:g} of {limit:g} {resource}")
    if tight:
        return "open", f"{tight[0]}: until others end, pods that have come hold their GPUs and the job waits"
    return "pass", ", ".join(details) or "none limits it"


def _or_scaled(kubectl: Kubectl, what: str, remedy: str) -> Answer:
    """Return a failure, or an open answer where an autoscaler may add nodes from zero."""
    try:
        found = kubectl.get("deployments.apps", "--all-namespaces", "--selector", _AUTOSCALERS)["items"]
    except Forbidden:
        found = []
    if not found:
        return "fail", f"{what}; {remedy}"
    name = found[0]["metadata"]["name"]
    return "open", f"{what}; {name} may add such a node, from zero: pods then wait minutes"


def _fits(node: Node, spec: Any, wanted: Mapping[str, float]) -> bool:
    tolerated = {one.get("key") for one in spec.get("tolerations") or ()}
    return (
        all(node.labels.get(key) == value for key, value in part(spec, "nodeSelector").items())
        and node.taints("NoSchedule", "NoExecute") <= tolerated
        and all(node.amount(resource) >= amount for resource, amount in wanted.items())
    )

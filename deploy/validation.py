"""Is everything in order before a job is run? Here, without a cluster; and on the cluster itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from deploy import manifests
from deploy.checks import Check
from deploy.job import GPU, ROOT, Job, job_names, read_job
from deploy.kubectl import CALL_TIMEOUT_S, Kubectl, KubectlError, NotFound

_FILES = ("main.py", "pyproject.toml", "Dockerfile", "deploy/thresholds.yaml", "deploy/kubernetes/base")
_OVERLAYS = ("cpu", "eks-gpu")
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

Found = tuple[bool, str]


def hand_edit(job: Job) -> str | None:
    """Return, in one line, how a job's file differs from what deploy/manifests.py renders, if it does."""
    try:
        settings = manifests.read_settings(ROOT)
    except ValueError as error:
        return str(error)
    rendered = {one.file: manifests.render(one, settings) for one in manifests.JOBS if one.file == job.file}
    if (ROOT / job.file).read_text() == rendered.get(job.file):
        return None
    return next(problem for problem in manifests.problems(ROOT) if problem.startswith(job.file))


def check_framework() -> list[Check]:
    """Check files, tools and manifests; needs no cluster."""
    return [
        _ask("files", _files),
        _ask("kubectl", _tool),
        _ask("rendered", _rendered),
        *(_ask(name, partial(_job, name)) for name in job_names()),
        *(_ask(f"overlay {name}", partial(_overlay, name)) for name in _OVERLAYS),
        _settings(),
    ]


def check_setup(kubectl: Kubectl, job: Job) -> list[Check]:
    """Check what the job needs of the cluster. Raises KubectlError if the cluster cannot even be asked."""
    version = kubectl.get_version()
    return [
        Check(name="cluster", state="pass", detail=f"Kubernetes {version}"),
        _ask("crd", lambda: _crd(kubectl)),
        _ask("operator", lambda: _operator(kubectl)),
        _ask("gpus", lambda: _gpus(kubectl, job)),
        _ask("namespace", lambda: _exists(kubectl, "namespaces", kubectl.namespace)),
        _ask("account", lambda: _exists(kubectl, "serviceaccounts", job.service_account)),
        _ask("monitor", lambda: _monitor(kubectl, job)),
        _ask("rights", lambda: _rights(kubectl)),
    ]


def _ask(name: str, question: Callable[[], Found]) -> Check:
    try:
        good, detail = question()
    except KubectlError as error:
        good, detail = False, str(error)
    return Check(name=name, state="pass" if good else "fail", detail=detail)


def _files() -> Found:
    missing = [name for name in _FILES if not (ROOT / name).exists()]
    if missing:
        return False, f"missing: {', '.join(missing)}"
    return bool(job_names()), f"{len(job_names())} jobs: {', '.join(job_names())}"


def _tool() -> Found:
    if shutil.which("kubectl") is None:
        return False, "no kubectl on the PATH: install it"
    output = _local("version", "--client", "--output", "json")
    found = re.search(r'"gitVersion": *"v?([^"]+)"', output)
    return bool(found), found[1] if found else "kubectl does not tell its version"


def _rendered() -> Found:
    problems = manifests.problems(ROOT)
    return not problems, problems[0] if problems else "all files are as deploy/manifests.py renders them"


def _job(name: str) -> Found:
    """Check what neither the rendering nor the CRD does."""
    job = read_job(name)
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", job.ray_job):
        return False, f"{job.file}: the name {job.ray_job} must be at most 47 of a-z, 0-9 and -"
    version = job.manifest["spec"]["rayClusterSpec"]["rayVersion"]
    if version != manifests.pinned("ray"):
        return False, f"{job.file}: rayVersion is {version}, pyproject.toml pins {manifests.pinned('ray')}"
    modes = dict.fromkeys(cfg.mode for cfg in job.configs)
    return True, f"{len(job.configs)} runs ({', '.join(modes)}), {job.workers} workers, {job.gpus} GPUs"


def _overlay(name: str) -> Found:
    if shutil.which("kubectl") is None:
        return False, "no kubectl on the PATH to build it with"
    built = _local("kustomize", str(ROOT / "deploy/kubernetes/overlays" / name))
    return True, f"{len(re.findall(r'^kind: ', built, re.MULTILINE))} objects"


def _settings() -> Check:
    unnamed = [name for name in job_names() if not read_job(name).has_bucket]
    if unnamed:
        detail = "no bucket is named yet: make manifests IMAGE=REGISTRY/NAME:TAG BUCKET=NAME"
        return Check(name="settings", state="open", detail=detail)
    images = dict.fromkeys(image for name in job_names() for image in read_job(name).images)
    return Check(name="settings", state="pass", detail=f"image {', '.join(images)}")


def _local(*arguments: str) -> str:
    """Run kubectl for what needs neither context nor cluster."""
    done = subprocess.run(
        ["kubectl", *arguments],
        capture_output=True,
        text=True,
        timeout=CALL_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise KubectlError(f"kubectl {arguments[0]}: {' '.join(done.stderr.split())}")
    return done.stdout


def _crd(kubectl: Kubectl) -> Found:
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


def _operator(kubectl: Kubectl) -> Found:
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
        return True, f"{place} runs; {image} tells no version, the CRD's decides"
    if (int(tag[1]), int(tag[2])) < _OLDEST_KUBERAY:
        return False, f"{place} is KubeRay {tag[1]}.{tag[2]} ({image}), 1.7 or newer is needed: upgrade it"
    return True, f"{place} is KubeRay {tag[1]}.{tag[2]}"


def _gpus(kubectl: Kubectl, job: Job) -> Found:
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


def _exists(kubectl: Kubectl, kind: str, name: str) -> Found:
    try:
        kubectl.get(kind, name)
    except NotFound:
        return False, f"there is no {kind[:-1]} {name}: {_APPLY}"
    return True, name


def _monitor(kubectl: Kubectl, job: Job) -> Found:
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


def _rights(kubectl: Kubectl) -> Found:
    refused = [f"{verb} {resource}" for verb, resource in _RIGHTS if not kubectl.may(verb, resource)]
    if refused:
        return False, f"you may not {', '.join(refused)} in namespace {kubectl.namespace}"
    return True, "; ".join(f"{verb} {resource}" for verb, resource in _RIGHTS)

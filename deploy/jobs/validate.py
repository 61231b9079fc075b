"""Questions before a job is run: of files, tools and manifests here, and of what the cluster must have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial

from deploy.jobs.bucket_check import write_read_delete
from deploy.jobs.checks import Answer, Check
from deploy.jobs.cluster_room import gpus, quotas, room
from deploy.jobs.job_manifest import JobManifest, job_names, read_job
from deploy.jobs.kubectl import Kubectl, call
from deploy.jobs.kubectl_errors import Forbidden, KubectlError, NotFound
from deploy.jobs.kubernetes_objects import Node, at, part
from deploy.jobs.thresholds import DEFAULT, read_thresholds
from deploy.manifests.rendered_files import problems
from deploy.project import ROOT, pinned
from dsgd.process.environment import of_users_tool

_FILES = (
    *("main.py", "pyproject.toml", "requirements.txt", "Dockerfile"),
    *("deploy/jobs/thresholds.yaml", "deploy/kubernetes/base"),
)
_OVERLAYS = ("cpu", "eks-gpu")
_OLDEST_KUBERAY = (1, 7)
_FIELD = "preRunningDeadlineSeconds"
# What the tools, and the commands of docs/deploy.md, ask of the API in the namespace.
RIGHTS = (
    *((verb, "rayjobs.ray.io") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    ("list", "pods"),
    ("list", "events"),
    ("get", "pods/log"),
    ("create", "pods/exec"),
)
_INSPECT_S = 20.0


def ask(name: str, question: Callable[[], Answer]) -> Check:
    """Return the answer as a check: failed if kubectl fails, open if the user may not ask."""
    try:
        return Check(name, *question())
    except Forbidden as error:
        return Check(name, "open", f"not known: {error}")
    except KubectlError as error:
        return Check(name, "fail", str(error))


# --- here, without a cluster


def check_framework() -> list[Check]:
    """Check files, tools and manifests; needs no cluster."""
    return [
        ask("files", _files),
        ask("kubectl", _tool),
        ask("rendered", _rendered),
        ask("thresholds", _thresholds),
        *(ask(name, partial(_job, name)) for name in job_names()),
        *(ask(f"overlay {name}", partial(_overlay, name)) for name in _OVERLAYS),
        ask("settings", _settings),
    ]


def _files() -> Answer:
    missing = [name for name in _FILES if not (ROOT / name).exists()]
    if missing or not job_names():
        return "fail", f"missing: {', '.join(missing or ['ray-job-*.yaml'])}"
    return "pass", f"{len(job_names())} jobs: {', '.join(job_names())}"


def _tool() -> Answer:
    version = json.loads(call("version", "--client", "--output", "json"))["clientVersion"]["gitVersion"]
    return "pass", version.removeprefix("v")


def _rendered() -> Answer:
    if found := problems():
        return "fail", found[0]
    return "pass", "all files are as deploy/manifests renders them"


def _thresholds() -> Answer:
    """Check that perf-test knows every job that is one run, and no mode that a job does not have."""
    modes = {name: [cfg.mode for cfg in read_job(name).configs] for name in job_names()}
    known = read_thresholds(DEFAULT).performance
    for name, of_job in known.items():
        if strange := set(of_job).difference(modes.get(name, ())):
            return "fail", f"{DEFAULT.name}: there is no run of mode {min(strange)} in a job {name}"
    if missing := [name for name, runs in modes.items() if len(runs) == 1 and name not in known]:
        return "fail", f"{DEFAULT.name}: has nothing for {', '.join(missing)}"
    return "pass", f"of {len(known)} jobs: {', '.join(known)}"


def _job(name: str) -> Answer:
    """Check what neither the rendering nor the CRD does."""
    job = read_job(name)
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", job.ray_job):
        return "fail", f"{job.file}: the name {job.ray_job} must be at most 47 of a-z, 0-9 and -"
    version = job.manifest["spec"]["rayClusterSpec"]["rayVersion"]
    if version != pinned("ray"):
        return "fail", f"{job.file}: rayVersion is {version}, pyproject.toml pins {pinned('ray')}"
    modes = dict.fromkeys(cfg.mode for cfg in job.configs)
    return "pass", f"{len(job.configs)} runs ({', '.join(modes)}), {job.workers} workers, {job.gpus} GPUs"


def _overlay(name: str) -> Answer:
    built = call("kustomize", str(ROOT / "deploy/kubernetes/overlays" / name))
    return "pass", f"{len(re.findall(r'^kind: ', built, re.MULTILINE))} objects"


def _settings() -> Answer:
    jobs = [read_job(name) for name in job_names()]
    if not all(job.has_bucket for job in jobs):
        return "open", "no bucket is named yet: make manifests IMAGE=REGISTRY/NAME:TAG BUCKET=NAME"
    return "pass", f"image {', '.join(dict.fromkeys(image for job in jobs for image in job.images))}"


# --- in the cluster


def check_setup(kubectl: Kubectl, job: JobManifest) -> list[Check]:
    """Check what the job needs of the cluster. Raises KubectlError if the cluster cannot even be asked."""
    questions: dict[str, Callable[[Kubectl, JobManifest], Answer]] = {
        **{"crd": _crd, "operator": _operator, "gpus": gpus, "room": room, "namespace": _namespace},
        **{"quota": quotas, "account": _accounts, "monitor": monitor, "image": _image, "bucket": _bucket},
        "rights": _rights,
    }
    version = Check("cluster", "pass", f"Kubernetes {kubectl.get_version()}")
    return [version, *(ask(name, partial(question, kubectl, job)) for name, question in questions.items())]


def _crd(kubectl: Kubectl, job: JobManifest) -> Answer:
    try:
        crd = kubectl.get("customresourcedefinitions.apiextensions.k8s.io", "rayjobs.ray.io")
    except Forbidden:  # a user of the namespace alone: what the API says of its fields, everybody may read
        kubectl("explain", f"rayjobs.spec.{_FIELD}", "--api-version", "ray.io/v1")
        return "pass", f"rayjobs.ray.io v1, with {_FIELD}"
    versions = {version["name"]: version for version in crd["spec"]["versions"] if version["served"]}
    if "v1" not in versions:
        served = ", ".join(versions) or "none"
        return "fail", f"rayjobs.ray.io serves {served}, v1 is needed: upgrade KubeRay to 1.7 or newer"
    if _FIELD not in part(versions["v1"], "schema.openAPIV3Schema.properties.spec.properties"):
        return "fail", (
            f"rayjobs.ray.io v1 has no {_FIELD}: it is older than KubeRay 1.7; upgrade the "
            "CRDs with the operator (helm leaves them as they are)"
        )
    return "pass", f"rayjobs.ray.io v1, with {_FIELD}"


def _operator(kubectl: Kubectl, job: JobManifest) -> Answer:
    # The Helm chart's name, and that of KubeRay's own kustomization.
    names = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
    items = kubectl.get("deployments.apps", "--all-namespaces", "--selector", names)["items"]
    if not items:
        return "fail", "there is no KubeRay operator in the cluster: install KubeRay 1.7 or newer"
    deployment = items[0]
    place = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    image = at(deployment, "spec.template.spec.containers.0.image", "")
    if not at(deployment, "status.availableReplicas", 0):
        return "fail", f"{place} ({image}) has no replica that is available: kubectl describe it"
    tag = re.search(r":v?(\d+)\.(\d+)[^/]*$", image)
    if tag is None:
        return "pass", f"{place} runs; {image} has no version in its tag; that of the CRD decides"
    if (int(tag[1]), int(tag[2])) < _OLDEST_KUBERAY:
        return "fail", f"{place} is KubeRay {tag[1]}.{tag[2]} ({image}), 1.7 or newer is needed: upgrade it"
    return "pass", f"{place} is KubeRay {tag[1]}.{tag[2]}"


def _apply(job: JobManifest) -> str:
    overlay = "eks-gpu" if job.gpus else "cpu"
    return f"kubectl apply --server-side -k deploy/kubernetes/overlays/{overlay}"


def _namespace(kubectl: Kubectl, job: JobManifest) -> Answer:
    kubectl.get("namespaces", kubectl.namespace)
    return "pass", kubectl.namespace


def _accounts(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Check the head's service account, the workers', and the submitter's, which comes with the namespace."""
    names = dict.fromkeys([job.account("head"), job.account("worker"), "default"])
    for name in names:
        try:
            kubectl.get("serviceaccounts", name)
        except NotFound:
            remedy = "it comes with the namespace" if name == "default" else _apply(job)
            return "fail", f"there is no serviceaccount {name} in {kubectl.namespace}: {remedy}"
    return "pass", ", ".join(names)


def monitor(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Check that a PodMonitor selects the head, and has the port at which the driver is scraped."""
    try:
        items = kubectl.get("podmonitors.monitoring.coreos.com")["items"]
    except NotFound as error:
        return "open", f"{error}; jobs and tests run without it"
    head = job.templates["head"]["spec"]["containers"][0]
    port = next((p["name"] for p in head.get("ports", ()) if p["containerPort"] == job.metrics_port), None)
    for item in items:
        labels = part(item, "spec.selector.matchLabels")
        ports = [endpoint.get("port") for endpoint in item["spec"].get("podMetricsEndpoints", ())]
        if labels.get("ray.io/node-type") == "head" and port in ports:
            return "pass", f"PodMonitor {item['metadata']['name']} scrapes port {port} of heads"
    names = ", ".join(item["metadata"]["name"] for item in items) or "none"
    return "open", f"no PodMonitor scrapes port {port} of heads (there: {names}): {_apply(job)}"


def _image(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Look for the image on the nodes, then in its registry with the local docker."""
    (image, *_) = job.images
    try:
        nodes = [Node(item) for item in kubectl.get("nodes")["items"]]
    except Forbidden:
        nodes = []
    names = {name for node in nodes for one in node.images for name in one.get("names") or ()}
    if names & {image, f"docker.io/library/{image}"}:
        return "pass", f"{image} is on a node"
    if "/" not in image:
        return "open", f"{image} names no registry: each node must have it (kind load, minikube image load)"
    if shutil.which("docker") is None:
        return "open", f"{image}: on no node yet, and no docker here to ask its registry; --probe pulls it"
    command = ["docker", "buildx", "imagetools", "inspect", image]
    try:
        asked = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INSPECT_S,
            stdin=subprocess.DEVNULL,
            env=of_users_tool(),
        )
    except subprocess.TimeoutExpired:
        return "open", f"{image}: its registry has not answered docker in {_INSPECT_S:g} s"
    said = _line(asked.stderr or asked.stdout)
    if asked.returncode == 0:
        return "pass", f"{image} is in its registry"
    if re.search(r"not found|manifest unknown", said, re.IGNORECASE):
        return "fail", f"{image} is not in its registry ({said}): make push, or render with the right --image"
    return "open", f"{image}: docker may not or cannot ask its registry ({said})"


def _bucket(kubectl: Kubectl, job: JobManifest) -> Answer:
    """Write to the bucket with the profile of this machine, read it back and delete it."""
    if not job.has_bucket:
        return "fail", f"{job.file} names no bucket yet: make manifests BUCKET=NAME"
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        used = write_read_delete(job.bucket)
    except NoCredentialsError:
        why = "no credentials here; --probe asks in the cluster, as the job's service account"
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchBucket":
            return "fail", f"there is no bucket {job.bucket}: make it, or render with the right --bucket"
        why = f"your credentials cannot use it ({_line(error)}); --probe asks as the job's"
    except (BotoCoreError, RuntimeError) as error:
        why = _line(error)
    else:
        return "pass", f"{used} was written, read and deleted with your credentials"
    return "open", f"{job.bucket}: {why}"


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _rights(kubectl: Kubectl, job: JobManifest) -> Answer:
    refused = [f"{verb} {resource}" for verb, resource in RIGHTS if not kubectl.may(verb, resource)]
    if refused:
        return "fail", f"you may not {', '.join(refused)} in namespace {kubectl.namespace}"
    return "pass", "; ".join(f"{verb} {resource}" for verb, resource in RIGHTS)

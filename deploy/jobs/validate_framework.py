"""Checks before a job is run: files, tools and manifests; needs no cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import partial

from deploy.jobs.checks import Check
from deploy.jobs.job_manifest import job_names, read_job
from deploy.jobs.kubectl import CALL_TIMEOUT_S
from deploy.jobs.kubectl_errors import KubectlError
from deploy.jobs.thresholds import DEFAULT, read_thresholds
from deploy.jobs.validation import Finding, ask
from deploy.manifests.rendered_files import problems
from deploy.project import ROOT, pinned

_FILES = (
    "main.py",
    "pyproject.toml",
    "requirements.txt",
    "Dockerfile",
    "deploy/jobs/thresholds.yaml",
    "deploy/kubernetes/base",
)
_OVERLAYS = ("cpu", "eks-gpu")


def check_framework() -> list[Check]:
    """Check files, tools and manifests; needs no cluster."""
    return [
        ask("files", _files),
        ask("kubectl", _tool),
        ask("rendered", _rendered),
        ask("thresholds", _thresholds),
        *(ask(name, partial(_job, name)) for name in job_names()),
        *(ask(f"overlay {name}", partial(_overlay, name)) for name in _OVERLAYS),
        _settings(),
    ]


def _files() -> Finding:
    missing = [name for name in _FILES if not (ROOT / name).exists()]
    if missing:
        return False, f"missing: {', '.join(missing)}"
    return bool(job_names()), f"{len(job_names())} jobs: {', '.join(job_names())}"


def _tool() -> Finding:
    if shutil.which("kubectl") is None:
        return False, "no kubectl on the PATH: install it"
    output = _local("version", "--client", "--output", "json")
    found = re.search(r'"gitVersion": *"v?([^"]+)"', output)
    return bool(found), found[1] if found else "kubectl does not say its version"


def _rendered() -> Finding:
    found = problems()
    return not found, found[0] if found else "all files are as deploy/manifests renders them"


def _thresholds() -> Finding:
    """Check that perf-test knows every job that is one run, and no mode that a job does not have."""
    modes = {name: [cfg.mode for cfg in read_job(name).configs] for name in job_names()}
    known = read_thresholds(DEFAULT).performance
    for name, of_job in known.items():
        if strange := set(of_job).difference(modes.get(name, ())):
            return False, f"{DEFAULT.name}: there is no run of mode {min(strange)} in a job {name}"
    if missing := [name for name, runs in modes.items() if len(runs) == 1 and name not in known]:
        return False, f"{DEFAULT.name}: has nothing for {', '.join(missing)}"
    return True, f"of {len(known)} jobs: {', '.join(known)}"


def _job(name: str) -> Finding:
    """Check what neither the rendering nor the CRD does."""
    job = read_job(name)
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", job.ray_job):
        return False, f"{job.file}: the name {job.ray_job} must be at most 47 of a-z, 0-9 and -"
    version = job.manifest["spec"]["rayClusterSpec"]["rayVersion"]
    if version != pinned("ray"):
        return False, f"{job.file}: rayVersion is {version}, pyproject.toml pins {pinned('ray')}"
    modes = dict.fromkeys(cfg.mode for cfg in job.configs)
    return True, f"{len(job.configs)} runs ({', '.join(modes)}), {job.workers} workers, {job.gpus} GPUs"


def _overlay(name: str) -> Finding:
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

"""What the cluster tools print: verdicts, a job's state, its pods, events and logs."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any

from deploy.checks import ALL, Check, judge, trouble, verdict
from deploy.evidence import Evidence
from deploy.job import Job
from deploy.kubectl import Kubectl, KubectlError
from deploy.objects import Pod, Snapshot
from deploy.progress import Run
from deploy.watch import read_logs

SCHEMA_VERSION = 1


def checks(title: str, found: Sequence[Check]) -> int:
    """Print the checks, a line each, and what follows from them; return 1 if one failed, else 0.

    What is open is a note here, not a failure.
    """
    for check in found:
        print(f"{'note' if check.state == 'open' else check.state}  {check.name:12} {check.detail}")
    failed = [check for check in found if check.state == "fail"]
    print(f"{title}: {'FAILED: ' + failed[0].name if failed else 'passed'}", flush=True)
    return 1 if failed else 0


def result(title: str, seen: Evidence, found: Sequence[Check]) -> int:
    """Print a test's checks, where what is not known has not passed; return the exit code."""
    told = [
        Check(name=c.name, state="fail", detail=f"not known: {c.detail}") if c.state == "open" else c
        for c in found
    ]
    # What was open only because another check had failed before it could be known is no failure of its own.
    if any(check.state == "fail" for check in found):
        told = list(found)
    code = checks(title, told)
    if code and seen.logs and seen.logs.tail:
        print("the driver's last lines:", *(f"    {line}" for line in seen.logs.tail), sep="\n", flush=True)
    return code


def progress(seen: Evidence) -> str:
    """Return where a job stands, in one line."""
    job = seen.now.job
    if job is None:
        return "the RayJob is not there"
    parts = [job.state]
    if seen.running < seen.expected and not seen.over:
        parts.append(f"{seen.running} of {seen.expected} pods run")
        troubles = (trouble(pod, seen.now.events)[0] for pod in seen.now.pods)
        parts += [text for text in troubles if text][:1]
    elif run := latest(seen):
        parts.append(str(run))
    return "; ".join(parts)


def latest(seen: Evidence) -> Run | None:
    """Return the run that was begun last."""
    return list(seen.runs.values())[-1] if seen.runs else None


def status(seen: Evidence) -> int:
    """Print what one look tells of the job; return 0 if all is well, as far as it has come."""
    found = judge(seen, ALL)
    for check in found:
        print(f"{check.state}  {check.name:12} {check.detail}")
    state = overall(seen, found)
    words = {
        "running": "is running, and nothing has failed so far",
        "passed": "passed",
        "failed": "FAILED: " + ", ".join(check.name for check in found if check.state == "fail"),
        "unproven": "is over; not known: "
        + ", ".join(check.name for check in found if check.state == "open"),
        "absent": f"is not there; make run JOB={seen.job.name}",
    }
    print(f"RayJob {seen.job.ray_job} {words[state]}")
    if state == "failed" and seen.logs and seen.logs.tail:
        print("the driver's last lines:", *(f"    {line}" for line in seen.logs.tail), sep="\n")
    return 0 if state in ("running", "passed") else 1


def overall(seen: Evidence, found: Iterable[Check]) -> str:
    """Return running, passed, failed, unproven (over, but not all is known) or absent."""
    if seen.now.job is None:
        return "absent"
    state = verdict(found)
    if state == "open":
        return "unproven" if seen.over else "running"
    return {"pass": "passed", "fail": "failed"}[state]


def status_json(seen: Evidence, kubectl: Kubectl) -> int:
    """Print what one look tells of the job, as deploy/status.schema.json describes it; return as `status`."""
    found = judge(seen, ALL)
    state, job = overall(seen, found), seen.now.job
    content = {
        "schema": SCHEMA_VERSION,
        "context": kubectl.context,
        "namespace": kubectl.namespace,
        "job": seen.job.name,
        "ray_job": seen.job.ray_job,
        "verdict": state,
        "status": None
        if job is None
        else {
            "deployment": job.deployment_status,
            "job": job.job_status,
            "reason": job.reason,
            "message": job.message,
            "cluster": job.cluster,
        },
        "pods": [_pod(pod, seen.now) for pod in seen.now.pods],
        "runs": [_run(run) for run in seen.runs.values()],
        "checks": [{"name": c.name, "state": c.state, "detail": c.detail} for c in found],
    }
    print(json.dumps(content, indent=2, allow_nan=False))
    return 0 if state in ("running", "passed") else 1


def _pod(pod: Pod, now: Snapshot) -> dict[str, Any]:
    return {
        "name": pod.name,
        "role": pod.role,
        "phase": pod.phase,
        "ready": pod.ready,
        "restarts": pod.restarts,
        "node": pod.node or None,
        "trouble": trouble(pod, now.events)[0] or None,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "mode": run.mode,
        "run_id": run.run_id,
        "updates": run.updates,
        "samples": run.samples,
        "samples_per_s": _finite(run.samples_per_s),
        "train_loss": _finite(run.train_loss),
        "eval_loss": _finite(run.eval_loss),
        "staleness_mean": _finite(run.staleness_mean),
        "staleness_max": _finite(run.staleness_max),
        "staleness_bound": _finite(run.staleness_bound),
        "idle_share": _finite(run.idle_share),
        "restarts": run.restarts,
    }


def _finite(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def monitor(kubectl: Kubectl, job: Job, poll_s: float) -> int:
    """Print a line whenever a pod changes, until the job is over or gone; return the exit code."""
    shown: dict[str, str] = {}
    while True:
        now = kubectl.snapshot(job.ray_job)
        if now.job is None:
            raise KubectlError(f"there is no RayJob {job.ray_job}; make run JOB={job.name}")
        lines = {"": f"RayJob {now.job.name}: {now.job.state}"} | {
            pod.name: _line(pod, now) for pod in now.pods
        }
        lines |= {name: f"{name}  gone" for name in shown.keys() - lines.keys()}
        for name, line in lines.items():
            if shown.get(name) != line:
                print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
        shown = lines
        if now.job.over:
            return 0
        time.sleep(poll_s)


def _line(pod: Pod, now: Snapshot) -> str:
    ready = "leaving" if pod.leaving else "ready" if pod.ready else "not ready"
    parts = [pod.name, f"{pod.phase}, {ready}", f"{pod.restarts} restarts", pod.node or "no node"]
    return "  ".join(filter(None, (*parts, trouble(pod, now.events)[0])))


def follow_logs(kubectl: Kubectl, job: Job, poll_s: float) -> int:
    """Print the driver's log as it grows, from its first line to its end; return kubectl's exit code."""
    told = ""
    while True:
        now = kubectl.snapshot(job.ray_job)
        if now.job is None:
            raise KubectlError(f"there is no RayJob {job.ray_job}; make run JOB={job.name}")
        started = [pod for pod in now.of("submitter") if pod.phase != "Pending"]
        if started:
            pod = started[-1]
            return subprocess.call(
                kubectl.command("logs", pod.name, "--container", pod.container, "--follow")
            )
        if now.job.over:
            raise KubectlError(
                f"RayJob {job.ray_job} is over ({now.job.state}), and the driver's log is gone"
            )
        seen = Evidence(job)
        seen.add(now, {}, "", 0.0)
        if told != (told := progress(seen)):
            print(f"no driver yet: {told}", flush=True)
        time.sleep(poll_s)


def all_logs(kubectl: Kubectl, job: Job) -> int:
    """Print the logs of all pods, each under a headline; return 1 if one could not be read."""
    now = kubectl.snapshot(job.ray_job)
    if not now.pods:
        raise KubectlError(
            f"RayJob {job.ray_job} has no pods: {now.job.state if now.job else 'it is not there'}"
        )
    logs = read_logs(kubectl, now)
    for name, text in {"driver": logs.driver, **logs.others}.items():
        if text is not None:
            print(f"=== {name}\n{text.rstrip()}")
    for line in logs.missing:
        print(f"=== {line}")
    return 1 if logs.missing else 0


def describe(kubectl: Kubectl, job: Job) -> int:
    """Print kubectl's description of the job, its cluster and its pods."""
    now = kubectl.snapshot(job.ray_job)
    if now.job is None:
        raise KubectlError(f"there is no RayJob {job.ray_job}; make run JOB={job.name}")
    objects = [f"rayjobs.ray.io/{now.job.name}"]
    if now.job.cluster:
        objects.append(f"rayclusters.ray.io/{now.job.cluster}")
    for name in (*objects, *(f"pods/{pod.name}" for pod in now.pods)):
        print(f"=== {name}\n{kubectl('describe', name).rstrip()}")
    return 0


def events(kubectl: Kubectl, job: Job) -> int:
    """Print the events about the job, its cluster and its pods, oldest first."""
    now = kubectl.snapshot(job.ray_job)
    for event in now.events:
        times = f" ({event.count} times)" if event.count > 1 else ""
        about = f"{event.kind}/{event.about}"
        print(f"{event.time}  {event.type:7}  {about}  {event.reason}: {event.message}{times}")
    if not now.events:
        print(f"no events about RayJob {job.ray_job}: Kubernetes keeps them for an hour")
    return 0

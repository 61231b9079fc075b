"""What the cluster holds of a job, printed: its pods, logs, descriptions and events."""

from __future__ import annotations

import math
import subprocess
import sys
import time

from deploy.jobs.checks import trouble
from deploy.jobs.evidence import Evidence, read_logs
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import KubectlError
from deploy.jobs.kubernetes_objects import Pod, Snapshot
from deploy.jobs.show_verdict import progress
from dsgd.process.environment import of_users_tool

_LOOKS = 3  # after the end of a pod's log; one that still runs then has lost its reader, not ended


def present(kubectl: Kubectl, job: JobManifest) -> Snapshot:
    """Return the job and its pods. Raises KubectlError if it is not there, SetupError for the namespace."""
    now = kubectl.snapshot(job.ray_job)
    if now.job is None:
        kubectl.require_namespace()
        raise KubectlError(f"there is no RayJob {job.ray_job}; make run JOB={job.name}")
    return now


def monitor(kubectl: Kubectl, job: JobManifest, poll_s: float, duration_s: float = math.inf) -> int:
    """Print a line whenever a pod changes, until the job is over or the time is; return the exit code."""
    shown: dict[str, str] = {}
    until_s = time.monotonic() + duration_s
    while True:
        now = kubectl.with_events(present(kubectl, job))
        assert now.job
        state = now.job.outcome if now.job.over else now.job.state
        lines = {"": f"RayJob {now.job.name}: {state}"} | {pod.name: _line(pod, now) for pod in now.pods}
        lines |= {name: f"{name}  gone" for name in shown.keys() - lines.keys()}
        for name, line in lines.items():
            if shown.get(name) != line:
                print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
        shown = lines
        if now.job.over:
            return 0
        if time.monotonic() > until_s:
            print(f"{duration_s:g} s are over; RayJob {now.job.name} goes on")
            return 0
        time.sleep(poll_s)


def _line(pod: Pod, now: Snapshot) -> str:
    ready = "leaving" if pod.leaving else "ready" if pod.ready else "not ready"
    parts = [pod.name, f"{pod.phase}, {ready}", f"{pod.restarts} restarts", pod.node or "no node"]
    return "  ".join(filter(None, (*parts, trouble(pod, now.events)[0])))


def follow_logs(kubectl: Kubectl, job: JobManifest, poll_s: float) -> int:
    """Print the driver's log as it grows, and that of each further try; return kubectl's last exit code."""
    shown = ""
    followed: set[str] = set()  # uids of submitters
    code, looks = 0, 0
    now = present(kubectl, job)
    while True:
        started = [pod for pod in now.of("submitter") if pod.phase != "Pending"]
        new = [pod for pod in started if pod.uid not in followed]
        over = now.job is None or now.job.over
        if new:
            pod = next((one for one in new if one.running), new[-1])  # one that runs is the later one
            followed |= {one.uid for one in new}
            command = kubectl.command("logs", pod.name, "--container", pod.container, "--follow")
            code, looks = subprocess.call(command, env=of_users_tool()), 0
        elif followed and (over or (looks >= _LOOKS and any(pod.running for pod in started))):
            return code
        elif over:
            outcome = now.job.outcome if now.job else "it was deleted"
            raise KubectlError(f"RayJob {job.ray_job} is over and has no log of its driver: {outcome}")
        else:
            seen = Evidence(job)
            seen.now = kubectl.with_events(now)
            if shown != (shown := progress(seen)) and not (followed and now.of("submitter")):
                print(f"no driver yet: {shown}", flush=True)
            time.sleep(poll_s)
            looks += 1
        now = kubectl.snapshot(job.ray_job)


def all_logs(kubectl: Kubectl, job: JobManifest) -> int:
    """Print the logs of all pods, each under a headline; return 1 if one could not be read."""
    now = present(kubectl, job)
    if not now.pods:
        raise KubectlError(f"RayJob {job.ray_job} has no pods: {now.job.outcome if now.job else ''}")
    logs = read_logs(kubectl, now)
    for name, text in {"driver": logs.driver, **logs.others}.items():
        if text is not None:
            print(f"=== {name}\n{text.rstrip()}")
    for line in logs.missing:
        print(f"=== {line}")
    return 1 if logs.missing else 0


def shell(kubectl: Kubectl, job: JobManifest) -> int:
    """Open a shell in the head, and return its exit code."""
    head = present(kubectl, job).head
    if head is None:
        raise KubectlError(f"RayJob {job.ray_job} has no head that runs; make check-job JOB={job.name}")
    terminal = ("--stdin", "--tty") if sys.stdin.isatty() else ("--stdin",)
    command = kubectl.command("exec", *terminal, head.name, "--container", head.container, "--", "bash")
    return subprocess.call(command, env=of_users_tool())


def describe(kubectl: Kubectl, job: JobManifest) -> int:
    """Print kubectl's description of the job, its cluster and its pods."""
    now = present(kubectl, job)
    assert now.job
    objects = [f"rayjobs.ray.io/{now.job.name}"]
    if now.job.cluster:
        objects.append(f"rayclusters.ray.io/{now.job.cluster}")
    for name in (*objects, *(f"pods/{pod.name}" for pod in now.pods)):
        print(f"=== {name}\n{kubectl('describe', name).rstrip()}")
    return 0


def events(kubectl: Kubectl, job: JobManifest) -> int:
    """Print the events about the job, its cluster and its pods, oldest first."""
    now = kubectl.snapshot(job.ray_job)
    if now.job is None:
        kubectl.require_namespace()
    now = now.with_events(kubectl.get("events")["items"])
    for event in now.events:
        times = f" ({event.count} times)" if event.count > 1 else ""
        about = f"{event.kind}/{event.about}"
        print(f"{event.time}  {event.type:7}  {about}  {event.reason}: {event.message}{times}")
    if not now.events:
        print(f"no events about RayJob {job.ray_job}: Kubernetes keeps them for an hour")
    return 0

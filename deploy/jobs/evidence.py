"""Everything observed of a job: it is looked at again and again while it runs, and its logs at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import asdict, replace

from deploy.jobs.driver_reports import (
    READ_EVALUATIONS,
    ReadBack,
    ScrapedRun,
    losses_in_records,
    read_back_of,
    runs_in_metrics,
)
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import KindMissing, KubectlError, Unreachable
from deploy.jobs.kubernetes_objects import Pod, Snapshot
from deploy.jobs.node_usage import NodeUsage, UsageSample, gpus_in_metrics, shares_of, usage_in_metrics
from deploy.jobs.thresholds import Criteria, Thresholds, TimeLimits
from deploy.manifests.rayjob import RAY_METRICS_PORT

_RAY_LOGS = "/tmp/ray/session_latest/logs/"  # noqa: S108 - in Ray's image, not here
_LOG_TAIL_LINES = 12
_AT_ONCE = 8
_EVALUATE_S = 90.0  # it imports torch, fetches weights and evaluates them, on the head's two CPUs
# As its own Helm chart labels NVIDIA's exporter, and as the GPU operator does.
_EXPORTERS = ("app.kubernetes.io/name=dcgm-exporter", "app=nvidia-dcgm-exporter")
_EXPORTER_PORT = 9400


@dataclass(frozen=True, kw_only=True)
class Logs:
    """What was printed and recorded, read once, at the end."""

    driver: str | None
    """None if it could not be read."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Of head and workers, by a name for people."""
    losses: Mapping[str, tuple[float | None, float | None]] | None = None
    """The first and the last evaluation of each run that has a record on the head, by its path there."""
    nodes: int = 0
    """Head and workers of which all was read."""
    missing: Sequence[str] = ()
    """Why logs could not be read, a line each."""

    @property
    def tail(self) -> list[str]:
        """The driver's last lines."""
        lines = [line.rstrip() for line in (self.driver or "").splitlines() if line.strip()]
        return lines[-_LOG_TAIL_LINES:]


class Evidence:
    """Everything observed of one job so far; without `thresholds`, nothing waits for it."""

    def __init__(self, job: JobManifest, thresholds: Thresholds | None = None) -> None:
        self.job = job
        self.limits: TimeLimits | None = thresholds.limits if thresholds else None
        self.performance = thresholds.performance.get(job.name, {}) if thresholds else {}
        self.criteria = thresholds.criteria_of(job.name) if thresholds else Criteria()
        self.now = Snapshot(job=None)
        self.elapsed_s = 0.0
        """Since the job was applied."""
        self.pods_running_s: float | None = None
        self.first_update_s: float | None = None
        self.runs: dict[str, ScrapedRun] = {}
        """As they were last seen, by run_id."""
        self.no_metrics = ""
        """Why there are none."""
        self.nodes: dict[str, Pod] = {}
        """Head and workers by uid, those that were replaced as well."""
        self.usage: dict[str, NodeUsage] = {}
        """Of head and workers, by the pod's name; empty where nothing asks for it."""
        self.samples: list[UsageSample] = []
        """The same over time, in tests."""
        self.no_gpu_metrics = ""
        """Why there are none."""
        self.read_back: ReadBack | str | None = None
        """What the bucket has of the last run; or why that is not known."""
        self.logs: Logs | None = None

    def take(self, kubectl: Kubectl, elapsed_s: float = 0.0) -> None:
        """Look at the job, its pods and its metrics, `elapsed_s` seconds after it was applied."""
        now = kubectl.snapshot(self.job.ray_job)
        all_run = sum(pod.running for pod in now.of("head", "worker")) >= self.expected
        if now.job and now.job.job_status != "SUCCEEDED" and not all_run:
            now = kubectl.with_events(now)  # they say why; nothing else is read from them
        runs, self.no_metrics = _scraped(kubectl, self.job, now)
        self.now, self.elapsed_s = now, elapsed_s
        self.runs |= runs
        if not self.over:
            self.nodes |= {pod.uid: pod for pod in now.of("head", "worker") if not pod.leaving}
        if self.pods_running_s is None and self.running == self.expected:
            self.pods_running_s = elapsed_s
        if self.first_update_s is None and self.updates:
            self.first_update_s = elapsed_s

    def sample(self, kubectl: Kubectl) -> None:
        """Add what the nodes use to `samples`, if they run and it is time again."""
        due_s = (
            self.samples[-1].elapsed_s + self.limits.sampled_every_s if self.samples and self.limits else 0
        )
        if self.pods_running_s is None or self.over or self.elapsed_s < due_s:
            return
        self.usage = _usages(kubectl, self.now)
        workers = [pod for pod in self.now.of("worker") if pod.name in self.usage]
        if self.job.gpus and all(self.usage[pod.name].gpu_share is None for pod in workers):
            self._ask_exporter(kubectl, workers)
        head = self.now.head
        sample = UsageSample(
            elapsed_s=self.elapsed_s,
            trains=self.updates > 0,
            samples=sum(run.samples for run in self.runs.values()),
            heads=[self.usage[head.name]] if head and head.name in self.usage else [],
            workers={pod.name: self.usage[pod.name] for pod in workers},
        )
        self.samples.append(sample)

    def _ask_exporter(self, kubectl: Kubectl, workers: Sequence[Pod]) -> None:
        """Take what the workers' GPUs do from NVIDIA's exporter, or say why it does not tell."""
        try:
            pages = exporter_pages(kubectl, {pod.node for pod in workers})
            gpus = [gpu for node, page in pages for gpu in gpus_in_metrics(page, node)]
        except (KubectlError, ValueError) as error:
            self.no_gpu_metrics = f"the DCGM exporter cannot be read: {error}"
            return
        if not pages:
            self.no_gpu_metrics = "DCGM exporter not found on the workers' nodes"
        for pod in workers:
            found = shares_of(gpus, pod.node, pod.name)
            known = {name: value for name, value in asdict(found).items() if value is not None}
            self.usage[pod.name] = replace(self.usage[pod.name], **known)

    @property
    def expected(self) -> int:
        """Pods of head and workers that the job asks for."""
        return 1 + self.job.workers

    @property
    def running(self) -> int:
        return sum(pod.running for pod in self.now.of("head", "worker"))

    @property
    def updates(self) -> int:
        return sum(run.updates for run in self.runs.values())

    @property
    def with_pods_s(self) -> float:
        """Seconds since head and workers ran for the first time; 0 before."""
        return 0.0 if self.pods_running_s is None else self.elapsed_s - self.pods_running_s

    @property
    def over(self) -> bool:
        return self.now.job is not None and self.now.job.over

    @property
    def succeeded(self) -> bool:
        return self.over and self.now.job is not None and self.now.job.job_status == "SUCCEEDED"

    @property
    def ignored_s(self) -> float:
        """Seconds since it was applied, while no operator has taken it up; else 0."""
        job = self.now.job
        if job is None or job.taken_up:
            return 0.0
        return self.elapsed_s if self.limits else job.age_s


def look(kubectl: Kubectl, job: JobManifest) -> Evidence:
    """Look once, logs included. Raises KubectlError."""
    seen = Evidence(job)
    seen.take(kubectl)
    if seen.now.job is None:
        kubectl.require_namespace()
        return seen
    seen.logs = read_logs(kubectl, seen.now)
    seen.usage = _usages(kubectl, seen.now)
    return seen


def watch(
    kubectl: Kubectl, job: JobManifest, thresholds: Thresholds, poll_s: float, *, samples: bool
) -> Iterator[Evidence]:
    """Look every `poll_s` seconds, for ever, from the moment that the job is applied.

    samples: look at what the nodes use, too.
    Raises KubectlError; Unreachable only after the cluster has been silent for too long.
    """
    seen = Evidence(job, thresholds)
    began_s = answered_s = time.monotonic()
    while True:
        try:
            seen.take(kubectl, time.monotonic() - began_s)
            if samples:
                seen.sample(kubectl)
            answered_s = time.monotonic()
        except (Unreachable, KindMissing):  # an API server that starts again serves RayJobs a moment later
            if time.monotonic() - answered_s > thresholds.limits.silence_s:
                raise
        else:
            yield seen
        time.sleep(poll_s)


def _scraped(kubectl: Kubectl, job: JobManifest, now: Snapshot) -> tuple[dict[str, ScrapedRun], str]:
    """Return the runs by run_id that the driver exports on the head, or none and the reason."""
    head, port = now.head, job.metrics_port
    if port is None:
        return {}, "the entrypoint has no --metrics-port"
    if head is None:
        return {}, "no head runs"
    try:
        return runs_in_metrics(_metrics(kubectl, head, port)), ""
    except KubectlError as error:  # before the driver has started and after it has ended, nothing answers
        return {}, f"no metrics at port {port} of {head.name}: {error}"
    except ValueError as error:
        return {}, f"port {port} of {head.name} serves something else: {error}"


def _metrics(kubectl: Kubectl, pod: Pod, port: int) -> str:
    url = f"http://127.0.0.1:{port}/metrics"
    return kubectl.read_in(pod, "wget", "-q", "-O", "-", "--timeout=5", "--tries=1", url)


def exporter_pages(kubectl: Kubectl, nodes: Collection[str]) -> list[tuple[str, str]]:
    """Return what NVIDIA's DCGM exporter serves on each of these nodes, fetched by the API server."""
    found = (kubectl.get("pods", "--all-namespaces", "--selector", one)["items"] for one in _EXPORTERS)
    pods = {pod.uid: pod for items in found for pod in map(Pod, items) if pod.node in nodes and pod.running}
    return [(pod.node, kubectl.read_port(pod, _EXPORTER_PORT, "metrics")) for pod in pods.values()]


def _usages(kubectl: Kubectl, now: Snapshot) -> dict[str, NodeUsage]:
    """Return what head and workers use that run, by the pod's name."""
    running = [pod for pod in now.of("head", "worker") if pod.running]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(partial(_usage, kubectl), running)
    return {pod.name: usage for pod, usage in zip(running, found, strict=True) if usage}


def _usage(kubectl: Kubectl, pod: Pod) -> NodeUsage | None:
    """Return what Ray exports of a node, or None where it exports nothing or exec is not allowed."""
    with suppress(KubectlError, ValueError):
        return usage_in_metrics(_metrics(kubectl, pod, RAY_METRICS_PORT))
    return None


def read_back(kubectl: Kubectl, seen: Evidence) -> ReadBack | str:
    """Evaluate in the head what the bucket has of the last run; return what was found, or why nothing was."""
    program = read_back_of((seen.logs and seen.logs.losses) or ())
    if not program or not seen.now.head:
        return "the head has no record of a bucket" if seen.now.head else "no head runs"
    try:
        return msgspec.json.decode(
            kubectl.read_in(seen.now.head, *program, timeout_s=_EVALUATE_S), type=ReadBack
        )
    except (KubectlError, msgspec.MsgspecError) as error:
        return f"{program[3]} cannot be read back: {error}"


def read_logs(kubectl: Kubectl, now: Snapshot) -> Logs:
    """Read the logs of all pods that have started, and the evaluations in the records on the head.

    `missing` says what could not be read.
    """
    started = [pod for pod in now.pods if pod.phase != "Pending"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # each call takes about a second of waiting
        evaluations = pool.submit(_evaluations, kubectl, now.head)
        read = list(zip(started, pool.map(partial(_read, kubectl), started), strict=True))
    drivers = [text for pod, (texts, _) in read if pod.role == "submitter" for text in texts.values()]
    nodes = [found for pod, found in read if pod.role != "submitter"]
    others = {name: text for texts, _ in nodes for name, text in texts.items()}
    missing = [line for _, (_, why) in read for line in why]
    if now.job and now.job.over and not others:
        missing.append("no head or worker is there: their logs cannot be read")
    return Logs(
        driver="\n".join(drivers) if drivers else None,
        others=others,
        nodes=sum(not why for _, why in nodes),
        losses=evaluations.result(),
        missing=missing,
    )


def _read(kubectl: Kubectl, pod: Pod) -> tuple[dict[str, str], list[str]]:
    """Return a pod's texts, by a name for people, and a line for each that could not be read."""
    sources: dict[str, Callable[[], str]] = {pod.name: lambda: kubectl.logs(pod)}
    if pod.running and pod.role != "submitter":
        sources[f"Ray's workers in {pod.name}"] = lambda: _nccl_lines(kubectl, pod)
    texts, missing = {}, []
    for name, read in sources.items():
        try:
            texts[name] = read()
        except KubectlError as error:
            missing.append(f"the log of {name} cannot be read: {error}")
    return texts, missing


def _evaluations(kubectl: Kubectl, head: Pod | None) -> dict[str, tuple[float | None, float | None]] | None:
    """Return the first and the last loss of each run; None if they cannot be read."""
    # Before the first run there is no folder for records, and find says so.
    with suppress(KubectlError, ValueError):
        if head:
            return losses_in_records(kubectl.read_in(head, *READ_EVALUATIONS))
    return None


def _nccl_lines(kubectl: Kubectl, pod: Pod) -> str:
    """Return what Ray's worker processes wrote of NCCL: it goes into files, not into the pod's log."""
    # grep's exit code 1, nothing found, would be an error of kubectl exec; find does not pass it on.
    files = ("find", _RAY_LOGS, "-name", "worker-*", "-type", "f")
    return kubectl.read_in(pod, *files, "-exec", "grep", "-hi", "nccl", "{}", ";")

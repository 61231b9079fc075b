"""From observations of a job to a verdict: plain functions, without a cluster and without a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal

from msgspec import Struct

from deploy.jobs.driver_reports import nccl_errors, premises_in_log, uploads_in_log
from deploy.jobs.evidence import Evidence
from deploy.jobs.kubernetes_objects import Event, Pod
from deploy.project import GPU

State = Literal["pass", "fail", "open"]
Answer = tuple[State, str]
"""Whether all is well, open if that is not known, or not known yet; and a detail in one line."""

TAKEN_UP_S = 30.0  # an operator that runs takes a job up within two seconds

# With these a container cannot start, and waiting does not help. ErrImagePull is tried again.
HOPELESS = {
    "ImagePullBackOff": "image {image} cannot be pulled",
    "InvalidImageName": "image {image} has no valid name",
    "ErrImageNeverPull": "image {image} is not on the node, and may not be pulled",
    "CrashLoopBackOff": "its container ends again and again",
    "CreateContainerConfigError": "its container cannot be made",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
}


class Check(Struct, frozen=True):
    """One thing that is asked of a job, of the cluster or of the files."""

    name: str
    state: State
    detail: str


def hopeless(reason: str, image: str) -> str:
    """Return in words why a container that waits for this reason cannot start, or nothing if it may."""
    return f"{HOPELESS[reason].format(image=image)} ({reason})" if reason in HOPELESS else ""


def trouble(pod: Pod, events: Iterable[Event]) -> tuple[str, bool]:
    """Return why a pod does not run, in one line, and whether waiting is useless.

    The reason is empty if nothing is wrong.
    """
    own = [event for event in events if event.about_uid == pod.uid and event.type == "Warning"]
    reason, message = pod.waiting
    if what := hopeless(reason, pod.image):
        failures = (e.message for e in reversed(own) if e.reason == "Failed" and "Error:" not in e.message)
        return f"{pod.name}: {what}: {next(failures, '') or message or pod.ended_before}", True
    if reason:
        return f"{pod.name}: {reason}: {message}", False
    if pod.ended and pod.role != "submitter":
        return f"{pod.name}: its container ended ({pod.ended})", True
    if pod.phase == "Pending" and not pod.node:
        placing = [event.message for event in own if event.reason == "FailedScheduling"]
        why = placing[-1] if placing else pod.unschedulable
        if GPU in why:
            remedy = "add GPU nodes or wait for free ones"
            return f"{pod.name}: no GPU is free: FailedScheduling: {why}; {remedy}", False
        return (f"{pod.name}: cannot be placed: FailedScheduling: {why}" if why else ""), False
    return "", False


def pods(seen: Evidence) -> Answer:
    """Ask whether head and workers run in time."""
    if seen.pods_running_s is not None:
        if seen.limits is None:
            return "pass", f"{seen.expected} of {seen.expected} run"
        in_time = seen.pods_running_s <= seen.limits.pods_running_s
        when = f"after {seen.pods_running_s:.0f} s, the limit is {seen.limits.pods_running_s:g} s"
        return "pass" if in_time else "fail", f"{seen.expected} of {seen.expected} ran {when}"
    if seen.limits is None and seen.succeeded:
        return "pass", "they ran, since the job succeeded"
    count = f"{seen.running} of {seen.expected} run"
    if ignored := _ignored(seen):
        return "fail", f"{count}; {ignored}"
    troubles = [trouble(pod, seen.now.events) for pod in seen.now.pods]
    lasting = [text for text, useless in troubles if useless]
    passing = [text for text, useless in troubles if text and not useless]
    if len(seen.now.of("head", "worker")) < seen.expected:  # a quota, say, refuses to have them made
        about = [e for e in seen.now.events if e.type == "Warning" and e.kind in ("RayJob", "RayCluster")]
        passing += [f"{e.kind} {e.about}: {e.reason}: {e.message}" for e in reversed(about)]
    if lasting and not seen.over:
        return "fail", f"{count}; {lasting[0]}"
    detail = "; ".join([count, *passing[:1]])
    if seen.limits and seen.now.job and seen.over and not seen.succeeded:
        return "fail", f"{detail}; the job is over: {seen.now.job.outcome}"
    if seen.limits and seen.elapsed_s > seen.limits.pods_running_s:
        return "fail", f"time-out after {seen.limits.pods_running_s:g} s: {detail}"
    return "open", detail


def _ignored(seen: Evidence) -> str:
    """Return that no operator has taken the job up, if it has had the time."""
    limit_s = seen.limits.taken_up_s if seen.limits else TAKEN_UP_S
    if seen.ignored_s <= limit_s:
        return ""
    return f"in {seen.ignored_s:.0f} s no KubeRay operator has taken the job up: make validate-setup"


def updates(seen: Evidence) -> Answer:
    """Ask whether updates are made."""
    if seen.updates:
        when = "" if seen.limits is None else f", the first seen after {seen.first_update_s:.0f} s"
        return "pass", f"{seen.updates} in {len(seen.runs)} runs{when}"
    why = f"none seen{f' ({seen.no_metrics})' if seen.no_metrics else ''}"
    if seen.over:  # of a job that failed, the reason matters more
        return "fail" if seen.succeeded and seen.limits else "open", why
    if seen.limits and seen.with_pods_s > seen.limits.first_update_s:
        return "fail", f"time-out {seen.limits.first_update_s:g} s after the pods ran: {why}"
    return "open", why


def restarts(seen: Evidence) -> Answer:
    """Ask whether no pod, container or Ray worker has been started again."""
    for pod in (*seen.nodes.values(), *seen.now.pods):
        if pod.restarts:
            why = f" ({pod.ended_before})" if pod.ended_before else ""
            return "fail", f"{pod.name}: its container was restarted {pod.restarts} times{why}"
    if seen.now.job and seen.now.job.retries:
        return "fail", f"the job failed, and was tried again {seen.now.job.retries} times"
    if len(seen.nodes) > seen.expected:
        here = {pod.uid for pod in seen.now.pods}
        lost = ", ".join(pod.name for uid, pod in seen.nodes.items() if uid not in here)
        return "fail", f"pods were replaced; lost: {lost}"
    if len(seen.now.of("submitter")) > 1:
        return "fail", f"the job was submitted {len(seen.now.of('submitter'))} times"
    for run in seen.runs.values():
        if run.restarts:
            return "fail", f"{run.run_id}: Ray workers were restarted {run.restarts} times"
    if not (seen.nodes or seen.now.pods):
        return "open", "no pods were seen"
    return "pass", "none"


def job(seen: Evidence) -> Answer:
    """Ask whether the job ends well."""
    it = seen.now.job
    if it is None:
        return "fail" if seen.limits else "open", f"there is no RayJob {seen.job.ray_job}"
    if it.over and it.job_status == "SUCCEEDED" and it.deployment_status == "Complete":
        return "pass", it.state
    if it.over or it.job_status in ("FAILED", "STOPPED"):
        return "fail", it.outcome
    if it.leaving:
        waits = f", and waits for the finalizer {', '.join(it.finalizers)} of its operator"
        return "fail", f"{it.state}{waits if it.finalizers else ''}"
    if ignored := _ignored(seen):
        return "fail", ignored
    if seen.limits and seen.with_pods_s > seen.limits.job_over_s:
        return "fail", f"time-out: still {it.state} {seen.limits.job_over_s:g} s after the pods ran"
    return "open", it.state


def loss(seen: Evidence) -> Answer:
    """Ask whether the loss of every run is lower at the end than at first."""
    for run in seen.runs.values():
        if run.loss is not None and not math.isfinite(run.loss):
            return "fail", f"{run.run_id}: the loss is {run.loss}"
    found = (seen.logs and seen.logs.losses) or {}
    if not (seen.over and found):
        now = ", ".join(f"{r.run_id} {r.loss:.4g}" for r in seen.runs.values() if r.loss is not None)
        return "open", "the records on the head could not be read" if seen.over else now or "none seen"
    found = {PurePosixPath(path).name: losses for path, losses in found.items()}
    for name, (first, last) in found.items():
        if first is None or last is None or last >= first:
            pair = f"{_number(first)} at first and {_number(last)} at the end"
            return "fail", f"{name}: not falling, {pair}"
    learning = sum(cfg.data.dataset != "none" for cfg in seen.job.configs)
    if len(found) < learning:
        return "fail", f"{len(found)} of {learning} runs have a record: {', '.join(found)}"
    return "pass", ", ".join(f"{name} {_number(a)} to {_number(b)}" for name, (a, b) in found.items())


def staleness(seen: Evidence) -> Answer:
    """Ask whether no gradient was staler than its mode allows."""
    details, known = [], _are_all_seen(seen)
    for name, run in seen.runs.items():
        greatest, bound = run.staleness_max, run.staleness_bound
        if bound is None:
            details.append(f"{name}: no bound")
        elif greatest is None:
            known = False
            details.append(f"{name}: not known, the bound is {bound:g}")
        elif greatest > bound:
            return "fail", f"{name}: {greatest:g} updates, the bound is {bound:g}"
        else:
            details.append(f"{name}: {greatest:g} of at most {bound:g}")
    state: State = "pass" if known and (seen.over or seen.limits is None) else "open"
    return state, ", ".join(details) or "none seen"


def _are_all_seen(seen: Evidence) -> bool:
    """Whether there are metrics of each run: of one without, nothing is known."""
    return bool(seen.runs) and len(seen.runs) >= len(seen.job.configs)


def nccl(seen: Evidence) -> Answer:
    """Ask whether no log reports an error of NCCL."""
    if seen.logs is None:
        return "open", "the logs are read at the end"
    sources = dict(seen.logs.others)
    if seen.logs.driver is not None:
        sources["driver"] = seen.logs.driver
    for name, text in sources.items():
        if lines := nccl_errors(text):
            return "fail", f"{name}: {lines[0]}"
    if seen.logs.missing:
        return "open", seen.logs.missing[0]
    if seen.logs.driver is None:
        return "open", "there is no driver's log"
    if seen.logs.nodes < seen.expected:
        return "open", f"{seen.logs.nodes} of {seen.expected} logs of head and workers were read"
    return "pass", f"no error in the logs of {len(sources)} sources"


def record(seen: Evidence) -> Answer:
    """Ask whether the records are uploaded."""
    if not seen.job.out.startswith("s3://"):
        return "fail", f"the entrypoint keeps it in the pod: --out {seen.job.out} is not s3://"
    if seen.logs is None or seen.logs.driver is None:
        return "open", "the driver's log says it, at the end"
    if uploaded := [url for url in uploads_in_log(seen.logs.driver) if url.startswith(f"{seen.job.out}/")]:
        return "pass", uploaded[-1]
    return "fail" if seen.succeeded else "open", "the driver's log shows no upload"


def premise(seen: Evidence) -> Answer:
    """Ask whether what the experiment takes for granted was so."""
    if seen.logs is None or seen.logs.driver is None:
        return "open", "the driver's log says it, at the end"
    found = premises_in_log(seen.logs.driver)
    if wrong := [line for line, held in found.items() if not held]:
        return "fail", wrong[0]
    if not found and (seen.job.asked_for[1] or not seen.over):
        return "open", "the driver's log does not say it" + ("" if seen.over else " yet")
    return "pass", "; ".join(found) or "none is stated"


def performance(seen: Evidence) -> Answer:
    """Ask whether every run is as fast, and idles as little, as its mode must."""
    details: list[str] = []
    known = _are_all_seen(seen)
    for run in seen.runs.values():
        limit, rate, idle = seen.performance.get(run.mode), run.samples_per_s, run.idle_share
        if limit is None or rate is None or idle is None:
            known = False
            details.append(f"{run.run_id}: {'nothing measured' if limit else f'{run.mode} has no threshold'}")
            continue
        most, gpus = limit.idle_share_max, seen.job.gpus
        rates = [(rate, limit.samples_per_s_min, "samples/s")]
        if gpus:
            rates.append((rate / gpus, limit.samples_per_s_per_gpu_min, "samples/s a GPU"))
            tokens = run.tokens_per_s
            if tokens is not None:
                rates.append((tokens / gpus, limit.tokens_per_s_per_gpu_min, "tokens/s a GPU"))
        speed = (
            f"{run.run_id}: {', '.join(f'{found:.4g} {unit}' for found, _, unit in rates)}, {idle:.0%} idle"
        )
        for found, least, unit in rates:
            if seen.over and least is not None and found < least:
                return "fail", f"{speed}; at least {least:g} {unit}"
        if seen.over and most is not None and idle > most:
            return "fail", f"{speed}; at most {most:.0%} idle"
        details.append(speed)
    state: State = "pass" if known and seen.over else "open"
    return state, ", ".join(details) or "nothing measured"


Question = Callable[[Evidence], Answer]

STARTS: tuple[Question, ...] = (pods, updates, restarts, nccl)
ALL: tuple[Question, ...] = (pods, updates, restarts, job, loss, staleness, nccl, record)
# Of a job that was run whole: in a test, seconds of each run may be too few for its premise.
OF_WHOLE: tuple[Question, ...] = (*ALL, premise)


def judge(seen: Evidence, asked: Sequence[Question]) -> list[Check]:
    """Return the answers, by the questions' names."""
    return [Check(ask.__name__, *ask(seen)) for ask in asked]


def settled(seen: Evidence, asked: Sequence[Question]) -> bool:
    """Whether waiting is useless: something failed, all passed, or the job is over."""
    # Two are answered afterwards: from the logs, and from what the bucket has.
    states = {ask(seen)[0] for ask in asked if ask.__name__ not in ("nccl", "checkpoint")}
    return "fail" in states or seen.over or states == {"pass"}


def _number(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.4g}"

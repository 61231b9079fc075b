"""From observations of a job to a verdict: plain functions, without a cluster and without a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from deploy.jobs.driver_logs import nccl_errors, premises_in_log, uploads_in_log
from deploy.jobs.evidence import Evidence
from deploy.jobs.kubernetes_objects import KubernetesEvent, Pod
from deploy.jobs.thresholds import Threshold

State = Literal["pass", "fail", "open"]

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


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that is asked of a job. open: not known, or not known yet."""

    name: str
    state: State
    detail: str


def trouble(pod: Pod, events: Iterable[KubernetesEvent]) -> tuple[str, bool]:
    """Return why a pod does not run, in one line, and whether waiting is useless.

    The reason is empty if nothing is wrong.
    """
    own = [event for event in events if event.uid == pod.uid and event.type == "Warning"]
    if pod.waiting in HOPELESS:
        what = HOPELESS[pod.waiting].format(image=pod.image)
        details = next(
            (e.message for e in reversed(own) if e.reason == "Failed" and "Error:" not in e.message), ""
        )
        return (
            f"{pod.name}: {what} ({pod.waiting}): {details or pod.waiting_message or pod.ended_before}",
            True,
        )
    if pod.waiting:
        return f"{pod.name}: {pod.waiting}: {pod.waiting_message}", False
    if pod.ended and pod.role != "submitter":
        return f"{pod.name}: its container ended ({pod.ended})", True
    if pod.phase == "Pending" and not pod.node:
        placing = [event for event in own if event.reason == "FailedScheduling"]
        why = placing[-1].message if placing else pod.unschedulable
        if "nvidia.com/gpu" in why:
            remedy = "add GPU nodes or wait for free ones"
            return f"{pod.name}: no GPU is free: FailedScheduling: {why}; {remedy}", False
        return (f"{pod.name}: cannot be placed: FailedScheduling: {why}" if why else ""), False
    return "", False


def pods(seen: Evidence) -> Check:
    """Ask whether head and workers run in time."""
    if seen.pods_running_s is not None:
        if seen.limits is None:
            return _check("pods", "pass", f"{seen.expected} of {seen.expected} run")
        in_time = seen.pods_running_s <= seen.limits.pods_running_s
        when = f"after {seen.pods_running_s:.0f} s, the limit is {seen.limits.pods_running_s:g} s"
        return _check("pods", "pass" if in_time else "fail", f"{seen.expected} of {seen.expected} ran {when}")
    if seen.limits is None and seen.succeeded:
        return _check("pods", "pass", "they ran, since the job succeeded")
    count = f"{seen.running} of {seen.expected} run"
    if ignored := _ignored(seen):
        return _check("pods", "fail", f"{count}; {ignored}")
    troubles = [trouble(pod, seen.now.events) for pod in seen.now.pods]
    hopeless = [text for text, useless in troubles if useless]
    passing = [text for text, useless in troubles if text and not useless]
    if len(seen.now.of("head", "worker")) < seen.expected:  # a quota, say, refuses to have them made
        refused = (
            e for e in reversed(seen.now.events) if e.type == "Warning" and e.kind in ("RayJob", "RayCluster")
        )
        passing += [f"{e.kind} {e.about}: {e.reason}: {e.message}" for e in refused]
    if hopeless and not seen.over:
        return _check("pods", "fail", f"{count}; {hopeless[0]}")
    detail = "; ".join([count, *passing[:1]])
    if seen.limits and seen.now.job and seen.over and not seen.succeeded:
        return _check("pods", "fail", f"{detail}; the job is over: {seen.now.job.outcome}")
    if seen.limits and seen.elapsed_s > seen.limits.pods_running_s:
        return _check("pods", "fail", f"time-out after {seen.limits.pods_running_s:g} s: {detail}")
    return _check("pods", "open", detail)


def _ignored(seen: Evidence) -> str:
    """Return that no operator has taken the job up, if it has had the time."""
    limit_s = seen.limits.taken_up_s if seen.limits else TAKEN_UP_S
    if seen.ignored_s <= limit_s:
        return ""
    return f"in {seen.ignored_s:.0f} s no KubeRay operator has taken the job up: make validate-setup"


def updates(seen: Evidence) -> Check:
    """Ask whether updates are made."""
    if seen.updates:
        when = "" if seen.limits is None else f", the first seen after {seen.first_update_s:.0f} s"
        return _check("updates", "pass", f"{seen.updates} in {len(seen.runs)} runs{when}")
    why = f"none seen{f' ({seen.no_metrics})' if seen.no_metrics else ''}"
    if seen.over:  # of a job that failed, the reason matters more
        return _check("updates", "fail" if seen.succeeded and seen.limits else "open", why)
    started_s = seen.pods_running_s
    if seen.limits and started_s is not None and seen.elapsed_s - started_s > seen.limits.first_update_s:
        limit_s = seen.limits.first_update_s
        return _check("updates", "fail", f"time-out {limit_s:g} s after the pods ran: {why}")
    return _check("updates", "open", why)


def restarts(seen: Evidence) -> Check:
    """Ask whether no pod, container or Ray worker has been started again."""
    for pod in (*seen.nodes.values(), *seen.now.pods):
        if pod.restarts:
            why = f" ({pod.ended_before})" if pod.ended_before else ""
            return _check(
                "restarts", "fail", f"{pod.name}: its container was restarted {pod.restarts} times{why}"
            )
    if seen.now.job and seen.now.job.retries:
        return _check("restarts", "fail", f"the job failed, and was tried again {seen.now.job.retries} times")
    if len(seen.nodes) > seen.expected:
        here = {pod.uid for pod in seen.now.pods}
        lost = ", ".join(pod.name for uid, pod in seen.nodes.items() if uid not in here)
        return _check("restarts", "fail", f"pods were replaced; lost: {lost}")
    if len(seen.now.of("submitter")) > 1:
        return _check("restarts", "fail", f"the job was submitted {len(seen.now.of('submitter'))} times")
    for run in seen.runs.values():
        if run.restarts:
            return _check(
                "restarts", "fail", f"{run.run_id}: Ray workers were restarted {run.restarts} times"
            )
    return _check("restarts", "pass" if seen.nodes or seen.over else "open", "none")


def job(seen: Evidence) -> Check:
    """Ask whether the job ends well."""
    it = seen.now.job
    if it is None:
        return _check("job", "fail" if seen.limits else "open", f"there is no RayJob {seen.job.ray_job}")
    if it.over and it.job_status == "SUCCEEDED" and it.deployment_status == "Complete":
        return _check("job", "pass", it.state)
    if it.over or it.job_status in ("FAILED", "STOPPED"):
        return _check("job", "fail", it.outcome)
    if it.leaving:
        waits = (
            f", and waits for the finalizer {', '.join(it.finalizers)} of its operator"
            if it.finalizers
            else ""
        )
        return _check("job", "fail", f"{it.state}{waits}")
    if ignored := _ignored(seen):
        return _check("job", "fail", ignored)
    started_s = seen.pods_running_s
    if seen.limits and started_s is not None and seen.elapsed_s - started_s > seen.limits.job_over_s:
        limit_s = seen.limits.job_over_s
        return _check("job", "fail", f"time-out: still {it.state} {limit_s:g} s after the pods ran")
    return _check("job", "open", it.state)


def loss(seen: Evidence) -> Check:
    """Ask whether the loss of every run is lower at the end than at first."""
    for run in seen.runs.values():
        if run.loss is not None and not math.isfinite(run.loss):
            return _check("loss", "fail", f"{run.run_id}: the loss is {run.loss}")
    found = (seen.logs and seen.logs.losses) or {}
    if not (seen.over and found):
        now = ", ".join(f"{r.run_id} {r.loss:.4g}" for r in seen.runs.values() if r.loss is not None)
        details = "the records on the head could not be read" if seen.over else now or "none seen"
        return _check("loss", "open", details)
    for name, (first, last) in found.items():
        if first is None or last is None or last >= first:
            pair = f"{_number(first)} at first and {_number(last)} at the end"
            return _check("loss", "fail", f"{name}: not falling, {pair}")
    learning = sum(cfg.data.dataset != "none" for cfg in seen.job.configs)
    if len(found) < learning:
        return _check("loss", "fail", f"{len(found)} of {learning} runs have a record: {', '.join(found)}")
    details = ", ".join(
        f"{name} {_number(first)} to {_number(last)}" for name, (first, last) in found.items()
    )
    return _check("loss", "pass", details)


def staleness(seen: Evidence) -> Check:
    """Ask whether no gradient was staler than its mode allows."""
    found = [(run.run_id, run.staleness_max, run.staleness_bound) for run in seen.runs.values()]
    details, known = [], True
    for name, greatest, bound in found:
        if bound is None:
            details.append(f"{name}: no bound")
        elif greatest is None:
            known = False
            details.append(f"{name}: not known, the bound is {bound:g}")
        elif greatest > bound:
            return _check("staleness", "fail", f"{name}: {greatest:g} updates, the bound is {bound:g}")
        else:
            details.append(f"{name}: {greatest:g} of at most {bound:g}")
    state: State = "pass" if found and known and (seen.over or seen.limits is None) else "open"
    return _check("staleness", state, ", ".join(details) or "none seen")


def nccl(seen: Evidence) -> Check:
    """Ask whether no log reports an error of NCCL."""
    if seen.logs is None:
        return _check("nccl", "open", "the logs are read at the end")
    sources = dict(seen.logs.others)
    if seen.logs.driver is not None:
        sources["driver"] = seen.logs.driver
    for name, text in sources.items():
        if lines := nccl_errors(text):
            return _check("nccl", "fail", f"{name}: {lines[0]}")
    if seen.logs.missing:
        return _check("nccl", "open", seen.logs.missing[0])
    if seen.logs.driver is None:
        return _check("nccl", "open", "there is no driver's log")
    if seen.logs.nodes < seen.expected:
        return _check(
            "nccl", "open", f"{seen.logs.nodes} of {seen.expected} logs of head and workers were read"
        )
    return _check("nccl", "pass", f"no error in the logs of {len(sources)} sources")


def record(seen: Evidence) -> Check:
    """Ask whether the records are uploaded."""
    if not seen.job.out.startswith("s3://"):
        return _check(
            "record", "fail", f"the entrypoint keeps it in the pod: --out {seen.job.out} is not s3://"
        )
    if seen.logs is None or seen.logs.driver is None:
        return _check("record", "open", "the driver's log says it, at the end")
    if uploaded := [url for url in uploads_in_log(seen.logs.driver) if url.startswith(f"{seen.job.out}/")]:
        return _check("record", "pass", uploaded[-1])
    return _check("record", "fail" if seen.succeeded else "open", "the driver's log shows no upload")


def premise(seen: Evidence) -> Check:
    """Ask whether what the experiment takes for granted was so."""
    if seen.logs is None or seen.logs.driver is None:
        return _check("premise", "open", "the driver's log says it, at the end")
    found = premises_in_log(seen.logs.driver)
    if wrong := [line for line, held in found.items() if not held]:
        return _check("premise", "fail", wrong[0])
    if not found and not seen.over:
        return _check("premise", "open", "the driver's log says it, at the end")
    return _check("premise", "pass", "; ".join(found) or "none is stated")


def performance(seen: Evidence, thresholds: Mapping[str, Threshold]) -> Check:
    """Ask whether every run is as fast, and idles as little, as its mode must; thresholds: by mode."""
    details: list[str] = []
    known = bool(seen.runs)
    for run in seen.runs.values():
        limit, rate, idle = thresholds.get(run.mode), run.samples_per_s, run.idle_share
        if limit is None or rate is None or idle is None:
            known = False
            details.append(f"{run.run_id}: {'nothing measured' if limit else f'{run.mode} has no threshold'}")
            continue
        speed = f"{run.run_id}: {rate:.4g} samples/s, {idle:.0%} idle"
        least, most = limit.samples_per_s_min, limit.idle_share_max
        if seen.over and least is not None and rate < least:
            return _check("performance", "fail", f"{speed}; at least {least:g} samples/s")
        if seen.over and most is not None and idle > most:
            return _check("performance", "fail", f"{speed}; at most {most:.0%} idle")
        details.append(speed)
    state: State = "pass" if known and seen.over else "open"
    return _check("performance", state, ", ".join(details) or "nothing measured")


Question = Callable[[Evidence], Check]

STARTS: tuple[Question, ...] = (pods, updates, restarts, nccl)
ALL: tuple[Question, ...] = (pods, updates, restarts, job, loss, staleness, nccl, record)
# Of a job that was run whole: in a test, seconds of each run may be too few for its premise.
OF_WHOLE: tuple[Question, ...] = (*ALL, premise)


def judge(seen: Evidence, asked: Sequence[Question]) -> list[Check]:
    """Return the answers."""
    return [ask(seen) for ask in asked]


def verdict(checks: Iterable[Check]) -> State:
    """Return fail if any failed, pass if all passed."""
    states = {check.state for check in checks}
    return "fail" if "fail" in states else "open" if "open" in states else "pass"


def settled(seen: Evidence, asked: Sequence[Question]) -> bool:
    """Whether waiting is useless: something failed, all passed, or the job is over."""
    states = {ask: ask(seen).state for ask in asked if ask is not nccl}  # which reads the logs, afterwards
    return "fail" in states.values() or seen.over or all(state == "pass" for state in states.values())


def _check(name: str, state: State, detail: str) -> Check:
    return Check(name=name, state=state, detail=detail)


def _number(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.4g}"

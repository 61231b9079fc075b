"""Verdicts, printed: checks, the result of a test, a job's state as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from deploy.jobs.checks import OF_WHOLE, Check, judge, trouble, verdict
from deploy.jobs.driver_metrics import ScrapedRun
from deploy.jobs.evidence import Evidence
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubernetes_objects import Pod

SCHEMA_VERSION = 1


def checks(command: str, job: str, found: Sequence[Check], tail: Sequence[str] = (), *, as_json: bool) -> int:
    """Print the checks, a line each or as JSON, and what follows from them; return 1 if one failed, else 0.

    What is open is a note here, not a failure. tail: the driver's last lines, shown if a check failed.
    """
    failed = [check for check in found if check.state == "fail"]
    if as_json:
        content = {
            "schema": SCHEMA_VERSION,
            "command": command,
            "job": job,
            "verdict": "failed" if failed else "passed",
            "checks": _checks(found),
        }
        print(json.dumps(content, indent=2), flush=True)
        return 1 if failed else 0
    for check in found:
        print(f"{'note' if check.state == 'open' else check.state}  {check.name:12} {check.detail}")
    title = f"{command} {job}".strip()
    print(f"{title}: {'FAILED: ' + failed[0].name if failed else 'passed'}", flush=True)
    if failed and tail:
        print("the driver's last lines:", *(f"    {line}" for line in tail), sep="\n", flush=True)
    return 1 if failed else 0


def strictly(found: Sequence[Check]) -> list[Check]:
    """Return a test's checks, where an unknown result is a failure."""
    # A check left open because another one failed first has not failed itself.
    if any(check.state == "fail" for check in found):
        return list(found)
    return [
        Check(name=c.name, state="fail", detail=f"not known: {c.detail}") if c.state == "open" else c
        for c in found
    ]


def _checks(found: Iterable[Check]) -> list[dict[str, str]]:
    return [{"name": c.name, "state": c.state, "detail": c.detail} for c in found]


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


def latest(seen: Evidence) -> ScrapedRun | None:
    """Return the run that was begun last."""
    return list(seen.runs.values())[-1] if seen.runs else None


def status(seen: Evidence) -> int:
    """Print what one look shows of the job; return 0 if all is well, as far as it has come."""
    found = judge(seen, OF_WHOLE)
    for name, detail in _facts(seen):
        print(f"      {name:12} {detail}")
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


def _facts(seen: Evidence) -> Iterable[tuple[str, str]]:
    """Yield what is not a check: times, head's address, conditions, utilisation."""
    job = seen.now.job
    if job is None:
        return
    named = (("applied", job.created), ("started", job.started), ("ended", job.ended))
    times = ", ".join(f"{name} {when}" for name, when in named if when)
    if times:
        yield "times", times
    if job.head_address:
        yield "head", f"{job.head_address} (inside the cluster)"
    for condition in job.conditions:
        yield "condition", condition
    for name, usage in seen.usage.items():
        yield "usage", f"{name}: {usage}"


def overall(seen: Evidence, found: Iterable[Check]) -> str:
    """Return running, passed, failed, unproven (over, but not all is known) or absent."""
    if seen.now.job is None:
        return "absent"
    state = verdict(found)
    if state == "open":
        return "unproven" if seen.over else "running"
    return {"pass": "passed", "fail": "failed"}[state]


def status_json(seen: Evidence, kubectl: Kubectl) -> int:
    """Print what one look shows of the job, as status.schema.json describes it; return as `status`."""
    found = judge(seen, OF_WHOLE)
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
            "failed": job.failed,
            "cluster": job.cluster,
            "created": job.created or None,
            "started": job.started or None,
            "ended": job.ended or None,
            "leaving": job.leaving or None,
            "head_address": job.head_address or None,
            "conditions": list(job.conditions),
        },
        "pods": [_pod(pod, seen) for pod in seen.now.pods],
        "runs": [_run(run) for run in seen.runs.values()],
        "checks": _checks(found),
    }
    print(json.dumps(content, indent=2, allow_nan=False))
    return 0 if state in ("running", "passed") else 1


def _pod(pod: Pod, seen: Evidence) -> dict[str, Any]:
    usage = seen.usage.get(pod.name)
    return {
        "name": pod.name,
        "role": pod.role,
        "phase": pod.phase,
        "ready": pod.ready,
        "restarts": pod.restarts,
        "node": pod.node or None,
        "trouble": trouble(pod, seen.now.events)[0] or None,
        "usage": None if usage is None else asdict(usage),
    }


def _run(run: ScrapedRun) -> dict[str, Any]:
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

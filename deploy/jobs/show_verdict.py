"""Verdicts, printed: checks, the result of a test, what one look shows of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from deploy.jobs.checks import OF_WHOLE, Check, judge, trouble
from deploy.jobs.evidence import Evidence
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.node_usage import UsageSample, plot

SCHEMA_VERSION = 2


def checks(
    command: str,
    job: str,
    found: Sequence[Check],
    tail: Sequence[str] = (),
    samples: Sequence[UsageSample] = (),
    *,
    as_json: bool,
) -> int:
    """Print the checks, a line each or as JSON, and what follows from them; return 1 if one failed, else 0.

    What is open is a note here, not a failure. tail: the driver's last lines, shown if a check failed.
    samples: what the nodes used over time, shown before.
    """
    failed = [check for check in found if check.state == "fail"]
    if as_json:
        _print_json(
            {
                "schema": SCHEMA_VERSION,
                "command": command,
                "job": job,
                "verdict": "failed" if failed else "passed",
                "checks": found,
                **({"usage": samples} if samples else {}),
            }
        )
        return 1 if failed else 0
    for line in plot(samples):
        print(line)
    for check in found:
        print(f"{'note' if check.state == 'open' else check.state}  {check.name:12} {check.detail}")
    title = f"{command} {job}".strip()
    print(f"{title}: {'FAILED: ' + failed[0].name if failed else 'passed'}", flush=True)
    if failed and tail:
        _print_tail(tail)
    return 1 if failed else 0


def strictly(found: Sequence[Check]) -> list[Check]:
    """Return a test's checks, where an unknown result is a failure."""
    # A check left open because another one failed first has not failed itself.
    if any(check.state == "fail" for check in found):
        return list(found)
    return [Check(c.name, "fail", f"not known: {c.detail}") if c.state == "open" else c for c in found]


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
    elif seen.runs:
        *_, latest = seen.runs.values()
        parts.append(str(latest))
    return "; ".join(parts)


def status(seen: Evidence, kubectl: Kubectl, *, as_json: bool) -> int:
    """Print what one look shows of the job; return 0 if all is well, as far as it has come."""
    found = judge(seen, OF_WHOLE)
    failed, unknown = (", ".join(c.name for c in found if c.state == state) for state in ("fail", "open"))
    if seen.now.job is None:
        verdict, words = "absent", f"is not there; make run JOB={seen.job.name}"
    elif failed:
        verdict, words = "failed", f"FAILED: {failed}"
    elif not unknown:
        verdict, words = "passed", "passed"
    elif seen.over:
        verdict, words = "unproven", f"is over; not known: {unknown}"
    else:
        verdict, words = "running", "is running, and nothing has failed so far"
    if as_json:
        _print_json(_status(seen, kubectl, verdict, found))
    else:
        for name, detail in _facts(seen):
            print(f"      {name:12} {detail}")
        for check in found:
            print(f"{check.state}  {check.name:12} {check.detail}")
        print(f"RayJob {seen.job.ray_job} {words}")
        if failed and seen.logs and seen.logs.tail:
            _print_tail(seen.logs.tail)
    return 0 if verdict in ("running", "passed") else 1


def _facts(seen: Evidence) -> Iterable[tuple[str, str]]:
    """Yield what is not a check: times, head's address, conditions, utilisation."""
    if (job := seen.now.job) is None:
        return
    named = (("applied", job.created), ("started", job.started), ("ended", job.ended))
    yield "times", ", ".join(f"{name} {when}" for name, when in named if when)
    if job.head_address:
        yield "head", f"{job.head_address} (inside the cluster)"
    for condition in job.conditions:
        yield "condition", str(condition)
    for name, usage in seen.usage.items():
        yield "usage", f"{name}: {usage}"


def _status(seen: Evidence, kubectl: Kubectl, verdict: str, found: Sequence[Check]) -> dict[str, object]:
    """Return what status.schema.json describes."""
    job, events = seen.now.job, seen.now.events
    return {
        "schema": SCHEMA_VERSION,
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "context": kubectl.context,
        "namespace": kubectl.namespace,
        "job": seen.job.name,
        "ray_job": seen.job.ray_job,
        "verdict": verdict,
        "status": job
        and {
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
            "conditions": [condition._asdict() for condition in job.conditions],
        },
        "pods": [
            {
                "name": pod.name,
                "role": pod.role,
                "phase": pod.phase,
                "ready": pod.ready,
                "restarts": pod.restarts,
                "node": pod.node or None,
                "trouble": trouble(pod, events)[0] or None,
                "usage": seen.usage.get(pod.name),
            }
            for pod in seen.now.pods
        ],
        "runs": list(seen.runs.values()),
        "checks": found,
    }


def _print_json(content: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(content), indent=2).decode(), flush=True)


def _print_tail(lines: Iterable[str]) -> None:
    print("the driver's last lines:", *(f"    {line}" for line in lines), sep="\n", flush=True)

"""Checks of a job say nothing of what they could not look at."""

from __future__ import annotations

from msgspec.structs import replace

from deploy.jobs.checks import OF_WHOLE, judge, performance, premise, staleness
from deploy.jobs.driver_reports import runs_in_metrics
from deploy.jobs.evidence import Evidence, Logs
from deploy.jobs.job_manifest import read_job
from deploy.jobs.kubernetes_objects import RayJob, Snapshot

DONE = {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}}


def test_what_was_not_looked_at_is_open() -> None:
    """Where pods, metrics and logs of a finished job are gone, only what its status says passes: neither runs
    of which some were never seen, nor premises that the log lacks.
    """
    seen = Evidence(read_job("compare-asgd"))
    seen.now = Snapshot(job=RayJob(DONE))
    passed = [check.name for check in judge(seen, (*OF_WHOLE, performance)) if check.state == "pass"]
    assert passed == ["pods", "job"]
    page = "# TYPE dsgd_updates counter\n" + 'dsgd_updates_total{run_id="0",mode="asgd"} 9\n'
    run = replace(runs_in_metrics(page)["0"], staleness_max=1.0, staleness_bound=2.0)
    seen.runs = {"0": run}
    assert staleness(seen)[0] == "open"
    seen.runs = {str(n): run for n in range(len(seen.job.configs))}
    assert staleness(seen)[0] == "pass"
    seen.logs = Logs(driver="record s3://bucket/it")
    assert premise(seen)[0] == "open"

"""The cluster tools, run as a user runs them, against a kubectl that plays recorded time lines."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from conftest import KUBERAY_CRD, PATIENCE_S, ROOT, CommandLine, needs, needs_crd, run_python, wait_for
from kubectl_standin.play import based, objects, scenario
from played_jobs import (
    CHECKS,
    CRITERIA,
    PATIENT,
    STANDIN,
    Case,
    Tools,
    ToolsHere,
    each,
    held,
    played,
)

from deploy.jobs.__main__ import COMMANDS, main
from deploy.jobs.driver_reports import (
    READ_EVALUATIONS,
    losses_in_records,
    nccl_errors,
    runs_in_metrics,
    uploads_in_log,
)
from deploy.jobs.evidence import Evidence
from deploy.jobs.job_manifest import JobManifest, read_job
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import KubectlError, SetupError, Unreachable, explain
from deploy.jobs.kubernetes_objects import RayJob, snapshot
from deploy.jobs.probe_pod import probe, probe_manifest
from deploy.jobs.run_job import delete
from deploy.jobs.thresholds import DEFAULT, Criteria, read_thresholds
from deploy.project import GPU
from dsgd.core.option_rules import option_fields, options
from dsgd.engines.ray_options import RayConfig
from dsgd.records.output_options import OutputConfig
from dsgd.running.quick_run import config
from dsgd.show.watching_options import LiveConfig, LogConfig

FOLDERS = ("deploy", "dsgd", "experiments")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project, its manifests rendered for a separate bucket."""
    copy = tmp_path_factory.mktemp("project")
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for pattern in ("*.py", "*.toml", "ray-job-*.yaml", "requirements.txt", "Dockerfile"):
        for path in ROOT.glob(pattern):
            shutil.copy(path, copy)
    rendered = run_module(copy, "deploy.manifests", "--image", "registry.test/dsgd:1", "--bucket", "results")
    assert rendered.returncode == 0, rendered.stderr
    return copy


def run_module(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", *arguments, cwd=project, env={"PYTHONPATH": str(project)})


@pytest.fixture
def tools_apart(project: Path, tmp_path: Path) -> Iterator[Tools]:
    tools = Tools(project, tmp_path)
    yield tools
    tools.end()


@pytest.fixture
def tools(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> ToolsHere:
    return ToolsHere(tmp_path, capfd, monkeypatch)


def story(name: str, check: str, *words: str, also: str = "", **limits: float) -> Case:
    """Return the situation of a scenario's file, in which a test of the job fails.

    Limits of parts of a second pass in any moment of it, so with these it is at its last one from the start.
    """
    fails = {check: list(words)} | ({also: []} if also else {})
    last = {"frames": scenario(name)["frames"][-1:]} if limits else {}
    return Case(name, played(name, **last), "test-cluster", 1, fails, limits=limits)


STORIES = [
    story(
        *("no-gpu", "pods", "time-out after 0.4 s", "1 of 5 run", "no GPU is free", "FailedScheduling"),
        *("Insufficient nvidia.com/gpu",),
        pods_running_s=0.4,
    ),
    story("quota", "pods", "FailedToCreateWorkerPod", "exceeded quota: gpus", pods_running_s=0.4),
    story(
        "image-pull", "pods", "worker-0: image dsgd-lab:", "cannot be pulled (ImagePullBackOff)", "not found"
    ),
    story("driver-crash", "job", "FAILED", "AppFailed", "exit code 1"),
    story("not-falling", "loss", "ssp-s0: not falling, 2.31 at first and 2.34 at the end"),
    story("no-updates", "updates", "time-out 0.4 s after the pods ran", "port 9090", first_update_s=0.4),
    story("endless", "job", "time-out: still Running, RUNNING 0.4 s", job_over_s=0.4),
    story("worker-restart", "restarts", "worker-1", "restarted 1 times", "OOMKilled, exit code 137"),
    story("worker-replaced", "restarts", "pods were replaced", "worker-3"),
    story("nccl", "nccl", "Ray's workers in", "NCCL WARN", "Connection timed out"),
    story("stale", "staleness", "ssp-s0: 50 updates, the bound is 49"),
    story("no-upload", "record", "no upload"),
    story("invalid", "pods", "the job is over: ValidationFailed", "a worker group has no name", also="job"),
    story("no-operator", "pods", "no KubeRay operator has taken the job up", also="job", taken_up_s=0.3),
]


@pytest.mark.crossing(one_in=3)
@each(STORIES)
def test_whatever_goes_wrong_fails_the_check_that_names_it_and_is_cleaned_up(
    tools: Tools, case: Case
) -> None:
    held(tools, case)


def test_every_scenario_is_told_by_a_test() -> None:
    names = {path.stem for path in (STANDIN / "scenarios").glob("*.yaml")}
    assert names == {"success", "short", *(case.name for case in STORIES)}


def ended(
    name: str, check: str, words: str, command: str = "test-cluster", also: str = "", **last: Any
) -> Case:
    """Return the situation of a job that ends, and whose last moment is changed."""
    fails = {check: [words]} | ({also: []} if also else {})
    return Case(name, played("short", last=last), command, 1, fails)


def a_run(**values: Any) -> dict[str, Any]:
    return {"mode": "ssp", "run_id": "ssp-s0", "updates": 9, "loss": 0.2, **values}


LATE = {"reason": "DeadlineExceeded", "message": "passed activeDeadlineSeconds"}
TWO = {"ssgd-s0": [2.31, 0.31], "ssp-s0": [2.31, 0.2]}
BOTH_S = {"compute_s": 3, "wait_s": 1, "seconds": 5}
FAST = {"samples_per_s_min": 1000, "idle_share_max": 0.5}
LAST_MOMENTS = [
    ended("a Ray worker was restarted", "restarts", "restarted 2 times", runs=[a_run(restarts=2)]),
    ended("the loss is NaN", "loss", "the loss is nan", runs=[a_run(loss="NaN")]),
    ended("the last loss is not finite", "loss", "not finite at the end", records={"ssp-s0": [2.3, None]}),
    ended("the job ended at its deadline", "job", "DeadlineExceeded: passed", job="failed", status=LATE),
    ended("the records cannot be read", "loss", "not known: the records on", also="checkpoint", records={}),
    ended("it is not our record", "record", "no upload", logs={"submitter": "upload  s3://another/runs/x\n"}),
    ended("a run has no record", "loss", "2 of 4 runs", "test-cluster --job compare-modes", records=TWO),
    ended("it is too slow", "performance", "180 samples/s, 45 samples/s a GPU, 25% idle; at least 1000",
          "perf-test", runs=[a_run(samples=900, **BOTH_S)]),
    ended("it idles too much", "performance", "75% idle; at most 50% idle", "perf-test",
          runs=[a_run(samples=9000, seconds=5, compute_s=1, wait_s=3)]),
]  # fmt: skip


@each(LAST_MOMENTS)
def test_a_job_that_looks_well_but_is_not_does_not_pass(tools: Tools, case: Case) -> None:
    tools.performance = {"ssp": {"ssp": FAST}}
    held(tools, case)


def said_of_premises(*lines: str) -> dict[str, Any]:
    logs = scenario("short")["frames"][-1]["logs"]
    text = logs["submitter"] + "".join(f"premise {line}\n" for line in lines)
    return played("short", last={"logs": logs | {"submitter": text}})


def another(name: str, state: str, **labels: str) -> dict[str, Any]:
    """Return a RayJob of somebody else in the namespace."""
    metadata = {"name": name, "namespace": "ray-jobs", "uid": f"uid-of-another-{name}", "labels": labels}
    return {"kind": "RayJob", "metadata": metadata, "status": {"jobDeploymentStatus": state}}


def QUOTA(gpus: str, used: str = "0") -> Any:
    status = {kind: {"requests.nvidia.com/gpu": n} for kind, n in (("hard", gpus), ("used", used))}
    return [{"kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {}, "status": status}]


def changed(content: Any, old: str, new: str) -> Any:
    """Return objects with a piece of their JSON replaced."""
    text = json.dumps(content)
    assert old in text
    return json.loads(text.replace(old, new))


def frames(name: str, first: int) -> dict[str, Any]:
    return played(name, frames=scenario(name)["frames"][first:])


def setup(**values: Any) -> dict[str, Any]:
    return {"setup": values}


OPERATOR, CRD, NODES, MONITORS = (
    objects()["setup"][name] for name in ("operator", "crd", "nodes", "podmonitors")
)
OLDER_CRD = changed(CRD, ', "preRunningDeadlineSeconds": {"format": "int32", "type": "integer"}', "")
NO_V1 = changed(CRD, '"name": "v1", "served": true', '"name": "v1", "served": false')
NO_PLUGIN = changed(changed(NODES, ', "nvidia.com/gpu": "4"', ""), '"cpu": "8"', '"cpu": "1900m"')
AUTOSCALER = {"kind": "Deployment", "metadata": {"name": "karpenter", "namespace": "kube-system"}}
TAKEN = {"spec": {"nodeName": "node-gpu-0", "containers": [{"resources": {"limits": {GPU: "3"}}}]},
         "status": {"phase": "Running"}}  # fmt: skip
NAMESPACE_ONLY = [
    *("get customresourcedefinitions", "list deployments", "list nodes"),
    *("get namespaces", "get serviceaccounts"),
    *("list podmonitors", "list resourcequotas", "list pods --all-namespaces"),
]
REFUSED = "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?"
SILENT = {"call": "rayjobs.ray.io,pods", "from": 3, "stderr": REFUSED}
TRIED = {"jobDeploymentStatus": "", "jobStatus": "", "failed": 1}
RUNNING = {"job": "running", "head": "running", "workers": "running", "submitter": "running"}
TOO_LATE = {"reason": "PreRunningDeadlineExceeded", "message": "too late"}
INVALID = "ValidationFailed (ValidationFailed: The RayJob spec is invalid: a worker group has no name)"
STUCK = played("endless", stuck=True)
LOOK = "run; check-job; check-job"
VALIDATE = "validate-setup --bucket results"
THEIRS = [another("ssp", "Running"), another("ssp-test-abcde", "Running", **{"dsgd-lab/test-of": "ssp"})]
HOLDS, FALSE = "idle_share is 0.7, at least 0.6: holds", "batch_s is 2, at most 1: does not hold with ssp (2)"
OVERLAY = "kubectl apply --server-side -k"
OLD = {"kind": "RayJob", "reason": "InvalidRayJobSpec", "message": "an old one",
       "lastTimestamp": "2026-11-20T09:00:00Z"}  # fmt: skip

SITUATIONS = [
    # --- tests
    Case("a crash shows the driver's last lines", played("driver-crash"), "test-cluster", 1, {"job": []},
         says=["the driver's last lines:", "    main.py: worker 1 died: CUDA driver"]),
    Case("the quota is the reason, even if the operator gave up first",
         played("quota", frames=[scenario("quota")["frames"][-1] | {"job": "failed", "status": TOO_LATE}]),
         "test-quick", 1,
         {"pods": ["exceeded quota: gpus",
                   "the job is over: Failed, FAILED (PreRunningDeadlineExceeded: too late)"]}),
    Case("it is fast enough", played("short", last={"runs": [a_run(samples=9000, **BOTH_S)]}), "perf-test", 0,
         checks={"performance": "pass ssp-s0: 1800 samples/s, 450 samples/s a GPU, 25% idle"}),
    Case("a real job and another's test are left alone", {"others": [*THEIRS, another("asgd", "Running")]},
         "test-quick", 2, never=["is applied"],
         says=["active: ssp (Running), ssp-test-abcde (Running); a test of ssp leaves it alone"]),
    Case("with --yes the test runs beside them", {"others": THEIRS}, "test-quick --yes", 0),
    Case("a job that is over shares no nodes", {"others": [another("ssp", "Complete")]}, "test-quick", 0),
    Case("nothing is cleaned up where nothing was applied", setup(namespaces=[]), "test-quick", 2,
         says=['namespaces "ray-jobs" not found', OVERLAY], never=["cleaning up"]),
    Case("an API server is away for a moment", {"away": (2, 6)}, "test-quick", 0),
    Case("an API server forgets RayJobs for a moment", {"forgets": (2, 9)}, "test-quick", 0),
    Case("an API server starts again while a test cleans up",
         {"after_delete": True, "away": (1, 4), "forgets": (4, 8)}, "test-quick", 0),
    Case("a clean-up that gets no answer says so", {"after_delete": True, "away": (1, 10**6)}, "test-quick",
         1, says=["in 0.2 s the cluster has not confirmed it", "its pods may run on; run: kubectl delete"],
         limits={"gone_s": 0.2}),
    Case("a short silence of the cluster fails no test", {"errors": [SILENT | {"to": 5}]}, "test-quick", 0),
    Case("a long silence does", {"errors": [SILENT]}, "test-quick", 2, says=["was refused"],
         limits={"silence_s": 0.3}),
    Case("the cluster is validated before a test", setup(operator=None), "test-cluster --bucket results", 2,
         says=["the cluster is not ready: operator: there is no KubeRay operator"], never=["is applied"]),
    Case("a premise is of a whole job", said_of_premises(FALSE), "test-cluster", 0, never=["premise"]),
    Case("a test needs no events", setup(refused=["list events"]), "test-quick", 0,
         says=['cannot list resource "events"']),
    # --- one look
    Case("a job that is not there", {}, "check-job", 1, says=["is not there; make run JOB=ssp"]),
    Case("a job that runs", {}, "run; check-job", 0, says=["nothing has failed so far"]),
    Case("a job that has passed", frames("success", -1), "run; check-job", 0, says=["RayJob ssp passed"],
         checks={"record": "pass s3://"}, never=["$"]),
    Case("a job that has failed", frames("driver-crash", -1), "run; check-job", 1,
         {"job": []}, says=["FAILED: ", "main.py: worker 1 died"]),
    Case("what one look shows", played("endless"), "run; check-job", 0,
         says=["started 2026-11-20T10:00:04Z",
               "ssp-x1k2p-head-svc.ray-jobs.svc.cluster.local:8265 (inside the cluster)",
               "RayClusterProvisioned True since 2026-11-20T10:01:00Z (AllPodRunningAndReadyFirstTime",
               "ssp-x1k2p-workers-worker-3: CPU 50%, memory 3.0 GiB, GPU 80%, GPU memory 4.0 GiB"]),
    Case("an event of an earlier job", played("no-operator", events=[OLD]), "run; check-job", 0,
         never=["an old one"]),
    Case("an event of an earlier job is not listed", played("no-operator", events=[OLD]), "run; debug-events",
         0, never=["an old one"]),
    Case("nobody has taken it up yet", played("no-operator"), "run; check-job", 0,
         says=["nothing has failed so far"]),
    Case("nobody takes it up", played("no-operator", applied_ago_s=31), "run; check-job", 1,
         {"pods": [], "job": ["no KubeRay operator has taken the job up: make validate-setup"]}),
    Case("it is being deleted", STUCK, "run; check-job; stop; check-job", 1,
         {"job": ["is being deleted since 2026-11-20T10:05:00Z",
                  "waits for the finalizer ray.io/rayjob-finalizer of its operator"]},
         limits={"gone_s": 0.1}),
    Case("its operator refused it", played("invalid"), "run; monitor-pods; check-job", 1, {"job": [INVALID]}),
    Case("without the driver's log NCCL is not known", played("short", last={"submitter": None}), LOOK, 1,
         checks={"nccl": "open there is no driver's log"}),
    Case("without a node's log NCCL is not known", played("short", last={"workers": ["running"] * 3}), LOOK,
         1, checks={"nccl": "open 4 of 5 logs of head and workers were read"}),
    Case("between two tries it has an operator",
         played("short", frames=[RUNNING | {"job": "initializing", "head": None, "workers": [],
                                            "submitter": None, "status": TRIED}]),
         "run; check-job", 1, {"restarts": ["tried again 1 times"]}, never=["no KubeRay operator"]),
    Case("it is tried for the third time", played("short", frames=[RUNNING | {"status": {"failed": 2}}]),
         "run; check-job", 1, {"restarts": ["the job failed, and was tried again 2 times"]},
         says=["Running, RUNNING; try 3"]),
    Case("it passed at the second try", played("short", last={"status": {"failed": 1}}), LOOK, 1,
         {"restarts": ["the job failed, and was tried again 1 times"]}),
    Case("it failed at its only try", played("driver-crash", last={"status": {"failed": 1}}),
         "run; monitor-pods; check-job", 1, {"job": []}),
    Case("no premise", said_of_premises(), "run; monitor-pods; check-job", 0,
         checks={"premise": "pass none is stated"}),
    Case("a premise that held", said_of_premises(HOLDS), "run; monitor-pods; check-job", 0,
         checks={"premise": f"pass {HOLDS}"}),
    Case("a premise that did not hold", said_of_premises(HOLDS, FALSE), "run; monitor-pods; check-job", 1,
         {"premise": [FALSE]}),
    # --- other commands
    Case("pods are watched for as long as one says", played("endless"), "run; monitor-pods --duration 0.2", 0,
         says=["0.2 s are over; RayJob ssp goes on"]),
    Case("nobody watches a job that was refused", played("invalid"), "run; monitor-pods", 0,
         says=[f"RayJob ssp: {INVALID}"]),
    Case("a job that was refused has no driver's log", played("invalid"), "run; monitor-pods; logs-follow", 1,
         says=[INVALID], never=["gone"]),
    Case("a job that was refused has no pods", played("invalid"), "run; monitor-pods; logs-all", 1,
         says=[INVALID], never=["gone"]),
    Case("a job that is stopped is gone", {}, "run; stop", 0, says=["RayJob ssp is gone\n"]),
    Case("there is none to stop", {}, "stop", 0, says=["there is no RayJob ssp\n"]),
    Case("a finalizer that stays is named", STUCK, "run; check-job; stop", 1,
         says=["finalizer ray.io/rayjob-finalizer"], limits={"gone_s": 0.1}),
    Case("who may not exec gets the logs", frames("short", -1) | setup(refused=["create pods/exec"]),
         "run; logs-all", 1,
         says=["Ray runtime started", "=== ssp-x1k2p-workers-worker-3\n",
               "the log of Ray's workers in ssp-x1k2p-head cannot be read: kubectl, context standin: pods is "
               "forbidden"]),
    Case("who may not list events learns what is missing", played("no-gpu") | setup(refused=["list events"]),
         LOOK, 0, says=["without events the reason", "no GPU is free: FailedScheduling"]),
    Case("debug-events needs events", played("no-gpu") | setup(refused=["list events"]),
         "run; debug-events", 2, says=["ask for a role that allows it"]),
    *(Case(f"{command} in a namespace that is not there", {}, f"{command} --namespace defautl --yes", 2,
           says=['namespaces "defautl" not found'])
      for command in ("stop", "check-job", "test-status", "monitor-pods", "logs-all", "debug-events")),
    *(Case(f"{command} of a job that is not there", {}, command, 1, says=["there is no RayJob ssp"])
      for command in ("logs-follow", "logs-all", "monitor-pods", "debug-describe")),
    *(Case(f"{command} asks before it changes another namespace", {}, f"{command} --namespace production", 2,
           says=[f"{command} would change namespace production of context standin, not ray-jobs; give --yes"],
           never=["is applied", "is gone"])
      for command in ("run", "stop", "test-quick", "test-cluster")),
    Case("another namespace is changed by --yes", setup(namespaces=["mine"]),
         "run --namespace mine --yes; check-job --namespace mine", 0, says=["namespace mine\n"]),
    Case("no context", {"context": None}, "test-cluster", 2,
         says=["current-context is not set; choose a cluster"]),
    # --- the cluster's set-up
    Case("a cluster that is not there", {"errors": [{"call": "--context", "stderr": REFUSED}]}, VALIDATE, 2,
         says=["10.0.0.1:443 was refused"]),
    Case("rights to a part of pods", setup(refused=["create pods/exec", "patch rayjobs"]), VALIDATE, 1,
         {"rights": ["you may not patch rayjobs.ray.io, create pods/exec in namespace ray-jobs"]}),
    Case("a user of the namespace alone", setup(refused=NAMESPACE_ONLY), VALIDATE, 0,
         checks={"crd": "pass rayjobs.ray.io v1, with preRunningDeadlineSeconds",
                 "gpus": 'note not known: kubectl, context standin: nodes is forbidden: User "eve" cannot',
                 **{name: "note" for name in ("operator", "room", "namespace", "quota", "account", "monitor",
                                              "image", "bucket")}}),
    Case("a user of the namespace alone, and an older CRD", setup(refused=NAMESPACE_ONLY, crd=OLDER_CRD),
         VALIDATE, 1, {"crd": ["older than KubeRay 1.7"]}),
    Case("things are missing",
         setup(crd=None, operator=None, nodes=NODES[:1], namespaces=[], serviceaccounts=[],
               refused=["create pods/exec"]),
         VALIDATE, 1,
         {"crd": ['"rayjobs.ray.io" not found', "install KubeRay 1.7"],
          "operator": ["no KubeRay operator"],
          "gpus": ["no GPU node", "nvidia.com/gpu", "asks for 4", "--device cpu"],
          "room": ["no node that the worker may go to"],
          "namespace": ['namespaces "ray-jobs" not found', OVERLAY],
          "account": ["no serviceaccount ray-jobs", OVERLAY],
          "rights": ["you may not create pods/exec"]}),
    Case("things are old",
         setup(crd=OLDER_CRD, operator=changed(OPERATOR, "v1.7.0", "v1.6.1"),
               nodes=changed(NODES, '"4"', '"3"'), quotas=QUOTA("2")),
         VALIDATE, 1,
         {"crd": ["no preRunningDeadlineSeconds", "older than KubeRay 1.7"],
          "operator": ["KubeRay 1.6", "1.7 or newer"],
          "gpus": ["3 on 1 nodes", "asks for 4"],
          "quota": ["quota gpus allows 2 requests.nvidia.com/gpu", "asks for 4"]}),
    Case("things do not serve", setup(crd=NO_V1, operator=OPERATOR | {"status": {}}, nodes=NO_PLUGIN),
         VALIDATE, 1,
         {"crd": ["serves v1alpha1, v1 is needed"],
          "operator": ["no replica that is available"],
          "gpus": ["node node-gpu-0 is marked as one with GPUs and offers no nvidia.com/gpu",
                   "device plugin"],
          "room": ["no node that the head may go to has 2 CPUs and 8 GiB"]}),
    Case("nodes from zero, a quota in use, no Prometheus operator",
         setup(nodes=NODES[:1], autoscaler=AUTOSCALER, quotas=QUOTA("8", "6"), podmonitors=None), VALIDATE, 0,
         checks={"gpus": "note no GPU node", "room": "note no node that the worker",
                 "quota": "note quota gpus has 2 of 8 requests.nvidia.com/gpu left, ray-job-ssp.yaml asks",
                 "monitor": "note kubectl, context standin: the server doesn't have a resource type"},
         says=["karpenter may add", "run without it"]),
    Case("GPUs are taken, nobody scrapes heads", setup(pods=[TAKEN], podmonitors=MONITORS[1:]), VALIDATE, 0,
         checks={"monitor": "note no PodMonitor scrapes port driver"}, says=["only 1 are free now"]),
]  # fmt: skip


@each(SITUATIONS)
def test_each_command_does_what_it_must_in_each_situation(tools: Tools, case: Case) -> None:
    tools.performance = {"ssp": {"ssp": FAST}}
    tools.validates = "--bucket" in case.commands
    held(tools, case)


# --- tests: what passes, names, clean-up


def test_a_job_that_does_what_it_should_passes_every_check_and_is_cleaned_up(tools_apart: Tools) -> None:
    ran = tools_apart("test-cluster", "--job", "compare-modes")
    assert ran.code == 0, ran.out + ran.err
    assert [name for name, (state, _) in ran.checks.items() if state == "pass"] == [*CHECKS, *CRITERIA]
    assert ran.checks["pods"][1].startswith("5 of 5 ran")
    assert "ssp-s0 2.31 to 0.24" in ran.checks["loss"][1]
    assert "ssp-s0: 21 of at most 49" in ran.checks["staleness"][1]
    assert "asgd-s0: no bound" in ran.checks["staleness"][1]
    assert ran.out.splitlines()[0] == "context standin, namespace ray-jobs"
    assert "test-cluster compare-modes: passed" in ran.out
    assert tools_apart.cleaned_up


def test_a_quick_test_ends_with_the_first_updates_and_is_cleaned_up(tools: Tools) -> None:
    ran = tools("test-quick")
    assert ran.code == 0, ran.out + ran.err
    assert list(ran.checks) == ["pods", "updates", "restarts", "nccl"]
    assert ran.checks["updates"][1].startswith("8 in 1 runs")
    assert (
        json.loads((tools.state / "state.json").read_text())["frame"] == 4
    )  # of 6: it did not wait for the end
    assert tools.cleaned_up


def test_a_job_that_runs_is_replaced_only_by_those_who_say_yes(tools: Tools) -> None:
    """`run` deletes exactly the RayJob that it saw, with all that belongs to it, and applies it anew."""
    assert tools("run").code == 0
    applied = json.loads((tools.state / "state.json").read_text())["job"]
    assert applied == yaml.safe_load((tools.project / "ray-job-ssp.yaml").read_text())
    again = tools("run")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "RayJob ssp is active (not yet taken up by the operator)" in again.err
    assert "run would end it; give --yes" in again.err
    assert [verb for verb in tools.verbs if verb in ("apply", "delete")] == ["apply"]
    again = tools("run", "--yes")
    assert again.code == 0
    assert "an earlier RayJob ssp was deleted" in again.out
    (delete,) = (call for call in tools.calls if call[0] == "delete")
    assert delete[1:3] == ["--raw", "/apis/ray.io/v1/namespaces/ray-jobs/rayjobs/ssp"]
    assert [verb for verb in tools.verbs if verb in ("apply", "delete")] == ["apply", "delete", "apply"]


def test_a_test_has_a_name_that_no_other_job_has_and_deadlines_of_its_length(tools: Tools) -> None:
    """It meets neither the job nor another test, and says whose it is; it ends soon without a clean-up."""
    limits = read_thresholds(DEFAULT).limits
    tested = [read_job("compare-localsgd").for_a_test(limits, "test-quick") for _ in range(2)]
    first, second = (one.ray_job for one in tested)
    assert first != second
    for name in (first, second):
        assert re.fullmatch(r"compare-localsgd-test-[a-z0-9]{5}", name)
    labels = tested[0].manifest["metadata"]["labels"]
    assert (labels["dsgd-lab/test-of"], labels["dsgd-lab/command"]) == ("compare-localsgd", "test-quick")
    assert re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", labels["dsgd-lab/owner"])
    spec = tested[0].manifest["spec"]
    assert re.search(r"/cluster-tests/\d{8}-\d{6} --set max_seconds=[\d.]+$", spec["entrypoint"])
    of_four = read_job("compare-modes").for_a_test(limits).entrypoint
    assert of_four.endswith(f" --set max_seconds={limits.runs_s / 4:g}")
    assert "--set seeds=1 --out s3://" in spec["entrypoint"]
    assert read_job("ssp").for_a_test(limits).entrypoint.endswith(f" --max-seconds {limits.runs_s:g}")
    assert spec["preRunningDeadlineSeconds"] == limits.pods_running_s < spec["activeDeadlineSeconds"]
    assert spec["activeDeadlineSeconds"] == (
        limits.pods_running_s + limits.first_update_s + limits.job_over_s + limits.gone_s
    )
    assert read_job("compare-localsgd").for_a_test(limits).manifest["spec"].keys() == spec.keys()


def test_only_the_object_that_was_seen_is_deleted(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a later RayJob has the name by now, it stays, and nobody is harmed."""
    tools.play({"based_on": "success", "others": [another("ssp", "Running")]})
    kubectl = tools.kubectl(monkeypatch)
    seen = kubectl.job("ssp")
    assert seen
    earlier = RayJob({**seen.json, "metadata": {**seen.json["metadata"], "uid": "uid-of-an-earlier-one"}})
    assert not kubectl.ask_to_delete(earlier)
    assert kubectl.job("ssp") == seen
    assert not delete(kubectl, "ssp", uid="uid-of-an-earlier-one", limit_s=1, poll_s=0.001)
    assert kubectl.ask_to_delete(seen)
    assert kubectl.job("ssp") is None


DRAWN = [("compare-modes", mode) for mode in ("ssgd", "localsgd", "ssp", "asgd")]
DRAWN += [(mode, mode) for _, mode in DRAWN]


@pytest.mark.crossing(one_in=2)
@pytest.mark.parametrize(("job", "mode"), DRAWN)
def test_the_shipped_thresholds_are_what_the_simulator_says_can_be_had(
    cli: CommandLine, tmp_path: Path, job: str, mode: str
) -> None:
    """Without overhead, each mode of a job that draws compute times is above its threshold, but less than
    twice.
    """
    (cfg,) = (
        cfg for cfg in read_job(job).for_a_test(read_thresholds(DEFAULT).limits).configs if cfg.mode == mode
    )
    threshold = read_thresholds(DEFAULT).performance[job][mode]
    virtual = {name: value for name, value in options(cfg).items() if value is not None} | {
        "engine": "sim",
        "workload": "none",  # the times are the same, whatever is learned
    }
    for name in (
        *option_fields(OutputConfig),
        *option_fields(LiveConfig),
        *option_fields(LogConfig),
        *option_fields(RayConfig),
        "batch_size",
        "checkpoint_every",
        "target_loss",
        "workload",
        *(virtual.keys() - option_fields(type(config(mode))).keys()),  # those of the workload
    ):
        virtual.pop(name, None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(virtual))
    ran = cli(f"--config {tmp_path}/config.yaml --record none")
    assert ran.code == 0, ran.err
    busy_s = sum(worker["busy_s"] for worker in ran.summary["workers"].values())
    samples_per_s = ran.summary["gradients"] * cfg.batch_size / ran.summary["clock_s"]
    assert threshold.samples_per_s_min
    assert threshold.idle_share_max
    assert 1 < samples_per_s / threshold.samples_per_s_min < 2
    assert 1 - busy_s / (cfg.num_workers * ran.summary["clock_s"]) < threshold.idle_share_max


@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signal_in_the_middle_ends_the_test_after_cleaning_up(
    tools_apart: Tools, which: signal.Signals
) -> None:
    tools_apart.play({"based_on": "endless"})
    # Whatever these tests were started with: under nohup, SIGHUP is ignored on purpose.
    process = tools_apart.start("test-cluster", preexec_fn=lambda: signal.signal(which, signal.SIG_DFL))
    wait_for(lambda: "exec" in tools_apart.verbs)
    process.send_signal(which)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert err == "deploy.jobs: interrupted\n"
    assert tools_apart.cleaned_up


def test_a_ctrl_c_that_a_destructor_swallows_ends_the_test_all_the_same(
    tools: ToolsHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python prints what is raised there, and goes on."""

    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Evidence, "sample", lambda *_: [Swallows()].clear())
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    tools.play(played("endless"))
    assert tools("test-cluster").code == 130
    assert tools.cleaned_up


def test_a_second_ctrl_c_does_not_cut_the_clean_up_short(tools_apart: Tools) -> None:
    slow = {"call": "delete", "hang_s": 0.5}
    tools_apart.play({"based_on": "endless", "errors": [slow]})
    process = tools_apart.start("test-cluster")
    wait_for(lambda: "exec" in tools_apart.verbs)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    wait_for(lambda: tools_apart.verbs.count("delete") == 1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert tools_apart.cleaned_up


def test_a_reader_that_goes_away_does_not_prevent_the_clean_up(tools_apart: Tools) -> None:
    tools_apart.play({"based_on": "endless"})
    tools_apart.limit(job_over_s=1)
    process = tools_apart.start("test-cluster")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    process.stdout = None
    process.wait(timeout=PATIENCE_S)
    assert process.returncode
    assert tools_apart.cleaned_up


def test_a_clean_up_that_fails_says_what_is_left_and_what_to_run(tools: Tools) -> None:
    """An operator that is gone leaves its finalizer: it is named, with the patch that frees the job."""
    tools.play({"based_on": "success", "stuck": True})
    tools.limit(gone_s=0.2)
    ran = tools("test-quick")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "could not be cleaned up" in ran.err
    assert re.search(r"RayJob ssp-test-\w{5} and 6 pods \(.*-head, .*\) is not gone after 0.2 s", ran.err)
    assert "is the KubeRay operator running?" in ran.err
    assert "finalizer ray.io/rayjob-finalizer" in ran.err
    assert """ --type merge --patch '{"metadata":{"finalizers":null}}' frees it""" in ran.err
    last = r"run: kubectl delete --context standin --namespace ray-jobs rayjob ssp-test-\w{5}$"
    assert re.search(last, ran.err.rstrip())


# --- set-up


def refused(*lines: str) -> str:
    """Return what kubectl says, its own log lines included."""
    noise = 'E1120 10:00:00.000000   77 memcache.go:265] "Unhandled Error" err="couldn\'t get API group list"'
    return "\n".join([noise, noise, *lines])


UNREADY = {  # what kubectl says, and what is left of it
    "the cluster refuses connections": (refused(REFUSED), ["10.0.0.1:443 was refused", "check its address"]),
    "the cluster's name is unknown": (
        refused("Unable to connect to the server: dial tcp: lookup eks.test on 10.0.0.2:53: no such host"),
        ["lookup eks.test on 10.0.0.2:53: no such host; check its address"]),
    "the cluster does not answer": (
        refused("Unable to connect to the server: net/http: TLS handshake timeout"),
        ["net/http: TLS handshake timeout; check its address, the network"]),
    "the cluster hangs up": (refused("Unable to connect to the server: EOF"), ["EOF; check its address"]),
    "the credentials are old": (
        refused("error: You must be logged in to the server (the server has asked for the client to provide "
                "credentials)"),
        ["log in to the cluster again"]),
    "there is no CRD": (
        refused('error: the server doesn\'t have a resource type "rayjobs"'),
        ['resource type "rayjobs"', "install KubeRay 1.7"]),
    "the CRD is older": (
        'Error from server (BadRequest): error when creating "STDIN": RayJob in version "v1" cannot be '
        'handled as a RayJob: strict decoding error: unknown field "spec.preRunningDeadlineSeconds"',
        ['unknown field "spec.preRunningDeadlineSeconds"', "older than KubeRay 1.7"]),
    "the CRD has no v1": (
        'error: resource mapping not found for name: "x" namespace: "y" from "STDIN": no matches for kind '
        '"RayJob" in version "ray.io/v1"\nensure CRDs are installed first',
        ['no matches for kind "RayJob" in version "ray.io/v1"', "install KubeRay 1.7"]),
    "the user may not": (
        'Error from server (Forbidden): rayjobs.ray.io is forbidden: User "eve" cannot list resource '
        '"rayjobs" in API group "ray.io" in the namespace "ray-jobs"',
        ['User "eve" cannot list resource "rayjobs"', "ask for a role"]),
    "the namespace is not there": (
        'Error from server (NotFound): error when creating "STDIN": namespaces "ray-jobs" not found',
        ['namespaces "ray-jobs" not found', "--namespace", "kubectl apply --server-side -k"]),
}  # fmt: skip


def test_what_a_quota_or_a_webhook_refuses_needs_no_other_role() -> None:
    """It is kubectl's own line, without a remedy for something else."""
    for why in ("exceeded quota: one-job, requested: count/rayjobs.ray.io=1", "the timeout must be below 60"):
        said = f'error when creating "STDIN": rayjobs.ray.io "ssp" is forbidden: {why}'
        found = explain(f"Error from server (Forbidden): {said}", "lab")
        assert (type(found), str(found)) == (KubectlError, f"kubectl, context lab: {said}")


@pytest.mark.parametrize("case", UNREADY)
def test_a_set_up_that_is_not_ready_is_told_in_one_line_with_the_remedy(case: str) -> None:
    stderr, words = UNREADY[case]
    found = explain(stderr, "lab")
    assert isinstance(found, SetupError)
    assert re.fullmatch("kubectl, context lab: .*", str(found))
    assert "E1120" not in str(found)
    assert [word for word in words if word not in str(found)] == []


@pytest.mark.parametrize(
    ("command", "case", "call"),
    [
        ("test-quick", "the cluster refuses connections", ""),
        ("test-quick", "there is no CRD", "get"),
        ("test-quick", "the CRD is older", "apply"),
        ("stop", "the cluster refuses connections", "get"),
        ("stop", "the credentials are old", "get"),
        ("stop", "there is no CRD", "get"),
    ],
)
def test_a_set_up_that_is_not_ready_ends_a_command_with_exit_code_2(
    tools: Tools, command: str, case: str, call: str
) -> None:
    """At once: where nothing answers, or the user may not look, nothing is waited for."""
    stderr, words = UNREADY[case]
    tools.play({"based_on": "success", "errors": [{"call": f"{call} --context".strip(), "stderr": stderr}]})
    ran = tools(command)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert [word for word in words if word not in ran.err] == []
    assert command != "stop" or tools.verbs == ["config", "get"]


def test_a_cluster_that_hangs_is_left_after_the_calls_time_limit(
    tools_apart: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools_apart.play({"based_on": "success", "errors": [{"call": "version", "hang_s": 30}]})
    with pytest.raises(Unreachable, match=r"did not answer kubectl version within 0.3 s"):
        tools_apart.kubectl(monkeypatch)("version", timeout_s=0.3)


def test_without_kubectl_one_line_says_so(tools: Tools, tmp_path: Path) -> None:
    ran = tools("test-cluster", PATH=str(tmp_path))
    assert (ran.code, ran.err) == (
        2,
        "deploy.jobs: no kubectl on the PATH: install it, then give it your cluster's context\n",
    )


def test_the_context_is_looked_up_once_and_named_in_every_call(tools: Tools) -> None:
    tools("test-quick")
    calls = [json.loads(line) for line in (tools.state / "calls.jsonl").read_text().splitlines()]
    assert calls[0] == ["config", "current-context"]
    assert {tuple(call[1:5]) for call in calls[1:]} == {("--context", "standin", "--namespace", "ray-jobs")}


USAGE = [
    (["frobnicate"], ["frobnicate", "--help"]),
    ([], ["COMMAND"]),
    (["run", "--jobs", "x"], ["--jobs"]),
    (["check-job", "--poll-s", "-1"], ["--poll-s -1", "(0, 60]"]),
    (["check-job", "--job", "nope"], ["--job nope", "ray-job-nope.yaml", "compare-modes"]),
    (["check-job", "--thresholds", "nowhere.yaml"], ["--thresholds nowhere.yaml", "cannot be read"]),
    (["perf-test", "--job", "stragglers"], ["--job stragglers", "no thresholds"]),
]


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=lambda value: " ".join(value))
def test_a_mistake_on_the_command_line_is_told_in_one_line(
    tools: ToolsHere, capfd: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    code = main(arguments)
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    for word in words:
        assert word in err
    assert tools.calls == []


def thresholds(runs_s: float = 1, **performance: Any) -> str:
    return yaml.safe_dump({"limits": PATIENT | {"runs_s": runs_s}, "performance": performance})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("limits: {pods_running_s: 5}\nperformance: {}", "limits: needs taken_up_s:"),
        (thresholds(runs_s=-1), "limits: runs_s: must be a number > 0.0, not -1"),
        (thresholds(ssp={"ssp": {"fast": 1}}), "performance: ssp: ssp: there is no key fast; "),
        (
            thresholds(ssp={"ssp": {}}),
            "ssp: ssp: needs one of samples_per_s_min, samples_per_s_per_gpu_min",
        ),
        (
            f"{thresholds()}criteria: {{all: {{gpu_share_min: 2}}}}",
            "criteria: all: gpu_share_min: must be a number",
        ),
        (f"{thresholds()}criteria: {{ssp: {{gpu_shar: 1}}}}", "criteria: ssp: there is no key gpu_shar"),
        ("limits: [", "is not YAML (line "),
        ("", "describes the file"),
    ],
)
def test_a_mistake_in_the_thresholds_is_told_in_one_line(tools: Tools, content: str, words: str) -> None:
    tools.thresholds.write_text(content)
    ran = tools("check-job")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert words in ran.err
    assert tools.calls == []


@pytest.mark.parametrize(
    ("answer", "verbs"),
    [("y\n", ["config", "get", "get"]), ("n\n", ["config"]), ("\n", ["config"]), ("\x04", ["config"])],
    ids=["y", "n", "nothing", "ctrl-D"],
)
def test_at_a_terminal_another_namespace_is_asked_for(
    tools_apart: Tools, answer: str, verbs: list[str]
) -> None:
    tools_apart.play({"based_on": "success", "setup": {"namespaces": ["mine"]}})
    ours, theirs = pty.openpty()
    process = tools_apart.start("stop", "--namespace", "mine", stdin=theirs)
    os.write(ours, answer.encode())
    out, _ = process.communicate(timeout=PATIENCE_S)
    for end in (ours, theirs):
        os.close(end)
    assert "stop would change namespace mine of context standin, not ray-jobs. Go on? [y/N]" in out
    assert tools_apart.verbs == verbs
    assert process.returncode == (0 if "get" in verbs else 2)


# --- manifests


def test_a_manifest_that_was_edited_or_has_no_bucket_is_not_applied(tmp_path: Path, project: Path) -> None:
    copy = tmp_path / "project"
    shutil.copytree(project, copy)
    tools, manifest = Tools(copy, tmp_path), copy / "ray-job-ssp.yaml"
    text = manifest.read_text()
    manifest.write_text(text.replace("activeDeadlineSeconds: 3600", "activeDeadlineSeconds: 36000"))
    ran = tools("run")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert re.search(r"ray-job-ssp.yaml, line .*36000.*make manifests", ran.err)
    assert run_module(copy, "deploy.manifests", "--bucket", "BUCKET").returncode == 0
    ran = tools("run")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert re.search(r"ray-job-ssp.yaml: has no bucket.*BUCKET=NAME", ran.err)
    assert tools.verbs == ["config", "config"]


def test_files_tools_and_manifests_are_checked_without_a_cluster(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.play({"based_on": "success", "context": None})
    monkeypatch.setattr(JobManifest, "has_bucket", False)
    ran = tools("validate-framework")
    assert ran.code == 0, ran.out + ran.err
    assert {"files", "kubectl", "rendered", "thresholds", "ssp", "compare-modes", "settings"} < set(
        ran.checks
    )
    assert ran.checks["ssp"] == ("pass", "1 runs (ssp), 4 workers, 4 GPUs")
    assert ran.checks["settings"][0] == "note"
    assert "BUCKET=NAME" in ran.checks["settings"][1]
    assert set(tools.verbs) == {"version", "kustomize"}


def test_without_kubectl_the_framework_is_not_in_order(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.jobs.validate.job_names", lambda: ["ssp"])
    ran = tools("validate-framework", PATH=str(tmp_path))
    assert ran.code == 1
    assert "install it" in ran.failed["kubectl"]


# --- the cluster's set-up


def test_a_cluster_with_all_that_a_job_needs_is_valid(tools: Tools) -> None:
    """What cannot be known from here is a note: the image of no registry, a bucket without credentials."""
    ran = tools("validate-setup", "--bucket", "results")
    assert ran.code == 0, ran.out + ran.err
    assert " ".join(ran.checks) == (
        "cluster crd operator gpus room namespace quota account monitor image bucket rights"
    )
    notes = {name: detail for name, (state, detail) in ran.checks.items() if state == "note"}
    assert notes.keys() == {"image", "bucket"}
    assert "names no registry" in notes["image"]
    assert "no credentials here; --probe asks in the cluster" in notes["bucket"]
    assert "4 on 1 nodes, ray-job-ssp.yaml asks for 4, 4 are free" in ran.checks["gpus"][1]
    sizes = ran.checks["room"][1]
    assert sizes.startswith(
        "head (2 CPUs and 8 GiB, 10 GiB of disk) fits on 1 nodes, worker (3 CPUs and 12 GiB"
    )
    asked = ran.checks["rights"][1]
    for right in ("get rayjobs", "list rayjobs", "watch rayjobs", "patch rayjobs", "create pods/exec"):
        assert right in asked


def test_a_right_to_a_part_of_pods_is_asked_for_as_such(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`can-i create pods/exec` would ask about a pod named exec: who may only make pods must not pass."""
    tools.play(played("success", setup={"refused": ["create pods", "get pods"]}))
    kubectl = tools.kubectl(monkeypatch)
    assert kubectl.may("create", "pods/exec")
    assert not kubectl.may("create", "pods")


def test_a_probe_pulls_the_image_and_uses_the_bucket_as_the_jobs_account(tools: Tools) -> None:
    """A pod with the head's image and account writes, reads and deletes; it is gone afterwards."""
    ran = tools("validate-setup", "--bucket", "results", "--probe")
    assert ran.code == 0, ran.out + ran.err
    assert "service account ray-jobs: written, read and deleted: s3://results/" in ran.checks["probe"][1]
    pod = probe_manifest(read_job("ssp", bucket="results"))
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "ray-jobs"
    assert spec["containers"][0]["command"][:2] == ["python", "-c"]
    assert spec["containers"][0]["command"][3] == "results"
    assert spec["containers"][0]["envFrom"]
    assert "lifecycle" not in spec["containers"][0]
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    stuck = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    tools.play({"based_on": "success", "setup": {"probe": stuck}})
    state, detail = probe(Kubectl("ray-jobs"), read_job("ssp"), limit_s=60, poll_s=0.001)
    assert state == "fail"
    assert "image dsgd-lab:" in detail
    assert "cannot be pulled (ImagePullBackOff): not found" in detail
    assert json.loads((tools.state / "state.json").read_text())["pod"] is None


# --- looking


def test_the_status_is_json_as_its_schema_says(tools: Tools) -> None:
    schema = json.loads((ROOT / "deploy/jobs/status.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    tools.play({"based_on": "success", "frames": scenario("success")["frames"][1:]})
    verdicts = []
    for step in ("absent", "waiting", "running", "over"):
        if step == "waiting":
            assert tools("run").code == 0
        if step == "over":
            frames = scenario("success")["frames"]
            (tools.state / "scenario.json").write_text(json.dumps(based({"frames": frames[-1:]})))
        ran = tools("test-status")
        content = json.loads(ran.out)
        jsonschema.validate(content, schema)
        verdicts.append((content["verdict"], ran.code))
    assert verdicts == [("absent", 1), ("running", 0), ("running", 0), ("passed", 0)]
    assert [check["name"] for check in content["checks"]] == [*CHECKS, "premise"]
    assert content["runs"][2]["staleness_max"] == 21
    assert {pod["role"] for pod in content["pods"]} == {"head", "worker", "submitter"}
    assert abs(datetime.now(UTC) - datetime.fromisoformat(content["timestamp"])) < timedelta(minutes=5)
    tools.play(played("endless"))
    tools("run")
    content = json.loads(tools("check-job", "--json").out)
    assert content["status"]["head_address"].endswith(":8265")
    assert content["pods"][0]["usage"] == {
        **{"cpu_share": 0.125, "memory_bytes": 2 * 2**30, "memory_share": 0.25},
        **dict.fromkeys(("gpu_share", "gpu_memory_bytes", "gpu_memory_share", "received_bytes_per_s")),
        "sent_bytes_per_s": 8e7,
    }
    assert content["status"]["conditions"][1] == {
        **{"type": "RayClusterProvisioned", "status": "True", "reason": "AllPodRunningAndReadyFirstTime"},
        **{"message": "All Ray Pods are ready for the first time", "since": "2026-11-20T10:01:00Z"},
    }


def test_pods_are_shown_as_they_change_until_the_job_is_over(tools: Tools) -> None:
    tools("run")
    ran = tools("monitor-pods")
    assert ran.code == 0
    said = [line[10:] for line in ran.out.splitlines()[1:]]
    assert said[0] == "RayJob ssp: not yet taken up by the operator"
    assert said[-1].startswith("ssp-s7q4z  Succeeded")
    assert any("FailedScheduling" in line for line in said)
    assert len(said) == len(set(said))  # nothing is said twice


def test_logs_events_and_descriptions_are_shown(tools: Tools) -> None:
    tools("run")
    followed = tools("logs-follow")  # waits for the driver
    assert followed.code == 0
    assert "no driver yet: Initializing; 0 of 5 pods run" in followed.out
    tools("monitor-pods")  # until the job is over
    shown = tools("logs-all").out
    assert "=== driver\n" in shown
    assert "=== ssp-x1k2p-workers-worker-3\n" in shown
    assert "Ray runtime started" in shown
    described = tools("debug-describe").out
    assert "=== rayjobs.ray.io/ssp\nName:         ssp" in described
    assert "=== rayclusters.ray.io/ssp-x1k2p\n" in described
    assert described.count("=== pods/") == 6
    tools.play({"based_on": "no-gpu", "frames": scenario("no-gpu")["frames"][1:]})
    tools("run")
    events = tools("debug-events")
    assert events.code == 0
    assert events.out.count("FailedScheduling: 0/3 nodes are available") == 4
    assert "(3 times)" in events.out
    assert "other-abc" not in events.out


def test_a_test_s_result_is_json_too(tools: Tools) -> None:
    """JSON is alone on standard output; what people read meanwhile goes to the other one."""
    ran = tools("test-quick", "--json")
    content = json.loads(ran.out)
    assert (content["command"], content["job"], content["verdict"], ran.code) == (
        "test-quick",
        "ssp",
        "passed",
        0,
    )
    assert [check["name"] for check in content["checks"]] == ["pods", "updates", "restarts", "nccl"]
    assert "is applied" in ran.err


# --- true shapes: what the stand-in plays and what the tools read is what the real ones write


@needs_crd
def test_recorded_rayjobs_have_the_fields_of_kuberays_crd_and_no_others(tools: Tools) -> None:
    from test_manifests import strict

    version = next(v for v in json.loads(KUBERAY_CRD.read_text())["spec"]["versions"] if v["name"] == "v1")
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    validator = jsonschema.Draft202012Validator(schema)
    states = objects()["ray_job_status"]
    tools.play({"frames": [{"job": state} for state in states]})
    tools("run")
    for state in states:
        seen = standin(tools, "get", "rayjobs.ray.io,pods", "--output", "json")
        items = json.loads(seen)["items"]
        job = next(item for item in items if item["kind"] == "RayJob")
        assert job["status"]["jobDeploymentStatus"].lower() in ("complete", state)
        assert [error.message for error in validator.iter_errors(job)] == []


def standin(tools: Tools, verb: str, *arguments: str) -> str:
    """Call the stand-in, as the tools do."""
    command = ["kubectl", verb, "--context", "standin", "--namespace", "ray-jobs", *arguments]
    return subprocess.run(command, env=tools.environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.thorough
@needs("kubectl")
def test_the_real_kubectl_understands_every_call_of_the_tools(tools: Tools, tmp_path: Path) -> None:
    real = shutil.which("kubectl")
    assert real
    for command in ("validate-setup", "test-cluster", "run", "debug-describe", "logs-follow"):
        tools(command)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "standin", "context": {"cluster": "nowhere", "user": ""}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    calls = [json.loads(line) for line in (tools.state / "calls.jsonl").read_text().splitlines()]
    different = {
        (call[0], *sorted(w for w in call if w.startswith("-"))): call
        for call in calls
        if call[0] != "config"
    }
    verbs = {"version", "get", "auth", "delete", "apply", "exec", "logs", "describe"}
    assert {kind[0] for kind in different} == verbs
    for call in different.values():
        done = subprocess.run(
            [real, *call],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "config")},
            input='{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}',
            capture_output=True,
            text=True,
        )
        said = done.stdout + done.stderr  # `auth can-i` says no, whatever the reason
        assert "127.0.0.1:1 was refused" in said or "connection refused" in said or call[0] == "auth", (
            call,
            said,
        )
        assert "unknown" not in done.stderr, (call, done.stderr)


def test_what_the_tools_read_is_what_main_py_writes(tmp_path: Path) -> None:
    """Runs come from a real page of metrics, losses from real records, both as summary.json has them."""
    options = "--engine sim --mode ssp --slack 2 --num-workers 4 --steps 40 --compute-time exponential:1"
    options += " --metrics-port 0 --metrics-linger-s 60 --run-name one"
    driver = subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), *options.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout
    try:
        log = ""
        for line in driver.stdout:
            log += line
            if line.startswith("served for"):
                break
        url = re.search(r"http://\S+", log)
        assert url, log
        with urllib.request.urlopen(url[0], timeout=PATIENCE_S) as answer:
            (run,) = runs_in_metrics(answer.read().decode()).values()
    finally:
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=PATIENCE_S)
    summary = json.loads((tmp_path / "runs/one/summary.json").read_text())
    busy_s = sum(worker["busy_s"] for worker in summary["workers"].values())
    assert (run.run_id, run.mode) == ("one", "ssp")
    assert (run.updates, run.samples, run.restarts) == (summary["updates"], summary["samples"], 0)
    assert run.staleness_mean == pytest.approx(summary["staleness"]["mean"])
    assert (run.staleness_max, run.staleness_bound) == (summary["staleness"]["max"], 15)
    assert run.samples_per_s == pytest.approx(summary["samples"] / summary["clock_s"])
    assert run.loss == summary["eval"]["loss"]
    assert run.idle_share == pytest.approx(1 - busy_s / (4 * summary["clock_s"]), abs=0.02)  # tasks in flight
    found = subprocess.run(READ_EVALUATIONS, cwd=tmp_path, capture_output=True, text=True, check=True)
    evaluations = [json.loads(line) for line in (tmp_path / "runs/one/evals.jsonl").read_text().splitlines()]
    ends = (evaluations[0]["loss"], evaluations[-1]["loss"])
    assert losses_in_records(found.stdout) == {"runs/one": ends}
    assert uploads_in_log(log) == []


def test_only_what_nccl_says_of_errors_is_an_error() -> None:
    harmless = (
        "node:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE\nNCCL version 2.27.3+cuda13.0\n"
    )
    assert nccl_errors(harmless) == []
    for line in (
        "node:1:2 [0] transport/net.cc:1 NCCL WARN Cuda failure 2 'out of memory'",
        "RuntimeError: NCCL error in: NCCLUtils.hpp:121, unhandled system error, NCCL version 2.27.3",
        "torch.distributed.DistBackendError: ncclSystemError: System call (e.g. socket, malloc) failed",
        "[rank0]:[E ProcessGroupNCCL.cpp:542] Watchdog caught collective operation timeout: WorkNCCL()",
        "[Rank 0] NCCL watchdog thread terminated with exception",
    ):
        assert nccl_errors(harmless + line) == [line]


def test_only_a_line_of_its_own_tells_of_an_upload() -> None:
    log = "main.py: --out s3://b/runs: S3 cannot be reached\nupload  s3://b/runs/one\ns3://b/runs/two\n"
    assert uploads_in_log(log) == ["s3://b/runs/one", "s3://b/runs/two"]


def test_a_snapshot_holds_what_belongs_to_the_job_and_nothing_else(tools: Tools) -> None:
    tools.play({"based_on": "no-gpu", "frames": scenario("no-gpu")["frames"][1:]})
    tools("run")
    items = json.loads(standin(tools, "get", "rayjobs.ray.io,pods", "--output", "json"))["items"]
    seen = snapshot(items, "ssp")
    assert {pod.role for pod in seen.pods} == {"head", "worker"}
    assert {event.about for event in seen.events} < {pod.name for pod in seen.pods}
    assert snapshot(items, "another").job is None
    assert snapshot(items, "other").pods[0].name == "other-abc"


def test_the_document_names_every_command_check_limit_and_verdict() -> None:
    text = (ROOT / "docs/runbook.md").read_text()
    schema = json.loads((ROOT / "deploy/jobs/status.schema.json").read_text())["properties"]
    named = [*COMMANDS, *CHECKS, *CRITERIA, "cpu", "premise", "performance", *PATIENT, *schema]
    named += [*schema["verdict"]["enum"], *Criteria.__struct_fields__]
    assert [name for name in named if f"`{name}`" not in text] == []
    assert {*CHECKS, "premise"} == set(schema["checks"]["items"]["properties"]["name"]["enum"])

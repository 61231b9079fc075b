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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml
from conftest import KUBERAY_CRD, PATIENCE_S, ROOT, CommandLine, needs, needs_crd, wait_for
from kubectl_standin.play import based, objects, prepare, scenario

from deploy.jobs.__main__ import COMMANDS, main
from deploy.jobs.cluster_room import gpus, quotas, room
from deploy.jobs.driver_logs import READ_EVALUATIONS, losses_in_records, nccl_errors, uploads_in_log
from deploy.jobs.driver_metrics import runs_in_metrics
from deploy.jobs.job_manifest import JobManifest, read_job
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import SetupError, Unreachable, explain
from deploy.jobs.kubernetes_objects import snapshot
from deploy.jobs.probe_pod import probe, probe_manifest
from deploy.jobs.run_job import delete
from deploy.jobs.thresholds import DEFAULT, read_thresholds
from deploy.jobs.validate_setup import monitor
from deploy.project import GPU
from dsgd.config import LiveConfig, LogConfig, OutputConfig, RayConfig, option_fields, options
from dsgd.running.quick_run import config

STANDIN = ROOT / "tests/cluster/kubectl_standin"
FOLDERS = ("deploy", "dsgd", "experiments")
CHECKS = ["pods", "updates", "restarts", "job", "loss", "staleness", "nccl", "record"]
PATIENT = {
    "taken_up_s": 60,
    "pods_running_s": 60,
    "first_update_s": 60,
    "job_over_s": 60,
    "runs_s": 160,
    "gone_s": 60,
    "silence_s": 60,
}


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
    rendered = run_python(copy, "deploy.manifests", "--image", "registry.test/dsgd:1", "--bucket", "results")
    assert rendered.returncode == 0, rendered.stderr
    return copy


def run_python(
    project: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=project,
        env=env or {**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


class ToolRan(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def checks(self) -> dict[str, tuple[str, str]]:
        """State and detail, by the check's name."""
        lines = (re.fullmatch(r"(pass|fail|note|open)  (\S+) +(.*)", line) for line in self.out.splitlines())
        return {line[2]: (line[1], line[3]) for line in lines if line}

    @property
    def failed(self) -> dict[str, str]:
        return {name: detail for name, (state, detail) in self.checks.items() if state == "fail"}


class Tools:
    """Runs the cluster tools in front of a scenario: in this process, or in a separate one."""

    def __init__(self, project: Path, folder: Path) -> None:
        self.project, self.state = project, folder / "standin"
        self.thresholds = folder / "thresholds.yaml"
        self.performance: dict[str, Any] = {}
        self.validates = False
        self.processes: list[subprocess.Popen[str]] = []
        self.limit()
        self.play({"based_on": "success"})

    def play(self, content: dict[str, Any]) -> None:
        """Play a scenario from its beginning."""
        prepare(content, self.state)

    def limit(self, **limits: float) -> None:
        """Change the limits that the tools are given."""
        content = {"limits": {**PATIENT, **limits}, "performance": self.performance}
        self.thresholds.write_text(yaml.safe_dump(content))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{STANDIN}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(self.project),
            "KUBECTL_STANDIN": str(self.state),
            "XDG_STATE_HOME": str(self.state.parent),
            # No credentials, so that no test reaches for a real bucket.
            **{name: "/nowhere" for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")},
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def arguments(self, *arguments: str) -> list[str]:
        options = ["--poll-s", "0.001", "--thresholds", str(self.thresholds)]
        if arguments and arguments[0] in ("test-cluster", "perf-test") and not self.validates:
            options += ["--no-validate"]  # two dozen calls; one test has them
        if "--job" not in arguments:
            options += ["--job", "ssp"]
        return [*arguments, *options]

    def __call__(self, *arguments: str, **environment: str) -> ToolRan:
        """Run a command to its end, in a separate process."""
        process = self.start(*arguments, env=self.environment | environment)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        return ToolRan(process.returncode, out, err)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.jobs", *self.arguments(*arguments)],
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, "env": self.environment, **options},
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Leave no process behind, however the test ended."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @property
    def calls(self) -> list[list[str]]:
        """What kubectl was asked to do, in order, without context and namespace."""
        path = self.state / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [[call[0], *(call[5:] if call[1:2] == ["--context"] else call[1:])] for call in calls]

    @property
    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls]

    @property
    def cleaned_up(self) -> bool:
        """Whether the last thing that was changed was to delete the job, and it is gone.

        A signal may leave a call that only looks, and that may come to an end later.
        """
        state = json.loads((self.state / "state.json").read_text())
        changed = [verb for verb in self.verbs if verb in ("apply", "delete")]
        return changed[-1] == "delete" and state["job"] is None


class ToolsHere(Tools):
    """Runs them in this process: the same `main`, but no second's wait for its imports."""

    def __init__(
        self, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(ROOT, folder)
        self._capfd, self._monkeypatch = capfd, monkeypatch
        # The project's own manifests name no bucket; here they may be applied all the same.
        monkeypatch.setattr(JobManifest, "has_bucket", True)

    def __call__(self, *arguments: str, **environment: str) -> ToolRan:
        for name, value in (self.environment | environment).items():
            self._monkeypatch.setenv(name, value)
        self._capfd.readouterr()
        code = main(self.arguments(*arguments))
        return ToolRan(code, *self._capfd.readouterr())


@pytest.fixture
def tools_apart(project: Path, tmp_path: Path) -> Iterator[Tools]:
    tools = Tools(project, tmp_path)
    yield tools
    tools.end()


@pytest.fixture
def tools(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> ToolsHere:
    return ToolsHere(tmp_path, capfd, monkeypatch)


# --- what passes


def test_a_job_that_does_what_it_should_passes_every_check_and_is_cleaned_up(tools_apart: Tools) -> None:
    ran = tools_apart("test-cluster", "--job", "compare-modes")
    assert ran.code == 0, ran.out + ran.err
    assert [name for name, (state, _) in ran.checks.items() if state == "pass"] == CHECKS
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


def test_a_test_runs_the_manifest_shortened_and_keeps_its_records_apart(tools: Tools) -> None:
    rendered = yaml.safe_load((tools.project / "ray-job-ssp.yaml").read_text())
    ran = tools("run")
    assert ran.code == 0, ran.err
    applied = json.loads((tools.state / "state.json").read_text())["job"]
    assert applied == rendered  # what `run` applies is the file
    entrypoint = rendered["spec"]["entrypoint"]
    out = re.search(r"--out (\S+)", entrypoint)
    assert out
    tools("stop")
    (said,) = (line for line in tools("test-quick").out.splitlines() if "is applied" in line)
    assert "--max-seconds 160" in said
    assert re.search(rf"--out {re.escape(out[1])}/cluster-tests/\d{{8}}-\d{{6}}$", said)
    (said,) = (
        line
        for line in tools("test-quick", "--job", "compare-modes").out.splitlines()
        if "is applied" in line
    )
    assert "--set seeds=1" in said
    assert said.endswith("--set max_seconds=40")  # of four runs, each


def test_a_job_that_runs_is_replaced_only_by_those_who_say_yes(tools: Tools) -> None:
    """`run` deletes exactly the RayJob that it saw, with all that belongs to it, and applies it anew."""
    assert tools("run").code == 0
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


def another(name: str, state: str, **labels: str) -> dict[str, Any]:
    """Return a RayJob of somebody else in the namespace."""
    metadata = {"name": name, "namespace": "ray-jobs", "uid": f"uid-of-another-{name}", "labels": labels}
    return {"kind": "RayJob", "metadata": metadata, "status": {"jobDeploymentStatus": state}}


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
    assert spec["preRunningDeadlineSeconds"] == limits.pods_running_s < spec["activeDeadlineSeconds"]
    assert spec["activeDeadlineSeconds"] == (
        limits.pods_running_s + limits.first_update_s + limits.job_over_s + limits.gone_s
    )
    assert read_job("compare-localsgd").for_a_test(limits).manifest["spec"].keys() == spec.keys()


def test_a_test_leaves_a_running_job_alone_and_asks_before_it_shares_its_nodes(tools: Tools) -> None:
    """A real job, or another's test of it, is named; with --yes the test runs beside it."""
    theirs = [another("ssp", "Running"), another("ssp-test-abcde", "Running", **{"dsgd-lab/test-of": "ssp"})]
    tools.play({"based_on": "success", "others": [*theirs, another("asgd", "Running")]})
    ran = tools("test-quick")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "active: ssp (Running), ssp-test-abcde (Running); a test of ssp leaves it alone" in ran.err
    assert "apply" not in tools.verbs
    assert tools("test-quick", "--yes").code == 0
    assert "deleted" not in json.loads((tools.state / "state.json").read_text())
    tools.play({"based_on": "success", "others": [another("ssp", "Complete")]})
    assert tools("test-quick").code == 0


def test_only_the_object_that_was_seen_is_deleted(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a later RayJob has the name by now, it stays, and nobody is harmed."""
    for name, value in tools.environment.items():
        monkeypatch.setenv(name, value)
    tools.play({"based_on": "success", "others": [another("ssp", "Running")]})
    kubectl = Kubectl("ray-jobs")
    seen = kubectl.job("ssp")
    assert seen
    assert not kubectl.ask_to_delete(replace(seen, uid="uid-of-an-earlier-one"))
    assert kubectl.job("ssp") == seen
    assert not delete(kubectl, "ssp", uid="uid-of-an-earlier-one", limit_s=1, poll_s=0.001)
    assert kubectl.ask_to_delete(seen)
    assert kubectl.job("ssp") is None


# --- what fails

STORIES = [
    # scenario, limits, the check that fails, what it must say
    (
        "no-gpu",
        {"pods_running_s": 2.0},  # two looks at least, on a busy machine too
        "pods",
        [
            "time-out after 2 s",
            "1 of 5 run",
            "no GPU is free",
            "FailedScheduling",
            "Insufficient nvidia.com/gpu",
        ],
    ),
    ("quota", {"pods_running_s": 0.4}, "pods", ["FailedToCreateWorkerPod", "exceeded quota: gpus"]),
    (
        "image-pull",
        {},
        "pods",
        ["worker-0: image dsgd-lab:", "cannot be pulled", "ImagePullBackOff", "not found"],
    ),
    ("driver-crash", {}, "job", ["FAILED", "AppFailed", "exit code 1"]),
    ("not-falling", {}, "loss", ["ssp-s0", "not falling", "2.31 at first and 2.34 at the end"]),
    ("no-updates", {"first_update_s": 0.4}, "updates", ["time-out 0.4 s after the pods ran", "port 9090"]),
    ("endless", {"job_over_s": 0.4}, "job", ["time-out", "still Running, RUNNING", "0.4 s"]),
    ("worker-restart", {}, "restarts", ["worker-1", "restarted 1 times", "OOMKilled, exit code 137"]),
    ("worker-replaced", {}, "restarts", ["pods were replaced", "worker-3"]),
    ("nccl", {}, "nccl", ["Ray's workers in", "NCCL WARN", "Connection timed out"]),
    ("stale", {}, "staleness", ["ssp-s0: 50 updates", "the bound is 49"]),
    ("no-upload", {}, "record", ["no upload"]),
    ("invalid", {}, "pods", ["the job is over: ValidationFailed", "a worker group has no name"]),
    ("no-operator", {"taken_up_s": 0.3}, "pods", ["no KubeRay operator has taken the job up"]),
]


@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize(("name", "limits", "check", "words"), STORIES, ids=[story[0] for story in STORIES])
def test_whatever_goes_wrong_fails_the_check_that_names_it_and_is_cleaned_up(
    tools: Tools, name: str, limits: dict[str, float], check: str, words: list[str]
) -> None:
    tools.play({"based_on": name})
    tools.limit(**limits)
    ran = tools("test-cluster")
    assert ran.code == 1, ran.out + ran.err
    both = ["pods", "job"] if name in ("no-operator", "invalid") else [check]
    assert list(ran.failed) == both, ran.out
    for word in words:
        assert word in ran.failed[check]
    assert f"test-cluster ssp: FAILED: {check}" in ran.out
    assert tools.cleaned_up


def test_a_job_that_its_operator_gave_up_still_says_why_its_pods_did_not_come(tools: Tools) -> None:
    """Test and operator have the same deadline: whoever is first, the quota's refusal is the reason."""
    why = {"reason": "PreRunningDeadlineExceeded", "message": "too late"}
    (*_, waiting) = scenario("quota")["frames"]
    tools.play({"based_on": "quota", "frames": [waiting | {"job": "failed", "status": why}]})
    failed = tools("test-quick").failed["pods"]
    assert "exceeded quota: gpus" in failed
    assert "the job is over: Failed, FAILED (PreRunningDeadlineExceeded: too late)" in failed


def test_every_scenario_is_told_by_a_test() -> None:
    names = {path.stem for path in (STANDIN / "scenarios").glob("*.yaml")}
    assert names == {"success", "short", *(story[0] for story in STORIES)}


def test_a_crash_shows_the_drivers_last_lines(tools: Tools) -> None:
    tools.play({"based_on": "driver-crash"})
    ran = tools("test-cluster")
    assert ran.out.index("the driver's last lines:") < ran.out.index(
        "    main.py: worker 1 died: CUDA driver"
    )


LAST_FRAMES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "a Ray worker was restarted",
        {"runs": [{"mode": "ssp", "run_id": "ssp-s0", "updates": 9, "loss": 0.2, "restarts": 2}]},
        "restarts",
        "Ray workers were restarted 2 times",
    ),
    (
        "the loss is NaN",
        {"runs": [{"mode": "ssp", "run_id": "ssp-s0", "updates": 9, "loss": "NaN"}]},
        "loss",
        "the loss is nan",
    ),
    ("the last loss is not finite", {"records": {"ssp-s0": [2.3, None]}}, "loss", "not finite at the end"),
    (
        "the job ended at its deadline",
        {
            "job": "failed",
            "status": {"reason": "DeadlineExceeded", "message": "passed activeDeadlineSeconds"},
        },
        "job",
        "DeadlineExceeded: passed activeDeadlineSeconds",
    ),
    (
        "the records cannot be read",
        {"records": {}},
        "loss",
        "not known: the records on the head could not be read",
    ),
    (
        "the record went somewhere else",
        {"logs": {"submitter": "upload  s3://another-bucket/runs/x\n"}},
        "record",
        "no upload",
    ),
]


@pytest.mark.parametrize(
    ("last", "check", "words"), [case[1:] for case in LAST_FRAMES], ids=[c[0] for c in LAST_FRAMES]
)
def test_a_job_that_looks_well_but_is_not_does_not_pass(
    tools: Tools, last: dict[str, Any], check: str, words: str
) -> None:
    tools.play({"based_on": "short", "last": last})
    ran = tools("test-cluster")
    assert ran.code == 1, ran.out + ran.err
    assert words in ran.failed[check]
    assert tools.cleaned_up


def test_a_comparison_of_which_a_run_is_missing_does_not_pass(tools: Tools) -> None:
    tools.play({"based_on": "short", "last": {"records": {"ssgd-s0": [2.31, 0.31], "ssp-s0": [2.31, 0.2]}}})
    ran = tools("test-cluster", "--job", "compare-modes")
    assert ran.failed == {"loss": "2 of 4 runs have a record: ssgd-s0, ssp-s0"}


FAST = {"samples_per_s_min": 1000, "idle_share_max": 0.5}


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"samples": 9000, "seconds": 5, "compute_s": 3, "wait_s": 1}, None),
        (
            {"samples": 900, "seconds": 5, "compute_s": 3, "wait_s": 1},
            "180 samples/s, 25% idle; at least 1000",
        ),
        ({"samples": 9000, "seconds": 5, "compute_s": 1, "wait_s": 3}, "75% idle; at most 50% idle"),
    ],
    ids=["fast enough", "too slow", "idles too much"],
)
def test_throughput_and_idle_share_are_held_to_the_files_thresholds(
    tools: Tools, measured: dict[str, float], words: str | None
) -> None:
    run = {"mode": "ssp", "run_id": "ssp-s0", "updates": 9, "loss": 0.2, **measured}
    tools.play({"based_on": "short", "last": {"runs": [run]}})
    tools.performance = {"ssp": {"ssp": FAST}}
    tools.limit()
    ran = tools("perf-test")
    assert ran.code == (1 if words else 0), ran.out + ran.err
    assert (words or "1800 samples/s, 25% idle") in ran.checks["performance"][1]
    assert tools.cleaned_up


DRAWN = [("compare-modes", mode) for mode in ("ssgd", "localsgd", "ssp", "asgd")]
DRAWN += [(mode, mode) for _, mode in DRAWN]


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
        "dataset": "none",  # the times are the same, whatever is learned
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


def test_a_job_without_thresholds_has_no_perf_test(tools: Tools) -> None:
    ran = tools("perf-test")
    assert (ran.code, tools.calls) == (2, [])
    assert "--job ssp" in ran.err
    assert "no thresholds" in ran.err


# --- clean-up


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
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


RESTARTS = [  # of the API server: when, in calls
    ("away in the middle of a test", {"away": (2, 6)}),
    ("forgets RayJobs in the middle of a test", {"forgets": (2, 9)}),
    ("away, then forgets, while cleaning up", {"after_delete": True, "away": (1, 4), "forgets": (4, 8)}),
]


@pytest.mark.parametrize("restart", [case[1] for case in RESTARTS], ids=[case[0] for case in RESTARTS])
def test_an_api_server_that_starts_again_neither_fails_a_test_nor_leaves_its_job(
    tools: Tools, restart: dict[str, Any]
) -> None:
    """Calls are tried again, also those that delete, and also while the server does not know RayJobs yet."""
    tools.play({"based_on": "success", **restart})
    ran = tools("test-quick")
    assert ran.code == 0, ran.out + ran.err
    state = json.loads((tools.state / "state.json").read_text())
    assert state["job"] is None
    assert state["answered"] > 8  # it was met


def test_a_clean_up_that_gets_no_answer_says_so(tools: Tools) -> None:
    tools.play({"based_on": "success", "after_delete": True, "away": (1, 10**6)})
    tools.limit(gone_s=0.2)
    ran = tools("test-quick")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "in 0.2 s the cluster has not confirmed it" in ran.err
    assert "its pods may run on; run: kubectl delete" in ran.err


def test_nothing_is_cleaned_up_where_nothing_was_applied(tools: Tools) -> None:
    tools.play({"based_on": "success", "setup": {"namespaces": []}})
    ran = tools("test-quick")
    assert (ran.code, "cleaning up" in ran.out) == (2, False)
    assert "no namespace ray-jobs" in ran.err


def test_a_short_silence_of_the_cluster_does_not_fail_a_test_but_a_long_one_does(tools: Tools) -> None:
    refused = (
        "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?"
    )
    error = {"call": "rayjobs.ray.io,pods", "from": 3, "stderr": refused}
    tools.play({"based_on": "success", "errors": [error | {"to": 5}]})
    assert tools("test-quick").code == 0
    tools.play({"based_on": "success", "errors": [error]})
    tools.limit(silence_s=0.3)
    ran = tools("test-quick")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "unreachable" in ran.err
    assert tools.cleaned_up


# --- set-up


def refused(*lines: str) -> str:
    """Return what kubectl says, its own log lines included."""
    noise = 'E1120 10:00:00.000000   77 memcache.go:265] "Unhandled Error" err="couldn\'t get API group list"'
    return "\n".join([noise, noise, *lines])


UNREADY: list[tuple[str, str, list[str]]] = [
    (
        "the cluster refuses connections",
        refused(
            "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?"
        ),
        ["cluster of context 'standin' is unreachable", "10.0.0.1:443"],
    ),
    (
        "the cluster's name is unknown",
        refused("Unable to connect to the server: dial tcp: lookup eks.test on 10.0.0.2:53: no such host"),
        ["cluster of context 'standin' is unreachable", "eks.test"],
    ),
    (
        "the cluster does not answer",
        refused("Unable to connect to the server: net/http: TLS handshake timeout"),
        ["context 'standin' did not answer in time"],
    ),
    (
        "the cluster hangs up",
        refused("Unable to connect to the server: EOF"),
        ["context 'standin' is unreachable", "EOF"],
    ),
    (
        "the credentials are old",
        refused("error: You must be logged in to the server (Unauthorized)"),
        ["does not accept your credentials", "log in again"],
    ),
    (
        "there is no CRD",
        refused('error: the server doesn\'t have a resource type "rayjobs"'),
        ["CRD rayjobs.ray.io", "install KubeRay 1.7"],
    ),
    (
        "the CRD is older",
        'Error from server (BadRequest): error when creating "STDIN": RayJob in version "v1" cannot be '
        'handled as a RayJob: strict decoding error: unknown field "spec.preRunningDeadlineSeconds"',
        ["does not know spec.preRunningDeadlineSeconds", "older than KubeRay 1.7"],
    ),
    (
        "the CRD has no v1",
        'error: resource mapping not found for name: "x" namespace: "y" from "STDIN": no matches for kind '
        '"RayJob" in version "ray.io/v1"\nensure CRDs are installed first',
        ["no RayJob of version ray.io/v1"],
    ),
    (
        "the user may not",
        'Error from server (Forbidden): rayjobs.ray.io is forbidden: User "eve" cannot list resource '
        '"rayjobs" in API group "ray.io" in the namespace "ray-jobs"',
        ["you may not list rayjobs in namespace ray-jobs", "ask for a role"],
    ),
    (
        "the namespace is not there",
        'Error from server (NotFound): error when creating "STDIN": namespaces "ray-jobs" not found',
        ["no namespace ray-jobs", "--namespace", "kubectl apply --server-side -k"],
    ),
]


@pytest.mark.parametrize(
    ("stderr", "words"), [case[1:] for case in UNREADY], ids=[case[0] for case in UNREADY]
)
def test_a_set_up_that_is_not_ready_is_told_in_one_line_with_the_remedy(
    stderr: str, words: list[str]
) -> None:
    message = str(explain(stderr, context="standin", namespace="ray-jobs"))
    assert "\n" not in message
    assert "E1120" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("case", [0, 5, 6, 9], ids=lambda i: UNREADY[i][0])
def test_a_set_up_that_is_not_ready_ends_a_test_with_exit_code_2(tools: Tools, case: int) -> None:
    _, stderr, words = UNREADY[case]
    call = "get" if case in (0, 5) else "apply"
    errors = [{"call": f"{call} --context", "stderr": stderr}]
    if case == 0:  # nothing answers at all
        errors.append({"call": "delete --context", "stderr": stderr})
    tools.play({"based_on": "success", "errors": errors})
    ran = tools("test-cluster")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    for word in words:
        assert word in ran.err


def test_a_cluster_that_hangs_is_left_after_the_calls_time_limit(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.play({"based_on": "success", "errors": [{"call": "version", "hang_s": 30}]})
    for name in ("PATH", "KUBECTL_STANDIN"):
        monkeypatch.setenv(name, tools.environment[name])
    with pytest.raises(Unreachable, match=r"did not answer kubectl version within 0.3 s"):
        Kubectl("ray-jobs")("version", timeout_s=0.3)


def test_without_kubectl_one_line_says_so(tools: Tools, tmp_path: Path) -> None:
    ran = tools("test-cluster", PATH=str(tmp_path))
    assert (ran.code, ran.err) == (
        2,
        "deploy.jobs: no kubectl on the PATH: install it, then give it your cluster's context\n",
    )


def test_without_a_context_one_line_says_so(tools: Tools) -> None:
    tools.play({"based_on": "success", "context": None})
    ran = tools("test-cluster")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "no current context" in ran.err
    assert tools.verbs == ["config"]


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("limits: {pods_running_s: 0}\nperformance: {}", "missing 6 required"),
        (yaml.safe_dump({"limits": PATIENT | {"runs_s": -1}, "performance": {}}), "runs_s"),
        (yaml.safe_dump({"limits": PATIENT, "performance": {"ssp": {"ssp": {"fast": 1}}}}), "fast"),
        (yaml.safe_dump({"limits": PATIENT, "performance": {"ssp": {"ssp": {}}}}), "idle_share_max"),
        ("limits: [", "YAML"),
        ("", "describes the file"),
    ],
)
def test_a_mistake_in_the_thresholds_is_told_in_one_line(tools: Tools, content: str, words: str) -> None:
    tools.thresholds.write_text(content)
    ran = tools("check-job")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert words in ran.err or "while parsing" in ran.err
    assert tools.calls == []


# --- the namespace


@pytest.mark.parametrize("command", ["run", "stop", "test-quick", "test-cluster"])
def test_another_namespace_is_not_changed_unasked(tools: Tools, command: str) -> None:
    ran = tools(command, "--namespace", "production")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"{command} would change namespace production of context standin, not ray-jobs" in ran.err
    assert tools.verbs == ["config"]


def test_another_namespace_may_be_looked_at_and_with_yes_changed(tools: Tools) -> None:
    tools.play({"based_on": "success", "setup": {"namespaces": ["mine"]}})
    assert tools("run", "--namespace", "mine", "--yes").code == 0
    applied = json.loads((tools.state / "state.json").read_text())["job"]
    assert applied["metadata"]["namespace"] == "mine"
    assert tools("check-job", "--namespace", "mine").code == 0


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


@pytest.fixture
def edited(project: Path) -> Iterator[Callable[[str, str], None]]:
    """Edit a file of the project for the length of a test."""
    path = project / "ray-job-ssp.yaml"
    text = path.read_text()

    def edit(old: str, new: str) -> None:
        assert old in text
        path.write_text(text.replace(old, new))

    yield edit
    path.write_text(text)


def test_a_manifest_that_was_edited_by_hand_is_not_applied(
    tools_apart: Tools, edited: Callable[[str, str], None]
) -> None:
    edited("activeDeadlineSeconds: 3600", "activeDeadlineSeconds: 36000")
    ran = tools_apart("run")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "ray-job-ssp.yaml, line" in ran.err
    assert "36000" in ran.err
    assert "make manifests" in ran.err
    assert tools_apart.verbs == ["config"]


def test_a_manifest_without_a_bucket_is_not_applied(tools: Tools, tmp_path: Path, project: Path) -> None:
    copy = tmp_path / "project"
    shutil.copytree(project, copy)
    assert run_python(copy, "deploy.manifests", "--bucket", "BUCKET").returncode == 0
    unnamed = Tools(copy, tmp_path)
    ran = unnamed("run")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "ray-job-ssp.yaml: has no bucket" in ran.err
    assert "BUCKET=NAME" in ran.err
    assert unnamed.verbs == ["config"]


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
    monkeypatch.setattr("deploy.jobs.validate_framework.job_names", lambda: ["ssp"])
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


def test_a_right_to_a_part_of_pods_is_asked_for_as_such(tools: Tools) -> None:
    """`can-i create pods/exec` would ask about a pod named exec: who may only make pods must not pass."""
    tools.play({"based_on": "success", "setup": {"refused": ["create pods/exec", "patch rayjobs"]}})
    ran = tools("validate-setup", "--bucket", "results")
    assert ran.code == 1
    assert ran.failed.keys() == {"rights"}
    assert "you may not patch rayjobs.ray.io, create pods/exec" in ran.failed["rights"]
    tools.play({"based_on": "success", "setup": {"refused": ["create pods", "get pods"]}})
    assert Kubectl("ray-jobs").may("create", "pods/exec")
    assert not Kubectl("ray-jobs").may("create", "pods")


NAMESPACE_ONLY = [
    *("get customresourcedefinitions", "list deployments", "list nodes"),
    *("get namespaces", "get serviceaccounts"),
    *("list podmonitors", "list resourcequotas", "list pods --all-namespaces"),
]


def test_a_user_of_the_namespace_alone_passes_with_notes(tools: Tools) -> None:
    """What may not be asked is open, not failed; the CRD's fields are read from what everybody may read."""
    tools.play({"based_on": "success", "setup": {"refused": NAMESPACE_ONLY}})
    ran = tools("validate-setup", "--bucket", "results")
    assert ran.code == 0, ran.out
    assert ran.checks["crd"] == ("pass", "rayjobs.ray.io v1, with preRunningDeadlineSeconds")
    assert "you may not list nodes of the whole cluster" in ran.checks["gpus"][1]
    assert "you may not get namespaces in namespace ray-jobs" in ran.checks["namespace"][1]
    open_ = {name for name, (state, _) in ran.checks.items() if state == "note"}
    assert open_ == {
        *("operator", "gpus", "room", "namespace", "quota"),
        *("account", "monitor", "image", "bucket"),
    }
    tools.play({"based_on": "success", "setup": {"refused": NAMESPACE_ONLY, "crd": without_field(CRD)}})
    with pytest.raises(SetupError, match=r"older than KubeRay 1\.7"):
        Kubectl("ray-jobs")("explain", "rayjobs.spec.preRunningDeadlineSeconds", "--api-version", "ray.io/v1")


def test_who_may_not_list_events_can_use_everything_else(tools: Tools) -> None:
    """One line says what is missing, once, only where something is wrong; debug-events itself needs them."""
    tools.play({"based_on": "no-gpu", "setup": {"refused": ["list events"]}})
    tools("run")
    ran = tools("check-job")
    ran = tools("check-job")
    assert ran.code == 0, ran.out + ran.err
    assert ran.err.count("you may not list events") == 1
    assert "no GPU is free: FailedScheduling" in ran.out  # the pods' own condition says it too
    assert tools("debug-events").code == 2
    tools.play({"based_on": "success", "setup": {"refused": ["list events"]}})
    ran = tools("test-quick")
    assert (ran.code, ran.err.count("list events")) == (0, 1)


def test_who_may_not_exec_still_gets_the_logs(tools: Tools) -> None:
    tools.play({"based_on": "success", "frames": scenario("success")["frames"][-1:]})
    tools.play(
        {
            "based_on": "short",
            "frames": scenario("short")["frames"][-1:],
            "setup": {"refused": ["create pods/exec"]},
        }
    )
    tools("run")
    ran = tools("logs-all")
    assert ran.code == 1
    assert "Ray runtime started" in ran.out
    assert "=== ssp-x1k2p-workers-worker-3\n" in ran.out
    assert (
        "the log of Ray's workers in ssp-x1k2p-head cannot be read: you may not create pods/exec" in ran.out
    )


@pytest.mark.parametrize(
    "command", ["stop", "check-job", "test-status", "monitor-pods", "logs-all", "debug-events"]
)
def test_a_namespace_that_is_not_there_is_not_an_empty_one(tools: Tools, command: str) -> None:
    ran = tools(command, "--namespace", "defautl", "--yes")
    assert (ran.code, ran.err.count("\n")) == (2, 2 if command == "test-status" else 1)
    assert "there is no namespace defautl" in ran.err


def test_the_cluster_is_validated_before_a_test(tools: Tools) -> None:
    """The first thing that is missing ends test-cluster, before anything is applied."""
    tools.play({"based_on": "success", "setup": {"operator": None}})
    tools.validates = True
    ran = tools("test-cluster", "--bucket", "results")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "the cluster is not ready: operator: there is no KubeRay operator" in ran.err
    assert "apply" not in tools.verbs


OPERATOR, CRD, NODES, MONITORS = (
    objects()["setup"][name] for name in ("operator", "crd", "nodes", "podmonitors")
)


def changed(content: Any, old: str, new: str) -> Any:
    """Return objects with a piece of their JSON replaced."""
    text = json.dumps(content)
    assert old in text
    return json.loads(text.replace(old, new))


def without_field(crd: Any) -> Any:
    return changed(crd, ', "preRunningDeadlineSeconds": {"format": "int32", "type": "integer"}', "")


def QUOTA(gpus: str, used: str = "0") -> Any:
    name = "requests.nvidia.com/gpu"
    status = {"hard": {name: gpus}, "used": {name: used}}
    return [
        {
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus"},
            "spec": {"hard": {name: gpus}},
            "status": status,
        }
    ]


LACKS: list[dict[str, tuple[Any, str, list[str]]]] = [
    # what is set up otherwise: how, the check that fails, what it must say
    {
        "crd": (None, "crd", ["CRD rayjobs.ray.io", "install KubeRay 1.7"]),
        "operator": (None, "operator", ["no KubeRay operator"]),
        "nodes": (NODES[:1], "gpus", ["no GPU node", "nvidia.com/gpu", "asks for 4", "--device cpu"]),
        "namespaces": ([], "namespace", ["no namespace ray-jobs", "kubectl apply --server-side -k"]),
        "serviceaccounts": ([], "account", ["no serviceaccount ray-jobs", "kubectl apply --server-side -k"]),
        "refused": (["create pods/exec"], "rights", ["you may not create pods/exec"]),
    },
    {
        "crd": (without_field(CRD), "crd", ["no preRunningDeadlineSeconds", "older than KubeRay 1.7"]),
        "operator": (changed(OPERATOR, "v1.7.0", "v1.6.1"), "operator", ["KubeRay 1.6", "1.7 or newer"]),
        "nodes": (changed(NODES, '"4"', '"3"'), "gpus", ["3 on 1 nodes", "asks for 4"]),
        "quotas": (QUOTA("2"), "quota", ["quota gpus allows 2 requests.nvidia.com/gpu", "asks for 4"]),
    },
    {
        "crd": (
            changed(CRD, '"name": "v1", "served": true', '"name": "v1", "served": false'),
            "crd",
            ["serves v1alpha1, v1 is needed"],
        ),
        "operator": (OPERATOR | {"status": {}}, "operator", ["no replica that is available"]),
    },
]


@pytest.mark.parametrize("lacks", LACKS, ids=["things are missing", "things are old", "things do not serve"])
def test_what_a_cluster_lacks_is_told_with_the_remedy(
    tools: Tools, lacks: dict[str, tuple[Any, str, list[str]]]
) -> None:
    tools.play({"based_on": "success", "setup": {name: how for name, (how, _, _) in lacks.items()}})
    ran = tools("validate-setup", "--bucket", "results")
    assert ran.code == 1, ran.out
    assert set(ran.failed) - {"room"} == {check for _, check, _ in lacks.values()}
    for _, check, words in lacks.values():
        for word in words:
            assert word in ran.failed[check]


AUTOSCALER = {"kind": "Deployment", "metadata": {"name": "karpenter", "namespace": "kube-system"}}
NOTES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("nodes from zero", {"nodes": NODES[:1], "autoscaler": AUTOSCALER}, "gpus", ["karpenter may add"]),
    ("quota in use", {"quotas": QUOTA("8", "6")}, "quota", ["has 2 of 8", "asks for 4"]),
    ("no Prometheus operator", {"podmonitors": None}, "monitor", ["no PodMonitors", "run without it"]),
    ("no monitor of heads", {"podmonitors": MONITORS[1:]}, "monitor", ["no PodMonitor scrapes port driver"]),
    (
        "GPUs are taken",
        {"pods": [{"spec": {"nodeName": "node-gpu-0", "containers": [{"resources": {"limits": {GPU: "3"}}}]},
                   "status": {"phase": "Running"}}]},
        "gpus",
        ["only 1 are free now"],
    ),
]  # fmt: skip


ASKED = {"gpus": gpus, "quota": quotas, "monitor": monitor}


@pytest.mark.parametrize(("setup", "check", "words"), [case[1:] for case in NOTES], ids=[c[0] for c in NOTES])
def test_what_may_still_come_right_is_a_note(
    tools: Tools,
    monkeypatch: pytest.MonkeyPatch,
    setup: dict[str, Any],
    check: str,
    words: list[str],
) -> None:
    tools.play({"based_on": "success", "setup": setup})
    for name, value in tools.environment.items():
        monkeypatch.setenv(name, value)
    good, detail = ASKED[check](Kubectl("ray-jobs"), read_job("ssp"))
    assert good is None
    for word in words:
        assert word in detail


def test_nodes_without_their_device_plugin_and_too_small_for_a_pod_are_named(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = changed(changed(NODES, ', "nvidia.com/gpu": "4"', ""), '"cpu": "8"', '"cpu": "1900m"')
    tools.play({"based_on": "success", "setup": {"nodes": nodes}})
    for name, value in tools.environment.items():
        monkeypatch.setenv(name, value)
    kubectl, job = Kubectl("ray-jobs"), read_job("ssp")
    good, detail = gpus(kubectl, job)
    assert good is False
    assert "node node-gpu-0 is marked as one with GPUs and offers no nvidia.com/gpu" in detail
    assert "device plugin" in detail
    good, detail = room(kubectl, job)
    assert good is False
    assert "no node that the head may go to has 2 CPUs and 8 GiB" in detail


def test_a_probe_pulls_the_image_and_uses_the_bucket_as_the_jobs_account(tools: Tools) -> None:
    """A pod with the head's image and account writes, reads and deletes; it is gone afterwards."""
    ran = tools("validate-setup", "--bucket", "results", "--probe")
    assert ran.code == 0, ran.out + ran.err
    assert "service account ray-jobs: written, read and deleted: s3://results/" in ran.checks["probe"][1]
    pod = probe_manifest(read_job("ssp").with_bucket("results"))
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "ray-jobs"
    assert spec["containers"][0]["command"][:2] == ["python", "-c"]
    assert spec["containers"][0]["command"][3] == "results"
    assert spec["containers"][0]["envFrom"]
    assert "lifecycle" not in spec["containers"][0]
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    stuck = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    tools.play({"based_on": "success", "setup": {"probe": stuck}})
    good, detail = probe(Kubectl("ray-jobs"), read_job("ssp"), limit_s=60, poll_s=0.001)
    assert good is False
    assert "image dsgd-lab:" in detail
    assert "cannot be pulled (ImagePullBackOff): not found" in detail
    assert json.loads((tools.state / "state.json").read_text())["pod"] is None


def test_validating_a_cluster_that_is_not_there_ends_with_exit_code_2(tools: Tools) -> None:
    tools.play({"based_on": "success", "errors": [{"call": "--context", "stderr": UNREADY[0][1]}]})
    ran = tools("validate-setup")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "unreachable" in ran.err


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


def test_one_look_tells_a_running_job_from_a_failed_and_a_missing_one(tools: Tools) -> None:
    ran = tools("check-job")
    assert (ran.code, "is not there; make run JOB=ssp" in ran.out) == (1, True)
    tools("run")
    ran = tools("check-job")
    assert (ran.code, "nothing has failed so far" in ran.out) == (0, True)
    tools.play({"based_on": "success", "frames": scenario("success")["frames"][-1:]})
    for job in ("ssp", "compare-modes"):
        tools("run", "--job", job)
        record = tools("check-job", "--job", job).checks["record"]
        assert record[0] == "pass"
        assert "$" not in record[1]
    tools.play({"based_on": "driver-crash", "frames": scenario("driver-crash")["frames"][-1:]})
    tools("run")
    ran = tools("check-job")
    assert (ran.code, "FAILED: " in ran.out, "main.py: worker 1 died" in ran.out) == (1, True, True)


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


def test_an_earlier_jobs_reason_is_not_given_as_todays(tools: Tools) -> None:
    """Names come again, uids do not: an event about a RayJob that is gone is not this one's."""
    old = {
        "kind": "RayJob",
        "reason": "InvalidRayJobSpec",
        "message": "an old one",
        "lastTimestamp": "2026-11-20T09:00:00Z",
    }
    tools.play({"based_on": "no-operator", "events": [old]})
    tools("run")
    for command in ("check-job", "debug-events"):
        assert "an old one" not in tools(command).out


def test_a_job_that_nobody_takes_up_is_not_running(tools: Tools) -> None:
    """After half a minute without a status the cause is said: no operator."""
    tools.play({"based_on": "no-operator"})
    tools("run")
    ran = tools("check-job")
    assert (ran.code, "nothing has failed so far" in ran.out) == (0, True)
    tools.play({"based_on": "no-operator", "applied_ago_s": 31})
    tools("run")
    ran = tools("check-job")
    assert (ran.code, list(ran.failed)) == (1, ["pods", "job"])
    assert "no KubeRay operator has taken the job up: make validate-setup" in ran.failed["job"]


def test_a_job_that_is_being_deleted_says_what_it_waits_for(tools: Tools) -> None:
    tools.play({"based_on": "endless", "stuck": True})
    tools("run")
    tools("check-job")
    tools.limit(gone_s=0.1)
    assert "finalizer ray.io/rayjob-finalizer" in tools("stop").err
    ran = tools("check-job")
    assert ran.code == 1
    assert "is being deleted since 2026-11-20T10:05:00Z" in ran.failed["job"]
    assert "waits for the finalizer ray.io/rayjob-finalizer of its operator" in ran.failed["job"]


def test_a_job_that_its_operator_refused_is_over(tools: Tools) -> None:
    """Nobody waits for it: monitor-pods ends, check-job says why."""
    tools.play({"based_on": "invalid"})
    tools("run")
    ran = tools("monitor-pods")
    why = "ValidationFailed (ValidationFailed: The RayJob spec is invalid: a worker group has no name)"
    assert (ran.code, f"RayJob ssp: {why}" in ran.out) == (0, True)
    assert why in tools("check-job").failed["job"]
    for command in ("logs-follow", "logs-all"):
        ran = tools(command)
        assert (ran.code, why in ran.err, "gone" in ran.err) == (1, True, False)
    tools("stop")
    assert why in tools("test-quick").failed["pods"]  # which does not ask how the job ends


def test_where_nothing_was_read_nccl_is_not_known(tools: Tools) -> None:
    """Neither an absent driver's log nor a node's that is missing counts as one without errors."""
    for last in ({"submitter": None}, {"workers": ["running"] * 3}):
        tools.play({"based_on": "short", "last": last})
        tools("run")
        tools("check-job")
        state, detail = tools("check-job").checks["nccl"]
        assert state == "open"
        assert detail in ("there is no driver's log", "4 of 5 logs of head and workers were read")


def test_a_job_that_is_tried_again_is_told_from_one_that_never_failed(tools: Tools) -> None:
    """Which try it is, and no operator is missed between two."""
    now = {"jobDeploymentStatus": "", "jobStatus": "", "failed": 1}
    created = {"job": "initializing", "head": None, "workers": None, "submitter": None, "status": now}
    tools.play({"based_on": "short", "frames": [created]})
    tools("run")
    assert "no KubeRay operator" not in tools("check-job").out
    running = {"job": "running", "head": "running", "workers": "running", "submitter": "running"}
    tools.play({"based_on": "short", "frames": [running | {"status": {"failed": 2}}]})
    tools("run")
    ran = tools("check-job")
    assert (ran.code, ran.failed["restarts"]) == (1, "the job failed, and was tried again 2 times")
    assert "Running, RUNNING; try 3" in ran.out
    assert json.loads(tools("test-status").out)["status"]["failed"] == 2


def test_a_job_that_was_tried_again_did_not_go_through(tools: Tools) -> None:
    """It fails the check of restarts, unless it failed in the end: then that is what is wrong with it."""
    tools.play({"based_on": "short", "last": {"status": {"failed": 1}}})
    tools("run")
    tools("check-job")
    assert tools("check-job").failed["restarts"] == "the job failed, and was tried again 1 times"
    tools.play({"based_on": "driver-crash", "last": {"status": {"failed": 1}}})
    tools("run")
    tools("monitor-pods")
    assert "restarts" not in tools("check-job").failed


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ([], ("pass", "none is stated")),
        (["idle_share is 0.7, at least 0.6: holds"], ("pass", "idle_share is 0.7, at least 0.6: holds")),
        (
            ["idle_share is 0.7, at least 0.6: holds", "batch_s is 2, at most 1: does not hold with ssp (2)"],
            ("fail", "batch_s is 2, at most 1: does not hold with ssp (2)"),
        ),
    ],
)
def test_a_premise_that_did_not_hold_is_found_in_the_drivers_log(
    said: list[str], answer: tuple[str, str], tools: Tools
) -> None:
    """What an experiment prints of its premises is a check of a whole job, not of a shortened test."""
    logs = scenario("short")["frames"][-1]["logs"]
    submitter = logs["submitter"] + "".join(f"premise {line}\n" for line in said)
    tools.play({"based_on": "short", "last": {"logs": logs | {"submitter": submitter}}})
    tools("run")
    tools("monitor-pods")
    assert tools("check-job").checks["premise"] == answer
    tools.play({"based_on": "short", "last": {"logs": logs | {"submitter": submitter}}})
    assert "premise" not in tools("test-cluster").checks


def test_one_look_shows_times_conditions_address_and_utilisation(tools: Tools) -> None:
    tools.play({"based_on": "endless"})
    tools("run")
    out = tools("check-job").out
    assert "started 2026-11-20T10:00:04Z" in out
    assert "ssp-x1k2p-head-svc.ray-jobs.svc.cluster.local:8265 (inside the cluster)" in out
    assert "RayClusterProvisioned True since 2026-11-20T10:01:00Z (AllPodRunningAndReadyFirstTime" in out
    assert "ssp-x1k2p-workers-worker-3: CPU 50%, memory 3.0 GiB, GPU 80%, GPU memory 4.0 GiB" in out
    content = json.loads(tools("check-job", "--json").out)
    assert content["status"]["head_address"].endswith(":8265")
    assert content["pods"][0]["usage"] == {
        **{"cpu_share": 0.125, "memory_bytes": 2 * 2**30},
        **{"gpu_share": None, "gpu_memory_bytes": None},
    }


def test_pods_are_watched_for_as_long_as_one_says(tools: Tools) -> None:
    tools.play({"based_on": "endless"})
    tools("run")
    ran = tools("monitor-pods", "--duration", "0.2")
    assert (ran.code, ran.out.rstrip().endswith("0.2 s are over; RayJob ssp goes on")) == (0, True)


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


def test_limits_are_options_too(tools: Tools) -> None:
    tools.play({"based_on": "no-gpu"})
    ran = tools("test-quick", "--pods-running-s", "0.3")
    assert "time-out after 0.3 s" in ran.failed["pods"]
    ran = tools("test-quick", "--gone-s", "0")
    assert (ran.code, ran.err.count("\n")) == (2, 2 if "note" in ran.err else 1)
    assert "--gone-s: must be a number of seconds above 0" in ran.err


def test_another_context_than_the_last_one_is_asked_for(tools: Tools) -> None:
    """Who has named it by --context is not asked."""
    assert tools("run").code == 0
    tools.play({"based_on": "success", "context": "another"})
    ran = tools("run")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "run would change context another; the last one changed was standin; give --yes" in ran.err
    assert tools.verbs == ["config"]
    assert tools("run", "--context", "another").code == 0
    assert "config" not in tools.verbs[1:]
    assert tools("stop").code == 0


def test_stop_deletes_the_job_and_says_whether_there_was_one(tools: Tools) -> None:
    tools("run")
    assert tools("stop").out.endswith("RayJob ssp is gone\n")
    assert tools.cleaned_up
    assert tools("stop").out.endswith("there is no RayJob ssp\n")


@pytest.mark.parametrize("case", [0, 4, 5], ids=lambda i: UNREADY[i][0])
def test_stop_does_not_wait_where_it_may_not_even_look(tools: Tools, case: int) -> None:
    """A set-up that is not ready is exit code 2, and at once: nothing that could be waited for was asked."""
    _, stderr, words = UNREADY[case]
    tools.play({"based_on": "success", "errors": [{"call": "get --context", "stderr": stderr}]})
    ran = tools("stop")
    assert (ran.code, ran.err.count("\n"), tools.verbs) == (2, 1, ["config", "get"])
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("command", ["logs-follow", "logs-all", "monitor-pods", "debug-describe"])
def test_a_job_that_is_not_there_cannot_be_looked_into(tools: Tools, command: str) -> None:
    ran = tools(command)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "RayJob ssp" in ran.err


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
        with urllib.request.urlopen(url[0], timeout=10) as answer:
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
    assert run.update_s == pytest.approx(summary["clock_s"])
    assert run.loss == summary["eval"]["loss"]
    assert run.idle_share == pytest.approx(1 - busy_s / (4 * summary["clock_s"]), abs=0.02)  # tasks in flight
    found = subprocess.run(READ_EVALUATIONS, cwd=tmp_path, capture_output=True, text=True, check=True)
    evaluations = [json.loads(line) for line in (tmp_path / "runs/one/evals.jsonl").read_text().splitlines()]
    assert losses_in_records(found.stdout) == {"one": (evaluations[0]["loss"], evaluations[-1]["loss"])}
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
    text = (ROOT / "docs/cluster.md").read_text()
    schema = json.loads((ROOT / "deploy/jobs/status.schema.json").read_text())["properties"]
    named = [*COMMANDS, *CHECKS, "premise", "performance", *PATIENT, *schema["verdict"]["enum"], *schema]
    assert [name for name in named if f"`{name}`" not in text] == []
    assert {*CHECKS, "premise"} == set(schema["checks"]["items"]["properties"]["name"]["enum"])

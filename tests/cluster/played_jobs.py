"""The cluster tools in front of a played kubectl, and what a situation holds them to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from conftest import PATIENCE_S, ROOT
from kubectl_standin.play import call as call_here
from kubectl_standin.play import prepare

from deploy.jobs.__main__ import main
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl

STANDIN = ROOT / "tests/cluster/kubectl_standin"
CHECKS = ["pods", "updates", "restarts", "job", "loss", "staleness", "nccl", "record"]
CRITERIA = ["group", "gpu", "memory", "network", "checkpoint"]
PATIENT = {
    "taken_up_s": 60,
    "pods_running_s": 60,
    "first_update_s": 60,
    "job_over_s": 60,
    "runs_s": 160,
    "gone_s": 60,
    "silence_s": 60,
    "sampled_every_s": 1e-6,
}


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
        self.criteria: dict[str, Any] = {}
        self.validates = False
        self.processes: list[subprocess.Popen[str]] = []
        self.limit()
        self.play({"based_on": "success"})

    def play(self, content: dict[str, Any]) -> None:
        """Play a scenario from its beginning."""
        prepare(content, self.state)

    def limit(self, **limits: float) -> None:
        """Change the limits that the tools are given."""
        content = {
            "limits": {**PATIENT, **limits},
            "performance": self.performance,
            "criteria": self.criteria,
        }
        self.thresholds.write_text(yaml.safe_dump(content))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{STANDIN}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(self.project),
            "KUBECTL_STANDIN": str(self.state),
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

    def kubectl(self, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
        """Return kubectl in this process, in front of the scenario."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return Kubectl("ray-jobs")

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
    """Runs them in this process, kubectl too: the same `main`s, but no wait for their imports."""

    def __init__(
        self, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(ROOT, folder)
        self._capfd, self._monkeypatch = capfd, monkeypatch
        # The project's own manifests name no bucket; here they may be applied all the same.
        monkeypatch.setattr(JobManifest, "has_bucket", True)
        here = SimpleNamespace(**vars(subprocess) | {"run": call_here})
        monkeypatch.setattr("deploy.jobs.kubectl.subprocess", here)

    def __call__(self, *arguments: str, **environment: str) -> ToolRan:
        for name, value in (self.environment | environment).items():
            self._monkeypatch.setenv(name, value)
        self._capfd.readouterr()
        code = main(self.arguments(*arguments))
        return ToolRan(code, *self._capfd.readouterr())


NONE: Mapping[str, Any] = {}


class Case(NamedTuple):
    """A situation."""

    name: str
    play: dict[str, Any]
    commands: str
    """In their order; the last one is held to what follows."""
    code: int
    fails: Mapping[str, Sequence[str]] = NONE
    """All checks that fail, each with what it says."""
    checks: Mapping[str, str] = NONE
    """Other checks: the state, and the beginning of what it says."""
    says: Sequence[str] = ()
    never: Sequence[str] = ()
    limits: Mapping[str, float] = NONE


def held(tools: Tools, case: Case) -> None:
    """Play a situation and hold the tools to it: exit code, checks and words; a test cleans up."""
    tools.play({"based_on": "success", **case.play})
    tools.limit(**case.limits)
    *before, last = case.commands.split("; ")
    for command in before:
        tools(*command.split())
    ran = tools(*last.split())
    said = ran.out + ran.err
    assert ran.code == case.code, said
    assert ran.failed.keys() == case.fails.keys(), said
    for name, words in case.fails.items():
        assert [word for word in words if word not in ran.failed[name]] == [], ran.failed[name]
    for name, answer in case.checks.items():
        assert " ".join(ran.checks[name]).startswith(answer), ran.checks[name]
    assert [word for word in case.says if word not in said] == [], said
    assert [word for word in case.never if word in said] == [], said
    if case.code == 2:
        assert len(re.sub(r"context .*\n", "", ran.err).splitlines()) == 1, ran.err
    if {"away", "forgets"} & case.play.keys():  # it was met, and where the command went on, it was over
        answered = json.loads((tools.state / "state.json").read_text())["answered"]
        assert answered > (8 if case.code == 0 else 0)
    if "is applied" in ran.out and last.startswith(("test-", "perf-")):
        assert ("FAILED" in ran.out) == bool(case.fails)
        assert tools.cleaned_up or "could not be cleaned up" in ran.err


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def played(name: str, **changes: Any) -> dict[str, Any]:
    return {"based_on": name, **changes}

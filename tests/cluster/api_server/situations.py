"""What each cluster command must do in each situation: exit code, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

COMMANDS = (
    *("validate-setup", "run", "check-job", "monitor-pods", "logs-follow", "logs-all"),
    *("debug-describe", "debug-events", "test-status", "stop", "test-quick", "test-cluster", "perf-test"),
)
LOOKS = COMMANDS[2:9]
TESTS = COMMANDS[10:]


class CommandAnswer(NamedTuple):
    """What a command must do."""

    code: int
    """Its exit code; 130: it goes on until ctrl-C."""
    says: str
    """A piece of a line that it prints."""


def _same(commands: tuple[str, ...], code: int, says: str) -> dict[str, CommandAnswer]:
    return dict.fromkeys(commands, CommandAnswer(code, says))


def _each(**answers: tuple[int, str]) -> dict[str, CommandAnswer]:
    return {name.replace("_", "-"): CommandAnswer(*answer) for name, answer in answers.items()}


_VALID = _each(validate_setup=(0, "validate-setup: passed"), run=(0, "RayJob ssp is applied"))
_STOPPED = _each(stop=(0, "RayJob ssp is gone"))
_NOT_TAKEN_UP = "not yet taken up by the operator"
_REFUSED = "ValidationFailed (ValidationFailed: The RayJob spec is invalid: a worker group has no name)"
_QUOTA = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"
_NOT_PULLED = "cannot be pulled (ImagePullBackOff): Failed to pull image"
_KILLED = "its container was restarted 1 times (OOMKilled, exit code 137)"
_NO_CREDENTIALS = "log in to the cluster again"
_UNREACHABLE = "check its address, the network and the VPN"
_NO_KIND = "install KubeRay 1.7 or newer, with its CRDs"
_NO_NAMESPACE = 'namespaces "nowhere" not found; kubectl apply --server-side -k'
_OLDER = "the CRDs are older than KubeRay 1.7: upgrade them with the operator"

TABLE: Mapping[str, Mapping[str, CommandAnswer]] = {
    "token expired": _same(COMMANDS, 2, _NO_CREDENTIALS),
    "no API server": _same(COMMANDS, 2, _UNREACHABLE),
    "no namespace": {
        "validate-setup": CommandAnswer(1, _NO_NAMESPACE),
        **_same(("run",), 2, _NO_NAMESPACE),
        **_same((*LOOKS, "stop", "test-quick"), 2, _NO_NAMESPACE),
        **_same(TESTS[1:], 2, "the cluster is not ready: namespace: kubectl, context lab: namespaces"),
    },
    "no CRD": {
        "validate-setup": CommandAnswer(1, _NO_KIND),
        **_same(COMMANDS[1:11], 2, _NO_KIND),
        **_same(TESTS[1:], 2, "the cluster is not ready: crd: kubectl, context lab: "),
    },
    "older CRD": {
        "validate-setup": CommandAnswer(1, "rayjobs.ray.io v1 has no preRunningDeadlineSeconds"),
        **_same(("run", "test-quick"), 2, _OLDER),
        **_same(TESTS[1:], 2, "the cluster is not ready: crd: rayjobs.ray.io v1 has no preRunningDeadline"),
    },
    "quota 0": {
        "validate-setup": CommandAnswer(1, "quota gpus allows 0 requests.nvidia.com/gpu"),
        **_each(
            run=(0, "RayJob ssp is applied"),
            check_job=(0, _QUOTA),
            monitor_pods=(130, "RayJob ssp: Initializing"),
            logs_follow=(130, "no driver yet: Initializing"),
            debug_events=(0, _QUOTA),
            test_status=(0, _QUOTA),
        ),
        **_STOPPED,
        "test-quick": CommandAnswer(1, _QUOTA),
        **_same(TESTS[1:], 2, "the cluster is not ready: quota: quota gpus allows 0"),
    },
    "image pull": {
        **_VALID,
        **_each(check_job=(1, _NOT_PULLED)),
        **_same(("monitor-pods", "logs-follow"), 130, _NOT_PULLED),
        **_each(test_status=(1, _NOT_PULLED)),
        **_STOPPED,
        **_same(TESTS, 1, _NOT_PULLED),
    },
    "out of memory": {
        **_VALID,
        **_each(check_job=(1, _KILLED), monitor_pods=(0, "1 restarts"), test_status=(1, _KILLED)),
        **_STOPPED,
        **_same(TESTS, 1, _KILLED),
    },
    "driver crash": {
        **_VALID,
        **_each(
            check_job=(1, "Failed, FAILED (AppFailed: Job entrypoint command failed"),
            monitor_pods=(0, "RayJob ssp: Failed, FAILED (AppFailed:"),
            logs_follow=(0, "main.py: worker 1 died"),
            logs_all=(0, "main.py: worker 1 died"),
        ),
        **_STOPPED,
        **_same(TESTS, 1, "main.py: worker 1 died"),
    },
    "validation failed": {
        **_VALID,
        **_each(
            check_job=(1, _REFUSED),
            monitor_pods=(0, f"RayJob ssp: {_REFUSED}"),
            logs_follow=(1, _REFUSED),
            logs_all=(1, _REFUSED),
            debug_describe=(0, "Job Deployment Status: ValidationFailed"),
            debug_events=(0, "no events about RayJob ssp"),
            test_status=(1, _REFUSED),
        ),
        **_STOPPED,
        **_same(TESTS, 1, _REFUSED),
    },
    "no operator": {
        "validate-setup": CommandAnswer(1, "has no replica that is available"),
        **_each(
            run=(0, "RayJob ssp is applied"),
            check_job=(0, "nothing has failed so far"),
            monitor_pods=(130, f"RayJob ssp: {_NOT_TAKEN_UP}"),
            logs_follow=(130, f"no driver yet: {_NOT_TAKEN_UP}"),
            logs_all=(1, f"RayJob ssp has no pods: {_NOT_TAKEN_UP}"),
            debug_describe=(0, "=== rayjobs.ray.io/ssp"),
            debug_events=(0, "no events about RayJob ssp"),
        ),
        **_STOPPED,
        "test-quick": CommandAnswer(1, "no KubeRay operator has taken the job up: make validate-setup"),
        **_same(TESTS[1:], 2, "the cluster is not ready: operator: kuberay-system/kuberay-operator"),
    },
    "stuck finalizer": {
        **_each(
            test_quick=(1, "the job could not be cleaned up: RayJob ssp-test-"),
            run=(0, "RayJob ssp is applied"),
            stop=(1, "It waits for the finalizer ray.io/rayjob-finalizer"),
            check_job=(1, "waits for the finalizer ray.io/rayjob-finalizer of its operator"),
        ),
    },
    "all is well": {
        **_VALID,
        **_each(
            check_job=(0, "RayJob ssp passed"),
            monitor_pods=(0, "RayJob ssp: Complete, SUCCEEDED"),
            logs_follow=(0, "upload s3://lab/runs/"),
            logs_all=(0, "=== driver"),
            debug_describe=(0, "=== rayjobs.ray.io/ssp"),
            debug_events=(0, "FailedScheduling: 0/3 nodes are available"),
            test_status=(0, '"verdict": "passed"'),
        ),
        **_STOPPED,
        **_each(
            test_quick=(0, "test-quick ssp: passed"),
            test_cluster=(0, "test-cluster ssp: passed"),
            perf_test=(1, "ssgd-s0: ssgd has no threshold"),
        ),
    },
    "a job that runs on": {
        **_VALID,
        **_each(
            check_job=(0, "is running, and nothing has failed so far"),
            monitor_pods=(130, "RayJob ssp: Running, RUNNING"),
            logs_follow=(130, "Job submission server address"),
            logs_all=(0, "=== driver"),
            debug_describe=(0, "=== rayjobs.ray.io/ssp"),
            debug_events=(0, "no events about RayJob ssp"),
            test_status=(0, '"verdict": "running"'),
        ),
        **_STOPPED,
    },
    "may only look": {
        "validate-setup": CommandAnswer(1, "you may not create rayjobs.ray.io, patch rayjobs.ray.io"),
        "run": CommandAnswer(2, "RayJob ssp is active (Running, RUNNING)"),
        **_each(
            check_job=(0, "is running, and nothing has failed so far"),
            monitor_pods=(130, "RayJob ssp: Running, RUNNING"),
            logs_follow=(130, "Job submission server address"),
            logs_all=(1, "cannot be read: kubectl, context viewer: pods"),
            debug_describe=(0, "=== rayjobs.ray.io/ssp"),
            debug_events=(2, 'cannot list resource "events"'),
            test_status=(0, '"verdict": "running"'),
            stop=(2, 'cannot delete resource "rayjobs"'),
            test_quick=(2, "active: ssp (Running, RUNNING)"),
        ),
        **_same(TESTS[1:], 2, "the cluster is not ready: rights: you may not create rayjobs.ray.io"),
    },
}

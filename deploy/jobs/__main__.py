"""Runs jobs on a cluster, and tests that they do what they should: `make run`, `make test-cluster`, …

    python -m deploy.jobs COMMAND [--job NAME] [--namespace NAME] [--yes]

It acts through kubectl, with the user's context. docs/cluster.md says what each command does, and what its
passing means. Exit codes: 0 passed, 1 failed, 2 usage or set-up, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from deploy.jobs import show_cluster, show_verdict
from deploy.jobs.checks import ALL, STARTS, Question, performance
from deploy.jobs.collect_evidence import look
from deploy.jobs.job_manifest import read_job
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import KubectlError, SetupError
from deploy.jobs.run_job import apply, make_room, may_act, ready_to_apply, test
from deploy.jobs.thresholds import DEFAULT, read_thresholds
from deploy.jobs.validate_framework import check_framework
from deploy.jobs.validate_setup import check_setup
from deploy.project import NAMESPACE
from dsgd.terminal.interruptions import Interruptions

EXIT_FAILED, EXIT_SETUP, EXIT_INTERRUPTED = 1, 2, 130

COMMANDS = {
    "validate-framework": "files, tools and manifests are in order; needs no cluster",
    "validate-setup": "the cluster has all that the job needs",
    "run": "apply the job, replacing an earlier one, and leave it running",
    "check-job": "look once: is all well so far?",
    "monitor-pods": "a line whenever a pod changes, until the job is over",
    "logs-follow": "the driver's log as it grows",
    "logs-all": "the logs of all pods, Ray's worker processes included",
    "debug-describe": "kubectl describe of job, cluster and pods",
    "debug-events": "the events about job, cluster and pods, oldest first",
    "test-status": "look once, as JSON",
    "stop": "delete the job and wait until it is gone",
    "test-quick": "about 1 minute: apply, wait for pods and first updates, clean up",
    "test-cluster": "about 5 minutes: a short run of the job, checked to its end, cleaned up",
    "perf-test": "as test-cluster, for throughput and idle share",
}
CHANGING = ("run", "stop", "test-quick", "test-cluster", "perf-test")


class _SetupErrorParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SetupError(f"{message}; see --help")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        with Interruptions() as interruptions:
            return act(_options(arguments), interruptions)
    except SetupError as error:
        return _report(error, EXIT_SETUP)
    except (KubectlError, OSError) as error:
        return _report(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return _report("interrupted", EXIT_INTERRUPTED)


def act(options: argparse.Namespace, interruptions: Interruptions) -> int:
    """Carry out one command."""
    command = options.command
    if command == "validate-framework":
        return show_verdict.checks(command, check_framework())
    job = read_job(options.job).in_namespace(options.namespace)
    thresholds = read_thresholds(options.thresholds)
    if command == "perf-test" and job.name not in thresholds.performance:
        known = ", ".join(thresholds.performance)
        raise SetupError(f"--job {job.name}: {options.thresholds} has no thresholds for it, only for {known}")
    kubectl = Kubectl(options.namespace)
    where = f"context {kubectl.context}, namespace {kubectl.namespace}"
    print(where, file=sys.stderr if command == "test-status" else sys.stdout, flush=True)
    if command in CHANGING:
        may_act(command, kubectl, yes=options.yes)
    limits = thresholds.limits
    match command:
        case "validate-setup":
            return show_verdict.checks(command, check_setup(kubectl, job))
        case "run":
            ready_to_apply(job)
            make_room(kubectl, job, limits)
            apply(kubectl, job)
            print(f"next: make check-job JOB={job.name}, make logs-follow JOB={job.name}")
            return 0
        case "stop":
            was = kubectl.delete(job.ray_job, limit_s=limits.gone_s)
            print(f"RayJob {job.ray_job} is gone" if was else f"there is no RayJob {job.ray_job}")
            return 0
        case "check-job":
            return show_verdict.status(look(kubectl, job))
        case "test-status":
            return show_verdict.status_json(look(kubectl, job), kubectl)
        case "monitor-pods":
            return show_cluster.monitor(kubectl, job, options.poll_s)
        case "logs-follow":
            return show_cluster.follow_logs(kubectl, job, options.poll_s)
        case "logs-all":
            return show_cluster.all_logs(kubectl, job)
        case "debug-describe":
            return show_cluster.describe(kubectl, job)
        case "debug-events":
            return show_cluster.events(kubectl, job)
    asked: tuple[Question, ...] = STARTS if command == "test-quick" else ALL
    if command == "perf-test":
        asked = (*ALL, partial(performance, thresholds=thresholds.performance[job.name]))
    ready_to_apply(job)
    return test(command, kubectl, job.for_a_test(limits.runs_s), asked, limits, options.poll_s, interruptions)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _SetupErrorParser(
        prog="python -m deploy.jobs",
        allow_abbrev=False,
        description="Run jobs on a cluster with KubeRay, and test that they do what they should.",
        epilog="commands:\n" + "\n".join(f"  {name:20}{text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("--job", default="compare-modes", help="NAME of ray-job-NAME.yaml (compare-modes)")
    parser.add_argument("--namespace", default=NAMESPACE, help=f"where it runs ({NAMESPACE})")
    parser.add_argument("--yes", action="store_true", help="do not ask before changing another namespace")
    parser.add_argument(
        "--poll-s", type=float, default=3.0, metavar="S", help="seconds between two looks (3)"
    )
    parser.add_argument(
        "--thresholds", type=Path, default=DEFAULT, metavar="FILE", help="limits for the tests"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.poll_s <= 60:
        raise SetupError(f"--poll-s {options.poll_s:g}: must lie in (0, 60]")
    return options


def _hang_up_like_sigterm() -> None:
    """Clean up also when the terminal is closed, unless under nohup."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def _report(error: object, exit_code: int) -> int:
    print(f"deploy.jobs: {' '.join(str(error).split())}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    _hang_up_like_sigterm()
    sys.exit(main(sys.argv[1:]))

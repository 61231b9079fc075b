"""Runs jobs on a cluster, and tests that they do what they should: `make run`, `make test-cluster`, …

    python -m deploy.jobs COMMAND [--job NAME] [--context NAME] [--namespace NAME] [--yes] [--json]

`--action COMMAND` is another way to name one.

It acts through kubectl, with the user's context. docs/runbook.md says what each command does, and what its
passing means. Exit codes: 0 passed, 1 failed, 2 usage or set-up, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from deploy.jobs import show_cluster, show_verdict
from deploy.jobs.checks import ALL, STARTS, performance
from deploy.jobs.criteria import CRITERIA, cpu
from deploy.jobs.evidence import look
from deploy.jobs.job_manifest import JobManifest, read_job
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import KubectlError, SetupError
from deploy.jobs.probe_pod import probe
from deploy.jobs.run_job import apply, delete, make_room, may_act, may_share, ready_to_apply, test
from deploy.jobs.thresholds import DEFAULT, TimeLimits, read_thresholds
from deploy.jobs.validate import ask, check_framework, check_setup
from deploy.project import NAMESPACE
from dsgd.process.interruptions import Interruptions

EXIT_FAILED, EXIT_SETUP, EXIT_INTERRUPTED = 1, 2, 130

COMMANDS = {
    "validate-framework": "files, tools and manifests are in order; needs no cluster",
    "validate-setup": "the cluster has all that the job needs",
    "run": "apply the job, replacing one that is over, and leave it running",
    "check-job": "look once: is all well so far?",
    "monitor-pods": "a line whenever a pod changes, until the job is over",
    "logs-follow": "the driver's log as it grows",
    "logs-all": "the logs of all pods, Ray's worker processes included",
    "shell": "a shell in the head",
    "debug-describe": "kubectl describe of job, cluster and pods",
    "debug-events": "the events about job, cluster and pods, oldest first",
    "test-status": "look once, as JSON",
    "stop": "delete the job and wait until it is gone",
    "test-quick": "about 1 minute: apply, wait for pods and first updates, clean up",
    "test-cluster": "about 5 minutes: a short run of the job, checked to its end, cleaned up",
    "perf-test": "as test-cluster, for throughput and idle share, with a plot of what the nodes use",
}
WITH_JSON = (
    *("validate-framework", "validate-setup", "check-job", "test-status"),
    *("test-quick", "test-cluster", "perf-test"),
)
LASTING = ("monitor-pods", "test-cluster", "perf-test")
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
    command, as_json = options.command, options.json
    if command == "validate-framework":
        return show_verdict.checks(command, "", check_framework(), as_json=as_json)
    job = read_job(options.job, namespace=options.namespace, image=options.image, bucket=options.bucket)
    thresholds = read_thresholds(options.thresholds)
    if options.duration and command != "monitor-pods":
        thresholds = replace(thresholds, limits=thresholds.limits.lasting(options.duration))
    limits = thresholds.limits
    if command == "perf-test" and job.name not in thresholds.performance:
        known = ", ".join(thresholds.performance)
        raise SetupError(f"--job {job.name}: {options.thresholds} has no thresholds for it, only for {known}")
    kubectl = Kubectl(options.namespace, options.context)
    said = sys.stderr if as_json else sys.stdout  # what people read; JSON is alone on stdout
    print(f"context {kubectl.context}, namespace {kubectl.namespace}", file=said, flush=True)
    if command in CHANGING or options.probe:
        may_act(command, kubectl, yes=options.yes)
    match command:
        case "validate-setup":
            found = check_setup(kubectl, job)
            if options.probe:
                found += [ask("probe", lambda: probe(kubectl, job, limits.pods_running_s, options.poll_s))]
            return show_verdict.checks(command, job.name if as_json else "", found, as_json=as_json)
        case "run" | "stop":
            with redirect_stdout(said):
                return (_run if command == "run" else _stop)(kubectl, job, limits, options)
        case "check-job" | "test-status":
            return show_verdict.status(look(kubectl, job), kubectl, as_json=as_json)
        case "monitor-pods":
            return show_cluster.monitor(kubectl, job, options.poll_s, options.duration or math.inf)
        case "logs-follow":
            return show_cluster.follow_logs(kubectl, job, options.poll_s)
        case "logs-all":
            return show_cluster.all_logs(kubectl, job)
        case "shell":
            return show_cluster.shell(kubectl, job)
        case "debug-describe":
            return show_cluster.describe(kubectl, job)
        case "debug-events":
            return show_cluster.events(kubectl, job)
    whole = (*ALL, *CRITERIA)
    asked = {"test-quick": STARTS, "test-cluster": whole, "perf-test": (*whole, cpu, performance)}[command]
    with redirect_stdout(said):
        ready_to_apply(job)
        if command != "test-quick" and not options.no_validate:
            _ready(kubectl, job)
        may_share(kubectl, job, yes=options.yes)
        tested = job.for_a_test(limits, command)
        found, seen = test(kubectl, tested, asked, thresholds, options.poll_s, interruptions)
    tail, samples = seen.logs.tail if seen.logs else (), seen.samples if command == "perf-test" else ()
    return show_verdict.checks(
        command, job.name, show_verdict.strictly(found), tail, samples, as_json=as_json
    )


def _run(kubectl: Kubectl, job: JobManifest, limits: TimeLimits, options: argparse.Namespace) -> int:
    ready_to_apply(job)
    make_room(kubectl, job, limits, options.poll_s, yes=options.yes)
    apply(kubectl, job)
    print(f"next: make check-job JOB={job.name}, make logs-follow JOB={job.name}")
    return 0


def _stop(kubectl: Kubectl, job: JobManifest, limits: TimeLimits, options: argparse.Namespace) -> int:
    there = kubectl.job(job.ray_job)  # where nothing answers, or the user may not ask, nothing is waited for
    if there and delete(kubectl, there.name, uid=there.uid, limit_s=limits.gone_s, poll_s=options.poll_s):
        print(f"RayJob {job.ray_job} is gone")
    else:
        kubectl.require_namespace()
        print(f"there is no RayJob {job.ray_job}")
    return 0


def _ready(kubectl: Kubectl, job: JobManifest) -> None:
    """Raise SetupError for the first thing that the cluster lacks."""
    for check in check_setup(kubectl, job):
        if check.state == "fail":
            raise SetupError(f"the cluster is not ready: {check.name}: {check.detail} (make validate-setup)")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _SetupErrorParser(
        prog="python -m deploy.jobs",
        allow_abbrev=False,
        description="Run jobs on a cluster with KubeRay, and test that they do what they should.",
        epilog="commands:\n" + "\n".join(f"  {name:20}{text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("command", choices=COMMANDS, metavar="COMMAND", nargs="?", help="one of those below")
    add("--action", choices=COMMANDS, metavar="COMMAND", help="the same")
    add("--job", default="compare-modes", help="NAME of ray-job-NAME.yaml (compare-modes)")
    add("--namespace", default=NAMESPACE, help=f"where it runs ({NAMESPACE})")
    add("--context", default="", help="kubectl's context (the current one)")
    add("--yes", action="store_true", help="answer yes to every question")
    add("--json", action="store_true", help="the result as JSON on stdout, the rest on stderr")
    add("--image", default="", help="run this image instead of the manifest's")
    add("--bucket", default="", help="keep the records in this bucket instead of the manifest's")
    add("--no-validate", action="store_true", help="test without the checks of validate-setup before")
    add(
        "--probe", action="store_true", help="validate-setup: also pull the image and use the bucket in a pod"
    )
    add(
        *("--duration", "--monitor-duration"),
        type=float,
        metavar="S",
        help="monitor-pods: end after S seconds; test-cluster, perf-test: the runs take S seconds in all",
    )
    add("--poll-s", type=float, default=3.0, help=argparse.SUPPRESS)
    add("--thresholds", type=Path, default=DEFAULT, metavar="FILE", help="limits for the tests")
    options = parser.parse_args(arguments)
    if (options.command is None) == (options.action is None):
        raise SetupError("give one COMMAND, in its place or as --action COMMAND; see --help")
    options.command = options.command or options.action
    if options.command == "test-status":
        options.json = True
    if options.json and options.command not in WITH_JSON:
        raise SetupError(f"--json: {options.command} has no result as JSON; {', '.join(WITH_JSON)} have")
    if options.probe and options.command != "validate-setup":
        raise SetupError(f"--probe: only validate-setup has one, not {options.command}")
    if options.duration is not None and options.command not in LASTING:
        raise SetupError(f"--duration: {', '.join(LASTING)} have one, {options.command} ends by itself")
    if options.duration is not None and not 0 < options.duration < math.inf:
        raise SetupError(f"--duration {options.duration:g}: must be a number of seconds above 0")
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

"""Runs jobs on a cluster, and tests that they do what they should: `make run`, `make test-cluster`, …

    python -m deploy.cluster COMMAND [--job NAME] [--namespace NAME] [--yes]

It acts through kubectl, with the user's context. docs/cluster.md says what each command does, and what its
passing means. Exit codes: 0 passed, 1 failed, 2 usage or set-up, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import yaml

from deploy import show
from deploy.checks import ALL, STARTS, Ask, judge, performance, settled
from deploy.evidence import Limits, Threshold
from deploy.job import Job, read_job
from deploy.kubectl import Kubectl, KubectlError, SetupError
from deploy.validation import check_framework, check_setup, hand_edit
from deploy.watch import look, read_logs, watch
from dsgd.terminal.interruptions import Interruptions

NAMESPACE = "ray-jobs"
EXIT_FAILED, EXIT_SETUP, EXIT_INTERRUPTED = 1, 2, 130

COMMANDS = {
    "validate-framework": "files, tools and manifests are in order; needs no cluster",
    "validate-setup": "the cluster has all that the job needs",
    "run": "apply the job anew, and leave it running",
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


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The file that --thresholds names."""

    limits: Limits
    performance: Mapping[str, Mapping[str, Threshold]]
    """By job and mode."""


class _Parser(argparse.ArgumentParser):
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
        return show.checks(command, check_framework())
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
            return show.checks(command, check_setup(kubectl, job))
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
            return show.status(look(kubectl, job))
        case "test-status":
            return show.status_json(look(kubectl, job), kubectl)
        case "monitor-pods":
            return show.monitor(kubectl, job, options.poll_s)
        case "logs-follow":
            return show.follow_logs(kubectl, job, options.poll_s)
        case "logs-all":
            return show.all_logs(kubectl, job)
        case "debug-describe":
            return show.describe(kubectl, job)
        case "debug-events":
            return show.events(kubectl, job)
    asked: tuple[Ask, ...] = STARTS if command == "test-quick" else ALL
    if command == "perf-test":
        asked = (*ALL, partial(performance, thresholds=thresholds.performance[job.name]))
    ready_to_apply(job)
    return test(command, kubectl, job.for_a_test(limits.runs_s), asked, limits, options.poll_s, interruptions)


def test(
    command: str,
    kubectl: Kubectl,
    job: Job,
    asked: Sequence[Ask],
    limits: Limits,
    poll_s: float,
    interruptions: Interruptions,
) -> int:
    """Apply the job, watch it until `asked` is settled, and clean up, whatever happens."""
    with applied(kubectl, job, limits, interruptions):
        line = ""
        for seen in watch(kubectl, job, limits, poll_s):
            if (now := show.progress(seen)) != line:
                line = now
                print(f"{seen.elapsed_s:4.0f} s  {line}", flush=True)
            if settled(seen, asked):
                break
        seen.logs = read_logs(kubectl, seen.now)
        return show.result(f"{command} {job.name}", seen, judge(seen, asked))
    raise AssertionError("watch does not end")


@contextmanager
def applied(kubectl: Kubectl, job: Job, limits: Limits, interruptions: Interruptions) -> Iterator[None]:
    """Apply the job, and delete it however the block ends; a signal cannot cut that short."""
    make_room(kubectl, job, limits)
    try:
        apply(kubectl, job)
        yield
    finally:
        interruptions.hold()
        failed = sys.exception()
        with suppress(OSError):  # who read this may be gone, like a closed terminal
            print(f"cleaning up, at most {limits.gone_s:g} s", flush=True)
        try:
            kubectl.delete(job.ray_job, limit_s=limits.gone_s)
        except KubectlError as error:
            before = f"{str(failed) or 'interrupted'}; moreover, " if failed else ""
            command = " ".join(kubectl.command("delete", "rayjob", job.ray_job))
            raise KubectlError(f"{before}the job could not be cleaned up: {error}; run: {command}") from None


def make_room(kubectl: Kubectl, job: Job, limits: Limits) -> None:
    """Delete a RayJob of that name, if there is one, and wait until it is gone."""
    if kubectl.delete(job.ray_job, limit_s=limits.gone_s):
        print(f"RayJob {job.ray_job} was there and is deleted", flush=True)


def apply(kubectl: Kubectl, job: Job) -> None:
    """Apply the job."""
    kubectl.apply(job.manifest)
    print(f"RayJob {job.ray_job} is applied: {job.entrypoint}", flush=True)


def ready_to_apply(job: Job) -> None:
    """Raise SetupError for a job that is not as rendered, or that cannot keep its records."""
    if problem := hand_edit(job):
        raise SetupError(problem)
    if not job.has_bucket:
        raise SetupError(
            f"{job.file}: has no bucket for the records; render it with "
            "make manifests IMAGE=REGISTRY/NAME:TAG BUCKET=NAME"
        )
    _ = job.configs  # which main.py would refuse only on the cluster


def may_act(command: str, kubectl: Kubectl, *, yes: bool) -> None:
    """Ask before anything outside our own namespace is changed.

    Raises SetupError unless the answer is yes.
    """
    if kubectl.namespace == NAMESPACE or yes:
        return
    what = f"{command} would change namespace {kubectl.namespace} of context {kubectl.context}"
    if not sys.stdin.isatty():
        raise SetupError(f"{what}, not {NAMESPACE}; say --yes if that is meant")
    try:
        answer = input(f"{what}, not {NAMESPACE}. Go on? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SetupError(f"nothing was changed in namespace {kubectl.namespace}")


def read_thresholds(path: Path) -> Thresholds:
    """Read limits and thresholds. Raises SetupError in one line for anything wrong with them."""
    try:
        content = yaml.safe_load(path.read_text())
        return Thresholds(
            limits=Limits(**content["limits"]),
            performance={
                job: {mode: Threshold(**values) for mode, values in modes.items()}
                for job, modes in content["performance"].items()
            },
        )
    except OSError as error:
        raise SetupError(f"--thresholds {path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise SetupError(f"--thresholds {path}: {reason}; docs/cluster.md describes the file") from None


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m deploy.cluster",
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
    default = Path(__file__).with_name("thresholds.yaml")
    parser.add_argument(
        "--thresholds", type=Path, default=default, metavar="FILE", help="limits for the tests"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.poll_s <= 60:
        raise SetupError(f"--poll-s {options.poll_s:g}: must lie in (0, 60]")
    return options


def _hang_up_like_sigterm() -> None:
    """Clean up also when the terminal is closed, unless nohup says that we stay."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def _report(error: object, exit_code: int) -> int:
    print(f"deploy.cluster: {' '.join(str(error).split())}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    _hang_up_like_sigterm()
    sys.exit(main(sys.argv[1:]))

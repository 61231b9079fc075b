"""Applies a job, tests it, and cleans it up: what changes the cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from deploy.jobs.checks import Question, judge, settled
from deploy.jobs.collect_evidence import read_logs, watch
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import KubectlError, SetupError
from deploy.jobs.show_verdict import progress, result
from deploy.jobs.thresholds import TimeLimits
from deploy.manifests.job_table import JOBS
from deploy.manifests.rendered_files import problems, read_settings, render
from deploy.project import NAMESPACE, ROOT
from dsgd.terminal.interruptions import Interruptions


def test(
    command: str,
    kubectl: Kubectl,
    job: JobManifest,
    asked: Sequence[Question],
    limits: TimeLimits,
    poll_s: float,
    interruptions: Interruptions,
) -> int:
    """Apply the job, watch it until `asked` is settled, and clean up, whatever happens."""
    with applied(kubectl, job, limits, interruptions):
        line = ""
        for seen in watch(kubectl, job, limits, poll_s):
            if (now := progress(seen)) != line:
                line = now
                print(f"{seen.elapsed_s:4.0f} s  {line}", flush=True)
            if settled(seen, asked):
                break
        seen.logs = read_logs(kubectl, seen.now)
        return result(f"{command} {job.name}", seen, judge(seen, asked))
    raise AssertionError("watch does not end")


@contextmanager
def applied(
    kubectl: Kubectl, job: JobManifest, limits: TimeLimits, interruptions: Interruptions
) -> Iterator[None]:
    """Apply the job, and delete it however the block ends; a signal cannot cut that short."""
    make_room(kubectl, job, limits)
    try:
        apply(kubectl, job)
        yield
    finally:
        interruptions.hold()
        failed = sys.exception()
        with suppress(OSError):  # the reader may be gone, like a closed terminal
            print(f"cleaning up, at most {limits.gone_s:g} s", flush=True)
        try:
            kubectl.delete(job.ray_job, limit_s=limits.gone_s)
        except KubectlError as error:
            before = f"{str(failed) or 'interrupted'}; moreover, " if failed else ""
            command = " ".join(kubectl.command("delete", "rayjob", job.ray_job))
            raise KubectlError(f"{before}the job could not be cleaned up: {error}; run: {command}") from None


def make_room(kubectl: Kubectl, job: JobManifest, limits: TimeLimits) -> None:
    """Delete a RayJob of that name, if there is one, and wait until it is gone."""
    if kubectl.delete(job.ray_job, limit_s=limits.gone_s):
        print(f"an earlier RayJob {job.ray_job} was deleted", flush=True)


def apply(kubectl: Kubectl, job: JobManifest) -> None:
    """Apply the job."""
    kubectl.apply(job.manifest)
    print(f"RayJob {job.ray_job} is applied: {job.entrypoint}", flush=True)


def ready_to_apply(job: JobManifest) -> None:
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
        raise SetupError(f"{what}, not {NAMESPACE}; give --yes to confirm")
    try:
        answer = input(f"{what}, not {NAMESPACE}. Go on? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SetupError(f"nothing was changed in namespace {kubectl.namespace}")


def hand_edit(job: JobManifest) -> str | None:
    """Return, in one line, how a job's file differs from what deploy/manifests renders, if it does."""
    try:
        settings = read_settings()
    except ValueError as error:
        return str(error)
    rendered = {one.file: render(one, settings) for one in JOBS if one.file == job.file}
    if (ROOT / job.file).read_text() == rendered.get(job.file):
        return None
    return next(problem for problem in problems() if problem.startswith(job.file))

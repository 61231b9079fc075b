"""Applies a job, tests it, and cleans it up: what changes the cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from deploy.jobs.checks import Check, Question, judge, settled
from deploy.jobs.criteria import CRITERIA
from deploy.jobs.evidence import Evidence, read_back, read_logs, watch
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import Forbidden, KubectlError, SetupError, Unreachable
from deploy.jobs.kubernetes_objects import RayJob
from deploy.jobs.show_verdict import progress
from deploy.jobs.thresholds import Thresholds, TimeLimits
from deploy.manifests.rendered_files import problem_of
from deploy.project import NAMESPACE
from dsgd.process.interruptions import Interruptions


def test(
    kubectl: Kubectl,
    job: JobManifest,
    asked: Sequence[Question],
    thresholds: Thresholds,
    poll_s: float,
    interruptions: Interruptions,
) -> tuple[list[Check], Evidence]:
    """Apply the job, watch it until `asked` is settled, and clean up, whatever happens.

    Returns the answers, and what they were drawn from.
    """
    line, of_nodes = "", set(CRITERIA) <= set(asked)
    with applied(kubectl, job, thresholds.limits, poll_s, interruptions):
        for seen in watch(kubectl, job, thresholds, poll_s, samples=of_nodes):
            interruptions.check()
            if (now := progress(seen)) != line:
                line = now
                print(f"{seen.elapsed_s:4.0f} s  {line}", flush=True)
            if settled(seen, asked):
                break
        seen.logs = read_logs(kubectl, seen.now)
        if of_nodes and seen.succeeded:
            seen.read_back = read_back(kubectl, seen)
        return judge(seen, asked), seen
    raise AssertionError("watch does not end")


@contextmanager
def applied(
    kubectl: Kubectl, job: JobManifest, limits: TimeLimits, poll_s: float, interruptions: Interruptions
) -> Iterator[None]:
    """Apply the job, and delete it however the block ends; a signal cannot cut that short."""
    refused = False
    try:
        try:
            apply(kubectl, job)
        except KubectlError as error:  # without an answer it may be there all the same
            refused = not isinstance(error, Unreachable)
            raise
        yield
    finally:
        if not refused:
            interruptions.hold()
            _clean_up(kubectl, job, limits, poll_s, sys.exception())


def _clean_up(
    kubectl: Kubectl, job: JobManifest, limits: TimeLimits, poll_s: float, failed: BaseException | None
) -> None:
    with suppress(OSError):  # the reader may be gone, like a closed terminal
        print(f"cleaning up, at most {limits.gone_s:g} s", flush=True)
    try:
        # Its name has letters that were drawn for it: what has this name is ours, also where no answer came.
        delete(kubectl, job.ray_job, limit_s=limits.gone_s, poll_s=poll_s)
    except KubectlError as error:
        before = f"{str(failed) or 'interrupted'}; moreover, " if failed else ""
        command = " ".join(kubectl.command("delete", "rayjob", job.ray_job))
        text = f"{before}the job could not be cleaned up: {error}; run: {command}"
        # Where nothing ever answered, that is a set-up that is not ready.
        raise (type(failed) if isinstance(failed, Unreachable) else KubectlError)(text) from None


def delete(kubectl: Kubectl, name: str, *, limit_s: float, poll_s: float, uid: str = "") -> bool:
    """Delete a RayJob, wait until all that belongs to it is gone, and return whether it was there.

    uid: of the one that is meant; a later one of its name is left alone. A call that fails is tried again,
    until `limit_s` is over. Raises KubectlError that says what is left.
    """
    until_s = time.monotonic() + limit_s
    asked, left, trouble = False, None, ""
    while True:
        try:
            left = kubectl.job(name)
            if left is None or (uid and left.uid != uid):
                return asked
            uid = left.uid
            asked = asked or kubectl.ask_to_delete(left)
            trouble = ""
        except Forbidden:
            raise
        except KubectlError as error:
            trouble = str(error)
        if time.monotonic() > until_s:
            raise KubectlError(_what_is_left(kubectl, name, left, trouble, limit_s))
        time.sleep(min(poll_s, 1.0))


def _what_is_left(kubectl: Kubectl, name: str, left: RayJob | None, trouble: str, limit_s: float) -> str:
    """Return why a deletion has not come to its end, and what may still be there."""
    if trouble:
        return (
            f"in {limit_s:g} s the cluster has not confirmed it ({trouble}); "
            f"RayJob {name} and its pods may run on"
        )
    pods = ""
    with suppress(KubectlError):
        there = kubectl.snapshot(name).pods
        pods = f" and {len(there)} pods ({', '.join(pod.name for pod in there)})" if there else ""
    text = f"RayJob {name}{pods} is not gone after {limit_s:g} s; is the KubeRay operator running?"
    if left and left.finalizers:
        free = """ --type merge --patch '{"metadata":{"finalizers":null}}'"""
        command = " ".join(kubectl.command("patch", "rayjob", name)) + free
        text += f" It waits for the finalizer {', '.join(left.finalizers)}; "
        text += f"without an operator, {command} frees it"
    return text


def make_room(kubectl: Kubectl, job: JobManifest, limits: TimeLimits, poll_s: float, *, yes: bool) -> None:
    """Delete an earlier RayJob of that name, and wait until it is gone; ask first if it is still active."""
    earlier = kubectl.job(job.ray_job)
    if earlier is None:
        return
    if not (earlier.over or earlier.leaving):
        by = f" by {earlier.owner}" if earlier.owner else ""
        what = f"RayJob {earlier.name} is active ({earlier.state}), applied {earlier.created}{by}"
        what += "; run would end it"
        confirm(what, yes=yes, otherwise=f"RayJob {earlier.name} was left as it is")
    delete(kubectl, earlier.name, uid=earlier.uid, limit_s=limits.gone_s, poll_s=poll_s)
    print(f"an earlier RayJob {earlier.name} was deleted", flush=True)


def may_share(kubectl: Kubectl, job: JobManifest, *, yes: bool) -> None:
    """Ask before a test that would share the cluster with the same job, or with another test of it."""
    active = [
        one for one in kubectl.jobs() if not one.over and (one.name == job.name or one.test_of == job.name)
    ]
    if active:
        names = ", ".join(
            f"{one.name} ({one.state}{f', of {one.owner}' if one.owner else ''})" for one in active
        )
        what = f"active: {names}; a test of {job.name} leaves it alone, but would share its nodes"
        confirm(what, yes=yes, otherwise="nothing was applied")


def apply(kubectl: Kubectl, job: JobManifest) -> None:
    """Apply the job."""
    kubectl.apply(job.manifest)
    print(f"RayJob {job.ray_job} is applied: {job.entrypoint}", flush=True)


def ready_to_apply(job: JobManifest) -> None:
    """Raise SetupError for a job that cannot keep its records, or that is not as rendered."""
    if problem := problem_of(job.file):
        raise SetupError(problem)
    if not job.has_bucket:
        raise SetupError(
            f"{job.file}: has no bucket for the records; edit the two lines that its head names, or render "
            "it with make manifests IMAGE=REGISTRY/NAME:TAG BUCKET=NAME, or give --bucket NAME"
        )
    _ = job.configs  # which main.py would refuse only on the cluster


def may_act(command: str, kubectl: Kubectl, *, yes: bool) -> None:
    """Ask before anything is changed outside our own namespace; raise SetupError unless the answer is yes."""
    if kubectl.namespace != NAMESPACE:
        where = f"namespace {kubectl.namespace} of context {kubectl.context}, not {NAMESPACE}"
        otherwise = f"nothing was changed in namespace {kubectl.namespace}"
        confirm(f"{command} would change {where}", yes=yes, otherwise=otherwise)


def confirm(what: str, *, yes: bool, otherwise: str) -> None:
    """Ask at a terminal; raise SetupError unless the answer is yes, or `yes` was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SetupError(f"{what}; give --yes to confirm")
    try:
        answer = input(f"{what}. Go on? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SetupError(otherwise)

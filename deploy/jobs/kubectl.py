"""kubectl with the user's context: arguments as lists, a time limit on every call, errors of one line.

A context is looked up once and named in every later call, so that switching it in another terminal
cannot send the second half of a test, or its clean-up, to another cluster.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from deploy.jobs.kubectl_errors import (
    Conflict,
    Forbidden,
    KubectlError,
    NotFound,
    SetupError,
    Unreachable,
    explain,
)
from deploy.jobs.kubernetes_objects import Pod, RayJob, Snapshot, snapshot
from dsgd.process.environment import of_users_tool

CALL_TIMEOUT_S = 20.0
_RAY_JOBS = "rayjobs.ray.io"


def call(
    *arguments: str, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S, context: str = ""
) -> str:
    """Run `kubectl ARGUMENTS` and return what it prints; raises KubectlError, of the kind that fits."""
    if shutil.which("kubectl") is None:
        raise SetupError("no kubectl on the PATH: install it, then give it your cluster's context")
    try:
        done = subprocess.run(
            ["kubectl", *arguments],  # noqa: S607 - the user's, as in a shell
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=of_users_tool(),
            start_new_session=True,  # ctrl-C is for this process: it must not interrupt a delete
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"the cluster of context {context} did not answer kubectl {arguments[0]} within {timeout_s:g} s"
        ) from None
    if done.returncode:
        raise explain(done.stderr or done.stdout, context)
    return done.stdout


class Kubectl:
    """Calls kubectl in one context, by default the current one, and namespace; raises as `call` does."""

    def __init__(self, namespace: str, context: str = "") -> None:
        self.namespace = namespace
        self.context = context or call("config", "current-context").strip()
        self._may_list_events = True

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Run `kubectl ARGUMENTS` in this context and namespace, and return what it prints."""
        _, *words = self.command(*arguments)
        return call(*words, stdin=stdin, timeout_s=timeout_s, context=self.context)

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line, for the user to run."""
        verb, *rest = arguments
        return ["kubectl", verb, "--context", self.context, "--namespace", self.namespace, *rest]

    def get(self, *arguments: str) -> Any:
        """Return the objects that `kubectl get ARGUMENTS` finds, as parsed JSON."""
        return json.loads(self("get", *arguments, "--output", "json"))

    def get_version(self) -> str:
        """Return the version of the cluster: the cheapest way to see that it answers."""
        return str(json.loads(self("version", "--output", "json"))["serverVersion"]["gitVersion"])

    def may(self, verb: str, resource: str) -> bool:
        """Whether the user may do this in the namespace; a resource may have a subresource: pods/log."""
        kind, _, part = resource.partition("/")  # can-i takes what follows a slash for an object's name
        try:
            answer = self("auth", "can-i", verb, kind, *([f"--subresource={part}"] if part else []))
            return answer.strip() == "yes"
        except KubectlError as error:  # `no` comes with exit code 1
            if not re.search(r": no( - |$)", str(error)):
                raise
            return False

    def jobs(self) -> list[RayJob]:
        """Return all RayJobs of the namespace."""
        return [RayJob(item) for item in self.get(_RAY_JOBS)["items"]]

    def job(self, name: str) -> RayJob | None:
        """Return one RayJob, if it is there."""
        found = self("get", _RAY_JOBS, name, "--ignore-not-found", "--output", "json")
        return RayJob(json.loads(found)) if found.strip() else None

    def snapshot(self, job: str) -> Snapshot:
        """Return the state of the RayJob `job` and its pods, without events."""
        return snapshot(self.get(f"{_RAY_JOBS},pods")["items"], job)

    def with_events(self, now: Snapshot) -> Snapshot:
        """Return the same with its events, or as it is, with one line on stderr, if they may not be read."""
        if self._may_list_events:
            try:
                return now.with_events(self.get("events")["items"])
            except Forbidden as error:
                self._may_list_events = False
                note = "note: without events the reason of a trouble may be missing"
                print(f"{note}: {error}", file=sys.stderr)
        return now

    def require_namespace(self) -> None:
        """Raise SetupError if there is no such namespace: a list in a missing one is empty, not an error."""
        try:
            self.get("namespaces", self.namespace)
        except Forbidden:  # then it cannot be known
            return

    def apply(self, manifest: Mapping[str, Any]) -> str:
        """Create or change an object; return its uid."""
        applied = self("apply", "--filename", "-", "--output", "json", stdin=json.dumps(manifest))
        return str(json.loads(applied)["metadata"].get("uid", ""))

    def ask_to_delete(self, job: RayJob) -> bool:
        """Have exactly this RayJob deleted, not a later one of its name; return whether it was still there.

        Its submitter, head and workers go first: in the foreground, or a new job would meet the old one's
        submitter, which has its name.
        """
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": job.uid},
        }
        path = f"/apis/ray.io/v1/namespaces/{self.namespace}/rayjobs/{job.name}"
        try:
            self("delete", "--raw", path, "--filename", "-", stdin=json.dumps(options))
        except (NotFound, Conflict):
            return False
        return True

    def logs(self, pod: Pod) -> str:
        """Return all that a pod's container has printed."""
        return self("logs", pod.name, "--container", pod.container)

    def read_in(self, pod: Pod, *program: str, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Return what a program prints that is run in a pod's container."""
        return self("exec", pod.name, "--container", pod.container, "--", *program, timeout_s=timeout_s)

    def read_port(self, pod: Pod, port: int, path: str) -> str:
        """Return what a pod of any namespace serves over HTTP, fetched by the API server."""
        return self("get", "--raw", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/{path}")

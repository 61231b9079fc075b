"""kubectl with the user's context: arguments as lists, a time limit on every call, errors of one line.

A context is looked up once and named in every later call, so that switching it in another terminal
cannot send the second half of a test, or its clean-up, to another cluster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.jobs.kubectl_errors import KubectlError, SetupError, Unreachable, explain
from deploy.jobs.kubernetes_objects import Snapshot, snapshot

CALL_TIMEOUT_S = 20.0
_RAY_JOBS = "rayjobs.ray.io"


class Kubectl:
    """Calls kubectl in one context and namespace.

    Raises SetupError if there is no kubectl or no context, see `explain` for the calls.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.context = ""
        if shutil.which("kubectl") is None:
            raise SetupError("no kubectl on the PATH: install it, then give it your cluster's context")
        try:
            self.context = self._call(["config", "current-context"]).strip()
        except KubectlError:
            raise SetupError(
                "kubectl has no current context: choose a cluster with kubectl config use-context NAME"
            ) from None

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Run `kubectl ARGUMENTS` in this context and namespace, and return what it prints."""
        return self._call(self.command(*arguments)[1:], stdin, timeout_s)

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
        """Whether the user may do this in the namespace."""
        try:
            return self("auth", "can-i", verb, resource).strip() == "yes"
        except KubectlError as error:  # `no` comes with exit code 1
            if not str(error).startswith("kubectl: no"):
                raise
            return False

    def snapshot(self, job: str) -> Snapshot:
        """Return the state of the RayJob `job` in one call."""
        return snapshot(self.get(f"{_RAY_JOBS},pods,events")["items"], job)

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Create or change an object."""
        self("apply", "--filename", "-", stdin=json.dumps(manifest))

    def delete(self, job: str, *, limit_s: float) -> bool:
        """Delete the RayJob, wait until all that belongs to it is gone, and return whether it was there.

        Raises KubectlError if they are not gone within `limit_s` seconds.
        """
        # In the foreground, or the new job would meet the submitter of the old one, which has its name.
        options = ("--ignore-not-found", "--cascade=foreground", "--wait=true", f"--timeout={limit_s:g}s")
        try:
            return "deleted" in self("delete", _RAY_JOBS, job, *options, timeout_s=limit_s + CALL_TIMEOUT_S)
        except Unreachable as error:
            if "timed out waiting" in str(error):
                raise KubectlError(
                    f"RayJob {job} is not gone after {limit_s:g} s; is the KubeRay operator running?"
                ) from None
            raise

    def logs(self, pod: str, container: str) -> str:
        """Return all that a container has printed."""
        return self("logs", pod, "--container", container)

    def read_in(self, pod: str, container: str, *program: str) -> str:
        """Return what a program prints that is run in a container."""
        return self("exec", pod, "--container", container, "--", *program)

    def _call(
        self, arguments: Sequence[str], stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> str:
        try:
            done = subprocess.run(
                ["kubectl", *arguments],
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                start_new_session=True,  # ctrl-C is for this process: it must not interrupt a delete
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"the cluster of context {self.context!r} did not answer kubectl {arguments[0]} "
                f"within {timeout_s:g} s"
            ) from None
        if done.returncode:
            raise explain(done.stderr or done.stdout, context=self.context, namespace=self.namespace)
        return done.stdout

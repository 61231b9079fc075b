"""kubectl with the user's context: arguments as lists, a time limit on every call, errors of one line.

A context is looked up once and named in every later call, so that switching it in another terminal
cannot send the second half of a test, or its clean-up, to another cluster.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.objects import Snapshot, snapshot

CALL_TIMEOUT_S = 20.0
_RAY_JOBS = "rayjobs.ray.io"


class KubectlError(Exception):
    """kubectl could not do it; the message is one line."""


class NotFound(KubectlError):
    """There is no such object."""


class SetupError(KubectlError):
    """The tools, the user's access or the cluster are not ready."""


class Unreachable(SetupError):
    """The cluster does not answer; it may do so a moment later."""


# What kubectl writes -> what it means here. {context}, {namespace} and the pattern's groups are filled in.
_MEANINGS: list[tuple[str, type[KubectlError], str]] = [
    (
        r"context was not found|context \"[^\"]*\" does not exist|no context exists",
        SetupError,
        "the kubeconfig has no context {context!r}; see kubectl config get-contexts",
    ),
    (
        r"connection to the server (\S+) was refused|dial tcp[^:]*: lookup (\S+?):? |no route to host"
        r"|connection refused|network is unreachable",
        Unreachable,
        "the cluster of context {context!r} is unreachable ({line}); is the address right, is the VPN up?",
    ),
    (
        r"i/o timeout|context deadline exceeded|request canceled|Client\.Timeout|TLS handshake timeout"
        r"|timed out waiting for the condition",
        Unreachable,
        "the cluster of context {context!r} did not answer in time ({line})",
    ),
    (
        r"You must be logged in|Unauthorized|getting credentials|token has expired|certificate has expired",
        SetupError,
        "the cluster of context {context!r} does not accept your credentials ({line}); log in again",
    ),
    (
        r"Unable to connect to the server",
        Unreachable,
        "the cluster of context {context!r} is unreachable ({line})",
    ),
    (
        r"doesn't have a resource type \"(rayjobs)\"|no matches for kind \"RayJob\""
        r"|\"rayjobs\.ray\.io\" not found",
        SetupError,
        "the cluster has no RayJob of version ray.io/v1 (CRD rayjobs.ray.io): install KubeRay 1.7 or newer",
    ),
    (
        r"unknown field \"(spec\.[\w.\[\]]+)\"",
        SetupError,
        "the cluster's RayJob CRD does not know {0}: it is older than KubeRay 1.7; upgrade operator and CRDs",
    ),
    (
        r"doesn't have a resource type \"podmonitors\"",
        NotFound,
        "the cluster has no PodMonitors (monitoring.coreos.com): install the Prometheus operator",
    ),
    (
        r"namespaces \"([^\"]+)\" not found",
        SetupError,
        "there is no namespace {0} in context {context}: kubectl apply --server-side -k "
        "deploy/kubernetes/overlays/eks-gpu, or give the right one by --namespace",
    ),
    (
        r"\(Forbidden\).*?cannot (\w+) resource \"([^\"]+)\"",
        SetupError,
        "you may not {0} {1} in namespace {namespace} of context {context!r}; ask for a role that allows it",
    ),
    (r"NotFound|not found", NotFound, "{line}"),
]


def explain(said: str, *, context: str, namespace: str) -> KubectlError:
    """Return what kubectl said when it failed, as an exception with a message of one line."""
    # Lines like E1121 12:15:33 are kubectl's own log: they repeat, at length, what the last line says.
    lines = [line.strip() for line in said.splitlines() if not re.match(r"[EIW]\d{4} ", line)]
    text = " ".join(filter(None, lines)) or " ".join(said.split()) or "it failed, and does not say why"
    line = re.sub(r"^(error|Error from server \(\w+\)|Unable to connect to the server): ", "", text)
    for pattern, kind, message in _MEANINGS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return kind(message.format(*found.groups(), context=context, namespace=namespace, line=line))
    return KubectlError(f"kubectl: {line}")


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
        """Return the whole command line, for who runs it himself."""
        verb, *rest = arguments
        return ["kubectl", verb, "--context", self.context, "--namespace", self.namespace, *rest]

    def get(self, *arguments: str) -> Any:
        """Return the objects that `kubectl get ARGUMENTS` finds, as parsed JSON."""
        return json.loads(self("get", *arguments, "--output", "json"))

    def get_version(self) -> str:
        """Return the version of the cluster, which this is the cheapest way to reach."""
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
        """Delete the RayJob, wait until all that is its own is gone, and return whether it was there.

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
                start_new_session=True,  # ctrl-C is for us: it must not tear a delete
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"the cluster of context {self.context!r} did not answer kubectl {arguments[0]} "
                f"within {timeout_s:g} s"
            ) from None
        if done.returncode:
            raise explain(done.stderr or done.stdout, context=self.context, namespace=self.namespace)
        return done.stdout

"""What kubectl says when it fails, as exceptions: its last line, by the kind of trouble, and the remedy."""

from __future__ import annotations

import re


class KubectlError(Exception):
    """kubectl could not do it; the message is one line."""


class NotFound(KubectlError):
    """There is no such object."""


class Conflict(KubectlError):
    """The object is not the one that was meant: another one has its name now."""


class SetupError(KubectlError):
    """The tools, the user's access or the cluster are not ready."""


class Unreachable(SetupError):
    """The cluster does not answer; it may do so a moment later."""


class KindMissing(SetupError):
    """The cluster does not serve RayJobs: never, or not yet, after its API server has started again."""


class Forbidden(SetupError):
    """The user may not do it."""


_OVERLAY = "kubectl apply --server-side -k deploy/kubernetes/overlays/eks-gpu (without GPUs: overlays/cpu)"
# What is in the line -> what it means, and the remedy; the first that fits.
_KINDS: list[tuple[str, type[KubectlError], str]] = [
    (
        r"must be logged in|Unauthorized|getting credentials|(token|certificate) has expired",
        SetupError,
        "log in to the cluster again, with the program that the kubeconfig names",
    ),
    (r"current-context is not set", SetupError, "choose a cluster with kubectl config use-context NAME"),
    (
        r"context .*(was not found|does not exist)|loading config",
        SetupError,
        "see kubectl config get-contexts",
    ),
    (
        r"Unable to connect|(connection|server \S+ was) refused|no route to host|network is unreachable"
        r"|\((ServiceUnavailable|TooManyRequests|Timeout|ServerTimeout)\)|unable to handle the request"
        r"|etcdserver: |apiserver is shutting down|unexpected EOF|too many requests|connection lost"
        r"|i/o timeout|handshake timeout|Client\.Timeout|timed out waiting|deadline exceeded|request cancel",
        Unreachable,
        "check its address, the network and the VPN",
    ),
    (
        r"resource type \"rayjobs\"|no matches for kind \"RayJob\"|\"rayjobs\.ray\.io\" not found"
        r"|could not find the requested resource|resource for \"ray\.io/v1",
        KindMissing,
        "install KubeRay 1.7 or newer, with its CRDs",
    ),
    (
        r"unknown field|field .* does not exist",
        SetupError,
        "the CRDs are older than KubeRay 1.7: upgrade them with the operator",
    ),
    (r"namespaces .* not found", SetupError, f"{_OVERLAY}, or name the right one by --namespace"),
    (r"\(Forbidden\).* cannot \w+ resource", Forbidden, "ask for a role that allows it"),  # no quota, say
    (r"\(Conflict\)|the UID in the precondition", Conflict, ""),
    (r"NotFound|not found|doesn't have a resource type", NotFound, ""),
]


def explain(said: str, context: str) -> KubectlError:
    """Return what kubectl said when it failed, as an exception with a message of one line."""
    # Lines like E1121 12:15:33 are kubectl's own log: they repeat, at length, what the last line says. A
    # credential plugin that fails says the same for each call: once is enough.
    lines = dict.fromkeys(line.strip() for line in said.splitlines() if not re.match(r"[EIW]\d{4} ", line))
    logged = dict.fromkeys(re.findall(r'err="(.*)"$', said, re.MULTILINE))
    text = " ".join(filter(None, lines)) or " ".join(logged) or "it failed without a message"
    line = re.sub(r"^(error|Error from server( \(\w+\))?|Unable to connect to the server): ", "", text)
    who = f"kubectl, context {context}" if context else "kubectl"
    for pattern, kind, remedy in _KINDS:
        if re.search(pattern, text, re.IGNORECASE):
            line = line.partition(" - did you specify")[0].rstrip(".")
            return kind(f"{who}: {line}; {remedy}" if remedy else f"{who}: {line}")
    return KubectlError(f"{who}: {line}")

"""How a validation asks one question of files, tools or cluster, and makes a check of the answer."""

from __future__ import annotations

from collections.abc import Callable

from deploy.jobs.checks import Check
from deploy.jobs.kubectl_errors import KubectlError

Finding = tuple[bool, str]
"""Whether all is well, and a detail in one line."""


def ask(name: str, question: Callable[[], Finding]) -> Check:
    """Return the answer as a check, failed if kubectl fails."""
    try:
        good, detail = question()
    except KubectlError as error:
        good, detail = False, str(error)
    return Check(name=name, state="pass" if good else "fail", detail=detail)

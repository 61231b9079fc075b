"""What each program that we start inherits of this process's environment, and why.

- Python, for our own code: everything, since a run of a user's code may read any of it, but not what has an
  interpreter stay when it is done, or print what is taken for its answer. Our code is on its path.
- git: where things are on this machine, and the user's settings. A repository that the environment names is
  not ours.
- kubectl and docker: everything, because they act for the user, with plug-ins that find credentials, proxies
  and certificates there; but they answer in English, which is what we read.
- Prometheus and Alertmanager on this machine: where things are on it. No proxy leads to what they ask.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

_OF_THE_MACHINE = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
_ENGLISH = {"LC_ALL": "C.UTF-8"}
_STAYS_OR_PRINTS = (
    "PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME", "PYTHONDUMPREFS",
    "FORCE_COLOR", "PYTHON_COLORS",
)  # fmt: skip


def of_python(**others: str) -> dict[str, str]:
    """Return the environment of a Python process of ours; others: what it has besides."""
    paths = [os.environ.get("PYTHONPATH"), None if ROOT.name.endswith("-packages") else str(ROOT)]
    kept = {name: value for name, value in os.environ.items() if name not in _STAYS_OR_PRINTS}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **others}


def of_git() -> dict[str, str]:
    """Return that of git, which only looks: it locks nothing."""
    return {**_taken(*_OF_THE_MACHINE, "XDG_CONFIG_HOME"), **_ENGLISH, "GIT_OPTIONAL_LOCKS": "0"}


def of_users_tool() -> dict[str, str]:
    """Return that of a tool with which we do what the user might do by hand."""
    return {**os.environ, **_ENGLISH}


def of_server() -> dict[str, str]:
    """Return that of a server on this machine, for this machine."""
    return {**_taken(*_OF_THE_MACHINE), **_ENGLISH}


def _taken(*names: str) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}

"""Prepares the stand-in for kubectl to play a scenario: `python play.py NAME FOLDER`; or calls it.

Then put this folder before anything else on the PATH, set KUBECTL_STANDIN=FOLDER, and call the tools: `make
test-cluster`. CONTRIBUTING.md has an example.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@cache
def scenario(name: str) -> dict[str, Any]:
    """Return a scenario of the folder scenarios/, complete: with what it is based on."""
    return based(_load(HERE / "scenarios" / f"{name}.yaml")[0])


@cache
def objects() -> dict[str, Any]:
    """Return the recorded objects."""
    recorded: dict[str, Any] = _load(HERE / "objects.yaml")[0]
    recorded["setup"]["podmonitors"] = _load(ROOT / "deploy/kubernetes/base/pod-monitor.yaml")
    return recorded


def _load(path: Path) -> list[Any]:
    return list(yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def based(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario with what it is based on, whose keys its own replace.

    `before` has frames that come before those, `last` changes the last one.
    """
    content = dict(content)
    complete = {**scenario(content.pop("based_on")), **content} if "based_on" in content else content
    complete["frames"] = [*complete.pop("before", ()), *complete["frames"]]
    if last := complete.pop("last", None):
        complete["frames"] = [*complete["frames"][:-1], complete["frames"][-1] | last]
    return complete


def prepare(content: Mapping[str, Any], folder: Path) -> None:
    """Have the stand-in play a scenario from its beginning, with its state in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("state.json", "calls.jsonl"):
        (folder / name).unlink(missing_ok=True)
    (folder / "objects.json").write_text(json.dumps(objects()))
    (folder / "scenario.json").write_text(json.dumps(based(content)))


_one_call = threading.Lock()  # what it prints is this process's output


def call(command: Sequence[str], *, input: str | None = None, **_: Any) -> subprocess.CompletedProcess[str]:
    """Call the stand-in as `subprocess.run` would, but in this process: no Python has to start."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    called: dict[str, Any] = {"__name__": "__main__"}
    with (
        _one_call,
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", [*command]),
        patch.object(sys, "stdin", io.StringIO(input or "")),
        patch.object(sys, "path", [str(HERE), *sys.path]),
    ):
        try:
            exec(_kubectl(), called)  # noqa: S102 - what the test asks for
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            if called.get("locked", -1) >= 0:
                os.close(called["locked"])
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


@cache
def _kubectl() -> CodeType:
    return compile((HERE / "kubectl").read_text(), str(HERE / "kubectl"), "exec")


if __name__ == "__main__":
    names = sorted(path.stem for path in (HERE / "scenarios").iterdir())
    if len(sys.argv) != 3 or sys.argv[1] not in names:
        sys.exit(f"play.py: give a scenario and a folder; the scenarios are {', '.join(names)}")
    prepare(scenario(sys.argv[1]), Path(sys.argv[2]))

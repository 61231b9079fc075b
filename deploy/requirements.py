"""`make requirements`: write requirements.txt, the packages of a fresh clone by version and hash.

It needs nothing but uv and Python itself, so that it works before `make setup`. The file names no registry.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "requirements.txt"
# Mirrors were seen that show an upload three days late; until then the same pins resolve to older packages.
SETTLED = timedelta(days=10)


def first_lines(project: Mapping[str, Any]) -> str:
    """Return what the file begins with: who makes it, and a digest of all that decides its packages.

    `project` is the content of pyproject.toml.
    """
    parts = ("build-system", "dependency-groups")
    keys = ("dependencies", "optional-dependencies", "requires-python")
    decides = {
        **{part: project[part] for part in parts},
        **{key: project["project"][key] for key in keys},
        "uv": project["tool"]["uv"],
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    return (
        "# Made by `make requirements` from pyproject.toml; docs/deploy.md says who uses it.\n"
        f"# The pins that it was made from have the digest {digest}.\n"
    )


def too_young(exclude_newer: str, now: datetime) -> str:
    """Return why the date cannot be used and which can, in one line; empty if it is old enough.

    `exclude_newer` is the setting of pyproject.toml; `now` has a time zone.
    """
    newest = latest(now)
    try:
        date = datetime.fromisoformat(exclude_newer)
    except ValueError:
        date = now
    if date.tzinfo and date <= datetime.fromisoformat(newest):
        return ""
    return (
        f'pyproject.toml: exclude-newer = "{exclude_newer}": it must be a time at least {SETTLED.days} days '
        f'ago, because a registry may show an upload only days later; set "{newest}"'
    )


def latest(now: datetime) -> str:
    """Return the youngest value that exclude-newer may have."""
    return f"{now.astimezone(UTC) - SETTLED:%Y-%m-%dT00:00:00Z}"


def exported(uv: str, *options: str) -> str:
    """Return what `uv export` makes of uv.lock: the packages that the project runs on, with their hashes."""
    command = [uv, "export", "--quiet", "--frozen", "--format", "requirements-txt", "--no-dev"]
    command += ["--extra", "serve"]  # a RayService answers from the image
    command += ["--no-emit-project", "--no-header", "--no-annotate", *options]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(uv: str) -> None:
    """Resolve from scratch, whatever an older uv.lock has, and write the file; on an error, leave it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    now = datetime.now(UTC)
    if problem := too_young(str(project["tool"]["uv"].get("exclude-newer", "")), now):
        sys.exit(problem)
    try:
        subprocess.run([uv, "lock", "--quiet", "--upgrade"], cwd=ROOT, check=True)
        text = exported(uv)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # uv has said why
    FILE.write_text(first_lines(project) + text)
    print(f"requirements.txt is written; today exclude-newer may be {latest(now)} or older")


if __name__ == "__main__":
    main(sys.argv[1])

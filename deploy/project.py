"""What the packages of deploy/ share: the project's folder, its pins, and names used in the cluster."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NAMESPACE = "ray-jobs"
# Where alerts find the runbook; yours: `make manifests DOCS_URL=https://…/docs`.
DOCS_URL = "https://example.org/dsgd-lab/docs"
GPU = "nvidia.com/gpu"
BUCKET_VARIABLE = "RESULTS_BUCKET"  # of the submitter, whose shell puts its value into the entrypoint
NAME_VARIABLE = "RAY_JOB_NAME"  # of the submitter: the RayJob's name, the same each time it is tried
TAG_VARIABLE = "DSGD_IMAGE_TAG"  # of the image: its content
TOKEN_VARIABLE = "DSGD_SERVE_TOKEN"  # noqa: S105 - of a service: what requests must send; see dsgd/serve/options.py
STOP_VARIABLE = "DSGD_STOP_ON_USAGE_ERROR"  # of the driver: see dsgd/show/terminal/usage.py
UNNAMED_BUCKET = "BUCKET"  # no bucket's name has capitals, so this one cannot exist


def version() -> str:
    """Return the project's own version."""
    return str(_project()["version"])


def pinned(package: str) -> str:
    """Return the version of a package that pyproject.toml pins."""
    pins = (re.fullmatch(rf"{package}(\[.*\])?==(\S+)", line) for line in _project()["dependencies"])
    return next(pin[2] for pin in pins if pin)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project

"""The workflows of .github: what they run, runs on a laptop."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml
from conftest import ROOT

FILES = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
SET_UP = yaml.safe_load((ROOT / ".github/actions/setup/action.yml").read_text())
# What has a meaning only there: signing in to the registry, a builder that may write to it, a release's page.
ONLY_THERE = ("docker login ", "docker buildx create ", "gh release create ")


def steps() -> Iterator[dict[str, Any]]:
    yield from SET_UP["runs"]["steps"]
    for job in (job for workflow in FILES.values() for job in workflow["jobs"].values()):
        yield from job["steps"]


def test_workflows_run_targets_of_the_makefile() -> None:
    """Each line is `make TARGET`, except for the three of `ONLY_THERE`."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [line for step in steps() for line in step.get("run", "").splitlines()]
    for line in commands:
        words = line.removeprefix("sudo ").split()
        assert words[0] == "make" or any(words in line for words in ONLY_THERE), line
        assert words[0] != "make" or words[1] in targets, line
    assert all(any(words in line for line in commands) for words in ONLY_THERE)


def test_versions_are_those_of_the_project() -> None:
    """Each Python that the project takes, and the Makefile's uv."""
    takes = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    first, end = (int(minor) for minor in re.fullmatch(r">=3\.(\d+),<3\.(\d+)", takes).groups())  # type: ignore[union-attr]
    tested = FILES["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == [f"3.{minor}" for minor in range(first, end)]
    (uv,) = re.findall(r"^UV_VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert SET_UP["runs"]["steps"][0]["with"]["version"] == uv

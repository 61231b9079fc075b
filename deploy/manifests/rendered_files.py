"""The rendered files: what each should hold, and how the files on disk differ from it."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from deploy.manifests.job_table import JOBS, JobDefinition
from deploy.manifests.monitoring import render_monitoring
from deploy.manifests.rayjob import manifest
from deploy.manifests.settings import Settings, settings_of
from deploy.manifests.yaml_text import yaml_text
from deploy.project import ROOT


def render(job: JobDefinition, settings: Settings) -> str:
    """Return the text of a RayJob's file."""
    head = [
        settings.line,
        "# Not edited by hand: deploy/manifests is the source, docs/deploy.md the manual.",
    ]
    return "\n".join([*head, f"# {job.shows}", yaml_text(manifest(job, settings))])


def files(settings: Settings, root: Path = ROOT) -> dict[str, str]:
    """Return all rendered files, by path below the project's folder."""
    return {job.file: render(job, settings) for job in JOBS} | render_monitoring(root)


def read_settings(root: Path = ROOT) -> Settings:
    """Return the settings that the files were rendered with, as the first of them says."""
    return settings_of(root / JOBS[0].file)


def problems(root: Path = ROOT) -> list[str]:
    """Return, a line each, what was edited by hand, is out of date, missing or left over."""
    try:
        settings = read_settings(root)
    except ValueError as error:
        return [str(error)]
    wanted = files(settings, root)
    found = [problem for path, text in wanted.items() if (problem := _problem(root / path, path, text))]
    extra = sorted({path.name for path in root.glob("ray-job-*.yaml")} - set(wanted))
    return found + [
        f"{name}: is not in deploy/manifests/job_table.py; add it there or delete it" for name in extra
    ]


def _problem(path: Path, name: str, wanted: str) -> str | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return f"{name}: is missing; run `make manifests`"
    pairs = zip_longest(text.splitlines(), wanted.splitlines(), fillvalue="(no line)")
    for number, (has, should) in enumerate(pairs, 1):
        if has != should:
            return (
                f"{name}, line {number}: has `{has.strip()}`, should be `{should.strip()}`; "
                "edit what it is rendered from, then run `make manifests`"
            )
    return None

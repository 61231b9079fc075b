"""The rendered files: what each should hold, and how the files on disk differ from it."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

from deploy.manifests.job_table import JOBS, SERVICE, JobDefinition
from deploy.manifests.monitoring import render_monitoring
from deploy.manifests.rayjob import manifest
from deploy.manifests.rayservice import service
from deploy.manifests.settings import FILE, Settings, checked, read_settings, settings_text
from deploy.manifests.yaml_text import yaml_text
from deploy.project import BUCKET_VARIABLE, ROOT

_ALL = (*JOBS, SERVICE)
# The lines of a file that its reader may edit, the image and one of the others; the rest is rendered.
_IMAGE_LINE = re.compile(r"^( +image: &image )(\S+)( +#.*)?$", re.MULTILINE)
_BUCKET_LINE = re.compile(rf"^( +- name: {BUCKET_VARIABLE}\n +value: )(\S+)( +#.*)?$", re.MULTILINE)
_RUN_LINE = re.compile(r"^( +- )(\w+://\S+)( +#.*)?$", re.MULTILINE)
_MARK = re.compile(r" +# yours: .*$", re.MULTILINE)


def render(job: JobDefinition, settings: Settings) -> str:
    """Return the text of a RayJob's file, or the service's."""
    other, serves, resource = "the bucket for the results", "", manifest(job, settings)
    if job is SERVICE:
        other, serves, resource = "what it answers with", " SERVES=RUN", service(settings)
    head = [
        f"# Rendered by `make manifests` with {FILE}.",
        f"# {job.shows}",
        f"# For your cluster edit two lines, marked `yours` below: the image, and {other};",
        f"# or run `make manifests IMAGE=REGISTRY/NAME:TAG BUCKET=NAME{serves}`. "
        "The rest is rendered: docs/deploy.md",
    ]
    return "\n".join([*head, _with_marks(yaml_text(resource), settings)])


def _with_marks(text: str, settings: Settings) -> str:
    """Mark these lines, and have the other containers take their image from the first."""
    line = f" image: {settings.image}\n"
    first, *others = text.split(line)
    text = f" image: &image {settings.image} # yours: an image that the cluster can pull\n".join(
        [first, " image: *image\n".join(others)]
    )
    text = _RUN_LINE.sub(r"\1\2 # yours: a run in your bucket, or RUN@VERSION", text)
    return _BUCKET_LINE.sub(r"\1\2 # yours: a bucket of S3, its name alone", text)


def files(settings: Settings, root: Path = ROOT) -> dict[str, str]:
    """Return all rendered files, by path below the project's folder."""
    kept = {FILE: settings_text(settings)}
    return {job.file: render(job, settings) for job in _ALL} | render_monitoring(root) | kept


def problems(root: Path = ROOT) -> list[str]:
    """Return, a line each, what was edited by hand, is out of date, missing or left over."""
    try:
        settings = read_settings(root)
    except ValueError as error:
        return [str(error)]
    found = [problem for job in _ALL if (problem := problem_of(job.file, root, settings))]
    for path, text in render_monitoring(root).items():
        found += filter(None, [_problem(root / path, path, text)])
    extra = sorted({path.name for path in root.glob("ray-job-*.yaml")} - {job.file for job in JOBS})
    return found + [
        f"{name}: is not in deploy/manifests/job_table.py; add it there or delete it" for name in extra
    ]


def problem_of(file: str, root: Path = ROOT, settings: Settings | None = None) -> str | None:
    """Return, in one line, how a job's file differs from what is rendered, except where it may be edited."""
    job = next((job for job in _ALL if job.file == file), None)
    if job is None:
        return f"{file}: is not in deploy/manifests/job_table.py; add it there or delete it"
    try:
        settings = settings or read_settings(root)
        if (root / file).exists():
            text = (root / file).read_text()
            image, bucket = _IMAGE_LINE.search(text), _BUCKET_LINE.search(text)
            runs = [line[1] for line in _RUN_LINE.findall(text)]
            if not image or not (runs if job is SERVICE else bucket):
                other = "run" if job is SERVICE else "bucket"
                return f"{file}: lacks the line of its image or {other}; run `make manifests`"
            edited = {"bucket": bucket[2]} if bucket else {"serves": runs}
            settings = checked(settings, {"image": image[2], **edited})
    except ValueError as error:
        return f"{file}: {error}"
    return _problem(root / file, file, render(job, settings))


def _problem(path: Path, name: str, wanted: str) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{name}: is missing; run `make manifests`"
    lines = (_MARK.sub("", one).splitlines() for one in (text, wanted))
    pairs = zip_longest(*lines, fillvalue="(no line)")
    for number, (has, should) in enumerate(pairs, 1):
        if has != should:
            return (
                f"{name}, line {number}: has `{has.strip()}`, should be `{should.strip()}`; "
                "edit what it is rendered from, then run `make manifests`"
            )
    return None

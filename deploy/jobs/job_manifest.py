"""A job's file, ray-job-NAME.yaml: what to apply, and what to expect of it."""

from __future__ import annotations

import copy
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from deploy.jobs.kubectl_errors import SetupError
from deploy.project import GPU, ROOT
from dsgd.config import TrainConfig

_UNNAMED_BUCKET = "s3://BUCKET/"


def job_names(root: Path = ROOT) -> list[str]:
    """Return the names that `read_job` knows."""
    return sorted(path.stem.removeprefix("ray-job-") for path in root.glob("ray-job-*.yaml"))


def read_job(name: str, root: Path = ROOT) -> JobManifest:
    """Read ray-job-NAME.yaml. Raises SetupError in one line if it is missing or holds no RayJob."""
    path = root / f"ray-job-{name}.yaml"
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except OSError:
        known = ", ".join(job_names(root)) or "none: run `make manifests`"
        raise SetupError(f"--job {name}: there is no {path.name}; the jobs are {known}") from None
    except yaml.YAMLError as error:
        raise SetupError(f"{path.name}: is not YAML ({' '.join(str(error).split())})") from None
    if len(documents) != 1 or documents[0].get("kind") != "RayJob":
        raise SetupError(f"{path.name}: must hold one RayJob and nothing else; run `make manifests`")
    return JobManifest(name=name, file=path.name, manifest=documents[0])


@dataclass(frozen=True)
class JobManifest:
    """A RayJob that can be applied."""

    name: str
    """As --job has it."""
    file: str
    manifest: Mapping[str, Any]

    @property
    def ray_job(self) -> str:
        """The RayJob's name in the cluster."""
        return str(self.manifest["metadata"]["name"])

    @property
    def entrypoint(self) -> str:
        return str(self.manifest["spec"]["entrypoint"])

    @property
    def _groups(self) -> Sequence[Any]:
        groups: Sequence[Any] = self.manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        return groups

    @property
    def workers(self) -> int:
        """Worker pods it asks for."""
        return sum(group["replicas"] * group.get("numOfHosts", 1) for group in self._groups)

    @property
    def gpus(self) -> int:
        """GPUs of all its worker pods."""
        return sum(
            group["replicas"] * group.get("numOfHosts", 1) * int(limits.get(GPU, 0))
            for group in self._groups
            for container in group["template"]["spec"]["containers"]
            for limits in [(container.get("resources") or {}).get("limits") or {}]
        )

    @property
    def images(self) -> list[str]:
        """Of head and workers, each once."""
        cluster = self.manifest["spec"]["rayClusterSpec"]
        templates = [cluster["headGroupSpec"]["template"], *(group["template"] for group in self._groups)]
        return list(dict.fromkeys(one["image"] for t in templates for one in t["spec"]["containers"]))

    @property
    def service_account(self) -> str:
        """Of the head, which uploads the records."""
        head = self.manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        return str(head.get("serviceAccountName", "default"))

    @property
    def metrics_port(self) -> int | None:
        """Where the driver is scraped, in the head's pod."""
        found = re.search(r"\bmetrics[-_]port[ =](\d+)", self.entrypoint)
        return int(found[1]) if found else None

    @property
    def out(self) -> str:
        """Where the records go, as far as it is known before the job has an id."""
        found = re.search(r"--out[ =](\S+)", self.entrypoint)
        return found[1].partition("/$")[0] if found else "runs"

    @property
    def has_bucket(self) -> bool:
        """Whether the files were rendered for a real bucket."""
        return not f"{self.out}/".startswith(_UNNAMED_BUCKET)

    @cached_property
    def configs(self) -> list[TrainConfig]:
        """Its runs, as main.py's own parser understands the entrypoint.

        Raises SetupError in one line for an entrypoint that main.py would refuse.
        """
        from dsgd.experiments.experiment_file import load
        from dsgd.terminal.cli import UsageError, parse

        words = shlex.split(self.entrypoint.replace(_UNNAMED_BUCKET, "s3://unnamed/"))
        if words[:2] != ["python", "main.py"]:
            raise SetupError(
                f"{self.file}: the entrypoint must start with `python main.py`, it is {words[:2]}"
            )
        arguments = words[2:]
        try:
            if "--experiment" not in arguments:
                return [parse(arguments)]
            pairs = list(itertools.pairwise(arguments))
            settings = [value for option, value in pairs if option == "--set"]
            return [run.cfg for run in load(ROOT / dict(pairs)["--experiment"], settings).runs()]
        except UsageError as error:
            raise SetupError(f"{self.file}: main.py would refuse the entrypoint: {error}") from None

    def in_namespace(self, namespace: str) -> JobManifest:
        """Return the job as it is applied to another namespace."""
        changed = copy.deepcopy(dict(self.manifest))
        changed["metadata"]["namespace"] = namespace
        return replace(self, manifest=changed)

    def for_a_test(self, runs_s: float) -> JobManifest:
        """Return the job as it is tested: one seed, `runs_s` seconds for all runs together, records apart.

        The tests' records go into a new folder, because an existing one is never overwritten.
        """
        out = f"{self.out}/cluster-tests/{datetime.now(UTC):%Y%m%d-%H%M%S}"
        entrypoint = re.sub(r" --out[ =]\S+", "", self.entrypoint)
        if "--experiment" not in entrypoint:
            return self._with(f"{entrypoint} --max-seconds {runs_s:g} --out {out}")
        one_seed = self._with(f"{entrypoint} --set seeds=1 --out {out}")
        run_s = runs_s / len(one_seed.configs)
        return self._with(f"{one_seed.entrypoint} --set max_seconds={run_s:.0f}")

    def _with(self, entrypoint: str) -> JobManifest:
        changed = copy.deepcopy(dict(self.manifest))
        changed["spec"]["entrypoint"] = entrypoint
        return replace(self, manifest=changed)

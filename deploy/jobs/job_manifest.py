"""A job's file, ray-job-NAME.yaml: what to apply, and what to expect of it."""

from __future__ import annotations

import copy
import getpass
import itertools
import math
import re
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from deploy.jobs.kubectl_errors import SetupError
from deploy.jobs.kubernetes_objects import OWNER, TEST_OF
from deploy.jobs.thresholds import TimeLimits
from deploy.project import BUCKET_VARIABLE, GPU, ROOT, UNNAMED_BUCKET
from dsgd.config import TrainConfig

_LETTERS = "bcdfghjkmnpqrstvwxz2456789"  # as Kubernetes draws: no words, nothing that looks alike


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
    def _submitter(self) -> Any:
        return self.manifest["spec"]["submitterPodTemplate"]["spec"]["containers"][0]

    @property
    def templates(self) -> dict[str, Any]:
        """Of its pods, by role."""
        spec = self.manifest["spec"]
        return {
            "submitter": spec["submitterPodTemplate"],
            "head": spec["rayClusterSpec"]["headGroupSpec"]["template"],
            "worker": self._groups[0]["template"],
        }

    @property
    def pods(self) -> list[Any]:
        """The template of each pod that it makes."""
        return [
            self.templates["submitter"],
            self.templates["head"],
            *[self.templates["worker"]] * self.workers,
        ]

    @property
    def bucket(self) -> str:
        """The bucket's name, which the submitter's shell puts into the entrypoint."""
        found = (one["value"] for one in self._submitter.get("env", ()) if one["name"] == BUCKET_VARIABLE)
        return next(found, UNNAMED_BUCKET)

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
        return str(self.templates["head"]["spec"].get("serviceAccountName", "default"))

    @property
    def workers_account(self) -> str:
        """Of the workers."""
        return str(self.templates["worker"]["spec"].get("serviceAccountName", "default"))

    @property
    def metrics_port(self) -> int | None:
        """Where the driver is scraped, in the head's pod."""
        found = re.search(r"\bmetrics[-_]port[ =](\d+)", self.entrypoint)
        return int(found[1]) if found else None

    @property
    def _out(self) -> str:
        """Where the records go, as the entrypoint has it, up to what only the submitter's shell knows."""
        found = re.search(r"--out[ =](\S+)", self.entrypoint)
        return found[1].partition("/$RAY")[0] if found else "runs"

    @property
    def out(self) -> str:
        """Where the records go, as far as it is known before the job has an id."""
        return self._out.replace(f"${BUCKET_VARIABLE}", self.bucket)

    @property
    def has_bucket(self) -> bool:
        """Whether the files were rendered for a real bucket."""
        return self.bucket != UNNAMED_BUCKET

    @cached_property
    def configs(self) -> list[TrainConfig]:
        """Its runs, as main.py's own parser understands the entrypoint.

        Raises SetupError in one line for an entrypoint that main.py would refuse.
        """
        from dsgd.compare.experiment_file import load
        from dsgd.show.terminal.cli import UsageError, parse

        # A run's name has the RayJob's, which the submitter's shell knows.
        command = re.sub(r" --(run-name|resume)[ =]\S+", "", self.entrypoint)
        words = shlex.split(command.replace(f"${BUCKET_VARIABLE}", "unnamed"))
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

    def with_image(self, image: str) -> JobManifest:
        """Return the job with another image for submitter, head and workers."""
        changed = copy.deepcopy(dict(self.manifest))
        cluster = changed["spec"]["rayClusterSpec"]
        groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
        for template in (changed["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)):
            for container in template["spec"]["containers"]:
                container["image"] = image
        return replace(self, manifest=changed)

    def with_bucket(self, bucket: str) -> JobManifest:
        """Return the job with another bucket for its records."""
        changed = replace(self, manifest=copy.deepcopy(dict(self.manifest)))
        for one in changed._submitter["env"]:
            if one["name"] == BUCKET_VARIABLE:
                one["value"] = bucket
        return changed

    def for_a_test(self, limits: TimeLimits, command: str = "test") -> JobManifest:
        """Return the job as it is tested: a name that no other has, one seed, short runs, records apart.

        The tests' records go into a new folder, because an existing one is never overwritten. Its deadlines
        are the test's, so that it ends soon also where nobody is left to delete it.
        """
        out = f"{self._out}/cluster-tests/{datetime.now(UTC):%Y%m%d-%H%M%S}"
        entrypoint = re.sub(r" --out[ =]\S+", "", self.entrypoint)
        if "--experiment" not in entrypoint:
            return self._renamed(command, limits)._with(
                f"{entrypoint} --max-seconds {limits.runs_s:g} --out {out}"
            )
        one_seed = self._renamed(command, limits)._with(f"{entrypoint} --set seeds=1 --out {out}")
        run_s = limits.runs_s / len(one_seed.configs)
        return one_seed._with(f"{one_seed.entrypoint} --set max_seconds={run_s:.0f}")

    def _renamed(self, command: str, limits: TimeLimits) -> JobManifest:
        changed = copy.deepcopy(dict(self.manifest))
        letters = "".join(secrets.choice(_LETTERS) for _ in range(5))
        metadata, spec = changed["metadata"], changed["spec"]
        metadata["name"] = f"{self.name[:35]}-test-{letters}"  # KubeRay allows 47
        owner = re.sub(r"[^A-Za-z0-9._-]", "-", f"{getpass.getuser()}.{socket.gethostname()}")[:63].strip(
            "._-"
        )
        metadata["labels"] = metadata["labels"] | {
            TEST_OF: self.name,
            OWNER: owner,
            "dsgd-lab/command": command,
        }
        pods_s = math.ceil(limits.pods_running_s)
        all_s = limits.pods_running_s + limits.first_update_s + limits.job_over_s + limits.gone_s
        spec["preRunningDeadlineSeconds"] = min(spec["preRunningDeadlineSeconds"], pods_s)
        spec["activeDeadlineSeconds"] = min(spec["activeDeadlineSeconds"], math.ceil(all_s))
        spec["backoffLimit"] = 0  # what fails is to be seen
        return replace(self, manifest=changed)

    def _with(self, entrypoint: str) -> JobManifest:
        changed = copy.deepcopy(dict(self.manifest))
        changed["spec"]["entrypoint"] = entrypoint
        return replace(self, manifest=changed)

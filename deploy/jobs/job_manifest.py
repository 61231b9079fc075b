"""A job's file, ray-job-NAME.yaml: what to apply, and what to expect of it."""

from __future__ import annotations

import copy
import getpass
import math
import re
import secrets
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from deploy.jobs.kubectl_errors import SetupError
from deploy.jobs.kubernetes_objects import OWNER, TEST_OF, Role, requested
from deploy.jobs.thresholds import TimeLimits
from deploy.project import BUCKET_VARIABLE, GPU, ROOT, UNNAMED_BUCKET
from dsgd.config import TrainConfig
from dsgd.show.terminal.commands import asked

_LETTERS = "bcdfghjkmnpqrstvwxz2456789"  # as Kubernetes draws: no words, nothing that looks alike


def job_names(root: Path = ROOT) -> list[str]:
    """Return the names that `read_job` knows."""
    return sorted(path.stem.removeprefix("ray-job-") for path in root.glob("ray-job-*.yaml"))


def read_job(
    name: str, root: Path = ROOT, *, namespace: str = "", image: str = "", bucket: str = ""
) -> JobManifest:
    """Read ray-job-NAME.yaml, as it is applied with another namespace, image or bucket.

    Raises SetupError in one line if it is missing or holds no RayJob.
    """
    path = root / f"ray-job-{name}.yaml"
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except OSError:
        known = ", ".join(job_names(root)) or "none: run `make manifests`"
        raise SetupError(f"--job {name}: there is no {path.name}; the jobs are {known}") from None
    except yaml.YAMLError as error:
        raise SetupError(f"{path.name}: is not YAML ({' '.join(str(error).split())})") from None
    try:
        (manifest,) = documents
        job = JobManifest(name=name, file=path.name, manifest=manifest)
        manifest["metadata"]["namespace"] = namespace or manifest["metadata"]["namespace"]
        for container in (one for pod in job.pods for one in pod["spec"]["containers"]):
            container["image"] = image or container["image"]
        job.bucket_variable["value"] = bucket or job.bucket
    except (LookupError, TypeError, ValueError):
        raise SetupError(f"{path.name}: must hold one RayJob, as `make manifests` renders it") from None
    return job


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
    def pods(self) -> list[Any]:
        """The template of each pod that it makes: submitter, head, workers."""
        spec = self.manifest["spec"]
        cluster = spec["rayClusterSpec"]
        pods = [spec["submitterPodTemplate"], cluster["headGroupSpec"]["template"]]
        for group in cluster["workerGroupSpecs"]:
            pods += [group["template"]] * (group["replicas"] * group.get("numOfHosts", 1))
        return pods

    @property
    def workers(self) -> int:
        """Worker pods it asks for."""
        return len(self.pods) - 2

    @property
    def templates(self) -> dict[Role, Any]:
        """Of its pods, by role."""
        return dict(zip(("submitter", "head", "worker"), self.pods, strict=False))

    @property
    def gpus(self) -> int:
        """GPUs of all its worker pods."""
        return int(requested(self.pods).get(GPU, 0))

    @property
    def images(self) -> list[str]:
        """Of head and workers, each once."""
        _, *nodes = self.pods
        return list(dict.fromkeys(one["image"] for pod in nodes for one in pod["spec"]["containers"]))

    def account(self, role: Role) -> str:
        """Return the service account of head or workers; the head's uploads the records."""
        return str(self.templates[role]["spec"].get("serviceAccountName", "default"))

    @property
    def bucket_variable(self) -> dict[str, str]:
        """The variable of the submitter, whose shell puts the bucket's name into the entrypoint."""
        variables = self.pods[0]["spec"]["containers"][0].get("env", ())
        return next((one for one in variables if one["name"] == BUCKET_VARIABLE), {"value": UNNAMED_BUCKET})

    @property
    def has_bucket(self) -> bool:
        """Whether the files were rendered for a real bucket."""
        return self.bucket != UNNAMED_BUCKET

    @property
    def bucket(self) -> str:
        return self.bucket_variable["value"]

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
    def configs(self) -> list[TrainConfig]:
        """Its runs; raises SetupError as `asked_for` does."""
        return self.asked_for[0]

    @cached_property
    def asked_for(self) -> tuple[list[TrainConfig], bool]:
        """Its runs, as main.py's own parser understands the entrypoint, and whether it states premises.

        Raises SetupError in one line for an entrypoint that main.py would refuse.
        """
        from dsgd.compare.experiment_command import experiment_of
        from dsgd.process.outcomes import UsageError
        from dsgd.show.terminal.arguments import take_option
        from dsgd.show.terminal.cli import parse

        # A run's name has the RayJob's, which the submitter's shell knows.
        command = re.sub(r" --(run-name|resume)[ =]\S+", "", self.entrypoint)
        words = shlex.split(command.replace(f"${BUCKET_VARIABLE}", "unnamed"))
        if words[:2] != ["python", "main.py"]:
            raise SetupError(
                f"{self.file}: the entrypoint must start with `python main.py`, it is {words[:2]}"
            )
        try:
            command, arguments = asked(words[2:])
            if command == "run":
                return [parse(arguments)], False
            arguments, _ = take_option(arguments, "--out")  # it has variables of the submitter's shell
            experiment = experiment_of(arguments, ROOT)[1]
            return [run.cfg for run in experiment.runs()], bool(experiment.premises)
        except UsageError as error:
            raise SetupError(f"{self.file}: main.py would refuse the entrypoint: {error}") from None

    def for_a_test(self, limits: TimeLimits, command: str = "test") -> JobManifest:
        """Return the job as it is tested: a name that no other has, one seed, short runs, records apart.

        The tests' records go into a new folder, because an existing one is never overwritten. Its deadlines
        are the test's, so that it ends soon also where nobody is left to delete it.
        """
        changed = replace(self, manifest=copy.deepcopy(dict(self.manifest)))
        metadata, spec = changed.manifest["metadata"], changed.manifest["spec"]
        letters = "".join(secrets.choice(_LETTERS) for _ in range(5))
        metadata["name"] = f"{self.name[:35]}-test-{letters}"  # KubeRay allows 47
        owner = re.sub(r"[^A-Za-z0-9._-]", "-", f"{getpass.getuser()}.{socket.gethostname()}")[:63]
        labels = {TEST_OF: self.name, OWNER: owner.strip("._-"), "dsgd-lab/command": command}
        metadata["labels"] = metadata["labels"] | labels
        pods_s = math.ceil(limits.pods_running_s)
        all_s = limits.pods_running_s + limits.first_update_s + limits.job_over_s + limits.gone_s
        spec["preRunningDeadlineSeconds"] = min(spec["preRunningDeadlineSeconds"], pods_s)
        spec["activeDeadlineSeconds"] = min(spec["activeDeadlineSeconds"], math.ceil(all_s))
        spec["backoffLimit"] = 0  # what fails is to be seen

        is_experiment = asked(shlex.split(self.entrypoint)[2:])[0] == "compare"
        out = f"{self._out}/cluster-tests/{datetime.now(UTC):%Y%m%d-%H%M%S}"
        spec["entrypoint"] = re.sub(r" --out[ =]\S+", "", self.entrypoint)
        spec["entrypoint"] += f"{' --set seeds=1' if is_experiment else ''} --out {out}"
        runs = len(changed.configs) if is_experiment else 1
        option = "--set max_seconds=" if is_experiment else "--max-seconds "
        spec["entrypoint"] += f" {option}{limits.runs_s / runs:g}"
        return replace(changed)  # `asked_for` is kept with the entrypoint that it was read from

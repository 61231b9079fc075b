"""The RayJobs and what goes with them, rendered from one table: `make manifests`.

    python -m deploy.manifests --image REGISTRY/dsgd-lab:TAG --bucket NAME [--device cpu]
    python -m deploy.manifests --check

The first writes ray-job-*.yaml, and two files with which kustomize finds what deploy/observability/ holds.
What it is not told stays as the files have it; their first line says what that is. The second tells what was
edited by hand or is out of date, and exits with 1 if anything is. docs/deploy.md describes the use.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

ROOT = Path(__file__).parents[1]
NAMESPACE = "ray-jobs"
SERVICE_ACCOUNT = "ray-jobs"
LABELS = {"app.kubernetes.io/name": "dsgd-lab"}
CONFIG_MAP_LIMIT = 250_000  # bytes; `kubectl apply` keeps a copy in an annotation, which may have 256 KiB

RAY_METRICS_PORT = 8080  # of every Ray node; KubeRay's own choice
DRIVER_METRICS_PORT = 9090
SCRAPE_INTERVAL_S = 15
LINGER_S = 3 * SCRAPE_INTERVAL_S  # a run that is over is scraped at least twice more
GPU = "nvidia.com/gpu"

# A head that is deleted has this long. Its run ends between two updates and uploads its record in less.
GRACE_S = 90
STOP_WAIT_S = GRACE_S - 15
_DRIVER = "python main.py .*"

Device = Literal["cuda", "cpu"]
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What differs between one user's files and another's."""

    image: str
    """With its tag, which a cluster must be able to pull."""
    bucket: str = "BUCKET"
    """Of S3, where results go. No bucket's name has capitals, so this one is nobody's."""
    device: Device = "cuda"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.:/-]+:[\w][\w.-]*(@sha256:[0-9a-f]{64})?", self.image):
            raise ValueError(f"--image {self.image}: must be a name with a tag, like dsgd-lab:0.1.0")
        if not re.fullmatch(r"BUCKET|[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", self.bucket):
            raise ValueError(
                f"--bucket {self.bucket}: must be the name of an S3 bucket alone, without s3:// or a folder"
            )
        if self.device not in get_args(Device):
            raise ValueError(f"--device {self.device}: must be cuda or cpu")

    @property
    def line(self) -> str:
        """The first line of a rendered file."""
        return (
            "# Rendered: python -m deploy.manifests "
            f"--image {self.image} --bucket {self.bucket} --device {self.device}"
        )


_SETTINGS = re.compile(r"# Rendered: python -m deploy.manifests --image (\S+) --bucket (\S+) --device (\S+)")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One RayJob, and so one file."""

    name: str
    shows: str
    """One sentence."""
    arguments: str
    """Of main.py: the run or the experiment. Engine, device, output and metrics are the same for all."""
    gpus_per_worker: float | None = None
    """Share of a GPU that each worker takes, where there are GPUs. None: a whole one."""
    workers: int = 4
    """Pods, of one GPU each, among which a run's workers are shared out."""
    deadline_s: int = 3600
    """From its creation to its end, starting up included."""

    @property
    def file(self) -> str:
        return f"ray-job-{self.name}.yaml"

    @property
    def is_experiment(self) -> bool:
        return self.arguments.startswith("--experiment ")


# Some three minutes, so that there is something to see in Grafana.
_RUN = "--num-workers 4 --steps 2000 --dataset digits --eval-every 20 --compute-time exponential:0.05"


def _experiment(name: str, shows: str, *settings: str, gpus_per_worker: float, file: str = "") -> Job:
    """Return the job of experiments/NAME.yaml, unless the file has another name.

    settings: what makes it fit for real workers, whose seconds are not simulated, like shorter compute times.
    """
    given = (f"--set {setting}" for setting in settings)
    return Job(
        name=name,
        shows=shows,
        arguments=" ".join([f"--experiment experiments/{file or name}.yaml", *given]),
        gpus_per_worker=gpus_per_worker,
        deadline_s=4 * 3600,
    )


JOBS = (
    Job(
        name="ssgd",
        shows="Synchronous SGD: every update waits for all workers.",
        arguments=f"--mode ssgd {_RUN}",
    ),
    Job(
        name="asgd",
        shows="Asynchronous SGD: each gradient is applied as it comes.",
        arguments=f"--mode asgd --lr-scaling workers {_RUN}",
    ),
    Job(
        name="ssp",
        shows="Stale-synchronous parallel: no worker runs more than 4 steps ahead.",
        arguments=f"--mode ssp --slack 4 --lr-scaling workers {_RUN}",
    ),
    Job(
        name="localsgd",
        shows="Local SGD: weights are averaged every 8 local steps.",
        arguments=f"--mode localsgd --local-steps 8 {_RUN}",
    ),
    _experiment(
        "compare-modes",
        "Which of four modes reaches a loss first under one slow worker?",
        "seeds=3",
        "compute_time=exponential:0.05",
        gpus_per_worker=0.5,
    ),
    _experiment(
        "compare-ssgd",
        "What does a barrier cost, and do backup workers buy it back?",
        "seeds=3",
        "compute_time=exponential:0.05",
        gpus_per_worker=0.25,
    ),
    _experiment(
        "compare-asgd",
        "What to do about stale gradients?",
        "seeds=3",
        "compute_time=exponential:0.05",
        gpus_per_worker=0.25,
    ),
    _experiment(
        "compare-ssp",
        "From which slack on does nobody wait any more, and how stale do gradients get?",
        "seeds=3",
        "compute_time=markov:0.025,0.15,0.025,0.1",
        gpus_per_worker=0.5,
    ),
    _experiment(
        "compare-localsgd",
        "How many local steps between two averagings?",
        "seeds=3",
        "compute_time=exponential:0.05",
        "latency_s=0.0",  # the network's own
        gpus_per_worker=0.5,
    ),
    _experiment(
        "stragglers",
        "Which mode keeps its speed under which kind of straggler?",
        "seeds=2",
        "steps=60",  # of about a second: the laws of compute times are what is compared
        gpus_per_worker=0.5,
    ),
    _experiment(
        "scaling",
        "How far does adding real workers help, from 1 to 16?",
        gpus_per_worker=0.25,
        file="scaling-real",  # scaling.yaml goes to a thousand
    ),
)


def entrypoint(job: Job, settings: Settings) -> str:
    """Return the command line that the head runs."""
    shared = job.gpus_per_worker is not None and settings.device == "cuda"
    share = {"gpus-per-worker": job.gpus_per_worker} if shared else {}
    options = {**share, "engine": "ray", "device": settings.device, "start-timeout-s": 300}
    if job.is_experiment:
        given = [f"--set {name.replace('-', '_')}={value}" for name, value in options.items()]
    else:
        given = [f"--{name} {value}" for name, value in options.items()]
    # A run's name tells the time. An experiment's does not, and what is there is never written over: so the
    # submitter's shell puts in the submission's own name, ray-job-NAME-xxxxx.
    folder = "experiments/$RAY_JOB_SUBMISSION_ID" if job.is_experiment else "runs"
    metrics = f"--metrics-port {DRIVER_METRICS_PORT} --metrics-host 0.0.0.0 --metrics-linger-s {LINGER_S}"
    return " ".join(
        ["python main.py", job.arguments, *given, f"--out s3://{settings.bucket}/{folder}", metrics]
    )


def manifest(job: Job, settings: Settings) -> Json:
    """Return the RayJob as Kubernetes gets it."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": f"ray-job-{job.name}",
            "namespace": NAMESPACE,
            "labels": dict(LABELS),
        },
        "spec": {
            "submissionMode": "K8sJobMode",
            "entrypoint": entrypoint(job, settings),
            "runtimeEnvYAML": 'env_vars:\n  RAY_ENABLE_UV_RUN_RUNTIME_ENV: "0"\n',
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 120,
            # A node with a GPU is found and gigabytes of image are pulled before the job runs.
            "preRunningDeadlineSeconds": 1200,
            "activeDeadlineSeconds": job.deadline_s,
            "backoffLimit": 0,
            "submitterConfig": {"backoffLimit": 2},
            "submitterPodTemplate": _submitter(settings),
            "rayClusterSpec": {
                "rayVersion": pinned("ray"),
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                    "template": _head(settings),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": job.workers,
                        "minReplicas": job.workers,
                        "maxReplicas": job.workers,
                        "rayStartParams": {},
                        "template": _worker(settings),
                    }
                ],
            },
        },
    }


def _pod(container: Json, settings: Settings, **more: Any) -> Json:
    """Return a pod's template: no root, no privileges, no access to Kubernetes' API.

    It has no labels: by those that KubeRay gives its pods, its services find them.
    """
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            **more,
            "containers": [
                {
                    "name": container["name"],
                    "image": settings.image,
                    "imagePullPolicy": "IfNotPresent",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def _head(settings: Settings) -> Json:
    # Whole command line, so that neither this shell nor the one that Ray starts main.py in is meant.
    stop = f"pkill -TERM -x -f '{_DRIVER}'; while pgrep -x -f '{_DRIVER}' >/dev/null; do sleep 1; done"
    container = {
        "name": "ray-head",
        # Named one by one: once a head names a port, KubeRay's service has no others.
        "ports": [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
            {"name": "client", "containerPort": 10001},
            {"name": "metrics", "containerPort": RAY_METRICS_PORT},
            {"name": "driver-metrics", "containerPort": DRIVER_METRICS_PORT},
        ],
        "env": [{"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(STOP_WAIT_S)}],
        # Where S3 is not Amazon's: AWS_ENDPOINT_URL_S3 and keys. On EKS there is no such secret.
        "envFrom": [{"secretRef": {"name": "storage", "optional": True}}],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        "resources": _resources(cpu="2", memory="8Gi"),
    }
    return _pod(
        container, settings, serviceAccountName=SERVICE_ACCOUNT, terminationGracePeriodSeconds=GRACE_S
    )


def _worker(settings: Settings) -> Json:
    container: Json = {
        "name": "ray-worker",
        "ports": [{"name": "metrics", "containerPort": RAY_METRICS_PORT}],
        "resources": _resources(cpu="3", memory="12Gi"),
    }
    if settings.device == "cpu":
        return _pod(container, settings, serviceAccountName=SERVICE_ACCOUNT)
    container["resources"]["limits"][GPU] = 1
    tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return _pod(container, settings, serviceAccountName=SERVICE_ACCOUNT, tolerations=tolerations)


def _submitter(settings: Settings) -> Json:
    resources = _resources(cpu="500m", memory="1Gi")
    container = {"name": "ray-job-submitter", "resources": resources}
    return _pod(container, settings, restartPolicy="Never")


def _resources(*, cpu: str, memory: str) -> Json:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def render(job: Job, settings: Settings) -> str:
    """Return the text of a RayJob's file."""
    head = [
        settings.line,
        "# Not edited by hand: deploy/manifests.py is the source, docs/deploy.md the manual.",
    ]
    return "\n".join([*head, f"# {job.shows}", _yaml(manifest(job, settings))])


def render_observability(root: Path = ROOT) -> dict[str, str]:
    """Return what deploy/kubernetes repeats of deploy/observability, by path: rules, and dashboards' names.

    kustomize makes ConfigMaps of files only in their own folder, and a PrometheusRule of none.
    """
    folder = root / "deploy/observability"
    groups = [
        group
        for path in sorted((folder / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    rule: Json = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "dsgd-lab", "labels": {**LABELS, "release": "prometheus"}},
        "spec": {"groups": groups},
    }
    dashboards: Json = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        # One each: a ConfigMap of both would be too large for `kubectl apply`.
        "configMapGenerator": [
            {"name": f"dashboard-{path.stem}", "files": [path.name]}
            for path in sorted((folder / "dashboards").glob("*.json"))
        ],
        "generatorOptions": {"disableNameSuffixHash": True, "labels": {"grafana_dashboard": "1"}},
    }
    return {
        "deploy/kubernetes/base/prometheus-rule.yaml": f"{_GENERATED}\n{_yaml(rule)}",
        "deploy/observability/dashboards/kustomization.yaml": f"{_GENERATED}\n{_yaml(dashboards)}",
    }


_GENERATED = "# Rendered from deploy/observability: make manifests"


def files(settings: Settings, root: Path = ROOT) -> dict[str, str]:
    """Return all rendered files, by path below the project's folder."""
    return {job.file: render(job, settings) for job in JOBS} | render_observability(root)


def read_settings(root: Path = ROOT) -> Settings:
    """Return the settings that the files were rendered with, as the first of them says.

    Without one they are the project's own. Raises ValueError in one line if it does not say.
    """
    path = root / JOBS[0].file
    if not path.exists():
        return Settings(image=f"dsgd-lab:{_project()['version']}")
    line = path.read_text().partition("\n")[0]
    found = _SETTINGS.fullmatch(line)
    if not found:
        raise ValueError(f"{path.name}, line 1: does not say how it was rendered; run `make manifests`")
    image, bucket, device = found.groups()
    return Settings(image=image, bucket=bucket, device=cast(Device, device))  # which it checks


def problems(root: Path = ROOT) -> list[str]:
    """Return, a line each, what was edited by hand, is out of date, missing or left over."""
    try:
        settings = read_settings(root)
    except ValueError as error:
        return [str(error)]
    wanted = files(settings, root)
    found = [problem for path, text in wanted.items() if (problem := _problem(root / path, path, text))]
    extra = sorted({path.name for path in root.glob("ray-job-*.yaml")} - set(wanted))
    return found + [f"{name}: is not in deploy/manifests.py; add it there or delete it" for name in extra]


def _problem(path: Path, name: str, wanted: str) -> str | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return f"{name}: is missing; run `make manifests`"
    pairs = zip_longest(text.splitlines(), wanted.splitlines(), fillvalue="(no line)")
    for number, (has, should) in enumerate(pairs, 1):
        if has != should:
            return (
                f"{name}, line {number}: has `{has.strip()}`, rendered it would be `{should.strip()}`; "
                "edit what it is rendered from, then run `make manifests`"
            )
    return None


def pinned(package: str) -> str:
    """Return the version of a package that pyproject.toml pins."""
    pins = (re.fullmatch(rf"{package}(\[.*\])?==(\S+)", line) for line in _project()["dependencies"])
    return next(pin[2] for pin in pins if pin)


def _project() -> Json:
    project: Json = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


class _Dumper(yaml.SafeDumper):
    """Indents lists, and writes texts of several lines as they are."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(document: Json) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def main(arguments: Sequence[str]) -> int:
    """Write the files or check them; return the exit code."""
    parser = argparse.ArgumentParser(prog="deploy.manifests", description="Renders ray-job-*.yaml.")
    parser.add_argument("--image", help="image with its tag, which the cluster can pull")
    parser.add_argument("--bucket", help="S3 bucket for results, its name alone")
    parser.add_argument("--device", choices=get_args(Device), help="what the workers compute on")
    parser.add_argument("--check", action="store_true", help="only tell which files are not as rendered")
    given = vars(parser.parse_args(arguments))
    if given.pop("check"):
        found = problems()
        print("\n".join(found) or f"{len(files(read_settings()))} files are as rendered")
        return 1 if found else 0
    try:
        settings = replace(read_settings(), **{name: value for name, value in given.items() if value})
    except ValueError as error:
        print(f"deploy.manifests: {error}", file=sys.stderr)
        return 2
    for path, text in files(settings).items():
        (ROOT / path).write_text(text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

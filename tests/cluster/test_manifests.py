"""The RayJobs, what surrounds them in a cluster, and the image: valid, consistent, as rendered."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml
from conftest import HANGS, KUBERAY_CRD, PATIENCE_S, ROOT, CommandLine, needs, needs_crd, where
from msgspec.structs import replace

from deploy.image_tag import image_files, image_tag
from deploy.jobs.job_manifest import JobManifest
from deploy.jobs.validate import RIGHTS
from deploy.manifests.__main__ import main as render_all
from deploy.manifests.job_table import JOBS, JobDefinition
from deploy.manifests.monitoring import CONFIG_MAP_LIMIT
from deploy.manifests.rayjob import SCRAPE_INTERVAL_S, entrypoint, manifest
from deploy.manifests.rendered_files import files, problems, render
from deploy.manifests.settings import FILE, Device, Settings, Tls, read_settings, settings_text
from deploy.project import GPU, NAMESPACE
from dsgd.compare.experiment_command import experiment_of
from dsgd.config import TrainConfig
from dsgd.core.option_rules import options
from dsgd.show.live.server import Response, Routes, listen, serving
from dsgd.show.terminal.arguments import take_option
from dsgd.show.terminal.cli import parse
from dsgd.show.terminal.commands import asked
from main import main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KUBERNETES = ROOT / "deploy/kubernetes"
EFA = "vpc.amazonaws.com/efa"
MINE: dict[Device, Settings] = {
    device: Settings(image="dsgd-lab:test", bucket="results", device=device) for device in ("cuda", "cpu")
}

each_job = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
each_device = pytest.mark.parametrize("device", ["cuda", "cpu"])


def committed(job: JobDefinition) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / job.file).read_text())
    return document


def templates(rayjob: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Submitter, head, workers."""
    cluster = rayjob["spec"]["rayClusterSpec"]
    yield rayjob["spec"]["submitterPodTemplate"]
    yield cluster["headGroupSpec"]["template"]
    yield from (group["template"] for group in cluster["workerGroupSpecs"])


def head_and_workers(rayjob: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the only container of the head, and of each worker."""
    _, head, workers = templates(rayjob)
    (of_head,), (of_workers,) = head["spec"]["containers"], workers["spec"]["containers"]
    return of_head, of_workers


@functools.cache
def runs(job: JobDefinition, settings: Settings) -> list[TrainConfig]:
    """Return the runs that a job's command line makes."""
    command, arguments = asked(command_line(job, settings))
    assert command == ("compare" if job.is_experiment else "run")
    if not job.is_experiment:
        arguments, again = take_option(arguments, "--resume")
        assert again == "auto", "a job that is tried again goes on"
        return [parse(arguments)]
    experiment = experiment_of(arguments, ROOT)[1]
    return [run.cfg for run in (*experiment.tuning_runs(), *experiment.runs())]


def command_line(job: JobDefinition, settings: Settings) -> list[str]:
    """Return what main.py gets: the words that KubeRay's submitter, a shell, makes of the entrypoint."""
    command = f"printf '%s\\n' {entrypoint(job, settings)}"
    submitter = next(templates(manifest(job, settings)))["spec"]["containers"][0]
    (bucket, name) = submitter["env"]
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['job-name']"
    of_pod = {bucket["name"]: bucket["value"], name["name"]: job.name, "DSGD_IMAGE_TAG": "c0ffee"}
    submission = os.environ | of_pod
    ran = subprocess.run(
        ["bash", "-ce", command],
        env=submission,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    python, script, *arguments = ran.stdout.splitlines()
    assert (python, script) == ("python", "main.py")
    return arguments


# --- files


def test_committed_files_are_as_rendered() -> None:
    """`make manifests` would change nothing."""
    assert problems() == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the rendered files and what they are rendered from."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    for path, text in files(read_settings(ROOT), tmp_path).items():
        (tmp_path / path).write_text(text)
    assert problems(tmp_path) == []
    return tmp_path


def test_a_manifest_edited_by_hand_is_named_with_line_and_remedy(copy: Path) -> None:
    """One line names the file, the place, the actual and the expected text."""
    file = copy / "ray-job-ssp.yaml"
    before = file.read_text()
    file.write_text(before.replace("replicas: 4\n", "replicas: 5\n", 1))
    (problem,) = problems(copy)
    number = 1 + before[: before.index("replicas: 4")].count("\n")
    assert problem.startswith(f"ray-job-ssp.yaml, line {number}: has `replicas: 5`, should be `replicas: 4`")
    assert "make manifests" in problem
    assert "\n" not in problem


def test_missing_extra_and_unmarked_files_are_each_one_line(copy: Path) -> None:
    (copy / "ray-job-ssp.yaml").unlink()
    (copy / "ray-job-mine.yaml").write_text("kind: RayJob\n")
    rule = copy / "deploy/kubernetes/base/prometheus-rule.yaml"
    rule.write_text(rule.read_text() + "# and more\n")
    found = problems(copy)
    assert [line.partition(":")[0].partition(",")[0] for line in found] == [
        "ray-job-ssp.yaml",
        "deploy/kubernetes/base/prometheus-rule.yaml",
        "ray-job-mine.yaml",
    ]
    (copy / JOBS[0].file).write_text("kind: RayJob\n")
    assert f"{JOBS[0].file}: lacks the line of its image or bucket; run `make manifests`" in problems(copy)
    (copy / FILE).write_text("image: dsgd-lab:1\nbucket: lab\nworker: 3\n")
    (problem,) = problems(copy)
    assert problem.startswith(f"{FILE}: ")
    assert "`worker`" in problem


def test_files_rendered_for_someone_s_image_and_bucket_are_in_order_too(copy: Path) -> None:
    """A file keeps the settings; a manifest with others is found."""
    mine = Settings(image="example.org/team/dsgd-lab:abc", bucket="team-results", device="cpu")
    for path, text in files(mine, copy).items():
        (copy / path).write_text(text)
    assert problems(copy) == []
    assert read_settings(copy) == mine
    (copy / JOBS[-1].file).write_text(render(JOBS[-1], MINE["cuda"]))
    (problem,) = problems(copy)
    assert problem.startswith(f"{JOBS[-1].file}, line ")


def test_two_lines_of_a_file_are_its_readers(copy: Path) -> None:
    """Image and bucket may be edited in one file, as its head says; all three containers take the image."""
    file = copy / "ray-job-ssp.yaml"
    text = file.read_text()
    marked = [line for line in text.splitlines() if "# yours" in line]
    assert len(marked) == 2
    assert "edit two lines, marked `yours`" in "".join(text.splitlines()[:4])
    image = read_settings(ROOT).image
    (of_image,) = (line for line in marked if image in line)
    (of_bucket,) = (line for line in marked if "BUCKET" in line)
    mine = text.replace(of_image, of_image.replace(image, "example.org/me:1"))
    mine = mine.replace(of_bucket, of_bucket.replace("BUCKET", "mine").partition(" #")[0])
    file.write_text(mine)
    assert problems(copy) == []
    job = JobManifest("ssp", file.name, yaml.safe_load(mine))
    assert {c["image"] for t in templates(dict(job.manifest)) for c in t["spec"]["containers"]} == {
        "example.org/me:1"
    }
    assert (job.bucket, job.out, job.has_bucket) == ("mine", "s3://mine/runs", True)
    file.write_text(mine.replace("example.org/me:1", "no tag"))
    (problem,) = problems(copy)
    assert problem.startswith("ray-job-ssp.yaml: lacks the line of its image")


def test_options_of_the_renderer_reach_the_pods_and_are_kept(copy: Path) -> None:
    """Model, workers, their GPUs and nodes, and how these are paid for; the next rendering has them again."""
    mine = replace(
        MINE["cuda"],
        workload="fashion",
        workers=2,
        gpus_per_worker=2.0,
        node_selector=("karpenter.k8s.aws/instance-gpu-name=l4", "zone=b"),
        capacity="spot",
        efa=4,
        keep_workers=True,
        toleration=("spot", "team=lab"),
        priority_class="research",
        pull_secret="registry",
        queue="lab-queue",
    )
    ssp = next(job for job in JOBS if job.name == "ssp")
    (copy / FILE).write_text(settings_text(mine))
    assert read_settings(copy) == mine
    rayjob = manifest(ssp, mine)
    (group,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] == group["replicas"] == group["maxReplicas"] == 2
    (cfg,) = runs(ssp, mine)
    assert (cfg.num_workers, cfg.ray.gpus_per_worker, cfg.data.workload) == (2, 2, "fashion")
    _, head, workers = (template["spec"] for template in templates(rayjob))
    (container,) = workers["containers"]
    assert (container["resources"]["limits"][GPU], container["resources"]["limits"][EFA]) == (2, 4)
    assert {one["name"]: one["value"] for one in container["env"]}["FI_PROVIDER"] == "efa"
    submitter, of_head, of_workers = templates(rayjob)
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "registry"}] for pod in templates(rayjob))
    assert [pod["spec"].get("priorityClassName") for pod in templates(rayjob)] == [None, *["research"] * 2]
    assert [one.get("value") for one in workers["tolerations"]] == [None, "lab", None]
    assert (rayjob["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], rayjob["spec"]["suspend"]) == (
        "lab-queue",
        True,
    )
    stays = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    assert of_head["metadata"]["annotations"] == of_workers["metadata"]["annotations"] == stays
    assert "metadata" not in submitter
    (_, plain_head, plain_workers) = templates(manifest(ssp, MINE["cpu"]))
    assert plain_head["metadata"]["annotations"] == stays
    assert "metadata" not in plain_workers
    assert workers["nodeSelector"] == {
        "kubernetes.io/arch": "amd64",
        "karpenter.k8s.aws/instance-gpu-name": "l4",
        "zone": "b",
    }
    assert head["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    for spec, values in ((head, {"on-demand", "ON_DEMAND"}), (workers, {"spot", "SPOT"})):
        required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms = [
            expression for term in required["nodeSelectorTerms"] for expression in term["matchExpressions"]
        ]
        assert {value for term in terms for value in term["values"]} == values
    modes = next(job for job in JOBS if job.name == "compare-modes")
    tuned = runs(modes, replace(SMALL, workload="fashion"))
    assert {(cfg.data.workload, cfg.ray.gpus_per_worker) for cfg in tuned} == {("fashion", 0.25)}


def test_no_job_trains_on_data_that_the_image_lacks() -> None:
    """A job's data are in the image: it has no extra packages, so a language model reads torch's sources."""
    given = [(job, settings) for job in JOBS for settings in MINE.values()]
    given += [(job, replace(SMALL, workload="gpt")) for job in JOBS[:1]]
    trained = [cfg.data for job, settings in given for cfg in runs(job, settings)[:1]]
    assert {data.workload for data in trained} == {"xor", "digits", "fashion", "gpt"}
    assert {vars(data)["data"] for data in trained if data.workload == "gpt"} == {"python"}


@pytest.mark.parametrize(
    "arguments",
    [
        "--workers 0", "--workers two", "--gpus-per-worker 1.5", "--gpus-per-worker inf",
        "--gpus-per-worker 0.5 --device cpu", "--efa 1 --device cpu", "--efa -1", "--device tpu",
        "--gpus-per-worker 1",  # compare-modes has 8 workers for 4 pods
        "--node-selector gpu", "--workload my/file.py", "--workload mnist", "--toleration spot=a=b",
        "--priority-class High", "--pull-secret My", "--queue lab_queue", "--capacity cheap", "--tls on",
        "--image dsgd-lab", "--image registry:5000/dsgd-lab", "--bucket s3://results", "--bucket Results",
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_in_one_line(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render_all(arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"deploy.manifests: {arguments.split()[0]} ")
    assert error.count("\n") == 1


def test_the_committed_files_name_no_account_registry_or_bucket() -> None:
    """A clone names no account: the image has no registry, the bucket is a placeholder."""
    assert read_settings(ROOT) == Settings(image=f"dsgd-lab:{PROJECT['version']}", bucket="BUCKET")
    texts = [ROOT / job.file for job in JOBS]
    texts += [ROOT / "Dockerfile", ROOT / ".dockerignore", *sorted(KUBERNETES.rglob("*.yaml"))]
    for path in texts:
        found = re.search(
            r"\b\d{12}\b|arn:aws|amazonaws|\.dkr\.|\bgcr\.io|ghcr\.io|quay\.io", path.read_text()
        )
        assert not found, f"{path.name} names {found[0] if found else ''}"


# --- RayJobs


def strict(schema: Any, *, branch: bool = False) -> Any:
    """Make a strict JSON Schema of a CRD's: nothing is allowed that it does not name."""
    if isinstance(schema, list):
        return [strict(entry, branch=branch) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            out[key] = {name: strict(entry) for name, entry in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "not"):
            out[key] = strict(value, branch=True)
        elif key in ("items", "additionalProperties"):
            out[key] = strict(value)
        elif not key.startswith("x-kubernetes-"):
            out[key] = value
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("x-kubernetes-list-type") == "set":
        out["uniqueItems"] = True
    if "properties" in schema and not branch and not schema.get("x-kubernetes-preserve-unknown-fields"):
        out.setdefault("additionalProperties", False)
    return out


@pytest.fixture(scope="module")
def rayjob_schema() -> jsonschema.Draft202012Validator:
    versions = json.loads(KUBERAY_CRD.read_text())["spec"]["versions"]
    schema = strict(next(v for v in versions if v["name"] == "v1")["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return jsonschema.Draft202012Validator(schema)


@needs_crd
@each_device
@each_job
def test_rayjobs_are_valid_strictly(
    job: JobDefinition, device: Device, rayjob_schema: jsonschema.Draft202012Validator
) -> None:
    """Each RayJob has the fields of KubeRay's CRD and no others."""
    document = yaml.safe_load(render(job, MINE[device]))
    assert [error.message for error in rayjob_schema.iter_errors(document)] == []


@needs_crd
@pytest.mark.parametrize("tls", ["cert-manager", "secret"])
def test_rayjobs_with_tls_are_valid_strictly(
    tls: Tls, rayjob_schema: jsonschema.Draft202012Validator
) -> None:
    document = yaml.safe_load(render(JOBS[0], replace(MINE["cuda"], tls=tls)))
    assert [error.message for error in rayjob_schema.iter_errors(document)] == []


@pytest.mark.parametrize(
    "where", ["spec", "spec.rayClusterSpec.headGroupSpec", "spec.rayClusterSpec.headGroupSpec.template.spec"]
)
@needs_crd
def test_the_strict_schema_refuses_a_misspelt_field(
    where: str, rayjob_schema: jsonschema.Draft202012Validator
) -> None:
    document = manifest(JOBS[0], MINE["cuda"])
    place = document
    for key in where.split("."):
        place = place[key]
    place["backofLimit"] = 0
    (error,) = rayjob_schema.iter_errors(document)
    assert "backofLimit" in error.message


@each_job
def test_rayjobs_keep_the_operators_own_rules(job: JobDefinition) -> None:
    """What KubeRay checks itself, and refuses with an event only after the API has taken the job."""
    rayjob = committed(job)
    name, spec = rayjob["metadata"]["name"], rayjob["spec"]
    assert len(name) <= 47
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert (name, job.file) == (job.name, f"ray-job-{name}.yaml")
    assert spec["submissionMode"] in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
    assert spec["ttlSecondsAfterFinished"] >= 0
    assert spec["shutdownAfterJobFinishes"], "a time to live needs the shutdown"
    assert 0 < spec["preRunningDeadlineSeconds"] < spec["activeDeadlineSeconds"]
    assert spec["backoffLimit"] >= 0
    assert isinstance(yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"], dict)
    cluster = spec["rayClusterSpec"]
    assert not cluster.get("enableInTreeAutoscaling")
    head: dict[str, Any] = cluster["headGroupSpec"]
    groups: list[dict[str, Any]] = cluster["workerGroupSpecs"]
    for group in groups:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"] > 0
    for group in (head, *groups):
        assert not group.get("resources"), "resources are in rayStartParams or here, not in both"
        assert "labels" not in group["rayStartParams"]
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52), "token authentication needs it"
    for template in templates(rayjob):
        labels = template.get("metadata", {}).get("labels", {})
        assert not [key for key in labels if key.startswith(("ray.io/", "app.kubernetes.io/"))]
        assert template["spec"]["containers"][0]["name"].startswith("ray"), "the Ray container comes first"


@each_job
def test_a_head_keeps_the_ports_that_its_service_needs(job: JobDefinition) -> None:
    """A head that names any port gets no others from KubeRay, and the submitter needs the dashboard's."""
    head, workers = head_and_workers(committed(job))
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert ports.items() >= {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080}.items()
    assert len(set(ports.values())) == len(ports)
    assert max(map(len, ports)) <= 15
    assert [port["name"] for port in workers["ports"]] == ["metrics"]


@each_job
def test_ray_of_manifest_image_and_project_are_one(job: JobDefinition) -> None:
    """Its version is what pyproject.toml pins, and so what the image installs."""
    pins = [line.partition("==")[2] for line in PROJECT["dependencies"] if line.startswith("ray[")]
    assert pins == [committed(job)["spec"]["rayClusterSpec"]["rayVersion"]]


@each_job
def test_the_engine_s_environment_reaches_every_worker(job: JobDefinition) -> None:
    """`uv run` is not in a pod, nor what Ray would make of it."""
    spec = committed(job)["spec"]
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
    assert "uv run" not in spec["entrypoint"]


@each_device
@each_job
def test_entrypoints_are_what_main_takes(
    job: JobDefinition, device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command line is parsed by main.py's own parser, and asks for real workers on the device."""
    assert committed(job)["spec"]["entrypoint"] == entrypoint(job, read_settings(ROOT))
    monkeypatch.chdir(ROOT)
    arguments = command_line(job, MINE[device])
    if job.is_experiment:
        # A deliberate mistake, so that nothing runs: it is the one reported, so the rest was understood.
        assert main([*arguments, "--processes", "0"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("main.py: --processes 0: ")
    place = f"experiments/{job.name}-c0ffee" if job.is_experiment else "runs"
    assert arguments[arguments.index("--out") + 1] == f"s3://results/{place}"
    assert "RAY_JOB_SUBMISSION_ID" not in entrypoint(job, MINE[device]), "it is another each time"
    for cfg in runs(job, MINE[device]):
        assert set(cfg.checkpoint.checkpoint_tiers) == ({"disk"} if job.is_experiment else {"s3"})
        if not job.is_experiment:
            assert cfg.output.run_name == f"{job.name}-c0ffee"
    for cfg in runs(job, MINE[device]):
        assert cfg.engine == "ray"
        assert cfg.ray.device == device


SMALL = Settings(image="dsgd-lab:test", bucket="results", workers=2)


@pytest.mark.parametrize("settings", [MINE["cuda"], MINE["cpu"], SMALL], ids=["cuda", "cpu", "two workers"])
@each_job
def test_there_are_resources_for_all_workers_asked_for(job: JobDefinition, settings: Settings) -> None:
    """Pods x GPUs of each are at least workers x GPUs of each; a head takes none."""
    device = settings.device
    rayjob = manifest(job, settings)
    assert JobManifest("x", "x", rayjob).workers == settings.workers or job.workers
    head, workers = head_and_workers(rayjob)
    (group,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    gpus = workers["resources"]["limits"].get(GPU, 0)
    assert gpus == (job.ranks if device == "cuda" else 0)
    for cfg in runs(job, settings):
        assert cfg.group.ranks_per_worker == job.ranks
        if device == "cuda":
            each = 1 // Fraction(cfg.ray.gpus_per_worker).limit_denominator(1000)
            assert cfg.num_workers * job.ranks <= group["replicas"] * gpus * each
    offered = rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    assert (offered["num-cpus"], offered["num-gpus"]) == ("0", "0")
    assert GPU not in head["resources"]["limits"]
    for container in (head, workers):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests == {name: limits[name] for name in ("cpu", "memory", "ephemeral-storage")}


@each_job
def test_objects_that_do_not_fit_spill_to_a_disk_of_limited_size(job: JobDefinition) -> None:
    """Ray's store is within the memory, and spills to a volume within the disk that the pod asks for."""
    cluster = committed(job)["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec, start = group["template"]["spec"], group["rayStartParams"]
        (container,), limits = spec["containers"], spec["containers"][0]["resources"]["limits"]
        assert int(start["object-store-memory"]) <= gibibytes(limits["memory"]) * 2**30 * 0.3
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        there = mounted[start["object-spilling-directory"]]
        (volume,) = (one for one in spec["volumes"] if one["name"] == there)
        assert gibibytes(volume["emptyDir"]["sizeLimit"]) < gibibytes(limits["ephemeral-storage"])


@pytest.mark.parametrize("job", [job for job in JOBS if job.ranks > 1], ids=lambda job: job.name)
def test_a_worker_of_several_ranks_has_a_pod_with_as_many_gpus(job: JobDefinition) -> None:
    """One pod a worker, whatever share of a GPU others take; its model fits where there are no GPUs."""
    for settings in (MINE["cuda"], replace(MINE["cuda"], gpus_per_worker=0.5, workers=3), MINE["cpu"]):
        rayjob, pods = manifest(job, settings), settings.workers or job.workers
        (group,), (cfg,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"], runs(job, settings)
        _, workers = head_and_workers(rayjob)
        on_gpus = settings.device == "cuda"
        assert group["replicas"] == cfg.num_workers == pods
        assert workers["resources"]["limits"].get(GPU) == (job.ranks if on_gpus else None)
        (size,) = [one.partition("=")[2] for one in job.on_gpus if one.startswith("size=")]
        assert options(cfg)["size"] == (size if on_gpus else "100k")


def test_adapters_between_nodes_keep_a_job_in_one_zone() -> None:
    """EFA does not leave a zone, so that being near each other is no wish; nobody asks for huge pages."""
    for efa, kind in ((0, "preferred"), (1, "required")):
        *_, workers = templates(manifest(JOBS[0], replace(MINE["cuda"], efa=efa)))
        (rule,) = workers["spec"]["affinity"]["podAffinity"]
        assert rule == f"{kind}DuringSchedulingIgnoredDuringExecution"
        (container,) = workers["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container.get("env", ())}
        assert variables.get("FI_EFA_USE_HUGE_PAGE") == ("0" if efa else None)
        assert "hugepages-2Mi" not in container["resources"]["limits"]


def gibibytes(text: str) -> int:
    return int(text.removesuffix("Gi"))


@each_job
def test_only_workers_with_gpus_go_to_nodes_with_gpus(job: JobDefinition) -> None:
    """Workers tolerate the taint of such nodes; head, submitter and CPU workers do not."""
    taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
    found = [t["spec"].get("tolerations") for t in templates(manifest(job, MINE["cuda"]))]
    assert found == [None, None, [taint]]
    found = [t["spec"].get("tolerations") for t in templates(manifest(job, MINE["cpu"]))]
    assert found == [None, None, None]
    assert GPU not in yaml.safe_dump(manifest(job, MINE["cpu"]))


@each_job
def test_pods_run_without_privileges(job: JobDefinition) -> None:
    """User 1000 as in the image, no capability, the default seccomp profile, no token for Kubernetes."""
    for template in templates(committed(job)):
        spec = template["spec"]
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert container["image"] == read_settings(ROOT).image
    assert re.search(r"^USER 1000:1000$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


# --- metrics


@each_job
def test_every_metrics_port_is_scraped_and_every_scraped_port_is_there(job: JobDefinition) -> None:
    """main.py's --metrics-port, the container's port and the PodMonitors agree."""
    rayjob = committed(job)
    head, workers = head_and_workers(rayjob)
    monitors = list(yaml.safe_load_all((KUBERNETES / "base/pod-monitor.yaml").read_text()))
    for node_type, container in (("head", head), ("worker", workers)):
        (monitor,) = (
            m for m in monitors if m["spec"]["selector"]["matchLabels"] == {"ray.io/node-type": node_type}
        )
        scraped = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        assert scraped == {p["name"] for p in container["ports"] if p["name"].endswith("metrics")}
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["interval"] == f"{SCRAPE_INTERVAL_S}s"
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    options = shlex.split(rayjob["spec"]["entrypoint"])
    assert options[options.index("--metrics-port") + 1] == str(ports["driver-metrics"])
    assert options[options.index("--metrics-host") + 1] == "0.0.0.0"
    assert float(options[options.index("--metrics-linger-s") + 1]) >= 2 * SCRAPE_INTERVAL_S


# --- ending


def test_a_deleted_head_has_time_for_its_run_to_end() -> None:
    """Ray's own patience and the hook's are within the pod's."""
    head = list(templates(committed(JOBS[0])))[1]["spec"]
    (container,) = head["containers"]
    (patience,) = (e["value"] for e in container["env"] if e["name"] == "RAY_JOB_STOP_WAIT_TIME_S")
    assert 30 <= int(patience) < head["terminationGracePeriodSeconds"]


@needs("pkill")
@needs("unshare -p")
def test_the_hook_of_a_deleted_head_ends_the_driver_and_waits_for_it(tmp_path: Path) -> None:
    """SIGTERM reaches main.py, not the shell around it, and the pod goes on until main.py has ended."""
    isolated = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    (tmp_path / "main.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(.3)\n"
        "    pathlib.Path('ended').write_text('in order')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('ready').touch()\n"
        f"{HANGS}\n"
    )
    (hook,) = (
        c["lifecycle"]["preStop"]["exec"]["command"] for c in [head_and_workers(committed(JOBS[0]))[0]]
    )
    assert hook[:2] == ["/bin/sh", "-c"]
    (tmp_path / "hook.sh").write_text(hook[2])
    script = (
        "sh -c 'python main.py --mode ssp; echo $? > code' & "
        "until test -e ready; do sleep .05; done; sh hook.sh; cat ended; sleep .2; cat code"
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [*isolated, "sh", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
    )
    assert ran.stdout == "in order0\n", ran.stderr


def test_a_heads_probes_ask_its_node_and_where_one_listens_its_driver() -> None:
    """Run as they are, with other ports: a driver that is not there, or has ended, fails none; one
    that has hung fails both.
    """
    head = head_and_workers(committed(JOBS[0]))[0]
    node, driver, hung = (listen("--port", "127.0.0.1", 0) for _ in range(3))

    def answered(*statuses: HTTPStatus) -> Routes:
        paths, found = ("/healthz", "/readyz", "/api/healthz"), (*statuses, HTTPStatus.OK)
        return {
            path: partial(Response, "text/plain", b"", (), one)
            for path, one in zip(paths, found, strict=True)
        }

    def passed(node_port: int, driver_port: int) -> list[bool]:
        codes = []
        for kind in ("livenessProbe", "readinessProbe"):
            shell, option, text = head[kind]["exec"]["command"]
            text = text.replace(":52365/", f":{node_port}/").replace(":9090/", f":{driver_port}/")
            codes.append(subprocess.call([shell, option, text.replace("timeout 2", "timeout 0.5")]))
        return [code == 0 for code in codes]

    ports = [one.getsockname()[1] for one in (node, driver, hung)]
    with serving(node, answered(HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND)):
        with serving(driver, answered(HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)):
            assert passed(ports[0], ports[1]) == [True, False]
        assert passed(ports[0], ports[1]) == [True, True]  # it has ended
        assert passed(ports[0], ports[2]) == [False, False]
    assert passed(ports[0], ports[1]) == [False, False]
    hung.close()


# --- kustomize


KUSTOMIZATIONS = [
    *sorted(KUBERNETES.rglob("kustomization.yaml")),
    ROOT / "deploy/observability/dashboards/kustomization.yaml",
]


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_a_kustomization_names_only_what_is_there_and_all_of_it(path: Path) -> None:
    """Its resources exist, those outside its folder are folders, and no file next to it is forgotten."""
    content = yaml.safe_load(path.read_text())
    resources = [path.parent / name for name in content.get("resources", [])]
    made = [path.parent / name for one in content.get("configMapGenerator", []) for name in one["files"]]
    for resource in resources:
        assert resource.exists()
        inside = resource.resolve().is_relative_to(path.parent)
        assert inside or (resource / "kustomization.yaml").is_file(), "kustomize reads no file above its own"
    named = {p.resolve() for p in resources + made if p.is_file()}
    beside = {p for p in path.parent.glob("*") if p.suffix in (".yaml", ".json")} - {path}
    assert named == beside


def test_quotas_allow_the_largest_job_on_gpus_and_none_without() -> None:
    def quota(overlay: str) -> int:
        content = yaml.safe_load((KUBERNETES / f"overlays/{overlay}/gpu-quota.yaml").read_text())
        return int(content["spec"]["hard"][f"requests.{GPU}"])

    assert quota("eks-gpu") >= max(job.workers * job.ranks for job in JOBS)
    assert quota("cpu") == 0


def test_namespace_and_service_account_are_those_of_the_jobs() -> None:
    names: dict[str, list[str]] = {}
    for file in ("namespace", "service-account"):
        for content in yaml.safe_load_all((KUBERNETES / f"base/{file}.yaml").read_text()):
            names.setdefault(content["kind"], []).append(content["metadata"]["name"])
    assert names["ServiceAccount"] == ["ray-jobs", "ray-workers"], "only the first may use the bucket"
    for kustomization in KUBERNETES.rglob("kustomization.yaml"):
        named = yaml.safe_load(kustomization.read_text()).get("namespace")
        if "course" in kustomization.parts:  # a namespace for each group
            assert named in (None, kustomization.parent.name)
        elif "components" not in kustomization.parts:
            assert [named] == names["Namespace"]
    for job in JOBS:
        rayjob = committed(job)
        assert [rayjob["metadata"]["namespace"]] == names["Namespace"]
        _, *pods = templates(rayjob)
        assert [pod["spec"]["serviceAccountName"] for pod in pods] == ["ray-jobs", "ray-workers"]


def test_the_role_allows_what_the_tools_ask_for() -> None:
    """Who is bound to it passes `validate-setup`, and applies and reaches the service."""
    role = yaml.safe_load((KUBERNETES / "base/role.yaml").read_text())
    allowed = {
        (verb, f"{resource}.{rule['apiGroups'][0]}".rstrip("."))
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    of_a_service = {(verb, "rayservices.ray.io") for verb in ("create", "patch", "delete")}
    assert {*RIGHTS, *of_a_service, ("create", "pods/portforward"), ("get", "services")} <= allowed


def test_dashboards_and_rules_are_all_deployed() -> None:
    """Each rule group is in the PrometheusRule, each dashboard in a ConfigMap that kubectl can apply."""
    observability = ROOT / "deploy/observability"
    rule = yaml.safe_load((KUBERNETES / "base/prometheus-rule.yaml").read_text())
    groups = [g["name"] for g in rule["spec"]["groups"]]
    assert len(groups) == len(set(groups))
    written = [
        yaml.safe_load(p.read_text())["groups"] for p in sorted((observability / "rules").glob("*.yaml"))
    ]
    assert groups == [group["name"] for one in written for group in one]
    assert written
    for path in (observability / "dashboards").glob("*.json"):
        assert path.stat().st_size < CONFIG_MAP_LIMIT


def kustomize(folder: Path) -> list[dict[str, Any]]:
    """Build a kustomization with kubectl, which needs no cluster for it."""
    ran = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


@needs("kubectl")
@pytest.mark.parametrize("overlay", ["eks-gpu", "cpu"])
def test_overlays_build(overlay: str) -> None:
    """With kubectl, each overlay gives everything that a job needs, in one namespace."""
    built = kustomize(KUBERNETES / "overlays" / overlay)
    kinds = [document["kind"] for document in built]
    assert " ".join(sorted(set(kinds))) == (
        "ConfigMap Namespace NetworkPolicy PodDisruptionBudget PodMonitor PrometheusRule ResourceQuota Role "
        "ServiceAccount"
    )
    assert {d["metadata"]["namespace"] for d in built if d["kind"] != "Namespace"} == {NAMESPACE}
    dashboards = [document for document in built if document["kind"] == "ConfigMap"]
    assert len(dashboards) == len(list((ROOT / "deploy/observability/dashboards").glob("*.json")))
    for dashboard in dashboards:
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


@needs("kubectl")
def test_a_component_adds_the_priority_class_that_jobs_are_rendered_with(tmp_path: Path) -> None:
    """The class that the document renders jobs with: of the cluster, no default, ends nobody's pods."""
    shutil.copytree(KUBERNETES / "components/priority", tmp_path / "components/priority")
    (tmp_path / "overlay").mkdir()
    kinds = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    content = kinds | {"namespace": NAMESPACE, "components": ["../components/priority"]}
    (tmp_path / "overlay/kustomization.yaml").write_text(yaml.safe_dump(content))
    (made,) = kustomize(tmp_path / "overlay")
    assert (made["apiVersion"], made["kind"]) == ("scheduling.k8s.io/v1", "PriorityClass")
    assert "namespace" not in made["metadata"]
    assert made["value"] > 0
    assert (made["globalDefault"], made["preemptionPolicy"]) == (False, "Never")
    documented = re.findall(r"PRIORITY_CLASS=(\S+)`", (ROOT / "docs/deploy.md").read_text())
    assert made["metadata"]["name"] in documented
    settings = replace(MINE["cuda"], priority_class=made["metadata"]["name"])
    _, head, workers = (pod["spec"] for pod in templates(manifest(JOBS[0], settings)))
    assert head["priorityClassName"] == workers["priorityClassName"] == made["metadata"]["name"]


@needs("kubectl")
def test_kustomize_puts_another_image_into_a_rayjob(tmp_path: Path) -> None:
    """`images:` reaches head, workers and submitter, and a replacement the bucket, without rendering."""
    shutil.copy(ROOT / JOBS[0].file, tmp_path)
    text = (ROOT / "docs/deploy.md").read_text()
    (example,) = re.findall(r"```yaml\n(# kustomization.yaml.*?)```", text, re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(
        example.replace("ray-job-compare-localsgd.yaml", JOBS[0].file)
    )
    built = next(one for one in kustomize(tmp_path) if one["kind"] == "RayJob")
    assert JobManifest("x", "x", built).bucket == "my-results"
    images = {container["image"] for t in templates(built) for container in t["spec"]["containers"]}
    assert images == {"registry.example.org/dsgd-lab:TAG"}


# --- image


def test_the_image_has_the_project_s_versions() -> None:
    """Python is one that the project and its Ray run on, uv the Makefile's, the label the project's."""
    text = (ROOT / "Dockerfile").read_text()
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(bases) == {"${UV_IMAGE}", "${PYTHON_IMAGE}"}, "other base images are given as arguments"
    assert arguments["PYTHON_IMAGE"] == "python:3.13-slim"
    assert "uv venv --python 3.13 " in text
    assert arguments["VERSION"] == PROJECT["version"]
    uv = re.search(r"^UV_VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert uv
    assert arguments["UV_IMAGE"].endswith(f":{uv[1]}")


def test_the_image_gets_the_code_that_runs_and_nothing_else() -> None:
    """.dockerignore lets every module in that main.py can import; records, tests and .git stay out."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert let_in >= {"pyproject.toml", "requirements.txt", "*.py"}
    assert not let_in & {"tests", "runs", "deploy", "docs", ".git", ".venv"}
    for name in let_in - {"*.py"}:
        assert (ROOT / name).exists(), f".dockerignore lets {name} in, which is not there"
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"experiments"}
    needed: set[str] = set()
    for file in [*ROOT.glob("*.py"), *(f for p in packages & let_in for f in (ROOT / p).rglob("*.py"))]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            needed |= {name.partition(".")[0] for name in names} & packages
    assert needed <= let_in
    linked = [path.resolve() for path in (ROOT / "dsgd").rglob("*.py") if path.is_symlink()]
    assert {path.parent for path in linked} == {ROOT}, "dsgd/ links to files that *.py lets in"


def test_the_image_installs_what_requirements_pin_and_nothing_else() -> None:
    """Packages come from requirements.txt, each checked by its hash; the project is built from them."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = [
        " ".join(one.split()) for one in re.findall(r"\b(?:uv|pip)(?: pip)? (?:sync|install).*", text)
    ]
    packages, project = installs
    assert packages.startswith("uv pip sync --require-hashes ")
    assert packages.endswith(" /requirements.txt")
    assert {"--offline", "--no-deps", "--no-build-isolation", "--editable"} <= set(project.split())


def test_runs_in_the_image_say_which_commit_it_holds(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no .git in it: the build's GIT_COMMIT reaches meta.json through the environment."""
    text = (ROOT / "Dockerfile").read_text()
    assert "ENV DSGD_GIT_COMMIT=${GIT_COMMIT}\n" in text
    monkeypatch.setenv("DSGD_GIT_COMMIT", "abc")
    ran = cli("--engine sim --steps 1")
    assert json.loads((ran.record / "meta.json").read_text())["git_commit"] == "abc"


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    ran = subprocess.run(
        [where("hadolint"), "--no-color", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.stdout == ""
    assert ran.returncode == 0


# --- make


class Make(NamedTuple):
    """`make` in a clean checkout, with stand-ins for docker and aws that write down what they are asked."""

    checkout: Path
    log: Path
    environment: dict[str, str]

    def __call__(self, *arguments: str) -> tuple[int, str, list[str]]:
        """Return the exit code, the errors, and a line for each call of a stand-in."""
        self.log.write_text("")
        ran = subprocess.run(
            ["make", *arguments],
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return ran.returncode, ran.stderr, self.log.read_text().splitlines()


@pytest.fixture
def make(tmp_path: Path, git: None) -> Make:
    checkout, tools, log = tmp_path / "checkout", tmp_path / "tools", tmp_path / "log"
    checkout.mkdir()
    tools.mkdir()
    (checkout / "deploy").mkdir()
    for file in ("Makefile", "pyproject.toml", ".dockerignore", "Dockerfile", "deploy/image_tag.py"):
        shutil.copy(ROOT / file, checkout / file)
    for file in (".venv/bin/python", ".venv/.done", "requirements.txt"):
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).touch()
    os.utime(checkout / "requirements.txt", (0, 0))
    os.utime(checkout / "pyproject.toml", (0, 0))
    (checkout / ".venv/bin/python").write_text(f'#!/bin/sh\necho "python $*" >> {log}\n')
    (checkout / ".venv/bin/python").chmod(0o755)
    (checkout / ".gitignore").write_text(".venv\n")
    for tool in ("docker", "aws", "uv"):
        (tools / tool).write_text(
            f'#!/bin/sh\necho "{tool} $AWS_PROFILE $*" >> {log}\n'
            f'case "$1" in login) echo "  $(cat)" >> {log} ;; ecr) echo PASSWORD ;; esac\n'
        )
        (tools / tool).chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MAKE"))}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run(["git", *identity, *command], cwd=checkout, check=True)

    return Make(checkout, log, environment)


def test_make_push_builds_the_working_tree_with_ecrs_cache(make: Make) -> None:
    """It signs in as the profile `self`, without the password among the arguments; the tag is the content."""
    code, error, calls = make("push", "AWS_ACCOUNT=ACCOUNT", "AWS_REGION=REGION")
    assert code == 0, error
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=make.checkout, capture_output=True, text=True)
    commit = head.stdout.strip()
    assert (
        "aws self ecr get-login-password --region REGION" in calls
    )  # besides the login, which reads from it
    login, password, build = (call for call in calls if not call.startswith("aws "))
    assert login.startswith("docker self login --username AWS --password-stdin ACCOUNT.")
    assert password.strip() == "PASSWORD"
    words = build.split()
    repository = words[words.index("-t") + 1].removesuffix(f":{image_tag(make.checkout)}")
    assert repository.startswith("ACCOUNT.")
    assert repository.endswith("/dsgd-lab")
    assert {"--platform", "linux/amd64", "--provenance=false", "--push", f"GIT_COMMIT={commit}"} <= set(words)
    assert f"VERSION={PROJECT['version']}" in words
    assert f"type=registry,ref={repository}:cache" in words
    cache = f"type=registry,ref={repository}:cache,mode=max,image-manifest=true,oci-mediatypes=true"
    assert cache in words
    assert words.count("-t") == 1


def test_an_image_of_a_release_says_what_it_was_made_from(make: Make) -> None:
    """Its registry keeps its provenance and its packages; another tag than the version's is refused."""
    version, registry = PROJECT["version"], "REPOSITORY=registry.example.org/lab"
    code, error, calls = make("push", registry, f"RELEASE=v{version}")
    assert code == 0, error
    words = calls[-1].split()
    assert {"--provenance=mode=max", "--sbom=true", f"registry.example.org/lab:{version}"} <= set(words)
    code, error, calls = make("push", registry, "RELEASE=v9")
    assert (code, calls) == (2, [])
    assert f"give the tag v{version}, or set the version" in error


@pytest.mark.parametrize("missing", ["AWS_ACCOUNT", "AWS_REGION"])
def test_make_push_names_the_variable_that_is_not_set(missing: str, make: Make) -> None:
    given = {"AWS_ACCOUNT": "ACCOUNT", "AWS_REGION": "REGION"}
    del given[missing]
    code, error, calls = make("push", *(f"{name}={value}" for name, value in given.items()))
    assert code == 2
    assert error.startswith(f"make push: {missing} is not set")
    assert calls == []


def test_image_push_run_is_one_loop_around_exactly_one_image(make: Make) -> None:
    """Changes are built without a commit, and said; what is applied names exactly what was pushed."""
    (make.checkout / "main.py").write_text("print()\n")
    tag = image_tag(make.checkout)
    given = ("REPOSITORY=example.org/lab", "BUCKET=mine", "JOB=compare-localsgd", "LATEST=1")
    code, error, calls = make("-j4", "image", "push", "run", *given)
    assert code == 0, error
    image, push, run = calls  # another registry than ECR: nothing asks AWS
    assert f"-t dsgd-lab:{tag} --load" in image
    assert f"-t example.org/lab:{tag} -t example.org/lab:latest --push" in push
    assert re.search(r"GIT_COMMIT=[0-9a-f]{40}-dirty ", push)
    assert run.split() == [
        *("python", "-m", "deploy.jobs", "run", "--job", "compare-localsgd"),
        *("--image", f"example.org/lab:{tag}", "--bucket", "mine"),
    ]


def test_the_tag_of_an_image_is_what_is_in_it(tmp_path: Path) -> None:
    """It changes with each file that the image gets, and with no other."""
    for file in ("Dockerfile", ".dockerignore", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "dsgd/__pycache__").mkdir(parents=True)
    tags = [image_tag(tmp_path)]
    for name in ("dsgd/a.py", "Dockerfile", "main.py"):
        (tmp_path / name).write_text("x")
        tags.append(image_tag(tmp_path))
    assert len(set(tags)) == 4
    for name in ("README.md", "dsgd/__pycache__/a.pyc"):
        (tmp_path / name).write_text("x")
    assert image_tag(tmp_path) == tags[-1]
    of_project = {path.relative_to(ROOT).as_posix() for path in image_files(ROOT)}
    assert {"main.py", "dsgd/config.py", "experiments/compare-localsgd.yaml", "requirements.txt"} < of_project
    assert not [name for name in of_project if name.startswith(("tests/", "deploy/", "docs/", ".git/"))]


def test_make_image_loads_it_under_the_name_in_the_manifests(make: Make) -> None:
    """A kind cluster can then take the committed files as they are."""
    code, error, (build,) = make("image", "BUILD_OPTIONS=--secret id=uv,src=uv.toml")
    assert code == 0, error
    assert f"-t dsgd-lab:{PROJECT['version']} -t dsgd-lab:{image_tag(make.checkout)} --load" in build
    assert "--secret id=uv,src=uv.toml" in build

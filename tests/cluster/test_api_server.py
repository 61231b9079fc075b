"""Manifests and cluster tools against a real API server: `make test-api`, after `make api-server`.

API server, etcd and kubectl are real; what operator, scheduler and kubelets would write is recorded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import yaml
from api_server.api_client import ApiClient, ApiRefused
from api_server.install_cluster import (
    CRDS as CRD_PATH,
)
from api_server.install_cluster import (
    apply_overlay,
    install,
    install_crd,
    overlay_objects,
    read_crds,
    without_field,
)
from api_server.local_api import LocalApi, local_api, missing_binaries
from api_server.recorded_kubelet import RecordedKubelet
from api_server.situations import TABLE, TESTS
from api_server.time_lines import PODS, RAY_JOBS, TimeLines, writing
from conftest import KUBERAY_CRD, ROOT, wait_for

from deploy.jobs.__main__ import main
from deploy.jobs.evidence import exporter_pages
from deploy.jobs.kubectl import Kubectl
from deploy.jobs.kubectl_errors import Forbidden
from deploy.jobs.kubernetes_objects import RayJob
from deploy.jobs.node_usage import gpus_in_metrics
from deploy.jobs.thresholds import DEFAULT
from deploy.manifests.job_table import JOBS
from deploy.manifests.rayjob import manifest
from deploy.manifests.settings import Settings

RECORDED = Path(__file__).with_name("recorded_metrics")
BUILT = Path(os.environ.get("API_SERVER", ""))
CRDS = Path(os.environ.get("API_CRDS") or KUBERAY_CRD.parent)

pytestmark = [
    pytest.mark.api,
    # Ctrl-C, here in this process, may come while kubectl is being started: that call then ends by itself.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(
        not os.environ.get("API_SERVER") or bool(missing_binaries(BUILT)),
        reason="needs an API server: make api-server, then make test-api",
    ),
    pytest.mark.skipif(
        not KUBERAY_CRD.is_file(),
        reason="needs KubeRay's CRD: export KUBERAY_CRD=FILE (the RayJob CRD as JSON)",
    ),
]


# A field of KubeRay 1.7's CRD: as long as the API server does not describe it, kubectl lets everything pass.
DESCRIBED = "preRunningDeadlineSeconds"


class Cluster(NamedTuple):
    """An API server, and what is written into it."""

    api: LocalApi
    lines: TimeLines
    restarts: ThreadPoolExecutor
    """Starts API servers: they end with the thread that started them."""

    @property
    def left(self) -> list[str]:
        """Names of the RayJobs and pods that are there."""
        items = self.api.client.items(RAY_JOBS) + self.api.client.items(PODS)
        return [item["metadata"]["name"] for item in items]

    def clear(self) -> None:
        """Delete all jobs, and wait until nothing is left."""
        assert self.lines.failure is None
        self.lines.play("success")
        for job in self.api.client.items(RAY_JOBS):
            self.api.client.delete(f"{RAY_JOBS}/{job['metadata']['name']}", propagationPolicy="Foreground")
        wait_for(lambda: not self.left, "an empty namespace")

    def kubectl(self, *arguments: str) -> str:
        """Return what kubectl prints, as a user of context `lab`."""
        return subprocess.run(
            ["kubectl", *arguments],
            cwd=ROOT,
            env=os.environ | self.api.environment,
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start one for this file."""
    with (
        ThreadPoolExecutor(1) as restarts,
        local_api(BUILT, tmp_path_factory.mktemp("api")) as api,
    ):
        lines = TimeLines(api.client)
        with RecordedKubelet(lines, api.certificate, api.key) as kubelet:
            install(api, kubelet.server_port, read_crds(CRDS), "eks-gpu")
            with writing(lines):
                cluster = Cluster(api, lines, restarts)
                wait_for(
                    lambda: DESCRIBED in cluster.kubectl("get", "--raw", "/openapi/v2"), "its description"
                )
                yield cluster
            kubelet.shutdown()


def test_the_promised_commands_work_as_they_are_written(cluster: Cluster) -> None:
    """Apply, get, logs and delete of docs/deploy.md, with plain kubectl."""
    cluster.lines.play("endless")
    assert cluster.kubectl("apply", "-f", "ray-job-compare-localsgd.yaml") == (
        "rayjob.ray.io/compare-localsgd created\n"
    )

    def row() -> str:
        return cluster.kubectl("get", "rayjob", "compare-localsgd", "-n", "ray-jobs")

    wait_for(lambda: "RUNNING" in row(), "a running job")

    submitter = ("-n", "ray-jobs", "-l", "job-name=compare-localsgd")
    wait_for(lambda: "Running" in cluster.kubectl("get", "pods", *submitter), "a running submitter")
    assert "Job submission server" in cluster.kubectl("logs", *submitter)
    deleted = cluster.kubectl("delete", "rayjob", "compare-localsgd", "-n", "ray-jobs")
    assert deleted.splitlines()[0].startswith('rayjob.ray.io "compare-localsgd" deleted')
    wait_for(lambda: not cluster.kubectl("get", "pods", "-n", "ray-jobs").strip(), "an empty namespace")


# --- every command in every situation


class ToolRan(NamedTuple):
    code: int
    out: str
    err: str


LIMITS = {
    **{"taken_up": 8, "pods_running": 60, "first_update": 30, "job_over": 60},
    **{"runs": 4, "gone": 20, "silence": 150, "sampled_every": 0.2},
}


class Tools:
    """The cluster tools in this process, with the user's access to the cluster."""

    def __init__(
        self, cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._capfd = capfd
        for name, value in cluster.api.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        self.thresholds = cluster.api.folder / "thresholds.yaml"
        self.options = ["--context", "lab"]
        self.limits = dict(LIMITS)

    def __call__(self, command: str, *more: str, ctrl_c_at: str = "") -> ToolRan:
        """Run a command to its end, or until it has printed something: then ctrl-C is pressed."""
        options = ["--job", "ssp", "--bucket", "lab", "--poll-s", "0.2", *self.options, *more]
        limits = {f"{name}_s": seconds for name, seconds in self.limits.items()}
        self.thresholds.write_text(json.dumps(yaml.safe_load(DEFAULT.read_text()) | {"limits": limits}))
        options += ["--thresholds", str(self.thresholds)]
        self._capfd.readouterr()
        over = threading.Event()
        said = ["", ""]

        def listen() -> None:
            until_s = time.monotonic() + 20
            while ctrl_c_at not in " ".join("".join(said).split()) and time.monotonic() < until_s:
                if over.wait(0.2):
                    return
                said[:] = [old + new for old, new in zip(said, self._capfd.readouterr(), strict=True)]
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

        listener = threading.Thread(target=listen)
        if ctrl_c_at:
            listener.start()
        try:
            code = main([command, *options])
        finally:
            over.set()
            if ctrl_c_at:
                listener.join()
        out, err = self._capfd.readouterr()
        return ToolRan(code, said[0] + out, said[1] + err)


@pytest.fixture
def tools(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tools]:
    """Return the tools, in the project's folder."""
    monkeypatch.chdir(ROOT)
    yield Tools(cluster, capfd, monkeypatch)
    cluster.clear()


@contextmanager
def playing(cluster: Cluster, tools: Tools, scenario: str) -> Iterator[None]:
    cluster.lines.play(scenario)
    yield


@contextmanager
def stuck(cluster: Cluster, tools: Tools) -> Iterator[None]:
    """Have an operator that never takes its finalizer away."""
    cluster.lines.play("endless", frees=False)
    tools.limits |= {"gone": 3, "first_update": 3}
    yield


@contextmanager
def no_operator(cluster: Cluster, tools: Tools) -> Iterator[None]:
    """Have no operator: no replica of its Deployment is available, and nobody takes jobs up."""
    path = "/apis/apps/v1/namespaces/kuberay-system/deployments/kuberay-operator"
    cluster.lines.play("no-operator")
    cluster.api.client.set_status(path, {"availableReplicas": 0})
    yield
    cluster.api.client.set_status(path, {"availableReplicas": 1})


@contextmanager
def no_quota(cluster: Cluster, tools: Tools) -> Iterator[None]:
    """Have the overlay of a cluster without GPUs."""
    cluster.lines.play("no-gpu")
    tools.limits["pods_running"] = 8
    apply_overlay(cluster.api, "cpu")
    yield
    apply_overlay(cluster.api, "eks-gpu")


@contextmanager
def as_user(cluster: Cluster, tools: Tools, context: str, scenario: str = "endless") -> Iterator[None]:
    """Have a user who may do less: who has the shipped role run-jobs, or sees what another has applied."""
    cluster.lines.play(scenario)
    if context != "student":
        ran = tools("run")
        assert ran.code == 0, ran
        wait_for(lambda: has_come_to_its_end(cluster), "a running job")
    tools.options = ["--context", context]
    yield
    tools.options = ["--context", "lab"]


@contextmanager
def no_namespace(cluster: Cluster, tools: Tools) -> Iterator[None]:
    tools.options += ["--namespace", "nowhere", "--yes"]
    yield


def of_rayjobs() -> dict[str, Any]:
    return next(crd for crd in read_crds(CRDS) if crd["metadata"]["name"] == "rayjobs.ray.io")


@contextmanager
def no_crd(cluster: Cluster, tools: Tools) -> Iterator[None]:
    cluster.api.client.delete(f"{CRD_PATH}/rayjobs.ray.io")
    wait_for(lambda: not cluster.api.client.answers(RAY_JOBS), "the end of the CRD")
    yield
    install_crd(cluster.api.client, of_rayjobs())


@contextmanager
def older_crd(cluster: Cluster, tools: Tools) -> Iterator[None]:
    """Have a CRD without a field, also in the API's description, from which kubectl takes what it knows."""

    def described() -> bool:
        return DESCRIBED in cluster.kubectl("get", "--raw", "/openapi/v2")

    wait_for(described, "a description")  # the CRD may just have come back
    install_crd(cluster.api.client, without_field(of_rayjobs(), DESCRIBED))
    wait_for(lambda: not described(), "the older description")
    yield
    install_crd(cluster.api.client, of_rayjobs())
    wait_for(described, "the newer description")


@contextmanager
def no_api(cluster: Cluster, tools: Tools) -> Iterator[None]:
    cluster.restarts.submit(cluster.api.stop).result()
    yield
    cluster.restarts.submit(cluster.api.start).result()


SETUPS: dict[str, Callable[[Cluster, Tools], AbstractContextManager[None]]] = {
    "all is well": partial(as_user, context="student", scenario="success"),
    "a job that runs on": partial(as_user, context="student"),
    "may only look": partial(as_user, context="viewer"),
    "token expired": partial(as_user, context="expired"),
    "no API server": no_api,
    "no namespace": no_namespace,
    "no CRD": no_crd,
    "older CRD": older_crd,
    "quota 0": no_quota,
    "image pull": partial(playing, scenario="image-pull"),
    "out of memory": partial(playing, scenario="worker-restart"),
    "driver crash": partial(playing, scenario="driver-crash"),
    "validation failed": partial(playing, scenario="invalid"),
    "no operator": no_operator,
    "stuck finalizer": stuck,
}


def has_come_to_its_end(cluster: Cluster) -> bool:
    """Whether all frames of the job are written."""
    job = cluster.api.client.find(f"{RAY_JOBS}/ssp")
    return job is not None and cluster.lines.is_over(job)


@pytest.mark.parametrize("situation", TABLE)
def test_each_command_does_what_the_table_says(situation: str, cluster: Cluster, tools: Tools) -> None:
    """Exit code and words are those of situations.py, and no test leaves anything behind."""
    wrong = []
    with SETUPS[situation](cluster, tools):
        for command, (code, says) in TABLE[situation].items():
            ran = tools(command, ctrl_c_at=says if code == 130 else "")
            said = " ".join((ran.out + ran.err).split())
            if (ran.code, says in said) != (code, True):
                wrong.append(f"{command}: {ran.code}, not {code} with {says!r}: {said}")
            if command == "run" and code == 0:
                wait_for(lambda: has_come_to_its_end(cluster), "the last frame")
            if command in TESTS and situation not in LEAVES:
                wrong += [f"{command} left {name}" for name in cluster.left if "-test-" in name]
    assert not wrong, "\n".join(wrong)


LEAVES = ("no API server", "no CRD", "stuck finalizer")  # where nobody can look, or nobody cleans up


# --- an API server that starts again


@pytest.fixture
def restarted(cluster: Cluster) -> Callable[..., Future[None]]:
    """Return what has the API server go away, for a while, once a job runs."""

    def restart(away_s: float, *, ctrl_c: bool = False) -> None:
        wait_for(
            lambda: any(
                (job.get("status") or {}).get("jobDeploymentStatus") == "Running"
                for job in cluster.api.client.items(RAY_JOBS)
            ),
            "a running job",
        )
        cluster.api.stop()
        if ctrl_c:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(away_s)
        cluster.api.start()

    def begin(away_s: float, *, ctrl_c: bool = False) -> Future[None]:
        return cluster.restarts.submit(restart, away_s, ctrl_c=ctrl_c)

    return begin


@pytest.mark.parametrize("away_s", [2, 11])
def test_a_test_goes_on_when_the_api_server_does(
    cluster: Cluster, tools: Tools, restarted: Callable[..., Future[None]], away_s: float
) -> None:
    """The API server is away, and then does not serve RayJobs yet: the test passes, and nothing is left."""
    cluster.lines.play("success")
    restart = restarted(away_s)
    ran = tools("test-cluster", "--no-validate")
    restart.result()
    assert ran.code == 0, ran
    assert not cluster.left


def test_ctrl_c_while_the_api_server_is_away_still_cleans_up(
    cluster: Cluster, tools: Tools, restarted: Callable[..., Future[None]]
) -> None:
    """Deleting is tried again until it is confirmed; then the exit code is that of ctrl-C."""
    cluster.lines.play("endless")
    tools.limits["gone"] = 120
    restart = restarted(4, ctrl_c=True)
    ran = tools("test-quick")
    restart.result()
    assert (ran.code, ran.err) == (130, "deploy.jobs: interrupted\n")
    assert not cluster.left


# --- what the documents say of manifests and tools


@pytest.mark.parametrize("overlay", ["cpu", "eks-gpu"])
def test_an_overlay_applied_again_changes_nothing(cluster: Cluster, overlay: str, tmp_path: Path) -> None:
    """Server-side apply takes all objects of both overlays, and `kubectl diff` finds nothing afterwards."""
    said = apply_overlay(cluster.api, overlay)
    assert said.count("serverside-applied") == said.count("\n") > 8
    (tmp_path / "objects.yaml").write_text(overlay_objects(cluster.api, overlay))
    assert cluster.kubectl("diff", "--server-side", "-f", str(tmp_path / "objects.yaml")) == ""


@pytest.mark.parametrize("capacity", ["any", "spot"])
def test_core_validation_takes_every_pod_of_every_job(
    cluster: Cluster, capacity: Literal["any", "spot"]
) -> None:
    """RayJobs and the pods of their templates are accepted, also with node affinity to spot nodes."""
    settings = Settings(image="registry.test/dsgd:1", bucket="lab", device="cuda", capacity=capacity)
    for job in JOBS:
        made = manifest(job, settings)
        assert cluster.api.client.create(f"{RAY_JOBS}?dryRun=All", made)
        cluster_spec = made["spec"]["rayClusterSpec"]
        templates = [
            made["spec"]["submitterPodTemplate"],
            cluster_spec["headGroupSpec"]["template"],
            cluster_spec["workerGroupSpecs"][0]["template"],
        ]
        for template in templates:
            body = {"metadata": {"generateName": "any-"}, "spec": template["spec"]}
            taken = cluster.api.client.create(f"{PODS}?dryRun=All", body)
            assert taken
            assert taken["spec"]["containers"][0]["image"] == "registry.test/dsgd:1"
        assert ("nodeAffinity" in str(templates[-1])) == (capacity == "spot")


def test_pods_of_a_priority_class_need_the_component(cluster: Cluster) -> None:
    """Without it they are refused by its name; with it they get its priority, and end nobody's pods."""
    settings = Settings(image="registry.test/dsgd:1", bucket="lab", priority_class="ray-jobs")
    head = manifest(JOBS[0], settings)["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    pod = {"metadata": {"generateName": "any-"}, "spec": head}
    with pytest.raises(ApiRefused, match="no PriorityClass with name ray-jobs was found"):
        cluster.api.client.create(f"{PODS}?dryRun=All", pod)
    file = "deploy/kubernetes/components/priority/priority-class.yaml"
    cluster.kubectl("apply", "--server-side", "-f", file)
    wait_for(lambda: known(cluster, pod), "the class, which pods' admission looks up in a cache")
    taken = cluster.api.client.create(f"{PODS}?dryRun=All", pod)
    cluster.kubectl("delete", "-f", file)
    assert taken
    assert (taken["spec"]["priority"], taken["spec"]["preemptionPolicy"]) == (1000, "Never")


def known(cluster: Cluster, pod: dict[str, Any]) -> bool:
    try:
        return bool(cluster.api.client.create(f"{PODS}?dryRun=All", pod))
    except ApiRefused:
        return False


def test_only_the_rayjob_with_the_uid_is_deleted(
    cluster: Cluster, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server holds a deletion to its precondition: a later job of the same name stays."""
    cluster.lines.play("endless")
    assert tools("run").code == 0
    kubectl = Kubectl("ray-jobs", "student")
    seen = kubectl.job("ssp")
    assert seen
    uid = "00000000-0000-4000-8000-000000000000"
    assert not kubectl.ask_to_delete(RayJob({**seen.json, "metadata": {**seen.json["metadata"], "uid": uid}}))
    again = kubectl.job("ssp")
    assert again
    assert (again.uid, again.leaving) == (seen.uid, "")
    assert kubectl.ask_to_delete(seen)
    wait_for(lambda: kubectl.job("ssp") is None, "the end of the job")


def test_a_probe_uses_the_bucket_from_a_pod(cluster: Cluster, tools: Tools) -> None:
    """`validate-setup --probe` runs a pod with the head's variables, reads what it printed, deletes it."""
    ran = tools("validate-setup", "--probe")
    assert ran.code == 0, ran
    assert "service account ray-jobs: written, read and deleted: s3://results/validate-setup/" in ran.out
    wait_for(lambda: not cluster.left, "the end of the probe's pod")


@contextmanager
def dcgm_exporter(client: ApiClient) -> Iterator[None]:
    """Run NVIDIA's exporter on node-gpu-0: a pod in namespace `gpu`, whose address is this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: it is asked which address it would be sent from
        address = probe.getsockname()[0]
    page = RECORDED / "dcgm-exporter-4.5.3-4.8.2.prom"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(page.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    client.create("/api/v1/namespaces", {"metadata": {"name": "gpu"}})
    client.create("/api/v1/namespaces/gpu/serviceaccounts", {"metadata": {"name": "default"}})
    pods = "/api/v1/namespaces/gpu/pods"
    container = {"name": "exporter", "image": "dcgm-exporter"}
    spec = {"nodeName": "node-gpu-0", "containers": [container], "automountServiceAccountToken": False}
    labels = {"app.kubernetes.io/name": "dcgm-exporter"}
    client.create(pods, {"metadata": {"name": "dcgm", "labels": labels}, "spec": spec})
    ready = [{"type": "Ready", "status": "True"}]
    client.set_status(f"{pods}/dcgm", {"phase": "Running", "podIP": address, "conditions": ready})
    with ThreadingHTTPServer((address, 9400), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()
    client.delete(f"{pods}/dcgm", gracePeriodSeconds=0)


def test_the_exporter_of_gpus_is_read_through_the_api_server(
    cluster: Cluster, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may list pods everywhere gets the page of the workers' nodes; a student learns what is missing."""
    with dcgm_exporter(cluster.api.client):
        ((node, page),) = exporter_pages(Kubectl("ray-jobs", "lab"), {"node-gpu-0"})
        assert (node, [gpu.share for gpu in gpus_in_metrics(page, node)]) == ("node-gpu-0", [0.55, 0.0])
        assert exporter_pages(Kubectl("ray-jobs", "lab"), {"node-cpu-0"}) == []
        with pytest.raises(Forbidden, match='cannot list resource "pods"'):
            exporter_pages(Kubectl("ray-jobs", "student"), {"node-gpu-0"})


def test_kustomize_replaces_image_and_bucket_as_the_document_says(cluster: Cluster, tmp_path: Path) -> None:
    text = (ROOT / "docs/deploy.md").read_text()
    example = text[text.index("# kustomization.yaml") :].partition("```")[0]
    (tmp_path / "kustomization.yaml").write_text(example)
    shutil.copy(ROOT / "ray-job-compare-localsgd.yaml", tmp_path)
    cluster.lines.play("endless")
    cluster.kubectl("apply", "-n", "ray-jobs", "-k", str(tmp_path))
    job = cluster.api.client.find(f"{RAY_JOBS}/compare-localsgd")
    assert job
    assert json.dumps(job["spec"]).count('"registry.example.org/dsgd-lab:TAG"') == 3
    bucket, _ = job["spec"]["submitterPodTemplate"]["spec"]["containers"][0]["env"]
    assert bucket == {"name": "RESULTS_BUCKET", "value": "my-results"}
    cluster.clear()

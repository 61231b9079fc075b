"""The RayService: valid, as KubeRay and Ray Serve want it, guarded, and deployed from its own file."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tritonclient.http as triton
import yaml
from conftest import KUBERAY_CRD, PATIENCE_S, ROOT, needs_crd, wait_for
from msgspec.structs import replace
from test_manifests import MINE, each_device, strict
from test_serve import asked, with_checkpoints

from deploy.manifests.job_table import SERVICE
from deploy.manifests.rayservice import PORT, service
from deploy.manifests.rendered_files import files, problem_of, render
from deploy.manifests.settings import Device, Settings, read_settings
from deploy.project import NAMESPACE, TOKEN_VARIABLE
from dsgd.process.outcomes import UsageError
from dsgd.serve.application import WITHOUT_TOKEN

TOKEN = "a-token"  # noqa: S105 - of the test
COMMITTED: dict[str, Any] = yaml.safe_load((ROOT / SERVICE.file).read_text())


def containers(rayservice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the only container of the head, then of the workers."""
    cluster = rayservice["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        yield container


def config(rayservice: dict[str, Any]) -> dict[str, Any]:
    """Return what Ray Serve gets, in which its one application is."""
    found: dict[str, Any] = yaml.safe_load(rayservice["spec"]["serveConfigV2"])
    return found


# --- valid


@needs_crd
@each_device
def test_the_service_is_valid_strictly(device: Device) -> None:
    """It has the fields of KubeRay 1.7's CRD and no others; its cluster is described as a RayJob's is, with
    two pods that have no GPU, whatever jobs train on, and no hooks that end a job's processes.
    """
    (version,) = (v for v in json.loads(KUBERAY_CRD.read_text())["spec"]["versions"] if v["name"] == "v1")
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    schema = jsonschema.Draft202012Validator(strict(spec["rayClusterSpec"]))
    for_training: Any = {"gpus_per_worker": 2.0, "efa": 4} if device == "cuda" else {}
    for settings in (MINE[device], replace(MINE[device], tls="secret", workers=9, **for_training)):
        document = yaml.safe_load(render(SERVICE, settings))
        assert document["spec"].keys() == {"serveConfigV2", "excludeHeadPodFromServeSvc", "rayClusterConfig"}
        assert document["spec"]["excludeHeadPodFromServeSvc"] is True
        cluster = document["spec"]["rayClusterConfig"]
        assert [error.message for error in schema.iter_errors(cluster)] == []
        assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayService")
        assert document["metadata"]["namespace"] == NAMESPACE
        assert not re.search(r"nvidia|amazonaws|lifecycle", str(document))
        assert cluster["workerGroupSpecs"][0]["replicas"] == 2


def test_kuberay_makes_its_service_and_ray_serve_takes_its_application() -> None:
    """KubeRay makes a Kubernetes service if the head names a port "serve"; Ray Serve listens at that port, at
    any address, for the one application that a cluster has.
    """
    from ray.serve.schema import ServeDeploySchema

    for container in containers(COMMITTED):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["serve"] == PORT
        assert "driver-metrics" not in ports
    parsed = ServeDeploySchema.model_validate(config(COMMITTED))
    assert (parsed.http_options.host, parsed.http_options.port) == ("0.0.0.0", PORT)
    (one,) = parsed.applications
    assert (one.route_prefix, one.import_path) == ("/", "dsgd.serve.replicas:from_manifest")
    mode = COMMITTED["spec"]["rayClusterConfig"]["authOptions"]
    assert mode == {"mode": "token"}, "KubeRay refuses Kubernetes' own for a RayService"


def test_every_pod_gets_the_token_from_a_secret_and_only_pods_with_the_role_read_the_bucket() -> None:
    """No file has the token; replicas, which workers run, have the account of the bucket and its secret."""
    for container in containers(COMMITTED):
        (token,) = (one for one in container["env"] if one["name"] == TOKEN_VARIABLE)
        assert token["valueFrom"]["secretKeyRef"] == {"name": "serve-token", "key": "token"}
        assert container["envFrom"] == [{"secretRef": {"name": "storage", "optional": True}}]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    (workers,) = COMMITTED["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["template"]["spec"]["serviceAccountName"] == "ray-jobs"
    assert container["readinessProbe"]["httpGet"]["path"] in WITHOUT_TOKEN


def test_without_the_token_there_is_no_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that others reach is refused in one line without a token; so is what the command refuses."""
    from dsgd.serve.replicas import from_manifest

    args = config(COMMITTED)["applications"][0]["args"]
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"^--host 0\.0\.0\.0: others reach it there; give --token"):
        from_manifest(args)
    monkeypatch.setenv(TOKEN_VARIABLE, f"{TOKEN}\n")  # as a file has it, of which the secret was made
    given = from_manifest({"runs": "a/run", "int8": False, "max_batch": 4})._bound_deployment.init_args[0]
    assert (given.runs, given.int8, given.max_batch, given.token) == (("a/run",), False, 4, TOKEN)
    for wrong, message in (({"replica": 2}, "--replica: is not"), ({"runs": []}, "serve: RUN... is missing")):
        with pytest.raises(UsageError, match=message):
            from_manifest({**args, **wrong})


def test_image_and_runs_of_the_service_may_be_edited(tmp_path: Path) -> None:
    """Its two marked lines are its reader's; another run may be added; the rest is rendered."""
    settings = read_settings(ROOT)
    text = render(SERVICE, settings)
    marked = [line for line in text.splitlines() if "# yours" in line]
    assert len(marked) == 2
    mine = text.replace(settings.image, "example.org/me:1")
    mine = mine.replace("s3://BUCKET/runs/RUN", "s3://mine/runs/ssp-1@200")
    line = "            - s3://mine/runs/ssp-1@200"
    for edited in (mine, mine.replace(line, f"{line}\n            - s3://mine/other/gpt-2")):
        (tmp_path / SERVICE.file).write_text(edited)
        assert problem_of(SERVICE.file, tmp_path, settings) is None
    (tmp_path / SERVICE.file).write_text(mine.replace("auto:1-6", "auto:1-60"))
    problem = problem_of(SERVICE.file, tmp_path, settings) or ""
    assert "has `replicas: auto:1-60`, should be `replicas: auto:1-6`" in problem
    (tmp_path / SERVICE.file).write_text(mine.replace("s3://mine/runs/ssp-1@200", "runs/ssp-1"))
    assert (
        problem_of(SERVICE.file, tmp_path, settings)
        == f"{SERVICE.file}: lacks the line of its image or run; run `make manifests`"
    )


def test_a_service_of_given_runs_is_rendered_with_their_addresses() -> None:
    """A name alone is a run of the bucket; an address stays as it is."""
    mine = Settings(image="a:1", bucket="results", serves=("ssp-1@200", "s3://other/gpt"))
    (application,) = config(service(mine))["applications"]
    assert application["args"]["runs"] == ["s3://results/runs/ssp-1@200", "s3://other/gpt"]
    assert SERVICE.file in files(mine)


@pytest.mark.ray
@pytest.mark.thorough
def test_the_application_of_the_file_answers_on_a_cluster(tmp_path: Path, ray_cluster: str) -> None:
    """`serve run` deploys the file's own serveConfigV2, as KubeRay does through the dashboard: its probe
    answers, and a client with the token gets what the model computes.
    """
    with_checkpoints(tmp_path / "images", (4,), workload="digits_cnn")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    given = config(COMMITTED)
    given["http_options"]["port"] = port
    (application,) = given["applications"]
    application["args"] |= {"runs": [str(tmp_path / "images")], "replicas": "auto:1-2"}
    application["runtime_env"] = {"env_vars": {TOKEN_VARIABLE: TOKEN}}  # which a pod gets from its secret
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(given))
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(tmp_path / "serve.yaml")]
    process = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": ray_cluster}, cwd=tmp_path)
    try:
        _, workers = containers(COMMITTED)
        probe = workers["readinessProbe"]["httpGet"]["path"]
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            assert process.poll() is None
            with suppress(OSError):
                return asked(url, probe)[0] == 200
            return False

        wait_for(ready)
        assert asked(url, "/v2/models/digits_cnn")[0] == 401
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            x = triton.InferInput("input", [2, 1, 8, 8], "FP32")
            x.set_data_from_numpy(np.ones((2, 1, 8, 8), np.float32))
            answer = client.infer("digits_cnn", [x], headers={"Authorization": f"Bearer {TOKEN}"})
            assert answer.as_numpy("output").shape == (2, 10)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)

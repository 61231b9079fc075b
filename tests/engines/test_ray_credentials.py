"""A Ray head with a token and TLS on this machine: right, wrong and missing credentials."""

from __future__ import annotations

import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import PATIENCE_S, ROOT, needs, python, wait_for

import dsgd
from deploy.manifests.tls import ENVIRONMENT, MAKE_CERTIFICATE
from dsgd.engines.ray.connection.credentials import forget_ended, guard_token

pytestmark = pytest.mark.ray
TOKEN = "5e" * 32

HEAD = """
import sys
import dsgd.engines.ray.connection.connect
import ray

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""
WITHOUT = {name for name in os.environ if name.startswith(("RAY_AUTH", "RAY_TLS"))} | {"RAY_USE_TLS"}
CLEAN = {name: value for name, value in os.environ.items() if name not in WITHOUT}


class Authority:
    """A certificate authority, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        made = "req -x509 -days 1 -subj /CN=authority -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        files = f"-keyout {folder / 'tls.key'} -out {folder / 'tls.crt'}"
        subprocess.run(["openssl", *made.split(), *files.split()], check=True, capture_output=True)

    def of_a_pod(self, address: str) -> dict[str, str]:
        """Return the environment of a pod with a certificate of this authority, as the manifests make it."""
        own = self.folder / address
        own.mkdir(exist_ok=True)
        script = MAKE_CERTIFICATE.replace("/etc/ray-ca", str(self.folder)).replace("/etc/ray-tls", str(own))
        subprocess.run(
            ["/bin/sh", "-c", script],
            env=CLEAN | {"POD_IP": address, "POD_NAMESPACE": "ray-jobs"},
            check=True,
            capture_output=True,
        )
        return {name: value.replace("/etc/ray-tls", str(own)) for name, value in ENVIRONMENT.items()}


class Head:
    """A head in another process: its address, and the credentials that it wants."""

    def __init__(self, address: str, credentials: Mapping[str, str]) -> None:
        self.address, self.credentials = address, credentials
        self.certificates = {name: credentials[name] for name in ENVIRONMENT}

    def connecting(self, changed: Mapping[str, str | None]) -> subprocess.Popen[str]:
        """Start a process that connects with the head's credentials, some of them changed, or gone (None)."""
        given = {**self.credentials, "RAY_ADDRESS": self.address, **changed}
        kept = {name: value for name, value in given.items() if value is not None}
        return python("-c", CONNECT, env=CLEAN | kept)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def head(authority: Authority) -> Iterator[Head]:
    import dsgd.engines.ray.connection.connect  # noqa: F401 - sets what Ray reads at its import

    # isort: split
    from ray.util import get_node_ip_address

    credentials = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        **authority.of_a_pod(get_node_ip_address()),  # type: ignore[no-untyped-call]
    }
    folder = tempfile.mkdtemp(prefix="dsgd-ray-", dir="/tmp")
    with python("-c", HEAD, folder, env=CLEAN | credentials, stdin=subprocess.PIPE) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, process.communicate()[1]
        yield Head(address, credentials)
        process.communicate()
        assert process.returncode == 0
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.thorough
@needs("openssl")
def test_a_head_takes_its_own_credentials_alone(head: Head, authority: Authority) -> None:
    """With its token and a certificate of its authority a process connects; else it ends within
    --start-timeout-s, and one line, among Ray's, says what to set.
    """
    other = Authority(authority.folder.with_name("other")).of_a_pod("127.0.0.1")
    changes: list[Mapping[str, str | None]] = [
        {},
        {"RAY_AUTH_TOKEN": "0" * 64},
        {"RAY_AUTH_MODE": None},
        {"RAY_TLS_CA_CERT": other["RAY_TLS_CA_CERT"]},
        other | {"RAY_TLS_CA_CERT": head.certificates["RAY_TLS_CA_CERT"]},
        dict.fromkeys(ENVIRONMENT),
        {"RAY_TLS_SERVER_CERT": "/nowhere"},
    ]
    right, *wrong = [head.connecting(changed) for changed in changes]
    assert right.communicate(timeout=PATIENCE_S) == ("CPU 1.0\n", "")
    for process in wrong:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        (line,) = (line for line in err.splitlines() if line.startswith(f"RAY_ADDRESS={head.address}: "))
        assert "RAY_AUTH_TOKEN" in line
        assert "RAY_USE_TLS" in line
        assert float(out) < 10


CONNECT = """
import sys, time
from dsgd.core.protocol import ClusterError
from dsgd.engines.ray.connection.connect import connect, resources

began_s = time.monotonic()
try:
    connection = connect(4.0)
    print("CPU", resources()["CPU"])
    connection.close()
except ClusterError as error:
    print(time.monotonic() - began_s)
    sys.exit(str(error))
"""


TWO_NODES = """
import sys
import dsgd.engines.ray.connection.connect
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
TLS = {"driver", "gcs_server", "raylet", "ray::Host", "ray::SliceServer", "ray::DashboardAgent"}
PLAIN = {"dashboard.py", "monitor.py", "ray::DashboardAgent", "ray::RuntimeEnvAgent"}


@dataclass(frozen=True)
class Listening:
    """A port on which a process of a cluster, or its driver, listens."""

    process: str
    host: str
    port: int


def listening(cluster: int, driver: int) -> Iterator[Listening]:
    for root in (cluster, driver):
        for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            with suppress(psutil.Error):  # it has just ended
                words = process.cmdline()
                name = next(
                    (Path(w).name for w in words[:4] if w.endswith(("dashboard.py", "monitor.py"))), ""
                )
                name = "driver" if root == driver else name or Path(words[0]).name.split(".")[0]
                for found in process.net_connections("tcp"):
                    if found.status == psutil.CONN_LISTEN:
                        yield Listening(name, *found.laddr)


def speaks_tls(port: Listening, context: ssl.SSLContext, node: str) -> bool:
    host = node if port.host in ("0.0.0.0", "::") else port.host
    with socket.create_connection((host, port.port), timeout=2) as link:
        try:
            with context.wrap_socket(link):
                return True
        except OSError:
            return False


@pytest.mark.thorough
@needs("openssl")
def test_on_two_nodes_with_tls_only_what_the_page_names_is_plain(
    authority: Authority, tmp_path: Path
) -> None:
    """Driver, hosts and servers on both nodes, each with certificates, make the simulator's weights; all of
    their ports want TLS, but the driver's metrics, which this machine alone sees, and those that
    docs/deploy.md names. What would pass by Ray's calls, between machines, is refused.
    """
    from ray.util import get_node_ip_address

    node = get_node_ip_address()  # type: ignore[no-untyped-call]
    credentials = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, **authority.of_a_pod(node)}
    context = ssl.create_default_context(cafile=credentials["RAY_TLS_CA_CERT"])
    context.check_hostname = False  # it is in the pod's names, by address
    context.load_cert_chain(credentials["RAY_TLS_SERVER_CERT"], credentials["RAY_TLS_SERVER_KEY"])
    context.set_alpn_protocols(["h2"])
    options: dict[str, Any] = {
        "num_workers": 2,
        "steps": 40,
        "topology": "sharded:2",
        "compute_time": "constant:.3",
    }
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    run = ["main.py", *given, f"--out={tmp_path}", "--run-name=run", "--metrics-port=0"]
    with python("-c", TWO_NODES, env=CLEAN | credentials, stdin=subprocess.PIPE) as cluster:
        assert cluster.stdout
        connected = CLEAN | credentials | {"RAY_ADDRESS": cluster.stdout.readline().strip()}
        with python(*run, env=connected) as driver:
            assert driver.stdout
            metrics = driver.stdout.readline().split()[-1]
            wait_for(lambda: is_ready(metrics.replace("/metrics", "/readyz")))
            ports = {port: speaks_tls(port, context, node) for port in listening(cluster.pid, driver.pid)}
            said = driver.communicate()
            assert driver.returncode == 0, said
        around = python(
            "main.py", "--num-workers=2", "--topology=allreduce:ring", f"--out={tmp_path}", env=connected
        )
        assert "RAY_USE_TLS encrypts Ray's calls, but not what" in around.communicate()[1]
        cluster.communicate()
    assert {port.process for port, speaks in ports.items() if speaks} == TLS
    plain = {port for port, speaks in ports.items() if not speaks}
    assert [port for port in plain if port.process == "driver"] == [
        Listening("driver", "127.0.0.1", int(metrics.split(":")[2].split("/")[0]))
    ]
    assert {port.process for port in plain} - {"driver"} == PLAIN
    assert np.array_equal(
        dsgd.load(tmp_path / "run").weights, dsgd.run("ssgd", engine="sim", **options).weights
    )
    page = (ROOT / "docs/deploy.md").read_text()
    assert [
        name
        for name in ("driver's metrics", "runtime environments", "dashboard", "autoscaler")
        if name not in page
    ] == []


def is_ready(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False


@pytest.mark.parametrize("home", ["nowhere", "file"])
def test_without_a_home_the_token_is_in_the_environment(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's processes inherit it there; each driver has another."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # to be put back
    found = set()
    for _ in range(2):
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        guard_token()
        found.add(os.environ["RAY_AUTH_TOKEN"])
    assert [len(token) for token in found] == [64, 64]


@pytest.fixture
def short() -> Iterator[Path]:
    """Return an empty folder with a short path: the names of sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_folders_of_sessions_that_have_ended_are_removed(short: Path) -> None:
    """After an hour, in which their logs may be read; not those of a session that goes on, or of others."""
    names = ("session_new_1", "session_ended_2", "session_up_3", "session_latest", "others")
    for name in names:
        (short / name / "sockets").mkdir(parents=True)
        os.utime(short / name, (0, time.time() if name == "session_new_1" else 0))
    with socketserver.UnixStreamServer(
        str(short / "session_up_3/sockets/raylet"), socketserver.BaseRequestHandler
    ):
        forget_ended(short)
    assert {path.name for path in short.iterdir()} == {*names} - {"session_ended_2"}

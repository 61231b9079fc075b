"""A Ray head with a token and TLS on this machine: right, wrong and missing credentials."""

from __future__ import annotations

import os
import shutil
import socketserver
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import PATIENCE_S, needs, python

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

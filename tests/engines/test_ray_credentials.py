"""A Ray head with a token and TLS on this machine: right, wrong and missing credentials."""

from __future__ import annotations

import contextlib
import os
import shutil
import socketserver
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import PATIENCE_S, python

from deploy.manifests.tls import ENVIRONMENT, MAKE_CERTIFICATE
from dsgd.core.protocol import ClusterError

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


def refusal(address: str, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what this process says of a head that does not take these certificates."""
    import dsgd.engines.ray.connection.connect  # noqa: F401 - sets what Ray reads at its import

    # isort: split
    from dsgd.engines.ray.connection.credentials import show_credentials

    for name in WITHOUT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    began_s = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        show_credentials(address)
    assert time.monotonic() - began_s < 10
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.thorough
def test_a_head_takes_its_own_token_and_refuses_others_in_one_line(head: Head) -> None:
    """A wrong and a missing token are named within ten seconds, with what to set; with it, Ray connects."""
    processes = {
        "": head.connecting({}),
        "refuses the token of RAY_AUTH_TOKEN": head.connecting({"RAY_AUTH_TOKEN": "0" * 64}),
        "RAY_AUTH_MODE is not set": head.connecting({"RAY_AUTH_MODE": None}),
    }
    for words, process in processes.items():
        out, err = process.communicate(timeout=PATIENCE_S)
        if not words:
            assert (process.returncode, err, out) == (0, "", "CPU 1.0\n")
            continue
        assert process.returncode == 1
        assert err.startswith(f"RAY_ADDRESS={head.address}: ")
        assert len(err.splitlines()) == 1
        assert words in err
        assert "get-auth-token" in err
        assert float(out) < 10


@pytest.mark.thorough
def test_a_head_refuses_certificates_of_others_in_one_line(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another authority, another's certificate, none at all: each has one line that names what to set."""
    own, other = head.certificates, Authority(tmp_path / "other").of_a_pod("127.0.0.1")
    authority = "RAY_TLS_CA_CERT"
    for certificates, words in (
        (own | {authority: other[authority]}, "RAY_TLS_CA_CERT must be of the authority"),
        (other | {authority: own[authority]}, "does not accept RAY_TLS_SERVER_CERT"),
        ({}, "it speaks TLS: set RAY_USE_TLS=1 and RAY_TLS_SERVER_CERT"),
    ):
        assert words in refusal(head.address, certificates, monkeypatch)


def test_a_head_that_must_have_another_name_or_speaks_no_tls_is_named(
    authority: Authority, ray_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate for another address, and a head without TLS, are each said in one line."""
    elsewhere = authority.of_a_pod("198.51.100.1")
    assert "it does not speak TLS: unset RAY_USE_TLS" in refusal(ray_cluster, elsewhere, monkeypatch)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(elsewhere["RAY_TLS_SERVER_CERT"], elsewhere["RAY_TLS_SERVER_KEY"])

    class Answers(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                context.wrap_socket(self.request, server_side=True)

    with socketserver.ThreadingTCPServer(("0.0.0.0", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"{ray_cluster.rpartition(':')[0]}:{server.server_address[1]}"
        assert "the certificate must name" in refusal(address, elsewhere, monkeypatch)
        server.shutdown()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("RAY_TLS_SERVER_KEY", "", "RAY_TLS_SERVER_KEY is not set"),
        ("RAY_TLS_CA_CERT", "/dev/null", "RAY_TLS_CA_CERT=/dev/null: "),
        ("RAY_TLS_SERVER_KEY", "/dev/null", "RAY_TLS_SERVER_KEY=/dev/null: must be"),
        ("RAY_TLS_SERVER_CERT", "/nowhere", "RAY_TLS_SERVER_CERT=/nowhere, "),
    ],
)
def test_certificates_that_cannot_be_read_are_named(
    variable: str, value: str, words: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is asked of a head, the files that RAY_TLS_… name are looked at."""
    own = authority.of_a_pod("198.51.100.2")
    assert words in refusal("127.0.0.1:1", own | {variable: value}, monkeypatch)


CONNECT = """
import sys, time
from dsgd.core.protocol import ClusterError
from dsgd.engines.ray.connection.connect import connect, resources

began_s = time.monotonic()
try:
    connection = connect(30.0)
    print("CPU", resources()["CPU"])
    connection.close()
except ClusterError as error:
    print(time.monotonic() - began_s)
    sys.exit(str(error))
"""


def test_folders_of_sessions_that_have_ended_are_removed(tmp_path: Path) -> None:
    """After an hour, in which their logs may be read; not those of a session that goes on, or of others."""
    from dsgd.engines.ray.connection.credentials import forget_ended

    names = ("session_new_1", "session_ended_2", "session_up_3", "session_latest", "others")
    for name in names:
        (tmp_path / name / "sockets").mkdir(parents=True)
        os.utime(tmp_path / name, (0, time.time() if name == "session_new_1" else 0))
    with socketserver.UnixStreamServer(
        str(tmp_path / "session_up_3/sockets/raylet"), socketserver.BaseRequestHandler
    ):
        forget_ended(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names} - {"session_ended_2"}

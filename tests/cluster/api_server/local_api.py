"""A kube-apiserver and its etcd as processes of this machine, on 127.0.0.1, with users and a kubeconfig."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from api_server.api_client import ApiClient
from deploy.local_processes import end
from deploy.observability.local_servers import NotStarted, free_port

BINARIES = ("kube-apiserver", "etcd", "kubectl")

# Context -> the user's group. Who is in system:masters may do anything; what the others may do, roles say.
GROUPS = {"lab": "system:masters", "student": "students", "viewer": "viewers"}
EXPIRED = "expired"  # a context whose token the API server does not know

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
# What clusters have and 1.20 knows, less what only a controller manager can serve.
_ADMISSION = "NamespaceLifecycle,ResourceQuota,LimitRanger,ServiceAccount,Priority,DefaultTolerationSeconds"


def missing_binaries(folder: Path) -> list[str]:
    """Return the programs that `tests/cluster/api_server/build.sh` has not put into the folder yet."""
    return [name for name in BINARIES if not os.access(folder / "bin" / name, os.X_OK)]


class LocalApi:
    """An API server that can be stopped and started again, with what it keeps in etcd.

    built: where build.sh has put the programs. folder: for keys, data and logs of this one.
    """

    def __init__(self, built: Path, folder: Path) -> None:
        if missing := missing_binaries(built):
            raise NotStarted(f"no {', '.join(missing)} in {built / 'bin'}; make api-server builds them")
        self.programs, self.folder = built / "bin", folder
        self.certificate, self.key = folder / "server.crt", folder / "server.key"
        self.kubeconfig = folder / "kubeconfig"
        self._tokens = {context: secrets.token_hex(16) for context in (*GROUPS, EXPIRED)}
        self._port, self._etcd_port, self._peer_port = free_port(), free_port(), free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self.url = f"https://127.0.0.1:{self._port}"
        _make_certificate(self.certificate, self.key)
        self._write_tokens()
        self._write_kubeconfig()
        self.client = ApiClient(self.url, self.certificate, self._tokens["lab"])

    @property
    def environment(self) -> dict[str, str]:
        """Variables that let a process use the API server by the kubectl that was built with it."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl-cache"),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
        }

    def start(self) -> None:
        """Start the API server, and wait until it is ready. Raises NotStarted."""
        arguments = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self._port,
            "tls-cert-file": self.certificate,
            "tls-private-key-file": self.key,
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
            "endpoint-reconciler-type": "none",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": self.key,
            "service-account-key-file": self.certificate,
            "enable-admission-plugins": _ADMISSION,
            "event-ttl": "3h",
        }
        self._server = start(self.programs / "kube-apiserver", arguments, self.folder / "api-server.log")
        until_s = time.monotonic() + _START_TIMEOUT_S
        while not self.client.answers("/readyz"):
            if self._server.poll() is not None or time.monotonic() > until_s:
                last = (self.folder / "api-server.log").read_text().strip().splitlines()[-1:]
                raise NotStarted(f"kube-apiserver did not start: {' '.join(last)}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the API server at once, as when its machine fails; etcd keeps what it knows."""
        if self._server:
            self._server.kill()
            self._server.wait()
            self._server = None

    @contextmanager
    def etcd(self) -> Iterator[None]:
        """Run etcd while the block runs."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        arguments = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "error",
        }
        process = start(self.programs / "etcd", arguments, self.folder / "etcd.log")
        try:
            yield
        finally:
            end(process, _STOP_TIMEOUT_S)

    def _write_tokens(self) -> None:
        rows = [f'{self._tokens[name]},{name},{name},"{group}"\n' for name, group in GROUPS.items()]
        _write_private(self.folder / "tokens.csv", "".join(rows))

    def _write_kubeconfig(self) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}} for name, token in self._tokens.items()],
            "contexts": [
                {"name": name, "context": {"cluster": "lab", "user": name}} for name in self._tokens
            ],
            "current-context": "lab",
        }
        _write_private(self.kubeconfig, json.dumps(content, indent=2))


@contextmanager
def local_api(built: Path, folder: Path) -> Iterator[LocalApi]:
    """Run an API server with an empty etcd while the block runs. Raises NotStarted."""
    with ExitStack() as ended:
        api = LocalApi(built, folder)
        ended.enter_context(api.etcd())
        ended.callback(api.stop)
        api.start()
        yield api


def start(program: Path, arguments: Mapping[str, object], log: Path) -> subprocess.Popen[bytes]:
    """Start a program that ends with the thread that started it, also where that is killed."""
    options = [f"--{name}={value}" for name, value in arguments.items()]
    with log.open("ab") as stream:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", program, *options],
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _make_certificate(certificate: Path, key: Path) -> None:
    """Make a key and its certificate for 127.0.0.1, of API server and kubelet, signed by itself."""
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    subject = ("-subj", "/CN=localhost", "-addext", names, "-days", "30")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)

"""The promised commands of docs/deploy.md, typed at a real API server: `python -m deploy.api.transcript`.

Prints what a terminal would show; the overlay is applied as the API server of 1.20 knows it. Needs what
`python -m deploy.api` needs, and a store for the records: that of moto, from the development environment.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.api.install_cluster import apply_overlay, read_crds
from deploy.api.local_api import DEFAULT_FOLDER, LocalApi
from deploy.api.player import played_cluster
from deploy.observability.local_servers import NotStarted
from deploy.project import NAMESPACE, ROOT

JOB = "compare-localsgd"
_GET = f"kubectl get rayjob {JOB} -n {NAMESPACE}"
_KEYS = {"AWS_ACCESS_KEY_ID": "played", "AWS_SECRET_ACCESS_KEY": "played", "AWS_DEFAULT_REGION": "us-east-1"}
_OVERLAY = "eks-gpu"
_APPLY = f"kubectl apply --server-side -k deploy/kubernetes/overlays/{_OVERLAY}"  # here: apply_overlay
# What a reader types, and what must be shown before the next line is typed.
SESSION = (
    (_APPLY, ""),
    (f"sed -i 's/value: BUCKET /value: my-results /' ray-job-{JOB}.yaml", ""),
    (f"kubectl apply -f ray-job-{JOB}.yaml", ""),
    (_GET, "Initializing"),
    (f"kubectl get pods -n {NAMESPACE}", f"{JOB}-.....  +1/1 +Running"),
    (f"kubectl logs -f -n {NAMESPACE} -l job-name={JOB} --tail=-1", "upload"),
    (_GET, "SUCCEEDED"),
    (f"kubectl delete rayjob {JOB} -n {NAMESPACE}", ""),
    (_GET, ""),
)
_TIMEOUT_S = 300.0


def main(arguments: Sequence[str]) -> int:
    """Print the session; return the exit code."""
    from moto.server import ThreadedMotoServer

    parser = argparse.ArgumentParser(prog="python -m deploy.api.transcript", description=__doc__)
    parser.add_argument("--built", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--crds", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    try:
        with tempfile.TemporaryDirectory(prefix="dsgd-transcript-") as name:
            _play(options, Path(name), "http://{}:{}".format(*store.get_host_and_port()))
    except NotStarted as error:
        print(f"transcript: {error}", file=sys.stderr)
        return 2
    finally:
        store.stop()
    return 0


def _play(options: argparse.Namespace, folder: Path, store: str) -> None:
    project = folder / "project"  # a copy, in which a manifest is edited
    project.mkdir()
    shutil.copytree(ROOT / "deploy", project / "deploy")
    shutil.copy(ROOT / f"ray-job-{JOB}.yaml", project)
    (folder / "cluster").mkdir()
    with played_cluster(options.built, folder / "cluster", read_crds(options.crds), _OVERLAY) as (api, _):
        _make_store(api, store)
        for command, wanted in SESSION:
            overlay = command == _APPLY
            said = apply_overlay(api, _OVERLAY) if overlay else _type(command, wanted, project, api)
            shown = "\n".join(line.rstrip() for line in said.splitlines())  # tables are padded
            print(f"$ {command}\n{shown}\n", flush=True)


def _make_store(api: LocalApi, store: str) -> None:
    """Make the bucket, and the secret `storage` that names where it is."""
    import boto3

    s3 = boto3.client(
        "s3",
        endpoint_url=store,
        region_name=_KEYS["AWS_DEFAULT_REGION"],
        aws_access_key_id=_KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=_KEYS["AWS_SECRET_ACCESS_KEY"],
    )
    s3.create_bucket(Bucket="my-results")
    content = {"metadata": {"name": "storage"}, "stringData": _KEYS | {"AWS_ENDPOINT_URL_S3": store}}
    api.client.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", content)


def _type(command: str, wanted: str, folder: Path, api: LocalApi) -> str:
    """Return what a command prints; it is typed again until it prints what is wanted."""
    until_s = time.monotonic() + _TIMEOUT_S
    while True:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=os.environ | api.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if re.search(wanted, done.stdout):
            return done.stdout
        if time.monotonic() > until_s:
            raise TimeoutError(f"{command}: no {wanted!r} in {done.stdout}")
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

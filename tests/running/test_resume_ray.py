"""Real runs on Ray whose driver is killed, or that diverge: they go on, from every place of checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Nodes, keys, python, run_python
from test_resume import lines, run, versions

from dsgd.records import lease
from dsgd.running import quick_run as quick
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import configured
from main import main

pytestmark = pytest.mark.ray

KILLED_ON_RAY = """
import json, sys
sys.path[:0] = ["tests", "tests/running"]
from test_resume import Kill, configured, run

options, at, resume = json.loads(sys.argv[1])
run(configured(options), Kill(at), resume=resume)
"""


def killed(options: dict[str, Any], at: int, resume: str | None = None) -> None:
    """Run a driver that is killed after an update. A new process: in a forked one ray.init takes 7 s."""
    process = python("-c", KILLED_ON_RAY, json.dumps([options, at, resume]))
    said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.crossing(one_in=2)
@pytest.mark.timeout(900)  # several drivers are started, each with its workers
@pytest.mark.parametrize(("mode", "workload", "kills"), [("asgd", "none", 1), ("ssgd", "quadratic", 2)])
def test_a_killed_driver_on_ray_loses_no_update(
    mode: str, workload: str, kills: int, ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILLs of one run: what was recorded stays as it was, and a synchronous run keeps its bytes."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    options = {"mode": mode, "engine": "ray", "num_workers": 2, "steps": 40, "lr": 0.05, "workload": workload}
    options |= {"checkpoint_every": "0.03", "out": str(tmp_path), "trace_last": 0}
    options |= {"compute_time": "constant:.005"}
    hosts = {"hosts": 1} if mode == "ssgd" else {}  # its bytes do not depend on them, and each takes seconds
    cut = {**options, **hosts, "run_name": "cut"}
    updates = 40 if mode == "ssgd" else 80
    recorded = b""
    draws = np.random.default_rng(kills).choice(np.arange(2, updates), kills, replace=False)
    for n, at in enumerate(sorted(draws.tolist())):
        killed(cut, at, "killed" if n else None)
        before, recorded = recorded, (tmp_path / "cut/updates.jsonl").read_bytes()
        assert recorded.startswith(before)
        assert recorded.count(b"\n") == at
    ended = run(configured(cut), resume="killed")
    assert (ended.error, ended.tally.updates, ended.tally.gradients) == (None, updates, 80)
    assert (tmp_path / "cut/updates.jsonl").read_bytes().startswith(recorded)
    assert versions(tmp_path / "cut") == list(range(1, updates + 1))
    steps = {
        (task["worker"], task["step"])
        for u in lines(tmp_path / "cut", "updates.jsonl")
        for task in u["gradients"]
    }
    assert len(steps) == 80
    assert [
        attempt["from_version"]
        for attempt in json.loads((tmp_path / "cut/meta.json").read_text())["attempts"]
    ] == sorted(draws)
    if mode == "ssgd":
        whole = run(configured({**options, "engine": "sim", "run_name": "whole"}))
        assert ended.weights.vector.tobytes() == whole.weights.vector.tobytes()


@pytest.mark.thorough
def test_a_driver_that_a_fault_kills_is_not_killed_again(
    ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`driver@update=` ends a real run with SIGKILL and says how to go on; a resumed run passes it, and what
    the same update has triggered happens then.
    """
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    command = [sys.executable, "-m", "dsgd"]
    options = "--engine ray --mode localsgd --num-workers 2 --hosts 1 --steps 24 --local-steps 2"
    faults = "driver@update=5; leave:1@update=5"
    given = [*options.split(), "--faults", faults, "--out", str(tmp_path), "--run-name", "r"]
    killed = subprocess.run([*command, *given], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    assert f"go on with --resume {tmp_path / 'r'}" in killed.stdout
    assert versions(tmp_path / "r") == [1, 2, 3, 4, 5]
    resumed = subprocess.run([*command, "--resume", str(tmp_path / "r")], capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert versions(tmp_path / "r") == list(range(1, 6 + 1 + 12))  # from the seventh on, one worker's
    found = [(f["kind"], f["update"], f["recovered_s"]) for f in lines(tmp_path / "r", "faults.jsonl")]
    assert found == [("driver", 5, None), ("leave", 5, 0.0)]
    again = compared(recorded_run(tmp_path / "r"))
    assert (again.differs, again.same_weights) == (None, True)


# --- From other places than the disk ------------------------------------------------------------------------

DRIVER = """
import sys
import time
from dsgd.engines.ray.driver.states import FetchedStates
from dsgd.records import lease
from main import main

lease.LASTS_S = 2.0
sys.exit(main(sys.argv[1:]))
"""
DILOCO: dict[str, Any] = {"mode": "diloco", "steps": 60, "compute_time": "constant:.02", "local_steps": 3}
DILOCO |= {"inner": "adamw"}  # its workers keep states, and its bytes do not depend on the times
TWO: dict[str, Any] = {"engine": "ray", "num_workers": 2, "workload": "quadratic", "trace_last": 0}


def arguments_of(options: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def killed_once(there: Callable[[], bool], folder: Path, options: dict[str, Any], address: str) -> None:
    """Run main.py in a folder, and kill it once something is there."""
    folder.mkdir()
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, "--quiet", *arguments_of(options)],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as driver:  # fmt: skip
        assert driver.stdout
        while not there():
            assert driver.poll() is None, driver.stdout.read()
            time.sleep(0.01)
        driver.kill()
        driver.stdout.read()
    assert driver.returncode == -signal.SIGKILL


def digest(**options: Any) -> str:
    """Return the digest of the weights of a run to which nothing happens; on a quadratic, both engines make
    the same.
    """
    return hashlib.sha256(quick.run(**{**options, "engine": "sim"}).w.tobytes()).hexdigest()


def ended_with(record: Path) -> tuple[str, int]:
    """Return the digest of a record's weights, and from which version it went on."""
    [attempt] = json.loads((record / "meta.json").read_text())["attempts"]
    return json.loads((record / "summary.json").read_text())["weights_sha256"], attempt["from_version"]


@pytest.mark.thorough
def test_a_run_on_ray_goes_on_from_s3_on_an_empty_disk(
    ray_cluster: str,
    aws: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SIGKILL of the driver, and its disk is gone: the same command, as a RayJob has it, ends with the bytes
    of the run never killed, without a gap or a double in its record.
    """
    monkeypatch.setattr(lease, "LASTS_S", 2.0)
    options = TWO | DILOCO
    to_s3 = {
        "out": "s3://lab/runs",
        "run_name": "a",
        "checkpoint_every": "s3=.1",
        "hosts": 1,
        "resume": "auto",
    }
    killed_once(
        lambda: any("/checkpoints/" in key for key in keys(aws)),
        tmp_path / "one",
        options | to_s3,
        ray_cluster,
    )
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "two")
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    assert main([*arguments_of(options | to_s3), "--quiet"]) == 0, capsys.readouterr().err
    record = tmp_path / "two/runs/s3/lab/runs/a"
    sha256, from_version = ended_with(record)
    assert from_version > 0
    assert sha256 == digest(**options)
    assert versions(record) == list(range(1, len(versions(record)) + 1))
    assert aws.get_object(Bucket="lab", Key="runs/a/weights.npy")["Body"].read() == (
        (record / "weights.npy").read_bytes()
    )


KILLED_WITH_A_PEER = """
import os, signal, sys, time
from dsgd.running.checkpoints.peer_store import PeerStore
from dsgd.running.execute import execute
from dsgd.running.keeper import Watcher
from dsgd.records.writer import RunRecord
from dsgd.show.terminal.cli import parse

class Kill(Watcher):
    def updated(self, update):
        if update.weights.version == 8:
            while not PeerStore(f"{os.getcwd()}/runs/{cfg.mode}").names():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

cfg = parse(sys.argv[1:])
execute(cfg, [Kill()], record=RunRecord(cfg))
"""

RESUMED_FROM_A_PEER = """
import sys
from dsgd.running.checkpoints.peer_store import PeerStore
from dsgd.engines.ray.connection.connect import connect
from main import main

code = main(["--resume", sys.argv[1], "--quiet"])
connect()
print(code, PeerStore(sys.argv[1]).names())
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)  # a cluster of three nodes, and three starts of workers
def test_a_run_on_ray_goes_on_from_another_nodes_memory(
    ray_cluster: str, nodes: Nodes, tmp_path: Path
) -> None:
    """SIGKILL of the driver: `--resume` finds the checkpoint with the keeper, ends with the bytes of the run
    never killed, and ends the keeper.
    """
    there: dict[str, Any] = {"cwd": tmp_path, "env": {"RAY_ADDRESS": nodes.address}}
    record = tmp_path / "runs" / DILOCO["mode"]
    to_peer = {"out": "runs", "run_name": record.name, "checkpoint_every": "peer=.05"}
    cut = run_python("-c", KILLED_WITH_A_PEER, *arguments_of(TWO | DILOCO | to_peer), **there)
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    assert not (record / "checkpoints").exists()
    resumed = run_python("-c", RESUMED_FROM_A_PEER, record, **there)
    assert resumed.stdout.splitlines()[-1:] == ["0 []"], resumed.stderr
    assert ended_with(record) == (digest(**TWO | DILOCO), 8)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_a_run_on_ray_that_diverges_rolls_back(
    mode: str, ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers, too: back before the loss blew up, with half the step size, and to the end; no update is
    missing or there twice, and no mini-batch. Killed later, it goes on with the step size that was left,
    without any checkpoint. It is replayed bit for bit.
    """
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    options: dict[str, Any] = {
        "mode": mode,
        "engine": "ray",
        "num_workers": 2,
        "workload": "quadratic",
        "lr": 30.0,
    }
    options |= {"steps": 60, "on_divergence": "rollback", "out": str(tmp_path), "run_name": "it"}
    killed(options, 40)
    before = lines(tmp_path / "it", "faults.jsonl")
    assert before
    ended = run(configured(options), resume="killed")
    assert ended.path
    assert (ended.error, ended.stopped_by, ended.tally.gradients) == (None, "budget", 120)
    assert np.isfinite(ended.weights.vector).all()
    back = lines(ended.path, "faults.jsonl")
    assert back[: len(before)] == before
    found = compared(recorded_run(ended.path))
    assert (found.differs, found.same_weights) == (None, True)
    if mode == "ssgd":
        whole = run(configured({**options, "engine": "sim", "run_name": "whole"}))
        assert whole.weights.vector.tobytes() == ended.weights.vector.tobytes()
    assert {fault["kind"] for fault in back} == {"divergence"}
    assert back[-1]["text"].endswith(f"step size {30 * 0.5 ** len(back):g}")
    assert versions(ended.path) == list(range(1, ended.tally.updates + 1))
    taken = [
        (task["worker"], task["step"])
        for line in lines(ended.path, "updates.jsonl")
        for task in line["gradients"]
    ]
    assert len(set(taken)) == len(taken) == 120


def test_a_state_on_another_machine_is_fetched_when_it_is_read(ray_cluster: str) -> None:
    """A snapshot waits for no state: whoever writes it does. If the copy is lost, Ray's own serves; with both
    lost it is a failure of the checkpoint, not of the run.
    """
    import ray

    from dsgd.engines.ray.driver.states import FetchedStates
    from dsgd.running.checkpoints.peer_store import Keeper

    keeper: Any = ray.remote(Keeper)
    here, lost = ray.put(np.ones(3, np.float32)), keeper.remote(600).content.remote("none")
    coming: Future[Any] = Future()
    states = FetchedStates({0: here, 1: lost}, {0: coming, 1: coming})
    assert (len(states), list(states)) == (2, [0, 1])
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(lambda: states[0])
        assert not written.done()
        coming.set_exception(ray.exceptions.ObjectLostError("", None, ""))
        assert written.result().tolist() == [1, 1, 1]
    with pytest.raises(OSError, match="worker 1: its state was lost with its machine"):
        states[1]

"""More workers than there is memory for are refused before any is started, and their start never takes longer
than --start-timeout-s.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from conftest import CommandLine, run_python

from dsgd.config import TrainConfig
from dsgd.strategies import configured


def config(**options: object) -> TrainConfig:
    return configured({"mode": "asgd", "engine": "ray", **options})


@pytest.mark.parametrize("workload", ["none", "xor"])
def test_as_many_workers_fit_as_have_the_memory(workload: str) -> None:
    """One byte less than P workers need is too little for P, and enough for P - 1, as the message says."""
    import dsgd.engines.ray.connection.connect  # noqa: F401 - sets what Ray reads at its import
    from dsgd.engines.ray.connection.capacity import bytes_per_worker, shortage

    cfg = config(num_workers=10, workload=workload)
    enough = 10 * bytes_per_worker(cfg)
    assert shortage(cfg, enough, "this machine has") is None
    message = shortage(cfg, enough - 1, "this machine has")
    assert message is not None
    assert message.startswith("--num-workers 10: 10 Ray worker processes need at least ")
    assert message.endswith("lower --num-workers (9 fit), or simulate them with --engine sim")
    assert shortage(config(num_workers=9, workload=workload), enough - 1, "this machine has") is None


def test_large_modules_need_memory_for_their_vectors() -> None:
    """Vectors of more than 2^31 bytes count in full: a module of 600 million weights has some of 2.4 GB."""
    import dsgd.engines.ray.connection.connect  # noqa: F401 - sets what Ray reads at its import
    from dsgd.engines.ray.connection.capacity import shortage

    cfg = config(num_workers=4, workload="digits_cnn")
    assert shortage(cfg, 50e9, "this machine has", 600_000_000) is None
    message = shortage(cfg, 48e9, "this machine has", 600_000_000)
    assert message is not None
    assert "4 Ray worker processes need at least 49 GB of memory (12 GB each" in message
    assert "lower --num-workers (3 fit)" in message


def test_the_memory_of_servers_counts() -> None:
    """Of all their processes; whichever are too many, they are named."""
    from dsgd.engines.ray.connection.capacity import shortage

    many = config(num_workers=4, topology="sharded:5000,replicas=2")
    message = shortage(many, 50e9, "this machine has")
    assert message is not None
    assert message.startswith(
        "--topology sharded:5000,replicas=2: 10,000 processes of servers need at least 570 GB"
    )
    few = config(num_workers=4, topology="sharded:2")
    assert shortage(few, 1.5e9, "this machine has") is None
    message = shortage(few, 1.4e9, "this machine has")
    assert message is not None
    assert "lower --num-workers (3 fit)" in message


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    """Its limit less what it uses, page cache not counted, in either version of control groups."""
    import dsgd.engines.ray.connection.connect  # noqa: F401 - sets what Ray reads at its import
    from dsgd.engines.ray.connection.capacity import left_in_container

    assert left_in_container(tmp_path) == math.inf
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("500\n")
    (old / "memory.usage_in_bytes").write_text("400\n")
    (old / "memory.stat").write_text("cache 60\ntotal_inactive_file 50\n")
    assert left_in_container(tmp_path) == 150
    (tmp_path / "memory.max").write_text("2000\n")
    (tmp_path / "memory.current").write_text("1200\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 300\n")
    assert left_in_container(tmp_path) == 1100
    (tmp_path / "memory.max").write_text("max\n")
    assert left_in_container(tmp_path) == 150


def test_the_processes_of_ray_import_torch_only_for_weights() -> None:
    """Neither the driver nor a worker has its 330 MB before there is something to compute."""
    modules = "dsgd.engines.ray.driver.cluster, dsgd.engines.ray.worker.host"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    run_python("-c", code).check_returncode()


@pytest.mark.parametrize("engine", ["ray", "both"])
@pytest.mark.parametrize("workload", ["none", "xor"])
def test_a_million_workers_are_refused_before_ray_starts(
    workload: str, engine: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, one line with memory, processes, how many fit and the remedy; nothing starts."""
    import dsgd.engines.ray.connection.connect

    monkeypatch.setattr("ray.is_initialized", lambda: False)  # as in a separate process
    monkeypatch.setattr(
        dsgd.engines.ray.connection.connect, "connect", lambda *_: pytest.fail("Ray was started")
    )
    ran = cli(f"--engine {engine} --num-workers 1000000 --workload {workload}")
    assert ran.code == 2
    assert re.fullmatch(
        r"main.py: --num-workers 1000000: 1,000,000 Ray worker processes need at least [\d,]+ GB of memory "
        r"\(0\.\d+ GB each, as measured, without data\), and this machine has [\d.]+ GB; "
        r"lower --num-workers \(\d+ fit\), or simulate them with --engine sim\n",
        ran.err,
    )
    assert not cli.out.exists()


def test_an_experiment_with_a_million_workers_on_ray_is_refused(
    tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant is named before any run of the experiment is begun."""
    import dsgd.engines.ray.connection.connect  # noqa: F401

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    path = tmp_path / "e.yaml"
    path.write_text(
        "title: t\nquestion: q\nbase: {engine: ray, steps: 1, workload: none}\nseeds: 1\n"
        "variants: {few: {mode: ssgd}, many: {mode: ssgd, num_workers: 1000000}}\n"
    )
    from main import main

    assert main(["compare", str(path), "--out", str(tmp_path / "runs")]) == 2
    assert not list((tmp_path / "runs").glob("*/*-s0"))
    ran = cli("--version")  # what was printed on standard error
    assert "variant many: --num-workers 1000000: 1,000,000 Ray worker processes need" in ran.err


@pytest.mark.thorough
@pytest.mark.ray
def test_on_a_cluster_its_own_memory_counts(ray_cluster: str, cli: CommandLine) -> None:
    """A cluster without the memory is waited for, as it may grow; then exit 1 and the line of the memory."""
    ran = cli("--num-workers 1000000 --workload none --start-timeout-s .3")
    assert ran.code == 1
    assert "--num-workers 1000000: 1,000,000 Ray worker processes need at least 57,000 GB" in ran.err
    assert "the cluster has" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.ray
def test_a_start_that_takes_too_long_ends_at_the_time_out(ray_cluster: str, cli: CommandLine) -> None:
    """Workers that import torch need more than .1 s: exit 1, one line with their number."""
    ran = cli("--num-workers 6 --steps 1 --start-timeout-s .1")
    assert ran.code == 1
    assert "workers could not be started within --start-timeout-s 0.1: the machines may be busy; " in ran.err
    assert "lower --num-workers, or wait longer" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert cli("--num-workers 1 --steps 1 --workload none").code == 0


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.parametrize("workload", ["none", "xor"])
def test_the_estimate_of_a_worker_is_what_it_takes(ray_cluster: str, workload: str) -> None:
    """The memory that a worker's process has to itself is within a factor of 1.7 of the estimate."""
    from dsgd.data import make_workload
    from dsgd.engines.ray.driver.cluster import RayCluster

    # isort: split
    import psutil  # Ray makes it importable

    from dsgd.engines.ray.connection.capacity import bytes_per_worker

    cfg = config(num_workers=1, workload=workload)
    with RayCluster(cfg, make_workload(cfg)) as cluster:
        taken = psutil.Process(cluster.pids[0]).memory_full_info().uss
    assert bytes_per_worker(cfg) / 1.7 < taken < 1.7 * bytes_per_worker(cfg)

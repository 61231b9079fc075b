"""The simulator's model of time: links, latency and the server behave as their closed forms say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd.core.tasks import gradient
from dsgd.core.time_laws import parse_law
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.sim.sim import SimCluster
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.scenario.star import Network
from dsgd.strategies import load


def test_a_step_without_a_law_lasts_one_virtual_second() -> None:
    """`--compute-time none` in the simulator: each step lasts 1 s, times the worker's slowdown."""
    outcome = run("ssgd", num_workers=2, steps=5, workload="none")
    assert [u.dones[0].finished_s for u in outcome.updates] == [1, 2, 3, 4, 5]
    assert run("ssgd", num_workers=2, steps=5, workload="none", slowdown="1=3").tally.last_update_s == 15


def test_latency_is_paid_each_way() -> None:
    """An update of SSGD takes latency + compute + latency."""
    outcome = run("ssgd", num_workers=3, steps=4, workload="none", latency_s=0.25)
    assert outcome.s_per_update == 1.5
    assert outcome.dones[0].compute_s == 1


def test_the_servers_link_is_first_come_first_served() -> None:
    """P messages of b bytes through a link of B bytes/s leave one after the other, in each direction."""
    # 260 + 740 bytes at 1,000 bytes/s: one second a message. Worker i gets its weights at i + 1, has
    # computed at i + 2, and its result has arrived at i + 3: the links overlap, so a round takes P + 2.
    outcome = run("ssgd", num_workers=4, steps=3, padding_mb=740e-6, server_bytes_per_s=1000.0)
    assert [d.finished_s for d in outcome.updates[0].dones] == [3, 4, 5, 6]
    assert outcome.s_per_update == 6


def test_no_server_is_faster_than_its_service() -> None:
    """However many workers push, at most one update per service time leaves the server."""
    outcome = run("asgd", workload="none", num_workers=50, steps=20, server_time="constant:.5")
    assert outcome.s_per_update >= 0.5


def test_results_arrive_in_the_order_of_computing() -> None:
    """Behind a slow link and a slow server, updates still come in order of time."""
    outcome = run(
        "asgd",
        num_workers=6,
        steps=30,
        compute_time="exponential:1",
        latency_s=0.3,
        server_bytes_per_s=2000.0,
        server_time="exponential:.05",
    )
    finished = [d.finished_s for d in outcome.dones]
    assert finished == sorted(finished)


FOURIER = """
import torch
from dsgd import Problem

def loss(module, x):
    filtered = torch.fft.irfft(torch.fft.rfft(x) * torch.complex(*module.weight), n=6)
    return (filtered - x).square().mean()

def make():
    x = torch.randn(256, 6)
    return Problem(torch.nn.Linear(4, 2, bias=False), loss, (x,), (x,))
"""


@pytest.mark.parametrize("mode", ["asgd", "localsgd", "ssgd"])
def test_results_do_not_depend_on_the_number_of_threads(mode: str, tmp_path: Path) -> None:
    """One thread or three: the same weights, bit for bit. MKL divides a transform among threads if it may."""
    file = tmp_path / "fourier.py"
    file.write_text(FOURIER)
    data: Any = {"num_workers": 2500, "samples": 80_000} if mode != "ssgd" else {"workload": str(file)}
    cfg = config(mode, **data, steps=2, compute_time="exponential:1")
    vectors = []
    for threads in (1, 3):
        workload = make_workload(cfg)
        cluster = SimCluster(workload, ComputeTimes(cfg.timing.compute_law, 0), threads=threads)
        updates = load(mode).train(cluster, Weights(workload.objective.initial_weights(0)), cfg)
        n = 0
        for update in updates:
            n += sum(d.batches for d in update.dones)
            if n >= cfg.budget:
                break
        vectors.append(update.weights.vector)
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_ten_thousand_workers() -> None:
    """The simulator takes 10,000 workers with real gradients."""
    outcome = run("asgd", num_workers=10_000, samples=320_000, steps=2, compute_time="exponential:1")
    assert outcome.tally.gradients == 20_000
    assert outcome.eval_loss < math.log(2)


def test_time_up_comes_at_the_deadline() -> None:
    """A task that would finish after the deadline raises TimeUp, with the clock at the deadline."""
    from dsgd.core.protocol import TimeUp
    from dsgd.core.tasks import gradient

    workload = make_workload(config("ssgd", num_workers=1, workload="none"))
    cluster = SimCluster(workload, ComputeTimes(parse_law("constant:2"), 0), deadline_s=3)
    w = Weights(np.zeros(0, np.float32))
    cluster.start(0, gradient, w)
    done = cluster.next_done()
    assert done
    assert done.finished_s == 2
    cluster.start(0, gradient, w)
    with pytest.raises(TimeUp):
        cluster.next_done()
    assert cluster.now_s == 3


def test_a_worker_takes_one_task_at_a_time() -> None:
    """Starting a busy worker, or waiting for none, is reported as a mistake of the strategy."""
    from dsgd.core.tasks import gradient

    workload = make_workload(config("ssgd", num_workers=1, workload="none"))
    cluster = SimCluster(workload, ComputeTimes(parse_law("none"), 0), Network())
    with pytest.raises(AssertionError, match="nothing can finish"):
        cluster.next_done()
    cluster.start(0, gradient, Weights(np.zeros(0, np.float32)))
    with pytest.raises(AssertionError, match="worker 0 already has a task"):
        cluster.start(0, gradient, Weights(np.zeros(0, np.float32)))


def test_scenarios_change_times_but_not_synchronous_results() -> None:
    """SSGD's weights depend on data and seed alone, never on which worker is slow."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 10}
    assert same_bytes(
        run("ssgd", **options),
        run("ssgd", **options, compute_time="pareto:1.5,1", slowdown="2=9", latency_s=1.0),
    )


@pytest.mark.parametrize("latency_s", [0.0, 0.75, 5.0])
def test_a_task_that_was_cancelled_on_its_way_was_not_computed(latency_s: float) -> None:
    """Only the seconds since it arrived count as computing."""
    workload = make_workload(config("ssgd", num_workers=2, workload="none"))
    times = ComputeTimes(parse_law("constant:1"), 0, {0: 50.0})
    cluster = SimCluster(workload, times, Network(latency_s=latency_s))
    w = Weights(workload.objective.initial_weights(0))
    cluster.start(0, gradient, w)
    cluster.start(1, gradient, w)
    cluster.next_done()  # of worker 1, after 1 s and two messages; worker 0 has had one
    cluster.cancel(0)
    assert cluster.cancelled_s[0] == 1 + latency_s
    cluster.start(0, gradient, w)
    cluster.cancel(0)
    assert cluster.cancelled_s[0] == 1 + latency_s

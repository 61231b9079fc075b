"""How fast the simulator computes real gradients, against a plain loop of torch autograd calls.

    python benchmarks/sim_gradients.py

xor, mini-batches of 32, 1,024 workers, one thread each. Two loops over mini-batches, without schedule or
updates: one with a torch.nn.Sequential, one with a flat vector of weights, as here (autograd of the same
loss). The simulator's time includes everything: schedule, mini-batches, gradients, updates, staleness.
"""

from __future__ import annotations

import resource
import time
from itertools import pairwise

import torch

from dsgd.config import DataConfig
from dsgd.core.model import Objective
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.sim.sim import SimCluster
from dsgd.metrics import Tally
from dsgd.scenario.timing_options import TimingConfig
from dsgd.strategies import load

WORKERS = 1024


def loop_s_per_gradient(hidden: tuple[int, ...]) -> float:
    sizes = (2, *hidden)
    layers: list[torch.nn.Module] = []
    for m, n in pairwise(sizes):
        layers += [torch.nn.Linear(m, n), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))
    parameters = list(model.parameters())
    x, y = torch.rand(100, 32, 2) * 2 - 1, torch.randint(2, (100, 32, 1)).float()

    def run(n: int) -> float:
        began_s = time.perf_counter()
        for k in range(n):
            z = model(x[k % 100])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y[k % 100])
            torch.autograd.grad(loss, parameters)
        return (time.perf_counter() - began_s) / n

    run(200)
    return min(run(1000) for _ in range(5))


def flat_loop_s_per_gradient(hidden: tuple[int, ...]) -> float:
    data = DataConfig(samples=4096, hidden=",".join(map(str, hidden)))
    workload = make_workload(load("ssgd").Config(mode="ssgd", num_workers=1, data=data))
    shard = workload.shards[0].on_device(workload.shards, "cpu")[0]
    w = torch.from_numpy(workload.objective.initial_weights(0)[None])

    def run(n: int) -> float:
        began_s = time.perf_counter()
        for k in range(n):
            Objective.loss_and_gradient(workload.objective, w, [shard], [k])
        return (time.perf_counter() - began_s) / n

    run(200)
    return min(run(1000) for _ in range(5))


def sim_s_per_gradient(mode: str, hidden: tuple[int, ...], law: str, steps: int) -> float:
    strategy = load(mode)
    cfg = strategy.Config(
        mode=mode,
        engine="sim",
        num_workers=WORKERS,
        steps=steps,
        data=DataConfig(samples=256 * WORKERS, hidden=",".join(map(str, hidden))),
        timing=TimingConfig(compute_time=law),
    )
    workload = make_workload(cfg)
    cluster = SimCluster(workload, ComputeTimes(cfg.timing.compute_law, cfg.seed), threads=1)
    tally = Tally(WORKERS, 32, cluster.clocks)
    began_s = time.perf_counter()
    for update in strategy.train(cluster, Weights(workload.objective.initial_weights(0)), cfg):
        tally.add(update)
        if tally.gradients >= cfg.budget:
            break
    return (time.perf_counter() - began_s) / tally.gradients


if __name__ == "__main__":
    torch.set_num_threads(1)
    for hidden in ((16,), (42, 42)):
        sizes = (2, *hidden, 1)
        weights = sum((m + 1) * n for m, n in pairwise(sizes))
        for mode in ("asgd", "ssgd"):
            for law in ("none", "exponential:1"):
                loop_s, flat_s = loop_s_per_gradient(hidden), flat_loop_s_per_gradient(hidden)
                sim_s = min(sim_s_per_gradient(mode, hidden, law, steps=24) for _ in range(3))
                print(
                    f"{weights:5} weights, {mode}, compute time {law:13}: {sim_s * 1e6:6.1f} us a gradient, "
                    f"{flat_s / sim_s:5.1f} x a flat loop ({flat_s * 1e6:.0f} us), "
                    f"{loop_s / sim_s:5.1f} x a Sequential loop ({loop_s * 1e6:.0f} us)"
                )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")

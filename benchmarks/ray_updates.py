"""What an update on Ray costs, by size and number of workers, beside gloo and torch's own optimizers.

    python benchmarks/ray_updates.py [TURNS]

Workers hold a ready gradient, so the first table is the whole path of an update without computing: strategy,
messages, sums, the step, the count for the summary; nothing is recorded. `made`: the gradient is made in the
memory that is shared, as the classifiers here make theirs; without it, it is copied there. `quadratic`: it is
computed, with its loss, as in a run of `--workload quadratic`. `gloo` is an all-reduce of such a vector and a
step in each of as many plain processes, without Ray, which compute the same gradient but no loss. The second
table trains a perceptron of 1,409 weights on mini-batches of 32, against torch in plain processes. All take
turns in one run on one cluster; the medians of the turns are compared.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import ray
from harness import heading, in_processes, medians

from dsgd.core.model import EmptyShard, Evaluation, Objective, Workload
from dsgd.core.protocol import Update
from dsgd.core.weights import Vector
from dsgd.data import make_workload
from dsgd.engines.ray.connection.connect import connect
from dsgd.running import execute as execution
from dsgd.running.execute import execute
from dsgd.running.keeper import Watcher
from dsgd.running.quick_run import config

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.shards import Shard

TURNS = 5
# Mode, weights, first updates that do not count, updates, where the gradient comes from.
ROWS = [
    ("asgd", 1_000, 500, 10_000, "ready"),
    ("asgd", 1_000, 500, 10_000, "quadratic"),
    ("ssgd", 1_000, 300, 3_000, "ready"),
    ("asgd", 1_000_000, 50, 500, "ready"),
    ("ssgd", 1_000_000, 20, 200, "ready"),
    ("ssgd", 10_000_000, 6, 20, "ready"),
    ("ssgd", 10_000_000, 6, 20, "made"),
    ("ssgd", 10_000_000, 6, 20, "quadratic"),
]
MLP: dict[str, Any] = {"workload": "xor", "dim": 20, "hidden": "64", "batch_size": 32}  # 1,409 weights
STEPS = 4_000  # mini-batches of each worker


class Ready(Objective):
    """Has a gradient at hand."""

    def __init__(self, num_weights: int, *, made: bool) -> None:
        self._num_weights, self._made = num_weights, made
        self._gradient: Tensor | None = None

    @property
    def num_weights(self) -> int:
        return self._num_weights

    def initial_weights(self, seed: int) -> Vector:
        return np.zeros(self._num_weights, np.float32)

    def loss(self, w: Any, *batch: Any) -> Any:
        raise AssertionError("it is not asked for")

    def evaluate(self, w: Vector, *test: Vector) -> Evaluation | None:
        return None

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        import torch

        if self._gradient is None:
            self._gradient = torch.full((1, self._num_weights), 1e-3)
        if out is None:
            return torch.zeros(1), self._gradient
        return torch.zeros(1), out if self._made else out.copy_(self._gradient)


class Timer(Watcher):
    """Notes how long `count` updates take after the first ones."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._last, self._seen, self.update_s = first, first + count, 0, math.nan

    def updated(self, update: Update) -> None:
        self._seen += 1
        if self._seen == self._first:
            self._began_s = time.perf_counter()
        if self._seen == self._last:
            self.update_s = (time.perf_counter() - self._began_s) / (self._last - self._first)


def update_s(mode: str, dim: int, first: int, count: int, how: str, workers: int, **options: Any) -> float:
    """Return the seconds of an update."""
    timer = Timer(first, count)
    each = 1 if mode == "asgd" else workers
    steps = math.ceil((first + count) * each / workers) + 1
    options |= {"workload": "quadratic", "dim": dim, "num_workers": workers, "steps": steps}
    cfg = config(mode, engine="ray", momentum=0.0, **options)
    workload = Workload(Ready(dim, made=how == "made"), [EmptyShard(i) for i in range(workers)], (), 0)
    make = make_workload if how == "quadratic" else lambda cfg, **_: workload
    with patch.object(execution, "make_workload", make):
        ended = execute(cfg, [timer], evaluate=False)
    assert not ended.error, ended.error
    return timer.update_s


def samples_per_s(mode: str, workers: int, local_steps: int) -> float:
    """Return the samples a second of a perceptron's training, the first tenth left out."""
    timer = Timer(STEPS // 10 // local_steps, STEPS * 9 // 10 // local_steps)
    options = {"local_steps": local_steps} if mode == "localsgd" else {}
    cfg = config(mode, engine="ray", num_workers=workers, steps=STEPS, momentum=0.0, **MLP, **options)
    ended = execute(cfg, [timer], evaluate=False)
    assert not ended.error, ended.error
    return workers * local_steps * 32 / timer.update_s


# --- torch in plain processes -------------------------------------------------------------------------------


def gloo_s(dim: int, first: int, count: int, how: str) -> float:
    """Return the seconds of an all-reduce of `dim` numbers and a step."""
    import torch
    import torch.distributed as dist

    ready, g, w = torch.full((dim,), 1e-3), torch.empty(dim), torch.ones(dim)
    optimum, curvature = torch.zeros(1), torch.ones(1)
    for n in range(first + count):
        if n == first:
            began_s = time.perf_counter()
        torch.sub(w, optimum, out=g).mul_(curvature) if how == "quadratic" else g.copy_(ready)
        dist.all_reduce(g)
        w.add_(g, alpha=-0.1 / dist.get_world_size())
    return (time.perf_counter() - began_s) / count


def torch_samples_per_s(mode: str, local_steps: int) -> float:
    """Return the samples a second of DistributedDataParallel, or of PostLocalSGDOptimizer."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    x = torch.randn(4096, 20)
    y = (x[:, :1] > 0).float()
    if mode == "ssgd":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if mode == "localsgd":
        averager = PeriodicModelAverager(period=local_steps, warmup_steps=local_steps - 1)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    for step in range(STEPS):
        if step == STEPS // 10:
            began_s = time.perf_counter()
        rows = torch.randint(4096, (32,))
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return dist.get_world_size() * 32 * (STEPS - STEPS // 10) / (time.perf_counter() - began_s)


def main(turns: int) -> None:
    connect()
    print(heading(turns))
    print("| update | weights | workers | local | through Ray | gloo |\n|---|---|---|---|---|---|")
    for mode, dim, first, count, how in ROWS:
        fewer = max(1, first // 10), max(2, count // 10)  # Ray alone is slow
        for workers in (2, 4):
            measured = [
                partial(update_s, mode, dim, first, count, how, workers, transport="local"),
                partial(update_s, mode, dim, *fewer, how, workers, transport="ray"),
            ]
            if mode == "ssgd":
                measured.append(partial(in_processes, workers, gloo_s, dim, fewer[0], count, how))
            found = medians(turns, measured)
            shown = [f"{s * 1e3:.3g} ms" if mode == "ssgd" else f"{1 / s:,.0f}/s" for s in found]
            shown += [""] * (3 - len(shown))
            print(f"| {mode}, {how} | {dim:,} | {workers} | {' | '.join(shown)} |", flush=True)
    print("\n| 1,409 weights, batch 32 | workers | samples/s | torch | ratio |\n|---|---|---|---|---|")
    for name, mode, local_steps in (
        ("SSGD, DistributedDataParallel", "ssgd", 1),
        ("LocalSGD H = 8, PostLocalSGDOptimizer", "localsgd", 8),
    ):
        for workers in (2, 4):
            plain = partial(in_processes, workers, torch_samples_per_s, mode, local_steps)
            ours, torchs = medians(turns, [partial(samples_per_s, mode, workers, local_steps), plain])
            print(f"| {name} | {workers} | {ours:,.0f} | {torchs:,.0f} | {ours / torchs:.2f} |", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)

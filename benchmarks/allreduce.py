"""What an all-reduce on Ray costs, beside the same collectives in plain processes.

    python benchmarks/allreduce.py [TURNS]

Workers hold a ready gradient. `direct` is `--topology allreduce`, compared with an all-to-all of slices, a
sum in worker order and an all-gather; `ring` is `--topology allreduce:ring`, beside torch's all-reduce.
The plain processes have gloo, no Ray and no driver; both take a step. All take turns in one run on one
cluster, and the medians are compared.
"""

from __future__ import annotations

import math
import sys
import time
from functools import partial

import ray
from harness import heading, in_processes, medians
from ray_updates import update_s

from dsgd.engines.ray.connection.connect import connect

TURNS = 5
# Weights, first updates that do not count, updates.
ROWS = [(1_000, 100, 1_000), (10_000_000, 6, 20)]


def plain_s(order: str, dim: int, first: int, count: int) -> float:
    """Return the seconds of the same collectives and a step, as a member of torch's default group."""
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    length = math.ceil(dim / size)
    g, w = torch.full((size * length,), 1e-3), torch.zeros(size * length)
    here, mean, total = torch.empty(size, length), torch.empty(size * length), torch.empty(length)
    for n in range(first + count):
        if n == first:
            began_s = time.perf_counter()
        if order == "ring":
            mean.copy_(g)
            dist.all_reduce(mean)
            mean /= size
        else:
            dist.all_to_all_single(here.flatten(), g)
            total.copy_(here[0])
            for row in here[1:]:
                total += row
            total /= size
            dist.all_gather_into_tensor(mean, total)
        w.add_(mean, alpha=-0.1)
    return (time.perf_counter() - began_s) / count


def main(turns: int) -> None:
    connect()
    print(heading(turns))
    print("| weights | workers | order | hosts on Ray | plain processes | ratio |\n|---|---|---|---|---|---|")
    for dim, first, count in ROWS:
        for workers in (2, 4):
            for order, topology in (("direct", "allreduce"), ("ring", "allreduce:ring")):
                ours = partial(update_s, "ssgd", dim, first, count, "made", workers, topology=topology)
                plain = partial(in_processes, workers, plain_s, order, dim, first, count)
                a, b = medians(turns, [ours, plain])
                shown = f"{a * 1e3:.3g} ms | {b * 1e3:.3g} ms | {a / b:.2f}"
                print(f"| {dim:,} | {workers} | {order} | {shown} |", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)

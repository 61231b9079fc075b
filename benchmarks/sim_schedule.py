"""How fast the simulator schedules: gradients a second without any weights.

    python benchmarks/sim_schedule.py

Runs the suite as a user does (`--workload none --record none`, exponential times) and prints: ASGD with
1,024 workers against a bare `heapq` loop over the same draws; the cost of a gradient with 8,192 workers
against that with 64, for every mode; time and memory of ASGD with 100,000 workers.
"""

from __future__ import annotations

import heapq
import resource
import tempfile
import time
from typing import Any

from dsgd.core.time_laws import parse_law
from dsgd.core.timing import ComputeTimes
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config
from dsgd.strategies import modes

LAW = "exponential:1"
GRADIENTS = 1 << 19
# Ringmaster cancels what R updates have overtaken; with R far below P, most of its work is cancelling.
OPTIONS: dict[str, dict[str, Any]] = {"ringmaster": {"delay_bound": 1024.0}}


def gradients_per_s(mode: str, num_workers: int, gradients: int, out: str) -> float:
    """Return how many mini-batches of one run were handled in a second, those ignored or cancelled
    among them.
    """
    cfg = config(
        mode,
        num_workers=num_workers,
        steps=max(5, gradients // num_workers),
        workload="none",
        record="none",
        compute_time=LAW,
        out=out,
        **OPTIONS.get(mode, {}),
    )
    ended = execute(cfg, record=RunRecord(cfg))
    assert not ended.error, ended.error
    handled = ended.tally.gradients + ended.tally.ignored + sum(ended.cluster.cancelled)
    return handled / ended.wall_s


def bare_gradients_per_s(num_workers: int, gradients: int) -> float:
    """Return how many events of a heap are handled in a second, with the times that the simulator draws."""
    times = ComputeTimes(parse_law(LAW), seed=0)
    steps = [0] * num_workers
    heap = [(times.seconds(worker, 0), worker, worker) for worker in range(num_workers)]
    heapq.heapify(heap)
    serial, began_s = num_workers, time.perf_counter()
    for _ in range(gradients):
        now_s, _, worker = heapq.heappop(heap)
        steps[worker] += 1
        serial += 1
        heapq.heappush(heap, (now_s + times.seconds(worker, steps[worker]), serial, worker))
    return gradients / (time.perf_counter() - began_s)


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        ours = max(gradients_per_s("asgd", 1024, GRADIENTS, out) for _ in range(3))
        bare = max(bare_gradients_per_s(1024, GRADIENTS) for _ in range(3))
        print(
            f"asgd, 1,024 workers: {ours:,.0f} gradients/s, a bare heapq loop {bare:,.0f}: {ours / bare:.3f}"
        )
        for mode in modes():
            few, many = (
                max(gradients_per_s(mode, p, n, out) for _ in range(2))
                for p, n in ((64, GRADIENTS // 4), (8192, GRADIENTS))
            )
            rates = f"64 workers {few:9,.0f}/s, 8,192 workers {many:9,.0f}/s"
            print(f"{mode:12} {rates}: {few / many:.2f} x the cost")
        began_s = time.perf_counter()
        gradients_per_s("asgd", 100_000, 500_000, out)
        took_s = time.perf_counter() - began_s
        peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"asgd, 100,000 workers x 5 steps: {took_s:.1f} s, {peak_gib:.2f} GiB at most")


if __name__ == "__main__":
    main()

"""What the benchmarks share: turns, a worker's task without Ray, plain processes of torch."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Steps = Callable[[int], object]
"""Computes a given number of steps."""


def heading(turns: int) -> str:
    """Return the day, and the machine and its load, for a table."""
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load {load}"
    return f"{time.strftime('%Y-%m-%d')}, {machine}; medians of {turns} turns\n"


def medians(turns: int, measured: Sequence[Callable[[], float]]) -> list[float]:
    """Return the median of each, measured in turns."""
    rows = [[measure() for measure in measured] for _ in range(turns)]
    return [median(column) for column in zip(*rows, strict=True)]


def seconds(run: Steps, steps: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the mean seconds of a step."""
    began_s = clock()
    run(steps)
    return (clock() - began_s) / steps


def in_turns(
    sides: Sequence[Steps], steps: int, turns: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Return the seconds a step of each turn, by side; the first turn is not counted."""
    times = [[seconds(side, steps, clock) for side in sides] for _ in range(turns + 1)]
    return [list(column) for column in zip(*times[1:], strict=True)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the turns' ratios."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def tasks(task: Any, objective: Any, shard: Any, w: Any, device: str = "cpu") -> Steps:
    """Return what computes a worker's tasks without Ray, one after the other; a step is a mini-batch."""
    from dsgd.engines.task_values import compute_alone

    def run(steps: int) -> None:
        for step in range(0, steps, task.batches):
            compute_alone(task, objective, shard, step, w, None, device)

    return run


def in_processes(workers: int, measured: Callable[..., float], *arguments: Any) -> float:
    """Return what rank 0 of a gloo group measures."""
    from torch.multiprocessing.spawn import start_processes

    multiprocessing.set_forkserver_preload(["torch.distributed"])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _member, args=(workers, folder, measured, arguments), nprocs=workers, start_method="forkserver"
        )
        return float((Path(folder) / "found").read_text())


def _member(rank: int, workers: int, folder: str, measured: Callable[..., float], arguments: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers)
    found = measured(*arguments)
    if rank == 0:
        (Path(folder) / "found").write_text(str(found))
    dist.barrier()
    dist.destroy_process_group()


def run_parts(parts: Mapping[str, Callable[[], object]]) -> None:
    """Run those that the command line names, else all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=(*parts, "all"), default="all")
    named = parser.parse_args().parts
    for name, part in parts.items():
        if name in named or "all" in named:
            part()

"""Five ratios that a change must not spoil, in two minutes; benchmarks/README.md has more exact figures.

    make bench-gate

Each is the speed of ours against that of a plain loop or process beside it, in turns in one run, so another
machine or other load moves it little; floors are at half to four fifths of what is usual. A ratio below its
floor is measured once more; if it stays there, the command ends with 1.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

import torch
from harness import heading, in_processes, medians, ratio
from modules import gradient_beside_loop
from ray_updates import gloo_s, update_s
from sim_gradients import flat_loop_s_per_gradient, sim_s_per_gradient
from sim_schedule import bare_gradients_per_s, gradients_per_s
from startup import BARE_TORCH, bare_s, ours_s

from dsgd.engines.ray.connection.connect import connect

TURNS = 3


def schedule() -> float:
    with tempfile.TemporaryDirectory() as out:
        ours = partial(gradients_per_s, "asgd", 1024, 1 << 17, out)
        ours_per_s, bare_per_s = medians(TURNS, [ours, partial(bare_gradients_per_s, 1024, 1 << 17)])
    return ours_per_s / bare_per_s


def simulated() -> float:
    ours = partial(sim_s_per_gradient, "ssgd", (16,), "none", 24)
    took_s, loop_s = medians(TURNS, [ours, partial(flat_loop_s_per_gradient, (16,))])
    return loop_s / took_s


def worker() -> float:
    took_s, loop_s, _ = gradient_beside_loop("cnn", 32, 40, TURNS)
    return ratio(loop_s, took_s)


def on_ray() -> float:
    connection, updates = connect(), (1000, 300, 3000, "ready")
    ours = partial(update_s, "ssgd", *updates, 2, transport="local")
    took_s, plain_s = medians(TURNS, [ours, partial(in_processes, 2, gloo_s, *updates)])
    connection.close()
    return plain_s / took_s


def start() -> float:
    took_s, import_s = medians(TURNS, [partial(ours_s, "sim"), partial(bare_s, BARE_TORCH)])
    return import_s / took_s


FLOORS = (
    ("the simulator's schedule, ASGD, 1,024 workers: a bare heap", schedule, 0.05),
    ("the simulator's gradients, xor, 1,024 workers: one after the other", simulated, 8),
    ("a worker's gradient of a CNN: a loop of torch", worker, 0.7),
    ("a synchronous update on Ray, 1,000 weights, 2 workers: gloo in plain processes", on_ray, 1.7),
    ("the simulator's first update: `import torch`", start, 0.6),
)


def main(floors: Sequence[tuple[str, Callable[[], float], float]]) -> int:
    """Print each ratio beside its floor; return the exit code."""
    print(f"{heading(TURNS)}\n| ours, against | ratio | floor |\n|---|---|---|")
    missed = 0
    for name, measure, floor in floors:
        if (found := measure()) < floor:
            found = measure()
        missed += found < floor
        print(f"| {name} | {found:.3g}{', missed' * (found < floor)} | {floor:g} |", flush=True)
    return min(1, missed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(FLOORS))

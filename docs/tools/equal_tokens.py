"""Prints what a transformer learns from equally many tokens, alone and in modes (docs/workloads.md).

    python docs/tools/equal_tokens.py
    python docs/tools/equal_tokens.py --size 1m --steps 600 --modes ssgd diloco --set outer_momentum=0.6

The loop has torch's own AdamW and schedule and knows nothing of the suite but the module, the text and which
windows the workers read: at each step it takes the mini-batches of all of them as one. Bits a byte are of
the held-out text; the last column is the distance to the loop.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

import dsgd
from dsgd.core.option_rules import option_fields
from dsgd.core.problem import length, take
from dsgd.data import make_workload
from dsgd.models.workloads import make_problem
from dsgd.running.quick_run import config
from dsgd.strategies import config_of, modes

WORKERS, WINDOWS, WARMUP = 4, 2, 30
LR = 3e-3  # of AdamW, on the server and in DiLoCo's workers
LOCAL_LR = 0.3  # of SGD with momentum, in the workers of the other local modes
LOCAL_STEPS = 32


def of_mode(mode: str, own: dict[str, str]) -> dict[str, Any]:
    """Return the options of a mode: AdamW where it has it. Times of computing are drawn."""
    known = option_fields(config_of(mode))
    found: dict[str, Any] = {"compute_time": "exponential:1"}
    if "optimizer" in known:
        found |= {"optimizer": "adamw", "lr": LR}
    elif mode == "diloco":
        found |= {"lr": LR}
    else:
        found |= {"lr": LOCAL_LR, "momentum": 0.9}
    if "local_steps" in known:
        found |= {"local_steps": LOCAL_STEPS}
    if "lr_scaling" in known:
        found |= {"lr_scaling": "workers"}
    return found | {option: float(value) for option, value in own.items() if option in known}


def alone(options: dict[str, Any]) -> float:
    """Train the module in a loop; return the bits a byte of the held-out text."""
    cfg = config("ssgd", **options)
    steps = cfg.steps
    problem, shards = make_problem(cfg.data, cfg.seed), make_workload(cfg).shards
    module = problem.module
    optimizer = AdamW(module.parameters(), lr=LR, weight_decay=0.01)

    def factor(step: int) -> float:
        done = (step - WARMUP) / (steps - WARMUP)
        return (step + 1) / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * done))

    schedule = LambdaLR(optimizer, factor)
    for step in range(steps):
        batches: list[Any] = [shard.batch(step) for shard in shards]  # type: ignore[attr-defined]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        problem.loss(module, x, y).backward()
        optimizer.step()
        schedule.step()
    losses, samples = 0.0, length(problem.test)
    with torch.no_grad():
        for row in range(samples):
            losses += float(problem.loss(module, *take(problem.test, [row]))) / samples
    assert problem.bytes_per_token
    return losses / math.log(2) / problem.bytes_per_token


def in_mode(mode: str, options: dict[str, Any]) -> float:
    """Train it in a mode, in the simulator; return the same."""
    found = dsgd.run(mode, engine="sim", **options).evaluations["bits_per_byte"][-1]
    return float(found)


def main() -> None:
    """Print a line for the loop and one for each mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="100k")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--modes", nargs="*", default=list(modes()), choices=modes())
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="of modes that have it")
    given = parser.parse_args()
    own = dict(text.split("=", 1) for text in given.set)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    common: dict[str, Any] = {
        "workload": "gpt",
        "size": given.size,
        "steps": given.steps,
        "num_workers": WORKERS,
        "batch_size": WINDOWS,
        "schedule": "cosine",
        "warmup": WARMUP,
        "eval_every": 0,
    }
    print(f"gpt {given.size}, {WORKERS} workers x {given.steps} steps x {WINDOWS} windows", flush=True)
    began_s = time.perf_counter()
    by_loop = alone(common)
    print(f"| a loop alone | {by_loop:.4f} | | {time.perf_counter() - began_s:.0f} s |", flush=True)
    for mode in given.modes:
        began_s = time.perf_counter()
        bits = in_mode(mode, common | of_mode(mode, own))
        took = f"{time.perf_counter() - began_s:.0f} s"
        print(f"| {mode} | {bits:.4f} | {bits - by_loop:+.4f} | {took} |", flush=True)


if __name__ == "__main__":
    main()

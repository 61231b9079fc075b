"""What the suite adds to a module's own computation, against plain PyTorch loops in the same run.

    python benchmarks/modules.py                      # all parts, some minutes
    python benchmarks/modules.py gradient simulator   # some of: gradient simulator ray memory

This file is also a workload: python main.py --workload benchmarks/modules.py --case gpt-1m. The data are
random, since only time is measured. All loops read mini-batches in the same way, in one thread a process.
Each time is the median of turns that alternate between the sides, so that other load falls on both. The time
of a gradient is processor time, except where two threads are compared with one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from harness import in_turns, ratio, run_parts, seconds, tasks

from dsgd.config import DataConfig
from dsgd.models.networks.transformer_sizes import SIZES

if TYPE_CHECKING:
    from dsgd.core.problem import Problem

FILE = str(Path(__file__).resolve())
WINDOWS = 2048  # samples of a language model
VECTORS = 4  # beyond one for each worker


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The module."""

    case: Literal["mlp", "cnn", "gpt-100k", "gpt-1m", "gpt-11m", "gpt-124m"] = "gpt-100k"
    """mlp: 1,210 weights. cnn: 206,922. gpt-SIZE: a transformer of that size."""

    context: int | None = None
    """Tokens of a sample, for a transformer. None: what suits its size."""


def make(cfg: Config) -> Problem:
    """Return the problem of a case, with random data."""
    import torch
    from torch import nn

    from dsgd.core.problem import Problem
    from dsgd.models.datasets import Windows
    from dsgd.models.networks.convnets import classification_loss, small_cnn
    from dsgd.models.networks.transformer import Transformer, flops_per_token, next_token_loss

    if cfg.case.startswith("gpt-"):
        size = SIZES[cfg.case.removeprefix("gpt-")]
        context = cfg.context or size.context
        transformer = Transformer(size)
        ids = torch.randint(size.vocabulary, (WINDOWS * context + 1,)).numpy()
        data: Any = Windows(ids, context)
        about = {"flops_per_token": flops_per_token(transformer, context), "tokens_per_sample": context}
        test = Windows(ids[: 8 * context + 1], context)
        return Problem(transformer, next_token_loss, data, test, about=about)
    if cfg.case == "cnn":
        data = torch.randint(256, (WINDOWS, 28, 28), dtype=torch.uint8), torch.randint(10, (WINDOWS,))
        return Problem(small_cnn(10), classification_loss, data, data)
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    data = torch.rand(WINDOWS, 64), torch.randint(10, (WINDOWS,))
    return Problem(module, classification_loss, data, data)


def configured(case: str, batch_size: int, mode: str = "ssgd", **options: Any) -> Any:
    """Return the configuration of a run of this file's workload, without evaluations on the way."""
    from dsgd.running.quick_run import config

    return config(mode, workload=FILE, case=case, batch_size=batch_size, eval_every=0, **options)


def bare_loop(
    problem: Any, shard: Any, *, bf16: bool = False, compiled: bool = False
) -> Callable[[int], None]:
    """Return a plain training loop without its optimizer, for so many mini-batches, on the shard's device."""
    import copy

    import torch

    module = copy.deepcopy(problem.module).to(shard.device)
    loss = torch.compile(problem.loss) if compiled else problem.loss
    parameters = list(module.parameters())
    for p in parameters:
        p.requires_grad_()

    def loop(steps: int) -> None:
        for step in range(steps):
            for p in parameters:
                p.grad = None  # what Optimizer.zero_grad does
            batch = shard.batch(step)
            with torch.autocast(shard.device, torch.bfloat16, enabled=bf16):
                found = loss(module, *batch)
            found.backward()

    return loop


def gradients() -> None:
    """Measure a worker's task: all that its process does for it except for Ray's own part."""
    import torch

    torch.set_num_threads(1)
    for case, batch_size, steps in (
        ("mlp", 32, 1000),
        ("cnn", 32, 40),
        ("gpt-100k", 8, 20),
        ("gpt-1m", 8, 4),
    ):
        own, plain, weights = gradient_beside_loop(case, batch_size, steps, 9)
        print(
            f"gradient   {case:9} {weights:>10,} weights: {median(own) * 1e3:8.3f} ms, bare loop "
            f"{median(plain) * 1e3:8.3f} ms, {ratio(own, plain):.3f} x (aim 1.05)",
            flush=True,
        )


def gradient_beside_loop(
    case: str, batch_size: int, steps: int, turns: int
) -> tuple[list[float], list[float], int]:
    """Return the seconds of a worker's gradient, and of the bare loop, by turn; and the number of weights."""
    from dsgd.core.tasks import gradient
    from dsgd.data import make_workload

    made: Any = make_workload(configured(case, batch_size, num_workers=1))
    w, shard, objective = made.objective.initial_weights(0), made.shards[0], made.objective
    sides = tasks(gradient, objective, shard, w), bare_loop(objective.problem, shard)
    own, plain = in_turns(sides, steps, turns, time.process_time)
    return own, plain, len(w)


def simulator() -> None:
    """Measure all that the simulator does: schedule, mini-batches, gradients, updates; 8 workers."""
    import torch

    from dsgd.core.timing import ComputeTimes
    from dsgd.core.weights import Weights
    from dsgd.data import make_workload
    from dsgd.engines.sim.sim import SimCluster
    from dsgd.strategies import load

    torch.set_num_threads(1)
    workers = 8
    for case, batch_size, rounds in (("cnn", 32, 8), ("gpt-100k", 8, 4)):
        cfg = configured(case, batch_size, num_workers=workers, steps=10**6)
        made: Any = make_workload(cfg)

        def simulated(threads: int, cfg: Any = cfg, made: Any = made) -> Callable[[int], None]:
            cluster = SimCluster(made, ComputeTimes(cfg.timing.compute_law, 0), threads=threads)
            updates = load("ssgd").train(cluster, Weights(made.objective.initial_weights(0)), cfg)

            def run(gradients: int) -> None:
                for _ in range(gradients // workers):
                    next(updates)

            return run

        single, double = simulated(1), simulated(2)
        plain_loop = bare_loop(made.objective.problem, made.shards[0])
        one, plain = in_turns((single, plain_loop), rounds * workers, 7, time.process_time)
        one_wall, two_wall = in_turns((single, double), rounds * workers, 7)
        print(
            f"simulator  {case:9} {made.objective.num_weights:>10,} weights: {median(one) * 1e3:8.3f} ms a "
            f"gradient, bare loop {median(plain) * 1e3:8.3f} ms, {ratio(one, plain):.3f} x (aim 1.05); two "
            f"threads {ratio(two_wall, one_wall):.3f} x one (aim 0.9)",
            flush=True,
        )


def _ddp(rank: int, port: int, batch_size: int, steps: int, turns: int, answers: Any, go: Any) -> None:
    """Be one of two processes of torch's DistributedDataParallel: synchronous SGD by all-reduce."""
    import torch
    import torch.distributed as dist

    from dsgd.data import make_workload

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    made: Any = make_workload(configured("gpt-1m", batch_size, num_workers=2))
    problem = made.objective.problem
    model = torch.nn.parallel.DistributedDataParallel(problem.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(steps: int) -> None:
        for step in range(steps):
            optimizer.zero_grad()
            problem.loss(model, *made.shards[rank].batch(step)).backward()
            optimizer.step()
        dist.barrier()

    run(2)
    for _ in range(turns):
        go[rank].get()
        answers.put(seconds(run, steps))
    dist.destroy_process_group()


def on_ray(steps: int = 8, turns: int = 5) -> None:
    """Measure synchronous SGD with two workers on Ray, and torch DDP with gloo: one waits while one runs."""
    import multiprocessing
    import socket

    from torch.multiprocessing.spawn import spawn

    from dsgd.running.execute import execute
    from dsgd.running.keeper import Watcher

    batch_size, context = 4, SIZES["1m"].context
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawning = multiprocessing.get_context("spawn")
    answers, go = spawning.Queue(), [spawning.Queue() for _ in range(2)]
    arguments = port, batch_size, steps, turns, answers, go
    started: Any = spawn(_ddp, arguments, nprocs=2, join=False)  # type: ignore[no-untyped-call]
    ours: list[float] = []
    theirs: list[float] = []
    computing: list[float] = []

    class Turns(Watcher):
        """After each turn of ours, has DDP take one while Ray's workers wait."""

        began_s = 0.0

        def updated(self, update: Any) -> None:
            version = update.weights.version
            computing.extend(done.compute_s for done in update.dones if version > 2)
            if version >= 2 and (version - 2) % steps == 0:
                if version > 2:
                    ours.append((time.perf_counter() - self.began_s) / steps)
                    for queue in go:
                        queue.put(None)
                    theirs.append(max(answers.get(), answers.get()))
                self.began_s = time.perf_counter()

    cfg = configured("gpt-1m", batch_size, num_workers=2, engine="ray", steps=2 + steps * turns)
    ended = execute(cfg, [Turns()], evaluate=False)
    if ended.exception:
        raise ended.exception
    started.join()
    tokens = 2 * batch_size * context
    print(
        f"ray        gpt-1m    {len(ended.weights.vector):>10,} weights, SSGD, 2 workers: "
        f"{tokens / median(ours):,.0f} tokens/s, torch DDP (gloo) {tokens / median(theirs):,.0f}, "
        f"{1 / ratio(ours, theirs):.3f} x (aim 0.95); an update {median(ours) * 1e3:.1f} ms, of "
        f"which computing {median(computing) * 1e3:.1f}",
        flush=True,
    )


def memory() -> None:
    """Measure the simulator's peak for 64 workers of 11 million weights, in a process for itself."""
    subprocess.run([sys.executable, FILE, "_memory"], check=True)


def _memory(workers: int = 64) -> None:
    import torch  # noqa: F401 - before the first measurement

    from dsgd.running.execute import execute

    before = _peak_bytes()
    cfg = configured("gpt-11m", 1, num_workers=workers, steps=2, context=16)
    ended = execute(cfg, evaluate=False)
    if ended.exception:
        raise ended.exception
    vector = ended.weights.vector.nbytes
    used = _peak_bytes() - before
    print(
        f"memory     gpt-11m   {vector // 4:>10,} weights, {workers} workers in the simulator: "
        f"{used / 1e9:.2f} GB, {used / vector:.1f} vectors, {used / vector / (workers + VECTORS):.3f} x "
        f"({workers} + {VECTORS}) (aim 1.3)",
        flush=True,
    )


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    if sys.argv[1:] == ["_memory"]:
        _memory()
    else:
        run_parts({"gradient": gradients, "simulator": simulator, "ray": on_ray, "memory": memory})

"""All that needs a GPU, in one command of less than nine minutes: tests/engines/test_gpu.py, then a table.

    make gpu                               # where there is no GPU, one line says so
    python benchmarks/gpu.py --rehearse    # the table's code on a CPU, with small models: is it in order?

The table: a worker's gradient of a transformer of 124 million weights against the bare module loop, in
tokens/s and as the share of the GPU's peak (MFU); the same in FSDP with one rank, which has nobody to talk
to; a mixture of experts beside its dense twin; the simulator on the GPU; several workers on one GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import in_turns, tasks
from modules import bare_loop, configured

ROOT = Path(__file__).resolve().parent.parent
MOST_S = 520.0
TESTS_S = 240.0
PEAKS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Floating point operations a second in bfloat16, not sparse, by part of the device's name (data sheets)."""
LOCAL_STEPS = 8


class Scale(NamedTuple):
    """How large everything is."""

    device: str
    worker_case: str
    worker_batch: int
    shared_case: str
    shared_batch: int
    steps: int
    turns: int


REAL = Scale("cuda", "gpt-124m", 16, "gpt-11m", 16, 6, 3)
REHEARSAL = Scale("cpu", "gpt-100k", 2, "gpt-100k", 2, 1, 1)


def main(scale: Scale, began_s: float) -> int:
    """Print the table, as far as there is time; return how many of its parts failed."""
    parts: list[Callable[[Scale], None]] = [
        *(lambda scale, options=options: worker(scale, **options) for options in WAYS),
        *(lambda scale, options=options: sharded(scale, **options) for options in WAYS[1:]),
        mixture,
        simulator,
        lambda scale: shared(scale, 1),
        lambda scale: shared(scale, 4),
    ]
    failed = 0
    for number, part in enumerate(parts, 1):
        left_s = MOST_S - (time.monotonic() - began_s)
        if left_s < 45:
            print(f"not run for lack of time: parts {number} to {len(parts)} of {len(parts)}", flush=True)
            break
        try:
            part(scale)
        except Exception as error:  # the other parts still have their figures
            print(f"part {number} failed: {type(error).__name__}: {error}", flush=True)
            failed += 1
    return failed


WAYS: tuple[dict[str, Any], ...] = (
    {"precision": "float32"},
    {"precision": "bf16"},
    {"precision": "bf16", "compile": True},
)


def worker(scale: Scale, **options: Any) -> None:
    """Measure a worker's task, weights in and values out included, against the bare loop on the device."""
    from dsgd.core.tasks import LocalSGD, gradient
    from dsgd.data import make_workload

    cfg = configured(scale.worker_case, scale.worker_batch, num_workers=1, device=scale.device, **options)
    made: Any = make_workload(cfg)
    objective, w = made.objective, made.objective.initial_weights(0)
    shard = made.shards[0].on_device(made.shards, scale.device)[0]
    local = LocalSGD(batches=LOCAL_STEPS, lr=0.01)
    ours = (tasks(task, objective, shard, w, scale.device) for task in (gradient, local))
    sides = (_bare(objective, shard, cfg), *ours)
    times = in_turns(sides, max(1, scale.steps // LOCAL_STEPS) * LOCAL_STEPS, scale.turns)
    for name, own in zip(("bare loop", "gradient", f"{LOCAL_STEPS} local steps"), times, strict=True):
        against = median(b / a for a, b in zip(own, times[0], strict=True))
        rates = in_tokens(scale, own, objective.problem.about)
        _print_worker(scale, cfg, name, f"{rates}, {against:.3f} x the bare loop")


def _bare(objective: Any, shard: Any, cfg: Any) -> Callable[[int], None]:
    """Return the bare loop, until the device is done."""
    import torch

    plain = bare_loop(
        objective.problem, shard, bf16=cfg.compute.precision == "bf16", compiled=cfg.compute.compile
    )

    def bare(steps: int) -> None:
        plain(steps)
        if shard.device == "cuda":
            torch.cuda.synchronize()

    return bare


def in_tokens(scale: Scale, times: Sequence[float], about: Any) -> str:
    """Return the tokens/s of mini-batches that took so long (s), and their share of the GPU's peak."""
    rate = scale.worker_batch * about["tokens_per_sample"] / median(times)
    peak = next((f for name, f in PEAKS.items() if name in device_name(scale)), None)
    return f"{rate:>11,.0f} tokens/s" + (
        f", MFU {rate * about['flops_per_token'] / peak:.3f}" if peak else ""
    )


def _print_worker(scale: Scale, cfg: Any, name: str, found: str) -> None:
    label = " ".join([cfg.compute.precision, *(["compiled"] if cfg.compute.compile else [])])
    print(f"worker     {scale.worker_case} {label:17} {name:14} {found}", flush=True)


def sharded(scale: Scale, **options: Any) -> None:
    """Measure the gradient of a group of one rank, FSDP with nobody to talk to, against the bare loop."""
    from tempfile import TemporaryDirectory

    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # untyped

    from dsgd.core.tasks import gradient
    from dsgd.data import make_workload
    from dsgd.models.objectives.group_objective import GroupObjective, Membership

    cfg = configured(scale.worker_case, scale.worker_batch, num_workers=1, device=scale.device, **options)
    made, alone = (make_workload(cfg) for _ in range(2))  # the group shards its module in place
    objectives: Any = made.objective, alone.objective
    w = objectives[0].initial_weights(0)
    shards: Any = made.shards
    shard = shards[0].on_device(shards, scale.device)[0]
    with TemporaryDirectory() as folder:
        backend, store = "nccl" if scale.device == "cuda" else "gloo", FileStore(f"{folder}/store", 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        try:
            group = GroupObjective(objectives[0], Membership(rank=0, ranks=1, device=scale.device))
            in_fsdp = tasks(gradient, group, shard, w, scale.device)
            own, loop = in_turns((in_fsdp, _bare(objectives[1], shard, cfg)), scale.steps, scale.turns)
        finally:
            dist.destroy_process_group()
    against = median(b / a for a, b in zip(own, loop, strict=True))
    rates = in_tokens(scale, own, objectives[1].problem.about)
    _print_worker(scale, cfg, "FSDP, 1 rank", f"{rates}, {against:.3f} x the bare loop")


def mixture(scale: Scale) -> None:
    """Measure the gradient of a model whose layers have 8 experts, 2 for each token, and of its dense twin.

    A layer's perceptron and each of its experts are alike, so the mixture computes two perceptrons a token
    and has the weights of eight. Its flops are those of what a token uses.
    """
    from dsgd.core.tasks import gradient
    from dsgd.data import make_workload
    from dsgd.running.quick_run import config

    size = scale.worker_case.removeprefix("gpt-")
    run_of, abouts = {}, {}
    ways: dict[str, dict[str, Any]] = {"dense": {}, "8 experts": {"experts": 8, "top_k": 2}}
    for name, options in ways.items():
        options |= {"workload": "gpt", "size": size, "batch_size": scale.worker_batch, "eval_every": 0}
        options |= {"num_workers": 1, "device": scale.device, "precision": "bf16"}
        made: Any = make_workload(config("ssgd", **options))
        objective, w = made.objective, made.objective.initial_weights(0)
        shard = made.shards[0].on_device(made.shards, scale.device)[0]
        about = objective.problem.about
        per_sample = about["flops_per_sample"] // about["flops_per_token"]
        run_of[name] = tasks(gradient, objective, shard, w, scale.device)
        abouts[name] = about | {"tokens_per_sample": per_sample}
    times = in_turns(tuple(run_of.values()), scale.steps, scale.turns)
    for name, own in zip(run_of, times, strict=True):
        against = median(dense / a for a, dense in zip(own, times[0], strict=True))
        rates = in_tokens(scale, own, abouts[name])
        print(
            f"mixture    gpt {size} bf16 {name:10} {rates}, {against:.3f} x the dense model's tokens/s",
            flush=True,
        )


def simulator(scale: Scale, workers: int = 8) -> None:
    """Measure the simulator's gradients on the device against the bare loop, and the device's memory."""
    import torch

    from dsgd.core.timing import ComputeTimes
    from dsgd.core.weights import Weights
    from dsgd.data import make_workload
    from dsgd.engines.sim.sim import SimCluster
    from dsgd.strategies import load

    cfg = configured(
        scale.shared_case,
        scale.shared_batch,
        num_workers=workers,
        steps=10**6,
        precision="bf16",
        device=scale.device,
    )
    made: Any = make_workload(cfg)
    cluster = SimCluster(made, ComputeTimes(cfg.timing.compute_law, 0), device=scale.device)
    updates = load("ssgd").train(cluster, Weights(made.objective.initial_weights(0)), cfg)

    def simulated(gradients: int) -> None:
        for _ in range(gradients // workers):
            next(updates)

    shard = made.shards[0].on_device(made.shards[:1], scale.device)[0]
    plain = bare_loop(made.objective.problem, shard, bf16=True)
    own, bare = in_turns((simulated, plain), scale.steps * workers, scale.turns)
    vectors = ""
    if scale.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / (4 * made.objective.num_weights)
        vectors = f"; the GPU's peak memory is that of {peak:.1f} vectors"
    print(
        f"simulator  {scale.shared_case} bf16, {workers} workers: {1 / median(own):,.1f} gradients/s, "
        f"{median(b / a for a, b in zip(own, bare, strict=True)):.3f} x the bare loop (aim 0.95){vectors}",
        flush=True,
    )


def shared(scale: Scale, workers: int) -> None:
    """Measure real workers that share one GPU, with several local steps between two exchanges."""
    from dsgd.running.execute import opened

    placed: dict[str, Any] = {"device": scale.device}
    if scale.device == "cuda":
        placed["gpus_per_worker"] = 0.9 / workers  # so that evaluations could have a part as well
    cfg = configured(
        scale.shared_case,
        scale.shared_batch,
        "localsgd",
        engine="ray",
        num_workers=workers,
        steps=LOCAL_STEPS * (2 + scale.steps),
        local_steps=LOCAL_STEPS,
        precision="bf16",
        **placed,
    )
    with opened(cfg) as run:
        run.advance(updates=2)  # the first ones are slow
        warm_s, warm = run.tally.last_update_s, run.tally.gradients
        run.advance()
    tokens = (run.tally.gradients - warm) * scale.shared_batch
    about = _about(cfg)
    seconds = run.tally.last_update_s - warm_s
    print(
        f"shared     {scale.shared_case} bf16, {workers} workers on one {run.engine.device} device, "
        f"LocalSGD, H = {LOCAL_STEPS}: {tokens * about['tokens_per_sample'] / seconds:,.0f} tokens/s in all",
        flush=True,
    )


def _about(cfg: Any) -> Any:
    from dsgd.models.workloads import make_problem

    return make_problem(cfg.data, cfg.seed).about


def device_name(scale: Scale) -> str:
    """Return the device's name."""
    import torch

    return torch.cuda.get_device_name() if scale.device == "cuda" else "CPU"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="run the table on the CPU, small")
    rehearse = parser.parse_args().rehearse
    import torch

    started_s = time.monotonic()
    if rehearse:
        sys.exit(main(REHEARSAL, started_s))
    elif not torch.cuda.is_available():
        print("no GPU that torch can use on this machine: nothing was run")
    else:
        print(f"{device_name(REAL)}, torch {torch.__version__}", flush=True)
        try:
            tests = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "tests/engines/test_gpu.py"], cwd=ROOT, timeout=TESTS_S
            ).returncode
        except subprocess.TimeoutExpired:
            print(f"the tests were ended after {TESTS_S:g} s", flush=True)
            tests = 1
        sys.exit(main(REAL, started_s) or tests)

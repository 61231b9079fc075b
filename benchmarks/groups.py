"""What a worker that is a group of ranks costs, on CPUs with gloo.

    python benchmarks/groups.py                       # all parts, some minutes
    python benchmarks/groups.py gradient memory       # some of: gradient memory

gradient: a group of two ranks against torch's own FSDP2 on the same module, in turns, in the same processes.
memory: what a rank holds of a model and of a task's state.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.modules import configured, in_turns, ratio

PARTS = ("gradient", "memory")


def _of_two(part: str, *args: Any) -> None:
    """Run a part in two processes, one a rank."""
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [spawning.Process(target=_rank, args=(rank, f"{folder}/s", part, args)) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a rank ended with {process.exitcode}")


def _rank(rank: int, store: str, part: str, args: Any) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # untyped

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, 2), rank=rank, world_size=2)
    RANKS[part](rank, *args)
    dist.barrier()
    dist.destroy_process_group()


def gradients() -> None:
    """Measure the gradient of a group against torch's own FSDP2."""
    for case, steps in (("gpt-100k", 10), ("gpt-1m", 3)):
        _of_two("gradient", case, steps)


def _gradient(rank: int, case: str, steps: int, batch_size: int = 16, turns: int = 5) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from dsgd.core.tasks import gradient
    from dsgd.data import make_workload
    from dsgd.engines.task_values import compute_alone
    from dsgd.models.objectives.group_objective import GroupObjective, Membership

    made: Any = make_workload(configured(case, batch_size, num_workers=1))
    shard, problem = made.shards[0], made.objective.problem
    plain = make_workload(configured(case, batch_size, num_workers=1)).objective.problem.module  # type: ignore[attr-defined]
    w = made.objective.initial_weights(0)
    group = GroupObjective(made.objective, Membership(rank=rank, ranks=2))
    part = group.layout.take(w, rank)
    mesh = init_device_mesh("cpu", (2,))
    for block in plain.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(plain, mesh=mesh)

    def ours(steps: int) -> None:
        for step in range(steps):
            compute_alone(gradient, group, shard, step, part, None, "cpu")

    def theirs(steps: int) -> None:
        for step in range(steps):
            plain.zero_grad()
            batch = [tensor.tensor_split(2)[rank] for tensor in shard.batch(step)]
            problem.loss(plain, *batch).backward()
            torch.distributed.all_reduce(torch.zeros(()))  # the loss, which ours has of the whole mini-batch

    own, other = in_turns((ours, theirs), steps, turns)
    if rank == 0:
        print(
            f"gradient  {case:9} {len(w):>10,} weights, 2 ranks: {median(own) * 1e3:8.1f} ms, torch's FSDP2 "
            f"{median(other) * 1e3:8.1f} ms, {ratio(own, other):.3f} x (aim 1.3)",
            flush=True,
        )


def memory() -> None:
    """Measure what a rank holds."""
    _of_two("memory")


def _memory(rank: int, case: str = "gpt-1m") -> None:
    import torch

    from dsgd.core.tasks import LocalAdamW
    from dsgd.data import make_workload
    from dsgd.engines.task_values import compute_alone
    from dsgd.models.objectives.group_objective import GroupObjective, Membership

    made: Any = make_workload(configured(case, 2, num_workers=1))
    w, module = made.objective.initial_weights(0), made.objective.problem.module
    block = sum(parameter.numel() for parameter in module.blocks[0].parameters())
    outside = len(w) - block * len(module.blocks)
    group = GroupObjective(made.objective, Membership(rank=rank, ranks=2))
    gathered = []

    def look(*_: Any) -> None:
        whole = (p for p in module.parameters() if not hasattr(p, "to_local"))
        gathered.append(sum(p.untyped_storage().nbytes() for p in whole))

    for part in module.blocks:
        part.register_forward_pre_hook(look)
    task, mine = LocalAdamW(batches=1, lr=1e-3), group.layout.take(w, rank)
    _, value, state = compute_alone(task, group, made.shards[0], 0, mine, None, "cpu")
    slices = (sum(p.to_local().untyped_storage().nbytes() for p in module.parameters()), mine.nbytes)
    held = sum(slices) + value.nbytes + state.untyped_storage().nbytes()
    whole = 5 * w.nbytes
    if rank == 0:
        print(
            f"memory    {case:9} {len(w):>10,} weights, AdamW, 2 ranks: one holds {held / whole:.3f} of the "
            f"weights, the module, the value and both moments (aim 1/2); in the forward pass also "
            f"{max(gathered) / 1e6:.2f} MB, a block and what is outside of blocks: "
            f"{4 * (block + outside) / 1e6:.2f} MB",
            flush=True,
        )
    assert torch.isfinite(state).all()


RUN = {"gradient": gradients, "memory": memory}
RANKS: dict[str, Any] = {"gradient": _gradient, "memory": _memory}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=(*PARTS, "all"), default="all")
    parts = parser.parse_args().parts
    for part in PARTS if "all" in parts else parts:
        RUN[part]()

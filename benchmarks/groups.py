"""What a worker that is a group of ranks costs, on CPUs with gloo.

    python benchmarks/groups.py                       # all parts, some minutes
    python benchmarks/groups.py gradient memory       # some of: gradient memory

gradient: a group of two ranks against torch's own FSDP2 on the same module, in turns, in the same processes.
memory: what a rank holds of a model and of a task's state.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from harness import in_processes, in_turns, ratio, run_parts, tasks
from modules import configured


def gradients() -> None:
    """Measure the gradient of a group against torch's own FSDP2."""
    for case, steps in (("gpt-100k", 10), ("gpt-1m", 3)):
        in_processes(2, _gradient, case, steps)


def _gradient(case: str, steps: int, batch_size: int = 16, turns: int = 5) -> float:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from dsgd.core.tasks import gradient
    from dsgd.data import make_workload
    from dsgd.models.objectives.group_objective import GroupObjective, Membership

    rank = torch.distributed.get_rank()
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

    def theirs(steps: int) -> None:
        for step in range(steps):
            plain.zero_grad()
            batch = [tensor.tensor_split(2)[rank] for tensor in shard.batch(step)]
            problem.loss(plain, *batch).backward()
            torch.distributed.all_reduce(torch.zeros(()))  # the loss, which ours has of the whole mini-batch

    own, other = in_turns((tasks(gradient, group, shard, part), theirs), steps, turns)
    if rank == 0:
        print(
            f"gradient  {case:9} {len(w):>10,} weights, 2 ranks: {median(own) * 1e3:8.1f} ms, torch's FSDP2 "
            f"{median(other) * 1e3:8.1f} ms, {ratio(own, other):.3f} x (aim 1.3)",
            flush=True,
        )
    return ratio(own, other)


def memory() -> None:
    """Measure what a rank holds."""
    in_processes(2, _memory)


def _memory(case: str = "gpt-1m") -> float:
    import torch

    from dsgd.core.tasks import LocalAdamW
    from dsgd.data import make_workload
    from dsgd.engines.task_values import compute_alone
    from dsgd.models.objectives.group_objective import GroupObjective, Membership

    rank = torch.distributed.get_rank()
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
    return float(held / whole)


if __name__ == "__main__":
    run_parts({"gradient": gradients, "memory": memory})

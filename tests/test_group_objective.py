"""A group of ranks computes what one process computes, on real processes with gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import RankProcesses
from torch import Tensor, nn

from dsgd.models.transformer import Transformer, next_token_loss
from dsgd.models.transformer_sizes import TransformerSize
from dsgd.work.group_objective import GroupObjective, Membership
from dsgd.work.module_objective import ModuleObjective, ProblemShard
from dsgd.work.problem import Problem
from dsgd.work.rank_layout import RankLayout
from dsgd.work.tasks import Elastic, Gradient, LocalAdamW, LocalSGD, Task

N, CONTEXT, VOCABULARY = 48, 12, 37  # 37 rows: neither 2 nor 3 ranks divide them
TOKENS = (torch.arange(N * (CONTEXT + 1)) ** 2 % 997 % VOCABULARY).view(N, CONTEXT + 1)


def transformer() -> Problem:
    torch.manual_seed(3)
    module = Transformer(TransformerSize(layers=2, width=16, heads=2, context=CONTEXT, vocabulary=VOCABULARY))
    return Problem(module, next_token_loss, (TOKENS[:, :-1], TOKENS[:, 1:]), ())


class Uneven(nn.Module):
    """Of all that is difficult: fewer rows than ranks, other strides, a frozen and an unused parameter, tied
    weights, a block that is called twice, and a parameter that two blocks share.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.unused = nn.Parameter(torch.ones(3, 2))
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.convolve = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.layers = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 7)])
        self.layers.append(self.layers[0])
        self.layers[2].bias = self.layers[1].bias
        self.narrow = nn.Sequential(nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(self.convolve(x.view(-1, 2, 1, 2)).mean((2, 3)))
        x = torch.cat((x, x[:, :3]), 1)
        for layer in self.layers:
            x = x + layer(x).tanh()
        found: Tensor = self.scale * self.narrow(x)
        return found


def uneven() -> Problem:
    x = torch.linspace(-1, 1, 4 * N).sin().view(N, 4)

    def loss(module: Any, x: Tensor) -> Tensor:
        off: Tensor = (module(x) - x.sum(1, keepdim=True)).square().mean()
        penalty: Tensor = 1e-2 * module.scale.square().sum()
        return off + penalty

    return Problem(Uneven(), loss, (x,), ())


def shard_of(problem: Problem, batch_size: int = 8, worker: int = 0, rows: Any = None) -> ProblemShard:
    rows = np.arange(N) if rows is None else rows
    return ProblemShard(worker, problem.train, rows, batch_size=batch_size, seed=0)


def start(problem: Problem) -> Any:
    return ModuleObjective(problem).initial_weights(0)


def on_rank(
    rank: int,
    ranks: int,
    make: Callable[[], Problem],
    task: Task,
    calls: int,
    options: dict[str, Any],
    parallel: str = "fsdp",
    batch_size: int = 8,
    **member: Any,
) -> tuple[list[float], Any, Any]:
    """Run a task some times on a rank; return the losses, its last value and state, and its slice's rank."""
    membership = Membership(rank=rank, ranks=ranks, parallel=parallel, **member)
    problem = make()
    w = start(problem)
    shard = shard_of(problem, batch_size)
    objective = GroupObjective(ModuleObjective(problem, **options), membership)
    part = torch.from_numpy(objective.layout.take(w, rank).copy())[None]
    losses, _, value, state = run_task(objective, task, calls, shard, part)
    return losses, value, state


def run_task(objective: Any, task: Task, calls: int, shard: ProblemShard, w: Tensor) -> Any:
    state = w.new_zeros(1, task.state_rows, w.shape[1])
    losses, step, value = [], 0, w
    for _ in range(calls):
        loss, value, state = task(objective, [shard], [step], w, state)
        losses.append(loss.item())
        step += task.batches
    return losses, step, value[0].numpy().copy(), state[0].numpy().copy()


@pytest.fixture(scope="module")
def group() -> Iterator[RankProcesses]:
    processes = RankProcesses(4)
    yield processes
    processes.end()


def both(group: RankProcesses, ranks: int, make: Any, task: Task, calls: int = 1, **more: Any) -> Any:
    """Return the losses, values (D,) and states of a group, put together, and those of one process."""
    parallel = more.pop("parallel", "fsdp")
    batch_size = more.pop("batch_size", 8)
    member = more.pop("member", {})
    args = (make, task, calls, more, parallel, batch_size)
    answers = group(ranks, on_rank_with, member, *args)
    problem = make()
    alone = ModuleObjective(problem, **more)
    w = torch.from_numpy(start(problem))[None]
    losses, _, value, state = run_task(alone, task, calls, shard_of(problem, batch_size), w)
    layout = RankLayout(alone.shapes, Membership(rank=0, ranks=ranks, parallel=parallel).slices)
    whole, whole_state = np.full_like(value, np.nan), np.full_like(state, np.nan)
    for rank in layout.holders:
        layout.put(whole, rank, answers[rank][1])
        layout.put(whole_state, rank, answers[rank][2])
    for rank in range(ranks):
        assert answers[rank][0] == answers[0][0], "each rank knows the loss of the whole mini-batch"
        assert np.array_equal(answers[rank][1], layout.take(whole, rank)), "replicas are equal"
    return answers[0][0], whole, whole_state, losses, value, state


def on_rank_with(rank: int, ranks: int, member: dict[str, Any], *args: Any) -> Any:
    return on_rank(rank, ranks, *args, **member)


@pytest.mark.parametrize("make", [transformer, uneven])
@pytest.mark.parametrize(("ranks", "parallel"), [(2, "fsdp"), (3, "fsdp"), (4, "hsdp:2"), (2, "ddp")])
def test_a_groups_gradient_is_that_of_one_process(
    group: RankProcesses, ranks: int, parallel: str, make: Any
) -> None:
    """However parameters are divided: the same loss and the same gradient, to 1e-6 of it."""
    loss, g, _, loss_alone, g_alone, _ = both(group, ranks, make, Gradient(), parallel=parallel)
    assert loss == pytest.approx(loss_alone, rel=1e-6)
    assert np.linalg.norm(g - g_alone) <= 1e-6 * np.linalg.norm(g_alone)


LOCAL = {
    "sgd": LocalSGD(batches=3, lr=0.05, momentum=0.9, weight_decay=0.1, keeps_velocity=True),
    "adamw": LocalAdamW(batches=3, lr=1e-2),
    "elastic": Elastic(batches=2, lr=0.05, rate=0.1, momentum=0.9),
    "clipped": LocalSGD(batches=3, lr=0.5, clip_norm=0.05),
}


@pytest.mark.parametrize("task", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize(("ranks", "parallel"), [(2, "fsdp"), (4, "hsdp:2")])
def test_a_groups_local_steps_are_those_of_one_process(
    group: RankProcesses, ranks: int, parallel: str, task: Task
) -> None:
    """Weights and what a task keeps, after two tasks: to 1e-4 of what they have moved; also where a rank's
    gradients are shortened, by the norm of the whole.
    """
    loss, w, state, loss_alone, w_alone, state_alone = both(
        group, ranks, uneven, task, calls=2, parallel=parallel
    )
    moved = np.linalg.norm(w_alone - start(uneven()))
    assert loss == pytest.approx(loss_alone, rel=1e-5)
    assert np.linalg.norm(w - w_alone) <= 1e-4 * moved
    assert np.linalg.norm(state - state_alone) <= 1e-4 * max(np.linalg.norm(state_alone), moved)


@pytest.mark.parametrize(("batch_size", "accumulate"), [(7, 1), (8, 2), (11, 3)])
def test_mini_batches_that_nothing_divides(group: RankProcesses, batch_size: int, accumulate: int) -> None:
    """Each sample counts the same, though neither the ranks nor the parts have equally many."""
    _, g, _, _, g_alone, _ = both(
        group, 2, transformer, Gradient(), batch_size=batch_size, accumulate=accumulate
    )
    assert np.linalg.norm(g - g_alone) <= 1e-6 * np.linalg.norm(g_alone)


def test_recomputed_activations_change_nothing(group: RankProcesses) -> None:
    """With each block computed once more for the backward pass: the same gradient, bit for bit."""
    kept, recomputed = (
        both(group, 2, transformer, Gradient(), member={"checkpoint_activations": whether})[1]
        for whether in (False, True)
    )
    assert np.array_equal(kept, recomputed)


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6),
    ranks=st.integers(1, 6),
    rows=st.sampled_from([None, 2]),
)
def test_slices_are_the_whole(shapes: list[tuple[int, ...]], ranks: int, rows: int | None) -> None:
    """What the ranks take, put together, is the vector; a rank has the rows that torch.chunk gives it."""
    layout = RankLayout(shapes, ranks)
    vector = np.arange(layout.num_weights * (rows or 1)).reshape((rows, -1) if rows else -1)
    whole = np.full_like(vector, -1)
    for rank in range(ranks):
        part = layout.take(vector, rank)
        assert part.shape[-1] == layout.length(rank)
        layout.put(whole, rank, part)
        parameters = torch.split(torch.arange(layout.num_weights), [int(np.prod(shape)) for shape in shapes])
        chunks = [p.view(shape or (1,)).chunk(ranks) for p, shape in zip(parameters, shapes, strict=True)]
        own = [c[rank].flatten() for c in chunks if rank < len(c)]
        expected = torch.cat(own).tolist() if own else []
        assert layout.take(np.arange(layout.num_weights), rank).tolist() == expected
    assert np.array_equal(whole, vector)

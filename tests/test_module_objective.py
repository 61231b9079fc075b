"""How a module's gradient is computed: in parts, in half precision, on views; and where it is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dsgd.work.module_objective import ModuleObjective, ProblemShard
from dsgd.work.problem import Problem

TINY = str(ROOT / "tests/workloads/tiny.py")
WIDE = str(ROOT / "tests/workloads/wide.py")
N = 24
X = torch.linspace(-1, 1, 6 * N).sin().view(N, 6)
Y = torch.arange(N) % 3


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y)


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def problem(module: nn.Module, of: Callable[..., Any] = loss) -> Problem:
    return Problem(module, of, (X, Y), (X, Y))


def shard(batch_size: int = N, rows: Any = None) -> ProblemShard:
    rows = np.arange(N) if rows is None else rows
    return ProblemShard(0, (X, Y), rows, batch_size=batch_size, seed=0)


def gradient(objective: ModuleObjective, of: ProblemShard | None = None, step: int = 0) -> Tensor:
    """Return the flat gradient at the initial weights."""
    w = torch.from_numpy(objective.initial_weights(0))[None]
    return objective.loss_and_gradient(w, [of or shard()], [step])[1][0].clone()


def plain_gradient(module: nn.Module, of: Callable[..., Any] = loss) -> Tensor:
    """Return what torch computes on the module's own parameters: zeros where the loss has none."""
    of(module, X, Y).backward()
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()]
    )


@settings(max_examples=12, deadline=None)
@given(accumulate=st.integers(1, N))
def test_parts_of_a_mini_batch_add_up(accumulate: int) -> None:
    """In however many parts, of whatever sizes: the loss and the gradient are those of the whole."""
    whole, parts = (ModuleObjective(problem(mlp()), accumulate=count) for count in (1, accumulate))
    torch.testing.assert_close(gradient(parts), gradient(whole), rtol=1e-5, atol=1e-6)
    w = torch.from_numpy(whole.initial_weights(0))[None]
    losses = [objective.loss_and_gradient(w, [shard()], [0])[0] for objective in (whole, parts)]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-6)


def test_the_mean_of_workers_gradients_is_that_of_all_their_samples() -> None:
    """P workers with mini-batches of B take the step of one with P x B: synchronous SGD."""
    objective = ModuleObjective(problem(mlp()))
    thirds = [gradient(objective, shard(8, np.arange(k, N, 3))) for k in range(3)]
    torch.testing.assert_close(torch.stack(thirds).mean(0), gradient(objective), rtol=1e-5, atol=1e-6)


def test_views_give_the_gradient_of_a_functional_call() -> None:
    """The parameters' views into one vector are as good as parameters that are passed in."""
    module = mlp()
    names = [name for name, _ in module.named_parameters()]
    leaves = [p.detach().clone().requires_grad_() for p in module.parameters()]
    found = loss(lambda x: functional_call(module, dict(zip(names, leaves, strict=True)), (x,)), X, Y)  # type: ignore[arg-type]
    functional = torch.cat([g.flatten() for g in torch.autograd.grad(found, leaves)])
    torch.testing.assert_close(gradient(ModuleObjective(problem(module))), functional, rtol=1e-6, atol=1e-6)


def test_bfloat16_is_near_float32() -> None:
    """Autocast changes a gradient by its own rounding: 2 % of it. What comes back is float32."""
    full, half = (ModuleObjective(problem(mlp()), precision=name) for name in ("float32", "bf16"))
    a, b = gradient(full), gradient(half)
    assert b.dtype == torch.float32
    assert 0 < (a - b).norm() < 2e-2 * a.norm()

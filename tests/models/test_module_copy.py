"""Modules that are hard to copy train as a plain loop trains them; what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dsgd.core.problem import Problem, ProblemError
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.objectives.replica import trained
from dsgd.running.trained_module import named_tensors

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] * X[:, 1] > 0).long()


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y)


class Network(nn.Module):
    """Two layers; what their first one gives is kept, and the loss may use it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.kept = nn.Linear(6, 8), nn.Linear(8, 2), dict[str, Any]()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(x).relu())
        return found


def sparse(module: Any, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = loss(module, x, y) + 0.1 * module.kept["first"].abs().mean()
    return found


def hooked() -> Problem:
    """Have a hook that refers to the module, as those that keep features do."""
    module = Network()
    module.first.register_forward_hook(lambda part, inputs, outputs: module.kept.update(first=outputs))
    return Problem(module, sparse, (X, Y), (X, Y))


class Listed(Network):
    """Functions in a list, which compute with the module's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Any] = [lambda x: self.first(x).relu()]
        self.steps.append(lambda x, *, by=1.5: by * self.last(x))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.steps[1](self.steps[0](x))
        return found


def listed() -> Problem:
    return Problem(Listed(), loss, (X, Y), (X, Y))


class Attending(nn.Module):
    """Attention that is kept for a picture, of a pass in make(), too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 2)
        self.kept: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        token = x[:, None].expand(-1, 3, -1)
        self.kept[:] = [self.attention(token, token, token)]
        found: Tensor = self.last(self.kept[0][0][:, 0])
        return found


def kept_by_make() -> Problem:
    module = Attending()
    module(X)
    return Problem(module, loss, (X, Y), (X, Y))


def weighed_by_a_hook() -> Problem:
    """Torch's former weight norm: a hook computes the weights, also when it is made."""
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(6, 8))
    return Problem(nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 2)), loss, (X, Y), (X, Y))


def shard_of(problem: Problem) -> ProblemShard:
    return ProblemShard(0, problem.train, np.arange(len(X)), batch_size=16, seed=0)


@pytest.mark.parametrize("make", [hooked, listed, kept_by_make, weighed_by_a_hook])
def test_two_steps_are_those_of_a_plain_loop(make: Callable[[], Problem]) -> None:
    """A copy computes with its parts, and keeps what it computes; the module itself is not touched."""
    torch.manual_seed(0)
    problem = make()
    objective, shard = ModuleObjective(problem), shard_of(problem)
    objective.try_out(shard)
    objective.try_evaluation()
    w = torch.from_numpy(objective.initial_weights(0))[None]
    torch.manual_seed(0)
    plain = make()
    optimizer = torch.optim.SGD(plain.module.parameters(), 0.1)
    for step in range(2):
        w = w - 0.1 * objective.loss_and_gradient(w, [shard], [step])[1]
        optimizer.zero_grad()
        torch.autograd.backward(plain.loss(plain.module, *shard.batch(step)))
        optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in trained(plain.module)])
    torch.testing.assert_close(w[0], expected)
    assert all(parameter.grad is None for parameter in problem.module.parameters())


class Compiled(Network):
    """Its first layer is wrapped."""

    def __init__(self, wrap: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.first = wrap(self.first)


@pytest.fixture
def one_process() -> Iterator[None]:
    """Make this process the only rank of a group, as DistributedDataParallel needs one."""
    dist.init_process_group("gloo", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "torch.compile": lambda: cast(nn.Module, torch.compile(Network())),
    "torch.compile, a part": lambda: Compiled(torch.compile),
    "DataParallel": lambda: nn.DataParallel(Network()),
    "DataParallel, twice": lambda: nn.DataParallel(Compiled(nn.DataParallel)),
    "DistributedDataParallel": lambda: nn.parallel.DistributedDataParallel(Network()),
    "DataParallel and torch.compile": lambda: nn.DataParallel(cast(nn.Module, torch.compile(Network()))),
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapper_does_not_rename_what_is_trained(kind: str) -> None:
    """A module is the one inside: its gradient, its names in what is kept and exported; a note says so."""
    torch.manual_seed(0)
    made = Problem(WRAPPED[kind](), loss, (X, Y), (X, Y))
    torch.manual_seed(0)
    plain = ModuleObjective(Problem(Network(), loss, (X, Y), (X, Y)))
    objective, shard = ModuleObjective(made), shard_of(made)
    objective.try_out(shard)
    w = plain.initial_weights(0)
    exported, expected = named_tensors(objective.module_at(w))[0], named_tensors(plain.module_at(w))[0]
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], expected[name]) for name in expected)
    found, there = (
        one.loss_and_gradient(torch.tensor(w)[None], [shard], [0])[1] for one in (objective, plain)
    )
    assert torch.equal(found, there)
    (note,) = objective.trial.notes
    assert note.startswith(f"it is trained without {kind.split(',')[0]};")


def test_functions_in_a_module_are_computed_by_one_thread() -> None:
    """What they write to may be one for all copies: a dictionary at the top of a file, for example."""
    for make, one_thread in ((hooked, True), (listed, True), (kept_by_make, False)):
        objective = ModuleObjective(make())
        objective.try_out(shard_of(objective.problem))
        assert objective.one_thread == one_thread


def captured() -> Problem:
    module = nn.Linear(6, 2)

    def penalised(given: nn.Module, x: Tensor, y: Tensor) -> Any:
        return loss(given, x, y) + 1e-2 * sum(parameter.square().sum() for parameter in module.parameters())

    return Problem(module, penalised, (X, Y), (X, Y))


def test_a_loss_that_uses_another_module_than_it_gets_is_refused() -> None:
    """A part of its gradient would be lost. A run of an earlier version, which lost it, goes on."""
    objective = ModuleObjective(captured())
    with pytest.raises(ProblemError, match=r"computes with the module that make\(\) returned"):
        objective.try_out(shard_of(objective.problem))
    ModuleObjective(captured(), recorded=True).try_out(shard_of(objective.problem))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch, about copies of such modules
def test_a_scripted_module_is_refused() -> None:
    """Ray cannot send it, so the simulator does not train it either, unless it did in an earlier version."""
    with pytest.warns(FutureWarning):
        scripted: Any = torch.jit.script(nn.Linear(6, 2))
    with pytest.raises(ProblemError, match=r"is compiled by torch\.jit"):
        ModuleObjective(Problem(scripted, loss, (X, Y), (X, Y)))
    problem = Problem(scripted, loss, (X, Y), (X, Y))
    recorded = ModuleObjective(problem, recorded=True, leaves_out=False)
    recorded.try_out(shard_of(recorded.problem))
    recorded.try_evaluation()

"""Losses and scores that are means over something else than samples: parts give what the whole gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dsgd.core.problem import Problem, ProblemError
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.objectives.replica import trained

N, CLASSES = 320, 8
DRAWS = torch.Generator().manual_seed(0)
IDS, TARGETS = torch.randint(0, CLASSES, (2, N, 16), generator=DRAWS)
LENGTHS = torch.randint(0, 17, (N,), generator=DRAWS).index_fill(0, torch.arange(2), 0)
TARGETS = TARGETS.masked_fill(torch.arange(16) >= LENGTHS[:, None], -100)  # the first two: padding alone


def network(width: int = 8) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(CLASSES, width), nn.Linear(width, CLASSES))


def empty_head() -> nn.Module:
    module = network()
    for parameter in list(module.parameters())[1:]:
        nn.init.zeros_(parameter)
    return module


def masked(module: nn.Module, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return cross_entropy(module(ids).flatten(0, 1), targets.flatten(), reduction=reduction)


def counted(module: nn.Module, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return masked(module, ids, targets, "sum"), (targets >= 0).sum()


def contrastive(module: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Each sample's two halves against those of all others."""
    first, second = (normalize(part.mean(1)) for part in module(ids).split(8, 1))
    return cross_entropy(first @ second.T, torch.arange(len(ids)))


def noisy(module: nn.Module, ids: Tensor, targets: Tensor) -> Any:
    return (module(ids) + torch.randn(len(ids), 16, CLASSES)).square().mean()


def squared(module: nn.Module, ids: Tensor, targets: Tensor) -> Any:
    return module(ids).square().mean()


def problem(loss: Callable[..., Any], module: nn.Module | None = None, **more: Any) -> Problem:
    return Problem(module or network(), loss, (IDS, TARGETS), (IDS, TARGETS), **more)


def shard(batch_size: int = 24) -> ProblemShard:
    return ProblemShard(0, (IDS, TARGETS), np.arange(N), batch_size=batch_size, seed=0)


@pytest.mark.parametrize("parts", [{}, {"accumulate": 8}, {"accumulate": 5, "ranks": 3}, {"ranks": 24}])
def test_a_total_and_a_count_give_the_mean_of_the_whole_mini_batch(parts: dict[str, Any]) -> None:
    """Whatever it is cut into, also where a part has nothing that counts: torch's mean over tokens, and its
    gradient; in one part bit for bit those of the quotient.
    """
    objective, of = ModuleObjective(problem(counted), **parts), shard()
    objective.try_out(of)
    w = torch.from_numpy(objective.initial_weights(0))[None]
    module = network()
    for step in range(3):
        loss, g = objective.loss_and_gradient(w, [of], [step])
        ids, targets = of.batch(step)
        total, count = counted(module, ids, targets)
        for mean, bound in ((masked(module, ids, targets), 5e-6), (total / count, 5e-6 if parts else 0)):
            expected = torch.cat([g.flatten() for g in torch.autograd.grad(mean, trained(module))])
            assert (g[0] - expected).norm() <= bound * expected.norm()
            assert abs(loss.item() - mean.item()) <= bound * mean.item()


@pytest.mark.parametrize("parts", [{"accumulate": 2}, {"ranks": 4}])
@pytest.mark.parametrize("module", [network, empty_head])
@pytest.mark.parametrize("loss", [masked, contrastive])
def test_a_mean_over_something_else_is_refused_in_parts(
    loss: Callable[..., Tensor], module: Callable[[], nn.Module], parts: dict[str, Any]
) -> None:
    """Also where the network says the same of all samples as yet. In one part it is trained."""
    ModuleObjective(problem(loss, module())).try_out(shard())
    option = "--accumulate 2" if "accumulate" in parts else "--ranks-per-worker 4"
    with pytest.raises(ProblemError, match=f"no mean over samples, so with {option} .* leave the option out"):
        ModuleObjective(problem(loss, module()), **parts).try_out(shard())


def test_what_is_a_mean_over_samples_is_computed_in_parts() -> None:
    """Also where dropout and normalization are other ones in parts, or each call draws random numbers."""
    normed = nn.Sequential(
        nn.Embedding(CLASSES, 4), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(4, CLASSES)
    )
    for loss, module in ((squared, None), (squared, normed), (noisy, None)):
        ModuleObjective(problem(loss, module), accumulate=3).try_out(shard())


class Centred(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0) if self.training else h


class Noise(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h + torch.randn_like(h)


BETWEEN: dict[str, tuple[Callable[[], Sequence[nn.Module]], str]] = {
    "nothing": (lambda: [], ""),
    "dropout": (lambda: [nn.Dropout(0.5)], ""),
    "norm": (lambda: [nn.BatchNorm1d(8)], "batch normalization"),
    "norm and dropout": (lambda: [nn.BatchNorm1d(8), nn.Dropout(0.5)], "batch normalization"),
    "frozen norm": (lambda: [nn.BatchNorm1d(8).eval()], ""),
    "norm of each": (lambda: [nn.LayerNorm(8)], ""),
    "centred": (lambda: [Centred()], "something looks across"),
    "noise": (lambda: [nn.BatchNorm1d(8), Noise()], "batch normalization"),
}


def between(kind: str) -> tuple[Problem, ProblemShard]:
    """Return a problem with these layers in the middle of a perceptron, and a shard of one mini-batch."""
    made = regression(r2)
    module = nn.Sequential(nn.Linear(4, 8), *BETWEEN[kind][0](), nn.Tanh(), nn.Linear(8, 1))
    return made._replace(module=module), ProblemShard(0, (X, Y), np.arange(16), batch_size=16, seed=0)


@pytest.mark.parametrize("parts", [{"accumulate": 4}, {"ranks": 2}])
@pytest.mark.parametrize("kind", BETWEEN)
def test_a_gradient_that_parts_do_not_give_is_named(kind: str, parts: dict[str, Any]) -> None:
    """By how much it differs from torch's, unless it draws random numbers apart from dropout."""
    (made, of), (_, named) = between(kind), BETWEEN[kind]
    objective = ModuleObjective(made, **parts)
    objective.try_out(of)
    notes = [note for note in objective.trial.notes if "from that of the whole" in note]
    assert [named in note for note in notes] == [True] * bool(named)
    in_eval_mode = (part.eval() for part in made.module.children() if isinstance(part, nn.Dropout))
    assert len([*in_eval_mode]) == ("dropout" in kind)

    def gradient(losses: Sequence[Tensor]) -> Tensor:
        mean = torch.stack(list(losses)).mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(mean, trained(made.module))])

    x, y = of.few(16).batch(0)
    count = math.prod(parts.values())
    cut = zip(x.chunk(count), y.chunk(count), strict=True)
    whole = gradient([made.loss(made.module, x, y)])
    share = (gradient([made.loss(made.module, *part) for part in cut]) - whole).norm() / whole.norm()
    if kind == "noise":
        assert "the gradient differs from that" in notes[0]
    else:
        said = (
            f"the gradient of 16 samples differs by {share:.2g} of its length from that of the whole: {named}"
        )
        assert [said in note for note in notes] == [True] * bool(share > 1e-4)


def test_a_whole_that_the_memory_does_not_hold_is_not_compared() -> None:
    """It is because of that that users ask for parts: batch normalization is named all the same."""
    made, of = between("norm")

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if module.training and len(x) > 4:
            raise torch.OutOfMemoryError
        found: Tensor = made.loss(module, x, y)
        return found

    objective = ModuleObjective(made._replace(loss=loss), accumulate=4)
    objective.try_out(of)
    (note,) = objective.trial.notes
    assert note.startswith("with --accumulate 4 the gradient differs from that of the whole: batch")


def test_a_part_of_one_sample_that_has_no_statistics_is_refused() -> None:
    made, of = between("norm")
    with pytest.raises(ProblemError, match="two samples in each part of a mini-batch: raise --batch-size"):
        ModuleObjective(made, accumulate=9).try_out(of)


NO_COUNTS = {
    "accuracy": lambda module, ids, targets: (squared(module, ids, targets), 0.5),
    "samples": lambda module, ids, targets: (squared(module, ids, targets), len(ids)),
    "logits": lambda module, ids, targets: (squared(module, ids, targets), module(ids)),
    "learned": lambda module, ids, targets: (module(ids).sum(), module(ids).square().sum()),
}


@pytest.mark.parametrize("kind", NO_COUNTS)
def test_what_is_no_total_and_no_count_is_refused(kind: str) -> None:
    """A mean with an accuracy, or with the number of its samples, is no sum and total."""
    message = {"logits": "its loss has shape", "learned": "the count of its loss depends on the parameters"}
    with pytest.raises(
        ProblemError, match=message.get(kind, "added up over . parts; return the sum, and the total")
    ):
        ModuleObjective(problem(NO_COUNTS[kind])).try_out(shard(8))


X = torch.randn(1000, 4, generator=DRAWS)
Y = (X.sum(1) + torch.linspace(-3, 3, 1000))[:, None]  # sorted, as by date


def r2(module: nn.Module, x: Tensor, y: Tensor) -> Any:
    return 1 - (module(x) - y).square().sum() / (y - y.mean(0)).square().sum()


def r2_of_sums(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    spread = (y - Y.mean(0)).square().sum()
    return spread - (module(x) - y).square().sum(), spread


def regression(score: Callable[..., Any], samples: int = 1000, **more: Any) -> Problem:
    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Any:
        return (module(x) - y).square().mean()

    torch.manual_seed(1)
    data = X[:samples], Y[:samples]
    return Problem(nn.Linear(4, 1), loss, data, data, score=score, **more)


@pytest.mark.parametrize(("score", "more"), [(r2_of_sums, {}), (r2, {"score_at_once": True})])
def test_a_score_is_that_of_the_whole_test_set(score: Callable[..., Any], more: dict[str, Any]) -> None:
    """From totals and counts, or computed at once."""
    made = regression(score, **more)
    objective = ModuleObjective(made)
    objective.try_evaluation()
    found = objective.evaluate(objective.initial_weights(0))
    assert found
    assert found.accuracy == pytest.approx(r2(made.module, X, Y).item(), rel=1e-5)


def test_a_score_that_parts_do_not_give_is_refused() -> None:
    """Unless all samples are evaluated at once anyway."""
    ModuleObjective(regression(r2, samples=200)).try_evaluation()
    with pytest.raises(ProblemError, match=r"no mean over samples; .* score_at_once=True"):
        ModuleObjective(regression(r2)).try_evaluation()


def test_a_loss_that_parts_do_not_give_is_named() -> None:
    """An evaluation has the mean of parts of a fixed size then; that of the whole from totals and counts."""
    (note,) = ModuleObjective(problem(masked)).try_evaluation().notes
    assert "an evaluation's is the mean of those of 256 samples each, unless" in note
    objective = ModuleObjective(problem(counted))
    assert not objective.try_evaluation().notes
    found = objective.evaluate(objective.initial_weights(0))
    assert found
    assert found.loss == pytest.approx(masked(network(), IDS, TARGETS).item(), rel=1e-6)


@pytest.mark.parametrize("samples", [40, 600])
def test_a_sum_is_called_a_sum(samples: int) -> None:
    """In evaluations of any size, and where a mini-batch is computed in parts, with the remedy."""
    made = problem(lambda module, x, y: 0.5 * ((module(x) - y) ** 2).sum())
    x, y = X[:samples], Y[:samples]
    made = made._replace(module=nn.Linear(4, 1), train=(x, y), test=(x, y))
    (note,) = ModuleObjective(made).try_evaluation().notes
    assert note.endswith("it is a sum over samples; take the mean, as reduction='mean' does")
    of = ProblemShard(0, (x, y), np.arange(samples), batch_size=16, seed=0)
    with pytest.raises(
        ProblemError, match=r"a sum over samples, so with --accumulate 4 .* take the mean, as"
    ):
        ModuleObjective(made, accumulate=4).try_out(of)


def test_an_evaluation_does_not_depend_on_how_gradients_are_computed() -> None:
    """Neither of a loss that draws random numbers nor of one that parts do not give."""
    for loss in (masked, noisy):
        ways = [
            ModuleObjective(problem(loss), **how) for how in ({}, {"accumulate": 4}, {"recomputed": True})
        ]
        first, *others = [way.evaluate(way.initial_weights(0)) for way in (*ways, *ways)]
        assert others == 5 * [first]


def test_large_outputs_are_evaluated_with_fewer_samples_at_once() -> None:
    """So that their memory suffices: 2^26 numbers, 16 tokens a sample."""
    seen: list[int] = []

    def loss(module: nn.Module, ids: Tensor, targets: Tensor) -> Any:
        seen.append(len(ids))
        return squared(module, ids, targets)

    objective = ModuleObjective(problem(loss, network(2**16)))
    objective.evaluate(objective.initial_weights(0))
    assert max(seen[1:]) == 64

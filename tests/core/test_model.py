"""Losses and gradients: the clever versions equal the naive ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsgd.core.model import Objective
from dsgd.core.rules import Arrived, Descend, Momentum, chain
from dsgd.core.tasks import Elastic, LocalAdamW, LocalSGD, Task, gradient
from dsgd.core.weights import CHUNK, Weights, mean
from dsgd.data import make_workload
from dsgd.running.quick_run import config

OBJECTIVES: list[dict[str, Any]] = [
    {},
    {"hidden": "none"},
    {"hidden": "8,5"},
    {"workload": "digits"},
    {"workload": "digits", "hidden": "none"},
    {"workload": "quadratic", "curvatures": "1,2,3", "optima": "0,1,-1", "dim": 4},
    {"workload": "quadratic", "curvatures": "1,2,3", "optima": "0,1,-1", "dim": 2 * CHUNK + 1000},
]
each_objective = pytest.mark.parametrize("options", OBJECTIVES, ids=str)


def _some_weights(options: dict[str, Any]) -> tuple[Any, Any, torch.Tensor]:
    workload = make_workload(config("ssgd", num_workers=3, **options))
    shards = workload.shards[0].on_device(workload.shards, "cpu")
    w = torch.from_numpy(
        np.random.default_rng(0).normal(0, 0.5, (3, workload.objective.num_weights)).astype(np.float32)
    )
    return workload, shards, w


@each_objective
def test_gradients_by_hand_equal_autograd(options: dict[str, Any]) -> None:
    """Hand-written back-propagation gives the loss and gradient that differentiating `loss` gives."""
    workload, shards, w = _some_weights(options)
    w_autograd = w.clone().requires_grad_()
    batch = shards[0].batches(shards, [0, 1, 2])[: 3 - ("quadratic" in options.values())]
    naive = workload.objective.loss(w_autograd, *batch)
    (naive_g,) = torch.autograd.grad(naive.sum(), w_autograd)
    loss, g = workload.objective.loss_and_gradient(w, shards, [0, 1, 2])
    torch.testing.assert_close(loss, naive.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(g, naive_g, rtol=1e-4, atol=1e-6)


@each_objective
def test_gradients_are_written_where_they_are_wanted(options: dict[str, Any]) -> None:
    """Given a place for them, gradients are written there, with the same bits, whatever was there."""
    workload, shards, w = _some_weights(options)
    loss, g = workload.objective.loss_and_gradient(w, shards, [0, 1, 2])
    place = torch.full_like(w, torch.nan)
    again, there = workload.objective.loss_and_gradient(w, shards, [0, 1, 2], place)
    assert there is place
    assert torch.equal(loss, again)
    assert torch.equal(g, place)


def test_an_objective_needs_only_a_loss() -> None:
    """Without its own gradient, an objective is differentiated by autograd."""

    class OnlyLoss(Objective):
        num_weights = 65

        def initial_weights(self, seed: int) -> Any: ...

        def evaluate(self, w: Any, *test: Any) -> None: ...

        def loss(self, w: Any, *batch: Any) -> Any:
            return classifier.loss(w, *batch)

    workload, shards, w = _some_weights({})
    classifier = workload.objective
    for a, b in zip(
        OnlyLoss().loss_and_gradient(w, shards, [0, 0, 0]),
        classifier.loss_and_gradient(w, shards, [0, 0, 0]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@each_objective
def test_many_workers_at_once_equal_one_after_the_other(options: dict[str, Any]) -> None:
    """The batched computation gives each worker what it would compute alone."""
    workload, shards, w = _some_weights(options)
    tasks: list[Task] = [
        gradient,
        LocalSGD(batches=3, lr=0.1, momentum=0.5),
        LocalSGD(batches=3, lr=0.1, momentum=0.5, keeps_velocity=True),
        LocalAdamW(batches=3, lr=0.01),
        Elastic(batches=3, lr=0.1, rate=0.2, momentum=0.5),
    ]
    for task in tasks:
        state = 0.01 * torch.rand(3, task.state_rows, w.shape[1], generator=torch.Generator().manual_seed(1))
        together = task(workload.objective, shards, [0, 5, 6], w, state)
        for p, step in enumerate([0, 5, 6]):
            alone = task(workload.objective, [shards[p]], [step], w[p : p + 1], state[p : p + 1])
            for a, b in zip(together, alone, strict=True):
                torch.testing.assert_close(a[p], b[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [3, 4, 16, 33])
@pytest.mark.parametrize("options", [{}, {"hidden": "none"}], ids=str)
def test_the_bits_of_a_worker_do_not_depend_on_how_many_are_computed_with_it(
    batch_size: int, options: dict[str, Any]
) -> None:
    """Of two workers or more, the loss and gradient of each are the same bytes, however many there are."""
    workload = make_workload(config("ssgd", num_workers=32, batch_size=batch_size, **options))
    objective = workload.objective
    shards = workload.shards[0].on_device(workload.shards, "cpu")
    rows = torch.randn(32, objective.num_weights, generator=torch.Generator().manual_seed(0))
    together = objective.loss_and_gradient(rows, shards, [1] * 32)
    for count in range(2, 32):
        some = objective.loss_and_gradient(rows[:count], shards[:count], [1] * count)
        assert all(torch.equal(a, b[:count]) for a, b in zip(some, together, strict=True))


@each_objective
def test_numpy_and_torch_compute_the_same_loss(options: dict[str, Any]) -> None:
    """The driver's evaluation in numpy is the workers' loss in torch."""
    workload, _, w = _some_weights(options)
    ours = workload.evaluate(w[0].numpy()).loss
    test = [torch.from_numpy(a) for a in workload.test]
    if "quadratic" in options.values():
        theirs = workload.objective.loss(w[0], *test).mean()
    else:
        theirs = workload.objective.loss(w[:1], test[0][None], test[1][None])[0]
    assert ours == pytest.approx(float(theirs), rel=1e-5)


def test_accuracy_is_the_share_of_right_guesses() -> None:
    """Before training both classes' logit is 0; a net that knows xor's labels is right everywhere."""
    workload, _, _ = _some_weights({"hidden": "4"})
    # |x0 + x1| - |x0 - x1| has the sign of x0 x1: four rectified units are enough.
    matrix = np.array([[1, -1, 1, -1], [1, -1, -1, 1]], np.float32)
    perfect = np.concatenate([matrix.ravel(), np.zeros(4), [-9, -9, 9, 9], [0]]).astype(np.float32)
    assert workload.evaluate(perfect).accuracy == 1.0
    assert workload.evaluate(perfect).loss < 0.4
    start = workload.evaluate(workload.objective.initial_weights(0))
    assert start.loss == pytest.approx(np.log(2))


def test_huge_logits_give_a_finite_loss() -> None:
    """Cross-entropies neither overflow nor lose the right class where logits are large."""
    for options in ({"hidden": "none"}, {"workload": "digits", "hidden": "none"}):
        workload, shards, w = _some_weights(options)
        loss, g = workload.objective.loss_and_gradient(w * 1e6, shards, [0, 0, 0])
        assert torch.isfinite(loss).all()
        assert torch.isfinite(g).all()
        assert np.isfinite(workload.evaluate(w[0].numpy() * 1e6).loss)


def test_weights_are_frozen() -> None:
    """Workers in flight hold the vector: nobody can write to it."""
    w = Weights(np.zeros(2, np.float32))
    w = chain(Momentum(0.9), Descend(0.1)).step(w, [Arrived(np.ones(2, np.float32), w)])
    with pytest.raises(ValueError, match="read-only"):
        w.vector[0] = 1


def test_momentum_is_heavy_ball() -> None:
    """V <- m v + g, w <- w - lr v: after two unit gradients w = -lr (2 + m)."""
    rule, w = chain(Momentum(0.5), Descend(0.1)), Weights(np.zeros(1, np.float32))
    for _ in range(2):
        w = rule.step(w, [Arrived(np.ones(1, np.float32), w)])
    assert w.vector[0] == pytest.approx(-0.1 * 2.5)


def test_a_mean_leaves_its_terms_alone() -> None:
    """Averaging writes into no worker's vector."""
    vectors = [np.full(3, k, np.float32) for k in range(3)]
    np.testing.assert_array_equal(mean(vectors), np.ones(3))
    np.testing.assert_array_equal(vectors[0], np.zeros(3))


def test_gradient_noise_has_the_asked_deviation() -> None:
    """--grad-noise s: a gradient is a (w - x) plus noise of mean 0 and deviation s, anew each step."""
    workload = make_workload(config("ssgd", num_workers=2, workload="quadratic", dim=500, grad_noise=0.3))
    shards = workload.shards[0].on_device(workload.shards, "cpu")
    w = torch.zeros(2, 500)
    noise = torch.stack([workload.objective.loss_and_gradient(w, shards, [k, k])[1] for k in range(40)])
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert len(np.unique(noise.numpy())) > 0.99 * noise.numel()

"""Balancing of experts: the formulas agree with counting, and a router's limit follows from its scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

from dsgd.core.time_laws import Floats
from dsgd.data import make_workload
from dsgd.models.moe.mixture import mixtures
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.running.quick_run import QuickRun, config, run
from dsgd.teach.labs.quantities import max_violation, max_violation_together
from dsgd.theory.balancing import (
    curvature,
    curvatures_of_scores,
    density_at_threshold,
    density_of_sigmoid,
    expected_shares,
    largest_stable_rate,
)


def shares_of(scores: Floats, top_k: int) -> Floats:
    """Return the shares of the load (E,) of tokens with scores (T, E): what is chosen, counted."""
    chosen = np.argsort(-scores, axis=1)[:, :top_k]
    return np.bincount(chosen.ravel(), minlength=scores.shape[1]) / chosen.size


@pytest.mark.parametrize(("experts", "top_k"), [(2, 1), (3, 1), (3, 2), (8, 2), (16, 4), (64, 6)])
def test_the_slope_of_expected_shares_is_the_curvature(experts: int, top_k: int) -> None:
    """In all directions in which biases add up to 0, to first order; a shift of all changes nothing."""
    bias = np.random.default_rng(0).normal(size=experts) * 1e-4
    bias -= bias.mean()
    error = expected_shares(bias, top_k) - 1 / experts
    limit = curvature(experts, top_k) * np.abs(bias).max()
    assert np.abs(error - curvature(experts, top_k) * bias).max() < 0.01 * limit
    assert expected_shares(bias + 3, top_k) == pytest.approx(expected_shares(bias, top_k), abs=1e-12)
    assert error.sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_expected_shares_are_those_of_many_tokens(top_k: int) -> None:
    """At biases far from balance, too: 100,000 drawn tokens say the same, within their noise."""
    bias = np.array([0.0, -0.7, 0.3, 0.8, 0.1])
    counted = shares_of(np.random.default_rng(1).random((100_000, 5)) + bias, top_k)
    assert expected_shares(bias, top_k) == pytest.approx(counted, abs=0.006)


def test_two_experts_meet_where_their_scores_differ() -> None:
    """Of two experts the second wins with chance (1 - b)^2/2 if the first is b ahead."""
    assert expected_shares(np.array([0.4, 0.0]), 1)[1] == pytest.approx(0.6**2 / 2, rel=1e-12)


def test_the_curvature_follows_from_the_density_at_the_threshold() -> None:
    """Ties of drawn tokens, whose scores are sigmoids of normal logits, have the formula's curvature."""
    logits = 0.5 * np.random.default_rng(2).normal(size=(200_000, 8))
    density = density_at_threshold(lambda q: density_of_sigmoid(q, spread=0.5), 8, 2)
    first, *others = curvatures_of_scores(expit(logits), 2, gap=0.002)
    assert first == pytest.approx(0, abs=1e-12)
    assert np.mean(others) == pytest.approx(curvature(8, 2, density), rel=0.03)


def test_the_router_s_gradient_is_the_error_of_its_shares() -> None:
    """A worker's gradient is share - 1/E, counted on its own tokens, with the bias; its loss is 0."""
    cfg = config("ssgd", workload="router", num_workers=2, batch_size=64, unbalanced=0.5, balance_rate=0.25)
    workload = make_workload(cfg)
    objective, shard = workload.objective, workload.shards[1]
    assert isinstance(objective, ModuleObjective)
    assert isinstance(shard, ProblemShard)
    w = torch.from_numpy(objective.initial_weights(0))
    (loss,), (g,) = objective.loss_and_gradient(w[None], [shard], [3])
    (x,) = shard.batch(3)
    scores = x.sigmoid().numpy() + 0.25 * w.numpy()
    assert loss == 0
    assert np.ptp(0.25 * w.numpy()) == pytest.approx(0.5)
    assert g.numpy() == pytest.approx(shares_of(scores, 2) - 1 / 8, abs=1e-6)


@pytest.mark.parametrize(
    ("delay", "times", "settles"), [(0, 0.7, True), (0, 1.4, False), (3, 0.7, True), (3, 1.4, False)]
)
def test_the_limit_of_a_router_with_any_scores_follows_from_its_ties(
    delay: int, times: float, settles: bool
) -> None:
    """Of scores that depend on each other: below the limit, estimated in balance, loads stay even; above it
    tokens hop.
    """
    rng = np.random.default_rng(3)
    tokens, router = rng.normal(size=(8192, 6)), rng.normal(size=(6, 8))  # fewer features than experts
    scores, bias = expit(tokens @ router / 2), np.zeros(8)
    for _ in range(300):
        bias -= 0.3 * (shares_of(scores + bias, 2) - 1 / 8)
    largest = curvatures_of_scores(scores + bias, 2, gap=0.02)[-1]
    rate = times * largest_stable_rate(1.0, largest, delay=delay)
    past = [bias + 0.02 * rng.normal(size=8)] * (delay + 1)
    violation = []
    for _ in range(60 * (delay + 1)):
        shares = shares_of(scores + past[-1 - delay], 2)
        violation.append(8 * shares.max() - 1)
        past.append(past[-1] - rate * (shares - 1 / 8))
    late = np.mean(violation[len(violation) // 2 :])
    assert (late < 0.02) if settles else (late > 0.3)


def scores_of_routers(outcome: QuickRun) -> list[Floats]:
    """Return each mixture's scores (T, E) of the test samples, bias included, after the last update."""
    objective = make_workload(outcome.cfg).objective
    found: list[Floats] = []
    assert isinstance(objective, ModuleObjective)
    module = objective.module_at(outcome.w)

    def look(layer: Any, x: tuple[torch.Tensor]) -> None:
        scores = torch.nn.functional.linear(x[0], layer.router).sigmoid()
        found.append((scores + layer.options.balance_rate * layer.balance).detach().double().numpy())

    for layer in mixtures(module):
        layer.register_forward_pre_hook(look)
    with torch.no_grad():
        module(objective.problem.test[0])
    return found


@pytest.mark.thorough
def test_the_limit_of_routers_that_learn_follows_from_their_scores() -> None:
    """Of a mixture in ASGD, estimated where loads are even: well below it each version stays even, and above
    it tokens hop, which the loads of many versions together do not show.
    """
    lr, workers = 0.1, 4

    def trained(rate: float) -> QuickRun:
        options: dict[str, Any] = {
            "workload": "moe",
            "compute_time": "constant:1",
            "batch_size": 256,
            "balance_rate": rate,
        }
        return run("asgd", num_workers=workers, steps=40, lr=lr, **options)

    largest = max(curvatures_of_scores(scores, 2, gap=0.02)[-1] for scores in scores_of_routers(trained(1.0)))
    limit = largest_stable_rate(lr, largest, delay=workers - 1)
    below, above = trained(0.6 * limit), trained(1.5 * limit)
    assert max_violation(below).measured < 0.3
    assert max_violation(above).measured > 1
    assert max_violation_together(above).measured < 0.2

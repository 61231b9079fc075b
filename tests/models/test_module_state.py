"""What a module carries besides its trained parameters stays as in a plain loop of torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import nn

from dsgd.config import TrainConfig
from dsgd.core.problem import Problem
from dsgd.data import make_workload
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard, seed_torch
from dsgd.models.objectives.replica import trained
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config
from dsgd.running.trained_run import trained_run

CARRYING = str(ROOT / "tests/workloads/carrying.py")


def plain_loop(cfg: TrainConfig) -> nn.Module:
    """Return the module of a workload as a loop of torch trains it, on the first worker's mini-batches."""
    made = make_workload(cfg)
    shard = cast(ProblemShard, made.shards[0])
    problem = cast(ModuleObjective, made.objective).problem
    module = copy.deepcopy(problem.module)
    optimizer = torch.optim.SGD(trained(module), cfg.lr)
    for step in range(cfg.steps):
        seed_torch(torch.device("cpu"), shard.torch_seed(step))
        optimizer.zero_grad()
        torch.autograd.backward(problem.loss(module, *shard.batch(step)))
        optimizer.step()
    return module


def loss_of(module: nn.Module, cfg: TrainConfig) -> float:
    """Return a module's loss on the test data in eval mode."""
    problem = cast(ModuleObjective, make_workload(cfg).objective).problem
    with torch.no_grad():
        return float(problem.loss(module.eval(), *problem.test))


def options(carries: str, **more: Any) -> dict[str, Any]:
    kept = {"workload": CARRYING, "carries": carries, "momentum": 0.0, "lr": 0.005}
    return {**kept, "num_workers": 1, "batch_size": 384, "steps": 40, **more}


@pytest.mark.parametrize("carries", ["frozen", "frozen-by-train", "frozen-by-loss"])
def test_a_frozen_layer_is_left_alone(carries: str, tmp_path: Path) -> None:
    """A pretrained normalization that make(), train() or the loss keeps in eval mode has its statistics in
    training, in evaluations and in what is exported: the numbers are a plain loop's.
    """
    cfg = config("ssgd", **options(carries), out=str(tmp_path), run_name="r")
    ended = execute(cfg, record=RunRecord(cfg))
    module = plain_loop(cfg)
    expected = torch.cat([parameter.detach().flatten() for parameter in trained(module)])
    torch.testing.assert_close(torch.tensor(ended.weights.vector), expected)
    found = loss_of(module, cfg)
    assert ended.evaluations[-1].found.loss == pytest.approx(found, rel=1e-4)
    assert found < 10
    run = trained_run(str(tmp_path / "r"))
    assert run.evaluate().loss == pytest.approx(found, rel=1e-4)
    for name, kept in module.state_dict().items():
        torch.testing.assert_close(run.module().state_dict()[name], kept)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_running_statistics_are_means_over_training_samples(layer: Any) -> None:
    """A layer in training mode has, in an evaluation, the means of two passes over the training samples."""
    x = torch.randn(512, 3, 5, generator=torch.Generator().manual_seed(0)) + 2
    module = nn.Sequential(layer(3, track_running_stats=True), nn.Flatten(), nn.Linear(15, 1))
    objective = ModuleObjective(Problem(module, lambda module, x: module(x).square().mean(), (x,), (x,)))
    shard = ProblemShard(0, (x,), np.arange(512), batch_size=8, seed=0)
    w = objective.initial_weights(0)
    for step in range(3):
        objective.loss_and_gradient(torch.from_numpy(w)[None], [shard], [step])
    (found, *_) = cast(Any, objective.module_at(w))
    torch.testing.assert_close(found.running_mean, x.mean((0, 2)))
    within = x.var((0, 2)) if layer is nn.BatchNorm1d else x.var(2).mean(0)
    torch.testing.assert_close(found.running_var, within, rtol=0.02, atol=0)
    assert found.momentum == 0.1

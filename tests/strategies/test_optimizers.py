"""Optimizer, schedule, clipping and weight decay: one worker is torch, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsgd.core.rules import Schedule
from dsgd.core.weights import Vector
from dsgd.data import make_workload
from dsgd.running.quick_run import assert_close, config, run

STEPS = 24
GRADIENT_MODES = ("ssgd", "asgd", "ssp", "dssp", "dcasgd", "kasync", "ksync", "rennala", "ringmaster")
# Where one worker's own steps are all that moves the weights.
LOCAL_MODES: dict[str, dict[str, Any]] = {
    "localsgd": {"local_steps": 7},
    "adacomm": {"local_steps": 5, "interval_s": 6.0},
    "diloco": {"local_steps": 7, "inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0},
}


def torch_weights(
    optimizer: str, lr: float, clip: float | None, schedule: Schedule, **options: Any
) -> Vector:
    """Return where torch's optimizer leads on the only worker's mini-batches."""
    workload = make_workload(config("ssgd", num_workers=1))
    shard = workload.shards[0].on_device(workload.shards, "cpu")[0]
    w = torch.nn.Parameter(torch.from_numpy(workload.objective.initial_weights(0)))
    kind: Any = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
    descent = kind([w], lr=lr, **options)
    follow = torch.optim.lr_scheduler.LambdaLR(descent, schedule.factor)
    for step in range(STEPS):
        w.grad = workload.objective.loss_and_gradient(w.data[None], [shard], [step])[1][0]
        if clip:
            torch.nn.utils.clip_grad_norm_([w], clip)
        descent.step()
        follow.step()
    found: Vector = w.detach().numpy()
    return found


RECIPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"weight_decay": 0.1, "momentum": 0.9}, {"optimizer": "sgd", "weight_decay": 0.1, "momentum": 0.9}),
    ({"clip_norm": 0.2, "schedule": "cosine,warmup=5"}, {"optimizer": "sgd"}),
    ({"schedule": "linear", "momentum": 0.5}, {"optimizer": "sgd", "momentum": 0.5}),
]
ADAMW: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"optimizer": "adamw", "lr": 0.02}, {"optimizer": "adamw", "weight_decay": 0.01}),
    (
        {
            "optimizer": "adamw",
            "lr": 0.02,
            "weight_decay": 0.0,
            "clip_norm": 0.2,
            "schedule": "cosine,warmup=3",
        },
        {"optimizer": "adamw", "weight_decay": 0.0},
    ),
]


@pytest.mark.crossing
@pytest.mark.parametrize(
    ("options", "theirs"), RECIPES + ADAMW, ids=lambda x: " ".join(f"{k}={v}" for k, v in x.items())
)
@pytest.mark.parametrize("mode", [*GRADIENT_MODES, *LOCAL_MODES])
def test_one_worker_is_torch(mode: str, options: dict[str, Any], theirs: dict[str, Any]) -> None:
    """With P = 1 each mode goes where torch.optim, its schedulers and clip_grad_norm_ go, to rounding."""
    if mode in LOCAL_MODES and options.get("optimizer"):
        with pytest.raises(TypeError, match="optimizer"):
            config(mode, **options)
        return
    special = {"compensation": 0.0} if mode == "dcasgd" else LOCAL_MODES.get(mode, {})
    if mode == "localsgd" and "momentum" in options:
        special = {"local_steps": STEPS}  # its velocity starts at 0 in each task
    if mode == "adacomm" and "momentum" in options:
        special = {"local_steps": STEPS}
    ours = run(mode, num_workers=1, steps=STEPS, **special, **options)
    schedule = Schedule(**ours.cfg.parsed_schedule._asdict(), steps=STEPS)
    assert_close(ours.w, torch_weights(lr=ours.cfg.lr, clip=ours.cfg.clip_norm, schedule=schedule, **theirs))


def test_the_workers_adamw_is_torch_s_with_a_schedule() -> None:
    """DiLoCo's inner AdamW follows the schedule, the clipping and the decay by the worker's own clock."""
    ours = run(
        "diloco", num_workers=1, steps=STEPS, local_steps=7, outer_lr=1.0, outer_momentum=0.0, lr=0.02,
        schedule="cosine,warmup=4", clip_norm=0.2, weight_decay=0.05,
    )  # fmt: skip
    schedule = Schedule(shape="cosine", warmup=4, steps=STEPS)
    assert_close(ours.w, torch_weights("adamw", 0.02, 0.2, schedule, weight_decay=0.05))


def test_elastic_workers_follow_the_schedule() -> None:
    """With a very weak spring, EASGD's only worker is torch's SGD with schedule and decay."""
    ours = run("easgd", num_workers=1, steps=STEPS, moving_rate=1e-9, schedule="linear", weight_decay=0.1)
    schedule = Schedule(shape="linear", steps=STEPS)
    theirs = torch_weights("sgd", ours.cfg.lr, None, schedule, weight_decay=0.1)
    assert_close(ours.dones[-1].value, theirs)


@pytest.mark.parametrize("mode", GRADIENT_MODES)
def test_a_schedule_ends_with_the_budget(mode: str) -> None:
    """However many gradients make an update: the step size has fallen to (nearly) 0 when the budget is
    spent.
    """
    outcome = run(
        mode, num_workers=4, steps=40, schedule="linear", workload="quadratic", compute_time="exponential:1"
    )
    before, last = outcome.updates[-2].weights.vector, outcome.updates[-1].weights.vector
    first = outcome.updates[0].weights.vector
    start = make_workload(outcome.cfg).objective.initial_weights(0)
    assert np.linalg.norm(last - before) < 0.1 * np.linalg.norm(first - start)

"""A module is trained as by a plain loop of torch: what no gradient reaches is left alone, and hooks hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT, CommandLine
from torch import Tensor

from dsgd.config import TrainConfig
from dsgd.data import make_workload
from dsgd.models import file_workload
from dsgd.models.objectives import module_objective
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.workloads import make_problem
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import modes, strategy_of

HEADS = str(ROOT / "tests/workloads/heads.py")
HOOKED = str(ROOT / "tests/workloads/hooked.py")
HOOKS = ["rows", "clamp", "method", "halved", "replaced", "dropped", "module", "inputs", "function"]
STEPS = 24


def heads(mode: str, **options: Any) -> TrainConfig:
    known = {"workload": HEADS, "batch_size": 2, "steps": STEPS, "lr": 0.05, "weight_decay": 0.1}
    return config(mode, **known | {"num_workers": 1} | options)


def trained(cfg: TrainConfig) -> Tensor:
    """Return the weights (D,) of a run."""
    ended = execute(cfg)
    assert ended.error is None
    return torch.tensor(ended.weights.vector)


def plain_loop(cfg: TrainConfig, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Tensor:
    """Return the weights (D,) after a loop of torch: in each step the mean of the workers' gradients, of
    which a parameter has none if no worker reaches it.
    """
    made = make_workload(cfg)
    problem, shards = make_problem(cfg.data, cfg.seed), cast(Sequence[ProblemShard], made.shards)
    module = problem.module
    steps = optimizer(module.parameters())
    for step in range(cfg.steps):
        steps.zero_grad()
        for shard in shards:
            torch.autograd.backward(problem.loss(module, *shard.batch(step)) / len(shards))
        steps.step()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def sgd(momentum: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=momentum, weight_decay=0.1)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.05, weight_decay=0.1)


PLAIN = sorted({*modes()} - {"easgd"})
"""Modes that are plain SGD with one worker. EASGD's centre follows its worker; it is among `OTHERS`."""


@pytest.mark.parametrize("mode", PLAIN)
def test_one_worker_of_each_mode_is_a_plain_loop(mode: str) -> None:
    """Decay and momentum leave alone what a mini-batch does not reach."""
    strategy: Any = strategy_of(heads(mode))
    options = {"momentum": 0.9, **strategy.LAWS.plain_sgd}
    cfg = heads(mode, **options)
    expected = plain_loop(cfg, sgd(float(options["momentum"])))
    torch.testing.assert_close(trained(cfg), expected)


ADAMW: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {"optimizer": "adamw"}),
    ("diloco", {"outer_lr": 1.0, "outer_momentum": 0.0, "local_steps": 6}),
    ("noloco", {"outer_lr": 1.0, "outer_momentum": 0.0, "local_steps": 6}),
    ("streaming", {"outer_lr": 1.0, "outer_momentum": 0.0, "local_steps": 6, "fragments": 1}),
]


@pytest.mark.parametrize(("mode", "options"), ADAMW)
def test_adam_counts_the_steps_of_each_parameter(mode: str, options: dict[str, Any]) -> None:
    """The bias correction of a head is by the gradients that have reached it."""
    cfg = heads(mode, **options)
    torch.testing.assert_close(trained(cfg), plain_loop(cfg, adamw))


@pytest.mark.parametrize("topology", ["server", "allreduce", "sharded:2"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_what_one_of_the_workers_reaches_is_moved(topology: str, optimizer: str) -> None:
    """A parameter stays only where no result has a gradient of it; it counts 0 for the others."""
    kind: Any = {"momentum": 0.9} if optimizer == "sgd" else {"optimizer": "adamw"}
    cfg = heads("ssgd", num_workers=2, topology=topology, **kind)
    expected = plain_loop(cfg, sgd(0.9) if optimizer == "sgd" else adamw)
    torch.testing.assert_close(trained(cfg), expected)


CODECS = ["topk:0.3", "randk:0.5", "sign", "qsgd:4", "int8", "fp4", "powersgd:2"]
AGGREGATES = ["median", "trimmed:1", "krum:1", "geometric", "clip:1", "bulyan:0"]


def spare(cfg: TrainConfig, vector: Any) -> tuple[Any, Any]:
    """Return what the parameters that nothing reaches were, and are."""
    objective = cast(ModuleObjective, make_workload(cfg).objective)
    module, ends = objective.problem.module, np.cumsum(objective.parameter_sizes)
    parameters = zip(module.named_parameters(), objective.parameter_sizes, ends, strict=True)
    where = [slice(end - size, end) for (name, _), size, end in parameters if "spare" in name]
    first = objective.initial_weights(cfg.seed)
    was, now = (np.concatenate([some[there] for there in where]) for some in (first, vector))
    return was, now


OTHERS: list[dict[str, Any]] = [
    *({"compress": codec} for codec in CODECS),
    *({"compress": codec, "error_feedback": "ef21"} for codec in ("sign", "topk:0.3")),
    *({"aggregate": how, "num_workers": 5} for how in AGGREGATES),
    {"faults": "lie:1=signflip", "num_workers": 3},
    {"mode": "dcasgd", "adaptive": True, "num_workers": 3},
    {"compress": "dgc:0.1", "num_workers": 2, "momentum": 0.0},
    {"mode": "asgd", "filter": "kardam:1", "num_workers": 4},
    {"mode": "easgd", "num_workers": 2},
    {"mode": "ksync", "k": 2, "num_workers": 3},
    {"num_workers": 2, "accumulate": 2, "batch_size": 4, "precision": "bf16"},
    {"mode": "asgd", "num_workers": 3, "faults": "kill:1@step=5"},
    {"num_workers": 2, "optimizer": "adamw", "momentum": 0.0, "compress": "qsgd:4"},
]


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_what_nothing_reaches_stays(options: dict[str, Any]) -> None:
    known: dict[str, Any] = {"mode": "ssgd", "momentum": 0.9}
    cfg = heads(**known | options)
    was, now = spare(cfg, trained(cfg).numpy())
    assert was.tobytes() == now.tobytes()


@pytest.mark.parametrize("mode", ["diloco", "ssgd"])
def test_a_run_that_goes_on_and_a_replay_count_on(mode: str, tmp_path: Path, cli: CommandLine) -> None:
    """Counts are a part of checkpoints, like moments; a worker that is lost begins again with them."""
    options: Any = {"inner": "adamw", "local_steps": 4} if mode == "diloco" else {"optimizer": "adamw"}
    options |= {"num_workers": 2, "out": str(tmp_path), "checkpoint_every": "2"}
    whole, cut = (heads(mode, **options, run_name=name) for name in ("whole", "cut"))
    expected = execute(whole, record=RunRecord(whole)).weights
    faults = heads(mode, **options, run_name="lost", faults="kill:1@step=9")
    lost = execute(faults, record=RunRecord(faults)).weights
    assert lost.vector.tobytes() == expected.vector.tobytes()
    first = execute(replace(cut, steps=STEPS // 2), record=RunRecord(replace(cut, steps=STEPS // 2)))
    assert first.path
    assert cli(f"--resume {first.path} --steps {STEPS}").code == 0
    assert (tmp_path / "cut/weights.npy").read_bytes() == (tmp_path / "whole/weights.npy").read_bytes()
    assert compared(recorded_run(tmp_path / "cut")).same_weights


def test_a_run_says_what_no_gradient_reaches_and_a_mini_batch_of_all_tasks_counts_too() -> None:
    """Also where the mini-batch that is tried reaches all that any does, as some samples do not."""
    ended = execute(heads("ssgd"))
    assert [note for note in ended.not_kept if "no gradient reaches its spare.weight, spare.bias" in note]
    cfg = heads("ssgd", runs=1, used=True, seed=1, optimizer="adamw")
    assert not execute(cfg).not_kept
    torch.testing.assert_close(trained(cfg), plain_loop(cfg, adamw))


def test_a_record_of_an_earlier_version_is_computed_as_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decay and momentum moved all parameters."""
    today = file_workload.module_objective
    cfg = heads("ssgd", momentum=0.9, out=str(tmp_path), run_name="r")
    with monkeypatch.context() as then:
        then.setattr(
            file_workload, "module_objective", lambda cfg, made, recorded: today(cfg, made, recorded={})
        )
        was, now = spare(cfg, execute(cfg, record=RunRecord(cfg)).weights.vector)
    assert np.linalg.norm(now) < 0.99 * np.linalg.norm(was)
    assert compared(recorded_run(tmp_path / "r")).same_weights


def test_a_replay_leaves_out_what_its_record_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Ray each worker has tried its own samples: a replay, with the first one's, may find nothing."""
    cfg = heads("ssgd", runs=1, used=True, seed=1, optimizer="adamw", out=str(tmp_path), run_name="r")
    assert execute(cfg, record=RunRecord(cfg)).error is None
    monkeypatch.setattr(module_objective, "_one_by_one", lambda count: iter(()))
    assert compared(recorded_run(tmp_path / "r")).same_weights


ON_RAY: list[dict[str, Any]] = [
    {"optimizer": "adamw"},
    {"optimizer": "adamw", "topology": "sharded:2"},
    {"optimizer": "adamw", "topology": "allreduce"},
    {"optimizer": "adamw", "ranks_per_worker": 2},
    {"momentum": 0.9, "ranks_per_worker": 2, "parallel": "ddp", "compress": "topk:1.0"},
]


@pytest.mark.ray
@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize("options", ON_RAY, ids=str)
def test_workers_on_ray_leave_the_same_out(options: dict[str, Any], ray_cluster: str) -> None:
    cfg = heads("ssgd", num_workers=2, engine="ray", **options)
    expected = plain_loop(replace(cfg, engine="sim"), adamw if "optimizer" in options else sgd(0.9))
    torch.testing.assert_close(trained(cfg), expected)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("mode", ["ssgd", "localsgd"])
def test_hooks_on_what_flows_back_hold(mode: str, hook: str) -> None:
    """On tensors, on what was accumulated, on modules, and in functions with a gradient of their own."""
    more: Any = {"momentum": 0.9} if mode == "ssgd" else {"local_steps": 3, "momentum": 0.0}
    cfg = heads(mode, **more, workload=HOOKED, hook=hook)
    torch.testing.assert_close(trained(cfg), plain_loop(cfg, sgd(more["momentum"])))


@pytest.mark.ray
@pytest.mark.crossing(one_in=9)
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_hold_in_other_processes(hook: str, ray_cluster: str) -> None:
    cfg = heads("ssgd", workload=HOOKED, hook=hook, engine="ray", momentum=0.9)
    torch.testing.assert_close(trained(cfg), plain_loop(replace(cfg, engine="sim"), sgd(0.9)))


def test_a_group_of_ranks_refuses_a_hook_on_a_parameter() -> None:
    with pytest.raises(ValueError, match=r"hook on the gradient of its words\.weight.*--ranks-per-worker"):
        make_workload(heads("ssgd", workload=HOOKED, hook="rows", ranks_per_worker=2))


def test_hooks_on_parts_of_a_mini_batch_are_named() -> None:
    ended = execute(heads("ssgd", workload=HOOKED, hook="clamp", accumulate=2))
    assert [note for note in ended.not_kept if "hooks on gradients are called with" in note]

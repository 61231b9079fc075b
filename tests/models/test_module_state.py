"""What a module carries besides its trained parameters stays as in a plain loop of torch."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT, CommandLine
from safetensors.numpy import load_file
from torch import Tensor, nn

from dsgd.config import TrainConfig
from dsgd.core.problem import Problem, ProblemError
from dsgd.data import make_workload
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.objectives.process_wide import seed_generators
from dsgd.models.objectives.replica import trained
from dsgd.records.stores.store import version_of
from dsgd.records.workload_copy import CARRIED
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config
from dsgd.running.replaying import compared, recorded_run
from dsgd.running.trained_module import named_tensors
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
        seed_generators(torch.device("cpu"), shard.torch_seed(step))
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


KINDS = ["frozen", "frozen-by-train", "frozen-by-loss", "spectral", "average", "types", "teacher"]


@pytest.mark.parametrize("carries", KINDS)
def test_one_worker_is_a_plain_loop(carries: str, tmp_path: Path) -> None:
    """The weights, the loss of evaluations and all that is exported: of a module with a pretrained layer that
    make(), train() or the loss keeps in eval mode, and of those whose forward pass changes buffers or frozen
    parameters.
    """
    cfg = config("ssgd", **options(carries), out=str(tmp_path), run_name="r")
    ended = execute(cfg, record=RunRecord(cfg))
    module = plain_loop(cfg)
    expected = torch.cat([parameter.detach().flatten() for parameter in trained(module)])
    torch.testing.assert_close(torch.tensor(ended.weights.vector), expected)
    found = loss_of(module, cfg)
    assert ended.evaluations[-1].found.loss == pytest.approx(found, rel=1e-4)
    run = trained_run(str(tmp_path / "r"))
    assert run.evaluate().loss == pytest.approx(found, rel=1e-4)
    tensors = run.module().state_dict()
    torch.testing.assert_close(dict(tensors), dict(module.state_dict()))
    if carries == "types":  # nothing of them is rounded
        assert all(torch.equal(tensors[name], buffer) for name, buffer in module.named_buffers())
    assert not ended.not_kept


def record(folder: Path, name: str, carries: str, mode: str = "asgd", **more: Any) -> Path:
    """Return the record of a run of four workers whose results come in at random times."""
    times = {"num_workers": 4, "batch_size": 8, "compute_time": "exponential:1", "eval_every": 5}
    cfg = config(mode, **options(carries, **times | more), out=str(folder), run_name=name)
    ended = execute(cfg, record=RunRecord(cfg))
    assert ended.path is not None
    assert ended.error is None
    return ended.path


def content(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in ("weights.npy", CARRIED, "evals.jsonl")]


@pytest.mark.crossing(one_in=2)
@pytest.mark.parametrize("carries", ["spectral", "average", "types", "teacher"])
def test_the_same_command_gives_the_same_weights(carries: str, tmp_path: Path) -> None:
    """Whichever thread computes which worker's tasks; a replay makes them again; and a checkpoint evaluates
    to what the run had found there.
    """
    first, second = (record(tmp_path, name, carries, checkpoint_every="5") for name in ("a", "b"))
    assert content(first) == content(second)
    again = compared(recorded_run(first))
    assert again.same_weights
    evaluations = [json.loads(line) for line in (first / "evals.jsonl").read_text().splitlines()]
    by_version = {evaluation["version"]: evaluation["loss"] for evaluation in evaluations}
    found = again.evaluate()
    assert found is not None
    assert found.loss == evaluations[-1]["loss"]
    kept = [version_of(file.name) for file in (first / "checkpoints").iterdir()]
    both = by_version.keys() & set(kept)
    assert both
    for version in both:
        assert trained_run(f"{first}@{version}").evaluate().loss == by_version[version]


def test_a_run_that_goes_on_carries_on(tmp_path: Path, cli: CommandLine) -> None:
    """Cut at a checkpoint and resumed, it ends with the same bytes; so it does where a worker was lost, whose
    task is computed again, and with compressed results.
    """
    for name, carries, more in (
        ("plain", "average", {}), ("all", "types", {}), ("sent", "average", {"compress": "topk:0.5"})
    ):  # fmt: skip
        whole = record(tmp_path, name, carries, "ssgd", checkpoint_every="10", **more)
        lost = record(tmp_path, f"{name}-lost", carries, "ssgd", faults="kill:1@step=13", **more)
        assert content(lost)[:2] == content(whole)[:2]
        expected = content(whole)
        checkpoints = sorted((whole / "checkpoints").iterdir(), key=lambda file: version_of(file.name) or 0)
        for later in (*checkpoints[1:], whole / "summary.json", whole / "weights.npy", whole / CARRIED):
            later.unlink()
        assert cli(f"--resume {whole}").code == 0
        assert content(whole) == expected


def test_the_first_worker_that_is_there_is_evaluated(tmp_path: Path) -> None:
    """Of workers that each count their gradients: once worker 0 has left, the next one."""
    left = record(tmp_path, "left", "average", "ssgd", faults="leave:0@step=10")
    whole = record(tmp_path, "whole", "average", "ssgd")
    counts = [int(load_file(path / CARRIED)["updates"]) for path in (left, whole)]
    assert counts[1] == 40
    assert counts[0] > 40  # the others took over its share


@pytest.mark.ray
@pytest.mark.crossing(one_in=3)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("carries", "mode", "more"),
    [
        ("spectral", "ssgd", {}),
        ("types", "ssgd", {}),
        ("average", "diloco", {"local_steps": 5}),
        ("teacher", "localsgd", {}),
    ],
)
def test_both_engines_carry_the_same(carries: str, mode: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Weights, what is carried, and evaluations have the same bytes on Ray as in the simulator, and a replay
    makes the weights again.
    """
    sizes = {"num_workers": 2, "batch_size": 8, "steps": 20, **more}
    found = []
    for engine in ("ray", "sim"):
        cfg = config(mode, **options(carries, **sizes, engine=engine), out=str(tmp_path), run_name=engine)
        ended = execute(cfg, record=RunRecord(cfg))
        assert ended.error is None
        losses = [evaluated.found.loss for evaluated in ended.evaluations]
        found.append((*content(tmp_path / engine)[:2], losses))
    assert found[0] == found[1]
    assert compared(recorded_run(tmp_path / "ray")).same_weights


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


def looked_at(layer: nn.Module, samples: int, act: Any) -> list[Tensor]:
    """Return the samples of each mini-batch at which an objective looks: they are stored as 0, 1, 2, ..."""
    seen = list[Tensor]()

    def loss(module: nn.Module, x: Tensor) -> Any:
        seen.append(x[:, 0].clone())
        return module(x).square().mean()

    x = torch.arange(float(samples))[:, None]
    act(ModuleObjective(Problem(nn.Sequential(layer, nn.Linear(1, 1)), loss, (x,), (x,))))
    return seen


LOOKS: dict[str, tuple[nn.Module, Any]] = {
    "statistics": (nn.BatchNorm1d(1), lambda it: it.module_at(it.initial_weights(0))),
    "statistics on Ray": (
        nn.BatchNorm1d(1), lambda it: it.for_evaluation("cpu").module_at(it.initial_weights(0)),
    ),
    "an evaluation": (nn.Identity(), lambda it: it.evaluate(it.initial_weights(0))),
    "a trial of it": (nn.Identity(), lambda it: it.try_evaluation()),
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_how_samples_are_stored_does_not_matter(look: str) -> None:
    """Class after class or sorted by time: each mini-batch is drawn from all of them."""
    layer, act = LOOKS[look]
    seen = looked_at(layer, 6000, act)
    assert sum(map(len, seen)) >= 8
    for some in seen:
        error = 6000 / (12 * len(some)) ** 0.5
        assert abs(float(some.mean()) - 3000) < 4 * error
    assert not look.startswith("statistics") or sorted({len(some) for some in seen}) == [2, 256]


def test_both_engines_estimate_from_the_same_samples() -> None:
    x = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0)).cumsum(0)
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    objective = ModuleObjective(Problem(module, lambda module, x: module(x).square().mean(), (x,), (x,)))
    w = objective.initial_weights(0)
    here, there = (one.module_at(w).state_dict() for one in (objective, objective.for_evaluation("cpu")))
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert objective.evaluate(w) == objective.for_evaluation("cpu").evaluate(w)


class Half(nn.Module):
    """A layer of one type and a buffer of another, or of the same."""

    def __init__(self, trained: torch.dtype, kept: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1, dtype=trained)
        self.register_buffer("kept", torch.full((2,), 1 / 3, dtype=kept))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


@pytest.mark.parametrize("trained", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "kept", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_a_buffer_keeps_its_type_unless_parameters_of_it_are_converted(
    trained: torch.dtype, kept: torch.dtype
) -> None:
    """Layers want all tensors of one type: then a note names it. A run of the first edition converted all."""
    objective = tried(Half(trained, kept))
    tensors, converted = objective.module_at(objective.initial_weights(0)).state_dict(), trained == kept
    was = torch.full((2,), 1 / 3, dtype=kept)
    expected = was.float() if converted else was
    assert tensors["kept"].dtype == expected.dtype
    assert torch.equal(tensors["kept"], expected)
    notes = [note for note in objective.trial.notes if "become float32 with its parameters" in note]
    assert bool(notes) == (converted and kept != torch.float32)
    made = Problem(Half(trained, kept), lambda *_: None, (), ())
    (buffer,) = ModuleObjective(made, edition=1).problem.module.buffers()
    assert buffer.dtype == (kept if kept.is_complex else torch.float32)


class Stateful(nn.Linear):
    """It has something in its state that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_what_a_file_of_tensors_cannot_hold_is_refused() -> None:
    complex128 = nn.Linear(2, 2)
    complex128.register_buffer("turns", torch.zeros(2, dtype=torch.complex128))
    for module, words in (
        (complex128, r"its turns is torch\.complex128, which a"),
        (Stateful(2, 2), "its _extra_state is a dict"),
    ):
        with pytest.raises(ValueError, match=words):
            named_tensors(module)


class Changing(nn.Module):
    """A layer, and what a forward pass does besides."""

    def __init__(self, besides: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.count, self.last = nn.Linear(4, 1), 0, torch.zeros(1)
        self.besides = besides
        self.register_buffer("cache", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        more = self.besides(self, found)
        total: Tensor = found if more is None else found + more
        return total


def counts(module: Any, found: Tensor) -> None:
    module.count += 1


def looks_back(module: Any, found: Tensor) -> Tensor:
    before, module.last = module.last, found.mean(0).detach()
    return cast(Tensor, before)


def keeps_a_picture(module: Any, found: Tensor) -> None:
    module.last = found.detach()


def grows(module: Any, found: Tensor) -> None:
    module.cache = torch.zeros(len(module.cache) + 1)


def draws_elsewhere(module: Any, found: Tensor) -> Tensor:
    return found * random.SystemRandom().random()


@pytest.mark.parametrize(
    ("besides", "said"),
    [
        (counts, "a gradient changes its count, which no task keeps for the next"),
        (looks_back, "a gradient changes its last, which no task keeps"),
        (grows, "a gradient changes the shape or type of its cache"),
        (draws_elsewhere, "its gradient is another one when it is computed again"),
        (keeps_a_picture, ""),
    ],
)
def test_what_cannot_be_kept_is_named(besides: Any, said: str) -> None:
    """In one line, before the run; what a gradient does not depend on is not."""
    trial = tried(Changing(besides)).trial
    assert not trial.carried
    assert [note[: len(said)] for note in trial.notes] == [said] * bool(said)


def tried(module: nn.Module) -> ModuleObjective:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    objective = ModuleObjective(Problem(module, lambda module, x: module(x).square().mean(), (x,), (x,)))
    objective.try_out(ProblemShard(0, (x,), np.arange(16), batch_size=8, seed=0))
    return objective


def test_a_module_in_eval_mode_is_trained_in_it() -> None:
    """As make() returned it, which is said."""
    (note,) = tried(nn.Sequential(nn.Dropout(), nn.Linear(4, 1)).eval()).trial.notes
    assert note.startswith("its module is in eval mode, as make() returned it")


def shrinks(module: Any, found: Tensor) -> None:
    with torch.no_grad():
        module.layer.weight.mul_(0.9)


def test_a_weight_that_is_changed_in_place_is_refused() -> None:
    """By a forward pass, or by a layer that does so at times."""
    for module, name in ((Changing(shrinks), "layer.weight"), (nn.Embedding(4, 2, max_norm=1.0), "weight")):
        with pytest.raises(ProblemError, match=f"its forward pass changes its {name} in place"):
            tried(module)

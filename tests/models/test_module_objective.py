"""How a module's gradient is computed: in parts, in half precision, on views; and where it is evaluated."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import dsgd
from dsgd.core.model import Workload
from dsgd.core.problem import Problem, ProblemError
from dsgd.core.protocol import ClusterError, EvaluationLost
from dsgd.core.weights import Weights
from dsgd.engines.open_cluster import open_cluster
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.running.evaluation import Evaluations
from dsgd.running.execute import execute
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.running.run import Run

TINY = str(ROOT / "tests/workloads/tiny.py")
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


def large(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return a loss whose gradient overflows in float16 until its scale has been halved a few times."""
    return 3.0 * loss(module, 20 * x, y)


def test_float16_takes_the_steps_of_torchs_own_scaler() -> None:
    """From task to task, each of which takes up what the last has left: the weights of a plain loop with
    autocast, GradScaler and SGD, bit for bit, and the same number of gradients left out.
    """
    objective, batches = ModuleObjective(problem(mlp(), large), precision="fp16"), shard(4)
    objective.try_out(batches)
    w, carried = torch.from_numpy(objective.initial_weights(0)), objective.trial.carried
    bits = torch.zeros(objective.trial.rows, len(w))
    module = mlp()
    scaler, sgd = torch.amp.GradScaler("cpu"), torch.optim.SGD(module.parameters(), lr=0.01)
    skipped = 0
    for step in range(30):
        objective.take_up(carried, bits)
        _, g = objective.loss_and_gradient(w[None], [batches], [step])
        bits = objective.left("cpu")
        w = torch.add(w, g[0], alpha=-0.01)
        ((_, batch),) = batches.parts(step, 1, 0, 1)
        sgd.zero_grad()
        with torch.autocast("cpu", torch.float16):
            value = large(module, *batch)
        torch.autograd.backward(scaler.scale(value))
        scaler.step(sgd)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
        assert torch.equal(w, torch.cat([p.detach().flatten() for p in module.parameters()]))
        assert objective.gradients_left_out(bits.numpy()) == skipped
    assert 0 < skipped < 15


def test_gradients_left_out_are_in_the_record_and_survive_a_resume(tmp_path: Path) -> None:
    """All workers' are counted, and there are as many whether the run was in one piece or in two."""
    text = Path(TINY).read_text(encoding="utf-8")
    file = tmp_path / "overflowing.py"
    file.write_text(text.replace("cross_entropy(module(x), y)", "3 * cross_entropy(module(20 * x), y)"))
    common: dict[str, Any] = {
        "engine": "sim",
        "num_workers": 2,
        "local_steps": 3,
        "lr": 0.001,
        "precision": "fp16",
    }
    common |= {"workload": str(file), "checkpoint_every": "disk=1000", "out": tmp_path}
    whole = dsgd.run("localsgd", **common, steps=24, run_name="whole")
    first = dsgd.run("localsgd", **common, steps=9, run_name="parts")
    parts = dsgd.run(resume=tmp_path / "parts", steps=24)
    found = [(one.summary["overflows"], one.summary["weights_sha256"]) for one in (whole, parts)]
    assert found[0] == found[1]
    assert found[0][0] >= first.summary["overflows"] > 0


@settings(max_examples=8, deadline=None)
@given(accumulate=st.integers(1, N))
def test_parts_of_a_mini_batch_add_up(accumulate: int) -> None:
    """In however many parts, of whatever sizes: the loss and the gradient are those of the whole."""
    whole, parts = (ModuleObjective(problem(mlp()), accumulate=count) for count in (1, accumulate))
    torch.testing.assert_close(gradient(parts), gradient(whole), rtol=1e-5, atol=1e-6)
    w = torch.from_numpy(whole.initial_weights(0))[None]
    losses = [objective.loss_and_gradient(w, [shard()], [0])[0] for objective in (whole, parts)]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-6)


def test_gradients_are_written_where_they_are_wanted() -> None:
    """Given vectors in turn, more than are remembered, each gets its gradient, bit for bit; a call without
    one leaves them alone.
    """
    objective = ModuleObjective(problem(mlp()))
    w = torch.from_numpy(objective.initial_weights(0))[None]
    by_step = [objective.loss_and_gradient(w, [shard(4)], [step])[1] for step in range(20)]
    places = [torch.full_like(w, torch.nan) for _ in by_step]
    for step in (*range(20), *range(20)):
        _, there = objective.loss_and_gradient(w, [shard(4)], [step], places[step])
        assert there is places[step]
        assert torch.equal(objective.loss_and_gradient(w, [shard(4)], [0])[1], by_step[0])
    assert all(torch.equal(g, place) for g, place in zip(by_step, places, strict=True))


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


class Flipped(nn.Module):
    """Channels last, a parameter without a gradient, one in half precision, and a sparse embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.convolve = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.unused = nn.Parameter(torch.ones(5))
        self.halved = nn.Linear(12, 3).to(torch.float16)
        self.embed = nn.Embedding(3, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        features = self.convolve(x.view(-1, 2, 1, 3)).flatten(1)
        found: Tensor = self.halved(features.to(self.halved.weight.dtype)) + self.embed(x[:, 0].gt(0).long())
        return found


def test_parameters_of_all_kinds_are_trained() -> None:
    """Each has its gradient in its place in the vector, in float32; one without a gradient has zeros."""
    module = Flipped()
    assert not module.convolve.weight.is_contiguous()
    found = gradient(ModuleObjective(problem(module)))
    reference = Flipped().float()
    reference.embed.sparse = False
    torch.testing.assert_close(found, plain_gradient(reference), rtol=1e-5, atol=1e-6)
    unused = slice(0, 5)  # a module's own parameters are named first
    assert not found[unused].any()
    assert found[-9:].any()


def test_many_small_parameters_are_views_too() -> None:
    """Ten thousand of them: the gradient is that of torch."""

    def many() -> nn.Module:
        torch.manual_seed(3)
        return nn.ParameterList(torch.randn(6, 1) for _ in range(10_000))

    def of(module: Any, x: Tensor, y: Tensor) -> Tensor:
        return ((x @ torch.cat(list(module), 1)).mean(1) - y).square().mean()

    found = gradient(ModuleObjective(problem(many(), of)))
    torch.testing.assert_close(found, plain_gradient(many(), of), rtol=1e-5, atol=1e-7)


class Lonely(nn.Linear):
    """A module that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.lock = threading.Lock()


def full(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee the documentation")


UNFIT: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], str]] = {
    "lazy": (
        lambda: nn.LazyLinear(3),
        loss,
        "its weight has no shape yet (is lazy); run a mini-batch",
    ),
    "meta": (
        lambda: nn.Linear(6, 3, device="meta"),
        loss,
        "its weight is on the meta device and has no values",
    ),
    "complex": (
        lambda: nn.Linear(6, 3, dtype=torch.complex64),
        loss,
        "its weight is complex; keep its parts",
    ),
    "lonely": (
        Lonely,
        loss,
        "its module cannot be copied, as each process and thread needs: TypeError: cannot pickle",
    ),
    "constant": (mlp, lambda module, x, y: torch.tensor(1.0), "its loss does not depend on the parameters"),
    "vector": (mlp, lambda module, x, y: module(x).mean(0), "its loss has shape (3,); return one number"),
    "nan": (mlp, lambda module, x, y: module(x).mean() * torch.nan, "its loss is nan at the start"),
    "shapes": (
        mlp,
        lambda module, x, y: loss(module, x[:, :5], y),
        f"its loss cannot be computed: line {loss.__code__.co_firstlineno + 1}: RuntimeError: ",
    ),
    "full": (
        mlp,
        full,
        "cpu is out of memory: 163 weights of 6.52e-07 GB in all, and 2 samples at once; lower",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_module_that_cannot_be_trained_is_one_line(kind: str) -> None:
    """It is found before a run begins, and the line says what to change."""
    make, of, message = UNFIT[kind]
    with pytest.raises(ProblemError) as refused:
        ModuleObjective(problem(make(), of), accumulate=2).try_out(shard())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sizes"), [({}, [2]), ({"accumulate": 3}, [2] * 3), ({"ranks": 4}, [2] * 4)]
)
def test_the_trial_takes_two_samples_of_each_part(options: dict[str, Any], sizes: list[int]) -> None:
    """On a CPU, however large a mini-batch is, twice; a loss that is compiled is tried with a whole one."""
    seen: list[int] = []

    def counted(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return loss(module, x, y)

    ModuleObjective(problem(mlp(), counted), **options).try_out(shard())
    assert seen[: 2 * len(sizes)] == 2 * sizes
    compiled = ModuleObjective(problem(mlp(), counted), compiled=True)
    assert compiled.to_try(shard(), 1).batch_size == shard().batch_size


OPTIONS: dict[str, dict[str, Any]] = {
    "--precision bf16: has no effect with --workload xor; leave it out": {"precision": "bf16"},
    "--accumulate 2: has no effect with --workload xor; leave it out": {"accumulate": 2},
    "--compile True: has no effect with --workload xor; leave it out": {"compile": True},
    "--accumulate 33: must be at most --batch-size 32": {"accumulate": 33, "workload": TINY},
}


@pytest.mark.parametrize("message", OPTIONS)
def test_options_of_computing_belong_to_a_workload(message: str) -> None:
    """Without one they are refused, in one line."""
    with pytest.raises(ValueError, match="--") as refused:
        config("ssgd", **OPTIONS[message])
    assert str(refused.value) == message


def test_a_killed_worker_does_not_change_the_weights() -> None:
    """Dropout included: a mini-batch that is computed again gives the same bytes."""
    options: dict[str, Any] = {"workload": TINY, "num_workers": 3, "steps": 12, "local_steps": 3}
    options |= {"accumulate": 2, "precision": "bf16"}
    whole = run("diloco", **options)
    killed = run("diloco", **options, faults="kill:1@update=2;kill:0,2@t=7.5")
    assert same_bytes(whole, killed)
    assert sum(killed.cluster.restarts) == 3


@pytest.mark.thorough
def test_a_compiled_loss_has_the_same_gradient() -> None:
    """torch.compile changes rounding only, parameters that are views included."""
    plain, compiled = (ModuleObjective(problem(mlp()), compiled=on) for on in (False, True))
    torch.testing.assert_close(gradient(compiled), gradient(plain), rtol=1e-4, atol=1e-6)
    assert plain.evaluate(plain.initial_weights(0)) == compiled.evaluate(plain.initial_weights(0))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestOnRay:
    """Evaluations have a process for themselves."""

    @pytest.mark.thorough
    def test_evaluations_are_those_of_the_simulator(self) -> None:
        """Bit for bit, in order, the first and the last among them; another process than a worker's."""
        options: dict[str, Any] = {"workload": TINY, "num_workers": 2, "steps": 8, "eval_every": 2}
        real, simulated = (execute(config("ssgd", **options, engine=name)) for name in ("ray", "sim"))
        expected = {e.version: e.found for e in simulated.evaluations}
        found = {e.version: e.found for e in real.evaluations}
        assert {0, 8} <= found.keys()
        assert found == {version: expected[version] for version in sorted(found)}
        assert not real.notes

    @pytest.mark.thorough
    def test_a_lost_process_costs_an_evaluation_at_most(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another takes its place, and evaluates again what was interrupted; what ends that one too is lost,
        and noted. An error of the workload's own is one line that ends the run.
        """
        from dsgd.engines.ray.driver.evaluation import EvaluatingProcess

        def score(module: Any, x: Tensor, y: Tensor) -> Tensor:
            bias: Tensor = module[0].bias
            if bias[0] == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            if bias[0] == 8:
                raise ValueError("no such score")
            return bias.sum()

        made = Workload(ModuleObjective(problem(mlp())._replace(score=score)), [shard()], (), N)
        w = made.objective.initial_weights(0)
        process = EvaluatingProcess(_by_value(made), "cpu", lambda: None, 60.0)
        cfg = config("ssgd", num_workers=1)
        with open_cluster(cfg, made) as engine:
            run = Run(replace(cfg, engine="ray"), made, engine, first=w)
        monkeypatch.setattr(engine, "evaluate", lambda _, w, models: process.evaluate(w, models))
        evaluations = Evaluations(run, evaluate=True)
        try:
            first, lost = process.evaluate(w), process.pid
            assert lost is not None
            os.kill(lost, signal.SIGKILL)
            assert process.evaluate(w) == first == made.evaluate(w)
            assert process.pid not in (None, lost, os.getpid())
            for version, vector in enumerate((w, np.full_like(w, 7), w)):
                run.weights = Weights(vector, version)
                evaluations.submit()
            evaluations.collect(wait=True)
            assert [e.version for e in evaluations.found] == [0, 2]
            (note,) = evaluations.notes
            assert note.startswith("the evaluation of version 1 was lost: its process was lost 2 times (")
            with pytest.raises(ClusterError, match=r"the evaluation failed: .*: ValueError: no such score"):
                process.evaluate(np.full_like(w, 8))
        finally:
            process.close()
        with pytest.raises(EvaluationLost, match="the run is over"):
            process.evaluate(w)

    @pytest.mark.crossing(one_in=2)
    @pytest.mark.parametrize("fault", ["nan", "score", "lock"])
    def test_a_module_that_cannot_be_trained_ends_before_the_run(self, fault: str, tmp_path: Any) -> None:
        """In one line, as in the simulator: the processes try it before they are ready."""
        extra = {
            "lock": "problem.module.lock = threading.Lock()",
            "nan": "problem = problem._replace(loss=lambda module, x, y: module(x).mean() * torch.nan)",
            "score": "problem = problem._replace(score=lambda module, x, y: module(x).mean(0))",
        }[fault]
        file = tmp_path / "mine.py"
        text = f"    problem = made()\n    {extra}\n    return problem\n"
        source = "import threading\n" + Path(TINY).read_text().replace("def make()", "def made()")
        file.write_text(f"{source}\n\ndef make() -> Problem:\n{text}")
        expected = {
            "lock": "it cannot be sent to a worker's process: ",
            "nan": "its loss is nan at the start; look at the data and the weights",
            "score": "its score of test data has shape (",
        }[fault]
        with pytest.raises(ValueError, match="workload") as refused:
            execute(config("ssgd", workload=str(file), num_workers=1, steps=2, engine="ray"))
        assert str(refused.value).startswith(f"--workload {file}: {expected}")
        assert "\n" not in str(refused.value)


def _by_value(made: Workload) -> Workload:
    """Return a workload of this file or of a user's, which Ray's processes cannot import."""
    from ray.cloudpickle import register_pickle_by_value

    for of in (made.objective.problem.loss, made.objective.problem.module):  # type: ignore[attr-defined]
        module = sys.modules.get(getattr(of, "__module__", ""))
        if module and not module.__name__.startswith(("torch", "dsgd")):
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return made

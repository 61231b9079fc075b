"""Generators, settings and the working folder, which a process has once for all its code."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT

from dsgd.data import make_workload
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.objectives.process_wide import drawn_from, seed_generators, settings_kept
from dsgd.models.objectives.replica import trained
from dsgd.models.workloads import make_problem
from dsgd.running.quick_run import config, run, same_bytes

DRAWING = str(ROOT / "tests/workloads/drawn.py")
TINY = str(ROOT / "tests/workloads/tiny.py")


def options(**more: Any) -> dict[str, Any]:
    return {"workload": DRAWING, "num_workers": 3, "steps": 9, "batch_size": 8, **more}


@pytest.mark.parametrize("draws", ["numpy", "python", "torch"])
def test_the_same_command_gives_the_same_weights(draws: str, tmp_path: Path) -> None:
    """Whichever generator a file draws from, in its data, its forward pass, make() and at its top; and
    whatever was drawn before.
    """
    first = run("asgd", **options(draws=draws))
    random.seed(8)
    np.random.seed(8)
    copy = tmp_path / "drawn.py"
    copy.write_text(Path(DRAWING).read_text())  # or it would not be read again
    assert same_bytes(first, run("asgd", **options(draws=draws, workload=str(copy))))
    assert not same_bytes(first, run("asgd", **options(draws=draws, seed=1)))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_both_engines_draw_the_same() -> None:
    assert same_bytes(run("localsgd", **options()), run("localsgd", **options(), engine="ray"))


def test_one_worker_is_a_plain_loop_with_the_seeds_of_its_steps() -> None:
    made = make_workload(config("ssgd", **options(num_workers=1)))
    objective, shard = cast(ModuleObjective, made.objective), cast(ProblemShard, made.shards[0])
    assert objective.one_thread
    w = torch.from_numpy(objective.initial_weights(0))[None]
    for step in range(4):
        _, g = objective.loss_and_gradient(w, [shard], [step])
        seed_generators(torch.device("cpu"), shard.torch_seed(step))
        loss = objective.problem.loss(objective.problem.module, *shard.batch(step))
        parameters = trained(objective.problem.module)
        plain = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        assert torch.equal(g[0], torch.cat([part.flatten() for part in plain]))


def test_a_callers_generators_stay_as_they_are() -> None:
    """While a file is read and makes its problem."""
    before = drawn_from()
    make_problem(config("ssgd", workload=DRAWING).data, 0)
    assert drawn_from() == before


SETS = {
    "folder": "import os; os.chdir('/')",
    "threads": "torch.set_num_threads(3)",
    "grad": "torch.set_grad_enabled(False)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "deterministic": "torch.use_deterministic_algorithms(True)",
}


def settings() -> tuple[Any, ...]:
    return (
        os.getcwd(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
    )


def setting(statement: str, path: Path, where: str) -> str:
    """Return a copy of the tiny workload that sets something at its top, or in make()."""
    text = Path(TINY).read_text()
    if where == "top":
        text = text.replace("def make()", f"{statement}\n\n\ndef make()")
    else:
        text = text.replace("Problem:\n", f"Problem:\n    {statement}\n")
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("where", ["top", "make"])
@pytest.mark.parametrize("kind", SETS)
def test_what_a_file_sets_for_the_process_is_put_back(kind: str, where: str, tmp_path: Path) -> None:
    """So both engines compute the same, and the record is where the command said."""
    file = setting(SETS[kind], tmp_path / "mine.py", where)
    plain = run("ssgd", workload=TINY, num_workers=1, steps=3)
    before = settings()
    assert same_bytes(plain, run("ssgd", workload=file, num_workers=1, steps=3))
    assert settings() == before


@pytest.mark.parametrize("where", ["top", "make"])
@pytest.mark.parametrize("statement", ["dtype(torch.float64)", "device('meta')"])
def test_another_default_dtype_or_device_is_refused(statement: str, where: str, tmp_path: Path) -> None:
    """In one line, since the module and its data are others with it."""
    before = settings()
    file = setting(f"torch.set_default_{statement}", tmp_path / "mine.py", where)
    with pytest.raises(ValueError, match=f"workload {file}: calls torch.set_default_.* leave that out"):
        make_workload(config("ssgd", workload=file))
    assert settings() == before


def test_settings_are_put_back_after_an_error() -> None:
    before = settings()

    def fail() -> None:
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), settings_kept():
        fail()
    assert settings() == before


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_program_with_another_default_dtype_trains_in_float32() -> None:
    """The same bytes, of a built-in data set, of the quadratic with noise and of a module."""
    made = make_workload(config("ssgd", workload=TINY))
    objective, shard = cast(ModuleObjective, made.objective), made.shards[0]
    w = torch.from_numpy(objective.initial_weights(0))[None]
    ways: list[dict[str, Any]] = [{"compress": "topk:0.5"}, {"workload": "quadratic"}, {"mode": "diloco"}]
    ways = [{"mode": "ssgd", "num_workers": 2, "steps": 6, **way} for way in ways]
    expected = [run(**way) for way in ways], objective.loss_and_gradient(w, [shard], [0])
    with float64_by_default():
        found = (
            [run(**way) for way in ways],
            ModuleObjective(objective.problem).loss_and_gradient(w, [shard], [0]),
        )
    assert all(same_bytes(a, b) for a, b in zip(expected[0], found[0], strict=True))
    assert torch.equal(found[1][1], expected[1][1])
    assert found[1][1].dtype == torch.float32

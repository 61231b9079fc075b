"""Both engines compute the same bytes: a value does not depend on how many are computed with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.tasks import Task
from dsgd.engines.task_values import LazyValues, compute_alone
from dsgd.running.quick_run import Workers, run, same_bytes
from dsgd.strategies import modes

BUILT_IN: Mapping[str, dict[str, Any]] = {
    "xor": {},
    "xor-logistic": {"hidden": "none"},
    "xor-one-unit": {"dim": 20, "hidden": "1,8", "batch_size": 33},
    "xor-wide": {"dim": 300, "hidden": "none", "batch_size": 128},
    "digits": {"workload": "digits"},
    "digits-logistic": {"workload": "digits", "hidden": "none", "batch_size": 1},
    "digits-deep": {"workload": "digits", "hidden": "64,33,5"},
    "quadratic": {"workload": "quadratic", "dim": 37, "grad_noise": 0.5},
}
"""Every built-in model on every built-in data set, also with layers of one input or output."""

_CLAIMED = {mode: Subject(mode).laws.deterministic for mode in modes()}
IN_STEP = {mode: options for mode, options in _CLAIMED.items() if options is not None}
"""Modes, and the options with which weights do not depend on who is faster."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compute each simulated value alone, too, and compare; return how many were computed at once."""
    together, sizes = LazyValues._compute, list[int]()

    def both(values: LazyValues, chunk: tuple[Task, list[int]]) -> Any:
        task, workers = chunk
        before = {worker: state.cpu().numpy() for worker, state in values._states.items()}
        losses, rows, states = together(values, chunk)
        for worker, loss, row, state in zip(workers, losses, rows, states, strict=True):
            _, step, vector = values._waiting[worker]
            known = before.get(worker) if task.state_rows else None
            lone_loss, value, left = compute_alone(
                task, values._objective, values._shards[worker].alone(), step, vector.copy(), known, "cpu"
            )
            assert lone_loss == loss
            assert value.tobytes() == row.tobytes()
            assert state is None or left.numpy().tobytes() == state.numpy().tobytes()
        sizes.append(len(workers))
        return losses, rows, states

    monkeypatch.setattr(LazyValues, "_compute", both)
    return sizes


@pytest.mark.crossing
@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("problem", BUILT_IN)
def test_a_value_does_not_depend_on_company(problem: str, mode: str, compared: list[int]) -> None:
    """Each task of each mode: a worker's loss, value and state are the same bytes alone and among others."""
    for variant in Subject(mode).laws.variants:
        run(mode, **{"num_workers": 5, "steps": 4, **BUILT_IN[problem], **variant})
    assert max(compared) > 1


@pytest.mark.crossing
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("problem", BUILT_IN)
def test_modes_in_step_have_the_same_bytes_on_both_engines(problem: str) -> None:
    """Where workers wait for each other, each version has the simulator's weights, bit for bit."""
    options = {"num_workers": 3, "hosts": 2, "steps": 12, **BUILT_IN[problem]}
    with Workers(**options) as workers:
        for mode, claimed in IN_STEP.items():
            assert same_bytes(workers.run(mode, **claimed), run(mode, **options, **claimed)), mode


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("workload", ["digits_cnn", "gpt", "moe"])
def test_shipped_modules_have_the_same_bytes_on_both_engines(workload: str, tmp_path: Path) -> None:
    """Also a module of torch, which draws its dropout, and AdamW in the workers."""
    options: dict[str, Any] = {"workload": workload, "num_workers": 2, "steps": 4, "batch_size": 4}
    if workload == "gpt":
        text = tmp_path / "text.txt"
        text.write_text("all work and no play makes a long text " * 100)
        options |= {"data": str(text), "context": 16, "eval_samples": 256}
    for mode in ("ssgd", "diloco"):
        assert same_bytes(run(mode, engine="ray", **options), run(mode, **options)), mode

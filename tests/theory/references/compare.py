"""Trains a strategy and its reference on the same problem, and says how far they are apart."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import dsgd
from references.problem import Problem, Version, in_torch_order
from references.processes import train_in_processes

Floats = NDArray[np.float64]


def modes() -> tuple[str, ...]:
    """Return the modes that have a reference: the files beside this one that train."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple(file.stem for file in files if "\ndef train(" in file.read_text())


class Curves(NamedTuple):
    """What a strategy and its reference did with one seed, at the strategy's evaluations (N of them)."""

    seed: int
    gradients: Floats
    """Mini-batches so far, shape (N,)."""
    strategy: Floats
    """Held-out loss, shape (N,), as the strategy's run reports it."""
    reference: Floats
    """Held-out loss, shape (N,), of the reference's weights, computed by torch."""
    weights: float
    """Largest difference of a weight at the end, relative to the largest weight."""
    seconds: float
    """Largest difference of the times of an update, relative to the time."""

    @property
    def differences(self) -> Floats:
        """Relative differences of the loss, shape (N,)."""
        return np.abs(self.reference / self.strategy - 1)

    @property
    def loss(self) -> float:
        """Largest relative difference of the loss."""
        return float(self.differences.max())


def compare(
    mode: str, seeds: Sequence[int], options: Mapping[str, Any] | None = None, **size: int
) -> list[Curves]:
    """Train a strategy and its reference once a seed.

    options: of both; None: those of the reference's file. size: of the problem, num_workers and steps.
    """
    if options is None:
        options = importlib.import_module(f"references.{mode}").OPTIONS
    problems = [Problem(seed, **size) for seed in seeds]
    results = [train_strategy(mode, problem, options) for problem in problems]
    references = train_reference(mode, problems, options)
    return [set_beside(*one) for one in zip(problems, results, references, strict=True)]


def train_strategy(mode: str, problem: Problem, options: Mapping[str, Any]) -> dsgd.Result:
    """Run a strategy in the simulator, evaluating it some 25 times."""
    return dsgd.run(
        mode,
        engine="sim",
        num_workers=problem.num_workers,
        steps=problem.steps,
        seed=problem.seed,
        eval_every=max(1, problem.steps // 25),
        **problem.options,
        **options,
    )


def train_reference(
    mode: str, problems: Sequence[Problem], options: Mapping[str, Any]
) -> list[list[Version]]:
    """Return the versions that the reference of a mode makes of each problem, until its budget is spent."""
    reference = importlib.import_module(f"references.{mode}")
    if hasattr(reference, "PROCESSES"):
        return train_in_processes(mode, problems, options)
    return [_until_spent(problem, reference.train(problem, **options)) for problem in problems]


def _until_spent(problem: Problem, versions: Iterator[Version]) -> list[Version]:
    taken = []
    for version in versions:
        taken.append(version)
        if version.gradients >= problem.num_workers * problem.steps:
            break
    return taken


def set_beside(problem: Problem, result: dsgd.Result, versions: list[Version]) -> Curves:
    """Set a run beside its reference.

    Raises ValueError if the two have not made the same number of updates of the same mini-batches.
    """
    if len(versions) != len(result.updates):
        raise ValueError(f"seed {problem.seed}: {len(result.updates)} updates, reference {len(versions)}")
    evaluations = result.evaluations.filter(result.evaluations["version"] > 0)
    at = [versions[version - 1] for version in evaluations["version"]]
    gradients = evaluations["gradients"].to_numpy().astype(float)
    if [version.gradients for version in at] != gradients.tolist():
        raise ValueError(f"seed {problem.seed}: the reference's updates have other numbers of mini-batches")
    w = in_torch_order(torch.tensor(result.weights))
    seconds = np.array([version.seconds for version in versions])
    return Curves(
        seed=problem.seed,
        gradients=gradients,
        strategy=evaluations["loss"].to_numpy(),
        reference=np.array([problem.held_out_loss(version.w) for version in at]),
        weights=float((versions[-1].w - w).abs().max() / w.abs().max()),
        seconds=float(np.abs(result.updates["t_s"].to_numpy() / seconds - 1).max()),
    )

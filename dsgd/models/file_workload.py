"""The workload of a torch module, shipped or in a file of a user: its objective, and a shard a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.core.model import Workload
from dsgd.core.problem import Problem, ProblemError, labels, length, take, targets
from dsgd.core.shards import Indices
from dsgd.models.beginnings import beginning, not_the_same
from dsgd.models.datasets import about
from dsgd.models.workloads import make_problem

if TYPE_CHECKING:
    from dsgd.config import TrainConfig
    from dsgd.models.objectives.module_objective import ModuleObjective


def workload_of_file(
    cfg: TrainConfig,
    parts: Callable[[Indices, TrainConfig], list[Indices]],
    *,
    recorded: Mapping[str, Any] | None,
) -> Workload:
    """Return the workload of a torch module, each worker with its part of the training data.

    parts: return each worker's sample numbers, given the samples' classes (N,).
    recorded: of a run that is computed again, or goes on, what its record says of the workload.
    Raises ValueError, naming the option, where the data cannot be split, or the module not be trained.
    """
    from dsgd.models.objectives.module_objective import ProblemShard

    file, problem = cfg.data.workload, make_problem(cfg.data, cfg.seed)
    classes = labels(problem.train)
    if classes is None:
        if cfg.data.split.kind != "iid":
            found = targets(problem.train)
            instead = "none" if found is None else f"{found.dtype} {[*found.shape]} in their place"
            raise ValueError(
                f"--partition {cfg.data.partition}: needs the samples' classes, and the training data of "
                f"{file} have {instead}; give them as whole numbers of shape (N,), in the second array or as "
                "`targets`"
            )
        classes = np.zeros(length(problem.train), np.int64)
    shards = [
        ProblemShard(i, problem.train, rows, batch_size=cfg.batch_size, seed=cfg.seed)
        for i, rows in enumerate(parts(classes, cfg))
    ]
    kept: dict[str, Any] = {
        "train": about(problem.train),
        "test": about(problem.test),
        "bytes_per_token": problem.bytes_per_token,
        "score_name": problem.score_name,
    }
    try:
        objective = module_objective(cfg, problem, recorded=recorded)
        kept |= {"weights": objective.num_weights, "first": beginning(objective)}
        objective.notes += not_the_same(recorded or kept, kept)
        if cfg.engine != "ray":  # there each process tries it before the run begins
            objective.try_out(shards[0].on_device(shards[:1], _evaluated_on(cfg))[0])
            objective.try_evaluation()
    except ProblemError as error:
        raise ValueError(f"--workload {file}: {error}") from error
    known = kept | dict(problem.about) | kept
    return Workload(objective, shards, (), cfg.batch_size, known, _tokens_per_sample(problem))


def _tokens_per_sample(problem: Problem) -> int:
    """Return how many ids a sample of a language model has; 0 for other models."""
    if problem.sample is None and not problem.bytes_per_token:
        return 0
    (first, *_) = take(problem.train, np.arange(1))
    return int(np.prod(first.shape[1:])) if hasattr(first, "shape") else 0


def module_objective(
    cfg: TrainConfig, problem: Problem, *, recorded: Mapping[str, Any] | None = None
) -> ModuleObjective:
    """Return the objective of a workload's problem, as a run with these options computes and evaluates it.

    recorded: as of `workload_of_file`.
    Raises ProblemError for parameters that cannot be trained.
    """
    from dsgd.models.objectives.module_objective import ModuleObjective

    return ModuleObjective(
        problem,
        precision=cfg.compute.precision,
        accumulate=cfg.compute.accumulate,
        compiled=cfg.compute.compile,
        recomputed=cfg.group.recompute_activations,
        ranks=cfg.group.ranks_per_worker,
        slices=cfg.group.shards,
        evaluated_on=_evaluated_on(cfg),
        recorded=recorded is not None,
        edition=cfg.data.edition,
        leaves_out=None if recorded is None else "left_out" in recorded,
    )


def _evaluated_on(cfg: TrainConfig) -> str:
    import torch

    on_gpu = cfg.engine == "sim" and cfg.ray.device == "cuda" and torch.cuda.is_available()
    return "cuda" if on_gpu else "cpu"

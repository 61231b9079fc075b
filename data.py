"""Data sets, how they are split among the workers, and the shard that each worker gets.

Everything here runs on the driver's CPU with numpy; a shard goes to its device inside the worker.

Shapes: N samples, F features, B samples a mini-batch, P workers, D weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsgd.core.model import Classifier, Nothing, Workload
from dsgd.core.option_texts import Partition
from dsgd.core.rng import Purpose, at, generator
from dsgd.core.shards import Indices, Reshuffled
from dsgd.core.weights import Vector
from dsgd.models.objectives.quadratic import Quadratic

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.config import TrainConfig
    from dsgd.core.problem import Problem
    from dsgd.models.objectives.module_objective import ModuleObjective


class DatasetShard(Reshuffled):
    """One worker's samples of arrays.

    x (N, F) and y (N,) may hold more samples than this worker's; `rows` (n,) indexes those that are its own.
    So ten thousand simulated workers share one copy of the data.
    """

    def __init__(self, worker: int, x: Any, y: Any, rows: Indices, *, batch_size: int, seed: int) -> None:
        super().__init__(worker, rows, batch_size=batch_size, seed=seed)
        self.x, self.y = x, y

    @staticmethod
    def batches(shards: Sequence[DatasetShard], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return x (P, B, F) and y (P, B); the shards must share their arrays, or be one alone."""
        import torch

        rows = np.empty((len(shards), shards[0].batch_size), np.int64)
        for p, shard in enumerate(shards):
            rows[p] = shard.batch_rows(steps[p])
        x, y = shards[0].x, shards[0].y
        index = torch.from_numpy(rows.reshape(-1)).to(x.device)
        return x.index_select(0, index).view(*rows.shape, -1), y.index_select(0, index).view(rows.shape)

    def alone(self) -> DatasetShard:
        return DatasetShard(
            self.worker,
            self.x[self.rows],
            self.y[self.rows],
            np.arange(len(self.rows)),
            batch_size=self.batch_size,
            seed=self.seed,
        )

    @staticmethod
    def on_device(shards: Sequence[DatasetShard], device: str) -> Sequence[DatasetShard]:
        import torch

        x, y = (torch.tensor(a, device=device) for a in (shards[0].x, shards[0].y))
        return [DatasetShard(s.worker, x, y, s.rows, batch_size=s.batch_size, seed=s.seed) for s in shards]


@dataclass(frozen=True)
class QuadraticShard:
    """One worker's a_i and x_i, the same in each of `dim` coordinates: row `row` of curvatures (N, 1) and
    optima (N, 1), shared like samples.

    grad_noise: the standard deviation of its gradients' noise in each coordinate.
    """

    worker: int
    row: int
    curvatures: Any
    optima: Any
    dim: int
    grad_noise: float
    seed: int

    @staticmethod
    def batches(
        shards: Sequence[QuadraticShard], steps: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return curvatures (P, 1), optima (P, 1) and gradient noise, (P, D) if there is any."""
        import torch

        first, noise = shards[0], None
        rows = [shard.row for shard in shards] if len(shards) > 1 else slice(first.row, first.row + 1)
        if first.grad_noise:
            draws = np.stack([s._noise(step) for s, step in zip(shards, steps, strict=True)])
            noise = torch.from_numpy(draws).to(first.optima.device)
        return first.curvatures[rows], first.optima[rows], noise

    def _noise(self, step: int) -> Vector:
        rng = at(self.seed, Purpose.GRAD_NOISE, self.worker, step)
        noise: Vector = self.grad_noise * rng.standard_normal(self.dim, np.float32)
        return noise

    def alone(self) -> QuadraticShard:
        own = slice(self.row, self.row + 1)
        return replace(self, row=0, curvatures=self.curvatures[own], optima=self.optima[own])

    @staticmethod
    def on_device(shards: Sequence[QuadraticShard], device: str) -> Sequence[QuadraticShard]:
        import torch

        curvatures, optima = (
            torch.tensor(a, device=device) for a in (shards[0].curvatures, shards[0].optima)
        )
        return [replace(shard, curvatures=curvatures, optima=optima) for shard in shards]


@dataclass(frozen=True)
class EmptyShard:
    """An empty shard: `--workload none` has no weights and only schedules."""

    worker: int

    @staticmethod
    def batches(shards: Sequence[EmptyShard], steps: Sequence[int]) -> tuple[()]:
        return ()

    def alone(self) -> EmptyShard:
        return self

    @staticmethod
    def on_device(shards: Sequence[EmptyShard], device: str) -> Sequence[EmptyShard]:
        return shards


def make_workload(cfg: TrainConfig, *, recorded: bool = False) -> Workload:
    """Make the objective and the shards of a run.

    recorded: whether it has a record already, and is computed again, or goes on.
    Raises ValueError, naming the option, where the data cannot be split as asked.
    """
    if cfg.data.module is not None:
        return _of_file(cfg, cfg.data.module, recorded)
    if cfg.data.dataset == "none":
        return Workload(Nothing(), [EmptyShard(i) for i in range(cfg.num_workers)], (), 0)
    if cfg.data.dataset == "quadratic":
        return _quadratic(cfg)
    dataset = load_digits(cfg) if cfg.data.dataset == "digits" else make_xor(cfg)
    outputs = 1 if dataset.classes == 2 else dataset.classes
    sizes = (dataset.x.shape[1], *cfg.data.hidden_sizes, outputs)
    shards = [
        DatasetShard(i, dataset.x, dataset.y, rows, batch_size=cfg.batch_size, seed=cfg.seed)
        for i, rows in enumerate(_parts(dataset.y.astype(np.int64), cfg))
    ]
    return Workload(Classifier(sizes), shards, (dataset.test_x, dataset.test_y), cfg.batch_size)


def _of_file(cfg: TrainConfig, file: str, recorded: bool) -> Workload:
    """Return the workload of a file, each worker with its part of the training data."""
    from dsgd.core.problem import ProblemError, labels, length
    from dsgd.models.datasets import about
    from dsgd.models.objectives.module_objective import ProblemShard
    from dsgd.models.workloads import make_problem

    problem = make_problem(cfg.data, cfg.seed)
    classes = labels(problem.train)
    if classes is None:
        if cfg.data.split.kind != "iid":
            raise ValueError(
                f"--partition {cfg.data.partition}: needs the samples' classes, and the training data of "
                f"{file} have none; give them as whole numbers, in the second array or as `targets`"
            )
        classes = np.zeros(length(problem.train), np.int64)
    shards = [
        ProblemShard(i, problem.train, rows, batch_size=cfg.batch_size, seed=cfg.seed)
        for i, rows in enumerate(_parts(classes, cfg))
    ]
    try:
        objective = module_objective(cfg, problem, recorded=recorded)
        if cfg.engine != "ray":  # there each process tries it before the run begins
            objective.try_out(shards[0].on_device(shards[:1], _evaluated_on(cfg))[0])
            objective.try_evaluation()
    except ProblemError as error:
        raise ValueError(f"--workload {file}: {error}") from error
    kept: dict[str, Any] = {
        "weights": objective.num_weights,
        "train": about(problem.train),
        "test": about(problem.test),
        "bytes_per_token": problem.bytes_per_token,
        "score_name": problem.score_name,
    }
    return Workload(objective, shards, (), cfg.batch_size, kept | dict(problem.about) | kept)


def module_objective(cfg: TrainConfig, problem: Problem, *, recorded: bool = False) -> ModuleObjective:
    """Return the objective of a workload's problem, as a run with these options computes and evaluates it.

    recorded: as of `make_workload`.
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
        recorded=recorded,
    )


def _evaluated_on(cfg: TrainConfig) -> str:
    import torch

    on_gpu = cfg.engine == "sim" and cfg.ray.device == "cuda" and torch.cuda.is_available()
    return "cuda" if on_gpu else "cpu"


def _parts(labels: Indices, cfg: TrainConfig) -> list[Indices]:
    """Return each worker's sample numbers; ValueError if one has not enough for a mini-batch."""
    rng = generator(cfg.seed, Purpose.PARTITION)
    parts = partition(labels, cfg.num_workers, cfg.data.split, rng)
    smallest = min(range(len(parts)), key=lambda i: len(parts[i]))
    if cfg.batch_size > len(parts[smallest]):
        more = ", or raise --samples" if cfg.data.dataset else ""
        more += ", or lower uneven in --partition" * (cfg.data.split.uneven > 1)
        raise ValueError(
            f"--batch-size {cfg.batch_size}: worker {smallest}'s shard has only {len(parts[smallest])} of "
            f"the {len(labels)} training samples; lower --batch-size or --num-workers{more}"
        )
    return parts


class Dataset(NamedTuple):
    """Training samples x (N, F), y (N,) and held-out ones; labels are classes as float32."""

    x: Vector
    y: Vector
    test_x: Vector
    test_y: Vector
    classes: int


def make_xor(cfg: TrainConfig) -> Dataset:
    """Return points in [-1, 1]^dim, labelled 1 where their first two coordinates differ in sign.

    The held-out samples (a quarter as many) have no label noise.
    """
    num_train = cfg.data.samples or 4096
    num_test = max(1, num_train // 4)
    rng = generator(cfg.seed, Purpose.SAMPLES)
    x = rng.uniform(-1, 1, (num_train + num_test, cfg.data.num_dims)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] < 0).astype(np.float32)
    noisy_y = _with_label_noise(y[:num_train], 2, cfg)
    return Dataset(x[:num_train], noisy_y, x[num_train:], y[num_train:], 2)


def load_digits(cfg: TrainConfig) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits (8 x 8 pixels, scaled to [0, 1]), a fifth held out.

    The held-out samples are the same for every seed: accuracies of different seeds can be compared.
    """
    from sklearn import datasets

    bunch = datasets.load_digits()
    x, y = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.float32)
    order = generator(0, Purpose.SAMPLES).permutation(len(y))
    x, y = x[order], y[order]
    num_test = len(y) // 5
    limit = len(y) - num_test
    num_train = cfg.data.samples or limit
    if num_train > limit:
        raise ValueError(f"--samples {num_train}: digits has {limit} training samples; ask for no more")
    keep = num_test + generator(cfg.seed, Purpose.SAMPLES).permutation(limit)[:num_train]
    return Dataset(x[keep], _with_label_noise(y[keep], 10, cfg), x[:num_test], y[:num_test], 10)


def _with_label_noise(y: Vector, classes: int, cfg: TrainConfig) -> Vector:
    """Return labels y (N,) of which the share `--label-noise` is another class, drawn evenly."""
    rng = generator(cfg.seed, Purpose.LABEL_NOISE)
    flipped = rng.random(len(y)) < cfg.data.label_noise
    other = (y + rng.integers(1, classes, len(y))) % classes
    return np.where(flipped, other, y).astype(np.float32)


def _quadratic(cfg: TrainConfig) -> Workload:
    def by_worker(values: tuple[float, ...]) -> Vector:
        each = values if len(values) > 1 else values * cfg.num_workers
        return np.array(each, np.float32)[:, None]

    curvatures, optima = by_worker(cfg.data.curvature_values), by_worker(cfg.data.optimum_values)
    shards = [
        QuadraticShard(i, i, curvatures, optima, cfg.data.num_dims, cfg.data.grad_noise, cfg.seed)
        for i in range(cfg.num_workers)
    ]
    return Workload(Quadratic(cfg.data.num_dims), shards, (curvatures, optima), 1)


def partition(labels: Indices, num_workers: int, how: Partition, rng: np.random.Generator) -> list[Indices]:
    """Return each worker's sample numbers; shard sizes differ by at most one, unless they are to be uneven.

    labels (N,): the samples' classes. how: `iid` shuffles, `label` sorts by class, `dirichlet:ALPHA` gives
    each worker its own mix of classes drawn from Dirichlet(ALPHA p), p the classes' shares (Hsu et al.
    2019, arXiv 1909.06335, section 3); the smaller ALPHA, the fewer classes a worker sees.

    Raises ValueError when there are fewer samples than workers.
    """
    if len(labels) < num_workers:
        raise ValueError(
            f"--samples {len(labels)}: {num_workers} workers need at least one sample each; "
            "raise --samples or lower --num-workers"
        )
    shuffled = rng.permutation(len(labels))
    ends = _shard_ends(len(labels), num_workers, how.uneven)
    if how.kind == "iid":
        return np.split(shuffled, ends)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    if how.alpha is None:
        return np.split(by_label, ends)
    pools = np.split(by_label, np.flatnonzero(np.diff(labels[by_label])) + 1)
    left = np.array([len(pool) for pool in pools])
    shares = left / left.sum()
    parts = []
    for size in np.diff([0, *ends, len(labels)]):
        mix = rng.dirichlet(how.alpha * shares)
        taken = np.zeros_like(left)
        while (missing := size - taken.sum()) > 0:
            # Where a class has run out, the worker's mix goes on over the classes that are left.
            weights = np.where(left > taken, mix + 1e-12, 0.0)
            wanted = rng.multinomial(missing, weights / weights.sum())
            taken += np.minimum(wanted, left - taken)
        rest = left - taken
        parts.append(np.concatenate([pool[a:b] for pool, a, b in zip(pools, rest, left, strict=True)]))
        left = rest
    return parts


def _shard_ends(samples: int, num_workers: int, uneven: float) -> Indices:
    """Return where each worker's samples end, the last one's left out, if the last has `uneven` times as many
    as the first; where they are to be even, the first ones have one more.

    >>> _shard_ends(10, 3, 1).tolist(), _shard_ends(70, 3, 4).tolist()
    ([4, 7], [10, 30])
    """
    if uneven == 1:
        each, more = divmod(samples, num_workers)
        sizes = np.full(num_workers, each)
        sizes[:more] += 1
        return np.cumsum(sizes)[:-1]
    weights = uneven ** (np.arange(num_workers) / max(1, num_workers - 1))
    ends: Indices = np.rint(samples * np.cumsum(weights)[:-1] / weights.sum()).astype(np.int64)
    return ends

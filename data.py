"""The data of a run: made or read on the driver's CPU, split among the workers, drawn in mini-batches.

    make_workload(cfg) -> objective, and a shard for each worker                    on the driver, with numpy
    DatasetShard.on_device([shard], "cuda")                                         in a worker, once
    DatasetShard.batches([shard], [step]) -> x (1, B, F) and y (1, B)               in a worker, each step

How samples are split decides how different the workers' gradients are (`partition`):

    iid               all workers see the same mix of classes
    dirichlet:ALPHA   each its own mix; the smaller ALPHA, the more it differs
    label             sorted by class: a worker sees one or two classes, and local steps drift apart

A mini-batch depends on the seed, the worker and the step alone: a step that is repeated after a fault draws
the same samples.

Shapes: N samples, F features, B samples a mini-batch, P workers, D weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsgd.core.model import Classifier, EmptyShard, Nothing, Workload
from dsgd.core.option_texts import Partition
from dsgd.core.rng import Purpose, generator
from dsgd.core.shards import Indices, Reshuffled
from dsgd.core.weights import Vector
from dsgd.models.file_workload import workload_of_file
from dsgd.models.objectives.quadratic import quadratic_workload

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.config import TrainConfig


_MOST_ROUNDS = 1000
"""In which the mixes of `dirichlet:ALPHA` are weighted, for tiny ALPHA; for 0.3 some 30 are enough."""


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


def make_workload(cfg: TrainConfig, *, recorded: Mapping[str, Any] | None = None) -> Workload:
    """Make the objective and the shards of a run.

    recorded: of a run that is computed again, or goes on, what its record says of the workload.
    Raises ValueError, naming the option, where the data cannot be split as asked.
    """
    if cfg.data.module is not None:
        return workload_of_file(cfg, _parts, recorded=recorded)
    if cfg.data.dataset == "none":
        return Workload(Nothing(), [EmptyShard(i) for i in range(cfg.num_workers)], (), 0)
    if cfg.data.dataset == "quadratic":
        return quadratic_workload(cfg)
    dataset = load_digits(cfg) if cfg.data.dataset == "digits" else make_xor(cfg)
    outputs = 1 if dataset.classes == 2 else dataset.classes
    sizes = (dataset.x.shape[1], *cfg.data.hidden_sizes, outputs)
    shards = [
        DatasetShard(i, dataset.x, dataset.y, rows, batch_size=cfg.batch_size, seed=cfg.seed)
        for i, rows in enumerate(_parts(dataset.y.astype(np.int64), cfg))
    ]
    return Workload(Classifier(sizes), shards, (dataset.test_x, dataset.test_y), cfg.batch_size)


def _parts(labels: Indices, cfg: TrainConfig) -> list[Indices]:
    """Return each worker's sample numbers; ValueError if one has not enough for a mini-batch."""
    rng = generator(cfg.seed, Purpose.PARTITION)
    parts = partition(labels, cfg.num_workers, cfg.data.split, rng, edition=cfg.data.edition)
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
    x, y = _digits()
    order = generator(0, Purpose.SAMPLES).permutation(len(y))
    x, y = x[order], y[order]
    num_test = len(y) // 5
    limit = len(y) - num_test
    num_train = cfg.data.samples or limit
    if num_train > limit:
        raise ValueError(f"--samples {num_train}: digits has {limit} training samples; ask for no more")
    keep = num_test + generator(cfg.seed, Purpose.SAMPLES).permutation(limit)[:num_train]
    return Dataset(x[keep], _with_label_noise(y[keep], 10, cfg), x[:num_test], y[:num_test], 10)


@cache  # reading them takes longer than a short run
def _digits() -> tuple[Vector, Vector]:
    """Return scikit-learn's digits (1797, 64) and labels (1797,), in its order."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    return (bunch.data / 16).astype(np.float32), bunch.target.astype(np.float32)


def _with_label_noise(y: Vector, classes: int, cfg: TrainConfig) -> Vector:
    """Return labels y (N,) of which the share `--label-noise` is another class, drawn evenly."""
    rng = generator(cfg.seed, Purpose.LABEL_NOISE)
    flipped = rng.random(len(y)) < cfg.data.label_noise
    other = (y + rng.integers(1, classes, len(y))) % classes
    return np.where(flipped, other, y).astype(np.float32)


def partition(
    labels: Indices, num_workers: int, how: Partition, rng: np.random.Generator, *, edition: int = 3
) -> list[Indices]:
    """Return each worker's sample numbers; shard sizes differ by at most one, unless they are to be uneven.

    labels (N,): the samples' classes. how: `iid` shuffles, `label` sorts by class, `dirichlet:ALPHA` gives
    each worker its own mix of classes drawn from Dirichlet(ALPHA p), p the classes' shares (Hsu et al.
    2019, arXiv 1909.06335, section 3); the smaller ALPHA, the fewer classes a worker sees. All workers' mixes
    have one distribution, which for large ALPHA is that of `iid`; before edition 3 the last worker got what
    the others had left.

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
    there, sizes = np.array([len(pool) for pool in pools]), np.diff([0, *ends, len(labels)])
    counts = (_filled_in_turn if edition < 3 else _mixed)(there, sizes, how.alpha, rng)
    until = there - np.cumsum(counts, axis=0)  # from the end of each pool to its beginning
    return [
        np.concatenate([pool[a : a + n] for pool, a, n in zip(pools, begin, taken, strict=True)])
        for begin, taken in zip(until, counts, strict=True)
    ]


def _mixed(there: Indices, sizes: Indices, alpha: float, rng: np.random.Generator) -> Indices:
    """Return how many samples of each class each worker gets, (P, C): what it draws from its mix, given that
    all samples are handed out.

    there (C,): how many samples each class has. sizes (P,): how many each worker gets.

    First the mixes are weighted by class, so that together they expect as many samples of each class as there
    are (Deming and Stephan 1940). Then each worker draws, and as few samples as possible change their class,
    chosen by the mixes as well. No worker comes before another. Where all mixes are alike, all orders of the
    classes over the places are equally likely, as in drawing without replacement.
    """
    means = np.maximum(alpha * there / there.sum(), 1e-300)
    shape = len(sizes), len(there)
    # Logarithms of gamma variates, which may be far below what a float holds (Marsaglia and Tsang 2000).
    mixes = np.log(rng.standard_gamma(means + 1, shape)) + np.log1p(-rng.random(shape)) / means
    for _ in range(_MOST_ROUNDS):
        mixes -= mixes.max(axis=1, keepdims=True)
        shares = np.exp(mixes)
        shares /= shares.sum(axis=1, keepdims=True)
        expected = sizes @ shares
        if np.abs(expected - there).max() < 0.5:
            break
        mixes += np.log(there / np.maximum(expected, 1e-9 * there))
    counts = rng.multinomial(sizes, shares)
    surplus = counts.sum(axis=0) - there
    for scarce in np.flatnonzero(surplus < 0):
        worker, other = np.nonzero(counts * (surplus > 0))
        place = np.repeat(np.arange(len(worker)), counts[worker, other])
        gain = (mixes[worker, scarce] - mixes[worker, other])[place] + rng.gumbel(size=len(place))
        for i in place[np.argsort(-gain)]:  # without replacement, in proportion to what the mixes gain
            if surplus[scarce] == 0:
                break
            if surplus[other[i]] > 0:
                counts[worker[i], [other[i], scarce]] += -1, 1
                surplus[[other[i], scarce]] += -1, 1
    return counts


def _filled_in_turn(there: Indices, sizes: Indices, alpha: float, rng: np.random.Generator) -> Indices:
    """Return counts as `_mixed` does, by the rule before edition 3: each worker in turn takes from what is
    left by its mix; where a class has run out, the mix goes on over the others.
    """
    left, shares, counts = there.copy(), there / there.sum(), np.zeros((len(sizes), len(there)), np.int64)
    for size, taken in zip(sizes, counts, strict=True):
        mix = rng.dirichlet(alpha * shares)
        while (missing := size - taken.sum()) > 0:
            weights = np.where(left > taken, mix + 1e-12, 0.0)
            wanted = rng.multinomial(missing, weights / weights.sum())
            taken += np.minimum(wanted, left - taken)
        left -= taken
    return counts


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

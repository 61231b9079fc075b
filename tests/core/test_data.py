"""Data: partitions are partitions, mini-batches are drawn without replacement and purely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core.model import Classifier
from dsgd.core.option_texts import Partition
from dsgd.data import DatasetShard, make_workload, partition
from dsgd.models.objectives.quadratic import Quadratic
from dsgd.running.quick_run import config


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=200),
    num_workers=st.integers(1, 20),
    how=st.sampled_from(["iid", "label", "dirichlet:0.01", "dirichlet:0.3", "dirichlet:100"]),
    seed=st.integers(0, 99),
)
def test_a_partition_gives_each_sample_to_one_worker(
    labels: list[int], num_workers: int, how: str, seed: int
) -> None:
    """Every sample lands in exactly one shard, and shard sizes differ by at most one."""
    if len(labels) < num_workers:
        with pytest.raises(ValueError, match="--samples"):
            partition(np.array(labels), num_workers, Partition.parse(how), np.random.default_rng(seed))
        return
    parts = partition(np.array(labels), num_workers, Partition.parse(how), np.random.default_rng(seed))
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(n=st.integers(1, 40), batch=st.integers(1, 40), seed=st.integers(0, 99))
def test_an_epoch_takes_no_sample_twice(n: int, batch: int, seed: int) -> None:
    """Mini-batches of an epoch are disjoint and are the worker's own; epochs differ in order."""
    if batch > n:
        return
    rows = np.arange(100, 100 + n)
    shard = DatasetShard(0, None, None, rows, batch_size=batch, seed=seed)
    per_epoch = n // batch
    for epoch in range(3):
        taken = np.concatenate([shard.batch_rows(epoch * per_epoch + k) for k in range(per_epoch)])
        assert len(set(taken)) == len(taken) == per_epoch * batch
        assert set(taken) <= set(rows)


def test_a_mini_batch_does_not_depend_on_what_was_taken_before() -> None:
    """A restarted worker, which begins in the middle, gets the mini-batch it would have got."""
    rows = np.arange(64)
    shards = [DatasetShard(3, None, None, rows, batch_size=8, seed=5) for _ in range(2)]
    for step in (0, 17, 5, 9):
        np.testing.assert_array_equal(
            shards[0].batch_rows(step),
            DatasetShard(3, None, None, rows, batch_size=8, seed=5).batch_rows(step),
        )
    assert not np.array_equal(shards[1].batch_rows(0), shards[1].batch_rows(8))


@pytest.mark.parametrize(
    "options", [{}, {"workload": "digits"}, {"workload": "quadratic", "grad_noise": 0.5}]
)
def test_a_shard_alone_gives_what_it_gives_among_others(options: dict[str, Any]) -> None:
    """What goes to a worker on its own holds only its samples, and makes the same mini-batches."""
    workload = make_workload(config("ssgd", num_workers=3, **options))
    together = workload.shards[0].on_device(workload.shards, "cpu")
    for worker in range(3):
        alone = workload.shards[worker].alone()
        own = alone.on_device([alone], "cpu")
        for step in (0, 50):
            for a, b in zip(
                own[0].batches(own, [step]), together[0].batches([together[worker]], [step]), strict=True
            ):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
    lone: Any = workload.shards[0].alone()
    size = len(lone.x) if isinstance(lone, DatasetShard) else len(lone.optima)
    assert size == (1 if isinstance(workload.objective, Quadratic) else len(lone))


def test_label_noise_flips_the_share_asked_for() -> None:
    """--label-noise p: a share p of the training labels is another class; held-out labels are true."""
    clean = make_workload(config("ssgd", workload="digits"))
    noisy = make_workload(config("ssgd", workload="digits", label_noise=0.3))
    a, b = clean.shards[0], noisy.shards[0]
    assert isinstance(a, DatasetShard)
    assert isinstance(b, DatasetShard)
    assert np.mean(a.y != b.y) == pytest.approx(0.3, abs=0.05)
    np.testing.assert_array_equal(clean.test[1], noisy.test[1])


def test_xor_is_the_sign_of_a_product() -> None:
    """The label is 1 where the first two coordinates differ in sign; about half of them are."""
    workload = make_workload(config("ssgd", samples=1000, dim=3))
    x, y = workload.test
    assert x.shape == (250, 3)
    np.testing.assert_array_equal(y, (np.sign(x[:, 0]) != np.sign(x[:, 1])).astype(float))
    assert 0.4 < y.mean() < 0.6
    assert isinstance(workload.objective, Classifier)


def test_all_modes_and_engines_start_from_the_same_weights_and_data() -> None:
    """The same seed gives the same data and weights; another gives others."""
    a, b, c = (make_workload(config("ssgd", num_workers=4, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.test[0], b.test[0])
    assert not np.array_equal(a.test[0], c.test[0])
    np.testing.assert_array_equal(a.objective.initial_weights(1), b.objective.initial_weights(1))


@pytest.mark.parametrize("how", ["iid", "label", "dirichlet:0.3"])
def test_uneven_shards_grow_by_one_factor(how: str) -> None:
    """Each shard is larger than the one before by the same factor, up to a sample; together they are all."""
    labels = np.arange(3000) % 10
    parts = partition(labels, 5, Partition.parse(f"{how},uneven=16"), np.random.default_rng(0))
    assert sorted(np.concatenate(parts)) == list(range(3000))
    first = 3000 / (1 + 2 + 4 + 8 + 16)
    assert [len(part) for part in parts] == pytest.approx([first * 2**i for i in range(5)], abs=1)


def _counts(how: str, num_workers: int, samples: int = 1000, seeds: int = 100) -> np.ndarray:
    """Return how many samples of each of ten classes each worker has, (seeds, P, 10)."""
    labels, split = np.arange(samples) % 10, Partition.parse(how)
    parts = [partition(labels, num_workers, split, np.random.default_rng(seed)) for seed in range(seeds)]
    return np.array([[np.bincount(labels[part], minlength=10) for part in of_seed] for of_seed in parts])


@pytest.mark.parametrize(("alpha", "num_workers"), [(0.1, 20), (1, 10), (100, 50)])
def test_every_workers_mix_has_one_distribution(alpha: float, num_workers: int) -> None:
    """None comes first or last: over 100 seeds each worker's mixes are as skewed as those of all others."""
    counts = _counts(f"dirichlet:{alpha}", num_workers)
    skew = (counts / counts.sum(axis=2, keepdims=True)).max(axis=2)  # the share of a worker's largest class
    assert (np.abs(skew.mean(axis=0) - skew.mean()) < 4 * skew.std() / np.sqrt(len(skew))).all()
    assert counts.var(axis=(0, 2)) == pytest.approx(np.full(num_workers, counts.var()), rel=0.25)


def test_a_large_alpha_is_sampling_without_replacement() -> None:
    """For 50 workers with 20 samples each the largest counts of a class are those of a shuffle, and so is the
    variance of all counts: 20 p (1 - p) (N - 20) / (N - 1).
    """
    counts = _counts("dirichlet:1000000", 50)
    rng = np.random.default_rng(0)
    shuffled = [np.eye(10, dtype=int)[rng.permutation(np.arange(1000) % 10)] for _ in range(100)]
    drawn = np.array([rows.reshape(50, 20, 10).sum(axis=1) for rows in shuffled])
    most, wanted = counts.max(axis=(1, 2)), drawn.max(axis=(1, 2))
    assert abs(most.mean() - wanted.mean()) < 4 * np.hypot(most.std(), wanted.std()) / 10
    assert most.max() <= wanted.max() + 1
    assert counts.var() == pytest.approx(20 * 0.1 * 0.9 * 980 / 999, rel=0.02)


@pytest.mark.parametrize("alpha", [0.3, 1, 10])
def test_mixes_are_as_skewed_as_those_of_dirichlet(alpha: float) -> None:
    """The mean of the sum of a mix's squared shares is sum p^2 + p (1 - p) / (alpha + 1), of which the fixed
    totals of the classes take a little.
    """
    counts = _counts(f"dirichlet:{alpha}", 50, samples=10_000, seeds=20)
    squares = (counts**2).sum(axis=2) / 200**2
    wanted = 0.1 + 0.9 / (alpha + 1) * 199 / 200 + 0.9 / 200
    assert 0.9 * wanted < squares.mean() < 1.01 * wanted


@pytest.mark.parametrize(
    ("how", "least", "most"),
    [("iid", 10, 10), ("label", 1, 1), ("dirichlet:1e-300", 1, 1), ("dirichlet:1e300", 10, 10)],
)
def test_classes_of_a_worker_are_as_many_as_is_said(how: str, least: int, most: int) -> None:
    """All or one, also for an ALPHA whose mixes no float holds: then all ten workers want another class."""
    counts = _counts(how, 10, seeds=3)
    assert (counts.sum(axis=1) == 100).all()
    assert (counts.sum(axis=2) == 100).all()
    assert least <= (counts > 0).sum(axis=2).mean() <= most


def test_a_record_of_an_earlier_edition_keeps_its_partition() -> None:
    """Before edition 3 workers took their samples in turn: these are those of commit 407361c5."""
    split, rng = Partition.parse("dirichlet:.3"), np.random.default_rng(1)
    parts = partition(np.arange(12) % 3, 4, split, rng, edition=2)
    assert [part.tolist() for part in parts] == [[11, 5, 2], [9, 6, 3], [7, 1, 10], [0, 4, 8]]
    options: dict[str, Any] = {"workload": "digits", "partition": "dirichlet:.3", "num_workers": 4}
    first: list[Any] = [make_workload(config("ssgd", **options, edition=n)).shards[0] for n in (2, 3)]
    assert set(first[0].rows) != set(first[1].rows)
